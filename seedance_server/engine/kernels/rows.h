// What happens to a row between matrix products: norms, residuals, rotary positions, gates.
//
// Numbers are rounded to bfloat16 where the stock models round them, so results stay as near to theirs as sums of
// another order can be.
#pragma once

#include <cmath>
#include <cstdint>

#include "matmul.h"
#include "vectors.h"

namespace seedance {

// RMS norm. Llama's kind rounds the normalised row before it is multiplied by the weights, Gemma's doesn't.
struct Norm {
  const float* weights;  // or nothing: no norm
  float epsilon;
  int32_t rounds_first;
};

inline float square_sum(const bf16* x, int64_t dim) {
  __m512 a = _mm512_setzero_ps(), b = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32) {
    const __m512 u = load(x + i), v = load(x + i + 16);
    a = _mm512_fmadd_ps(u, u, a);
    b = _mm512_fmadd_ps(v, v, b);
  }
  for (; i < dim; i += 16) {
    const __m512 u = load(x + i, first16(dim - i));
    a = _mm512_fmadd_ps(u, u, a);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(a, b));
}

// y may be x.
inline void normalise(const Norm& norm, const bf16* x, int64_t dim, bf16* y) {
  const __m512 scale = _mm512_set1_ps(1.f / std::sqrt(square_sum(x, dim) / static_cast<float>(dim) + norm.epsilon));
  for (int64_t i = 0; i < dim; i += 16) {
    const __mmask16 mask = first16(dim - i);
    __m512 v = _mm512_mul_ps(load(x + i, mask), scale);
    if (norm.rounds_first) v = rounded(v);
    store(y + i, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, norm.weights + i)), mask);
  }
}

inline void add_to(bf16* x, const bf16* y, int64_t dim) {
  for (int64_t i = 0; i < dim; i += 16) {
    const __mmask16 mask = first16(dim - i);
    store(x + i, _mm512_add_ps(load(x + i, mask), load(y + i, mask)), mask);
  }
}

// Turns the pairs (x[i], x[i + dim / 2]) by the angles of a position; cosines and sines [dim], both halves given.
inline void rotate(bf16* x, const bf16* cosines, const bf16* sines, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const __mmask16 mask = first16(half - i);
    const __m512 a = load(x + i, mask), b = load(x + half + i, mask);
    const auto turned = [&](__m512 own, __m512 other, int64_t at) {
      return _mm512_add_ps(rounded(_mm512_mul_ps(own, load(cosines + at, mask))),
                           rounded(_mm512_mul_ps(other, load(sines + at, mask))));
    };
    store(x + i, turned(a, _mm512_sub_ps(_mm512_setzero_ps(), b), i), mask);
    store(x + half + i, turned(b, a, half + i), mask);
  }
}

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// Writes activation(gate) * up; columns of the two come as neighbouring panels.
struct StoreGated {
  bf16* y;
  int64_t stride;
  int64_t columns;
  const bf16* bias;  // or nothing: [panels of both][32]
  Activation activation;

  void operator()(int64_t row, int64_t rows, int64_t pair, const float* gates, const float* ups) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int half = 0; half < 2; ++half) {
        const int64_t first = pair * kPanel + half * 16;
        if (first >= columns) break;
        __m512 gate = _mm512_loadu_ps(gates + r * kPanel + half * 16);
        __m512 up = _mm512_loadu_ps(ups + r * kPanel + half * 16);
        if (bias) {
          gate = _mm512_add_ps(gate, load(bias + 2 * pair * kPanel + half * 16));
          up = _mm512_add_ps(up, load(bias + (2 * pair + 1) * kPanel + half * 16));
        }
        gate = rounded(gate);
        const __m512 active = rounded(activation == kSilu ? silu(gate) : gelu_tanh(gate));
        store(y + (row + r) * stride + first, _mm512_mul_ps(active, rounded(up)), first16(columns - first));
      }
  }
};

}  // namespace seedance
