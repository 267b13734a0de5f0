// What the sampler asks of whole rows of logits: the weight of each block of 32 tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "matmul.h"
#include "threads.h"
#include "vectors.h"

namespace seedance {

inline __m512 load(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }

// Rows of logits, in bfloat16 or float32, `stride` numbers apart.
struct Logits {
  const void* data;
  int32_t wide;  // float32
  int64_t stride;
  int64_t columns;

  int64_t blocks() const { return (columns + kPanel - 1) / kPanel; }
};

// The sum of exp((logit - peak) / temperature) over one block, in one order whatever is asked beside it.
template <class Number>
inline float block_weight(const Number* block, int64_t tokens, __m512 peak, __m512 inverse) {
  const auto half = [&](int64_t first) {
    const __mmask16 mask = first16(std::max<int64_t>(0, tokens - first));
    const __m512 score = _mm512_mul_ps(_mm512_sub_ps(load(block + first, mask), peak), inverse);
    return _mm512_maskz_mov_ps(mask, exp(score));
  };
  return _mm512_reduce_add_ps(_mm512_add_ps(half(0), half(16)));
}

constexpr int64_t kBlocksTogether = 512;  // of a row, in a piece of work: 10 to 20 microseconds

// weights[i][block] for each of `count` rows[i], under its own peak and temperature.
inline void weigh(Threads& threads, const Logits& logits, const int64_t* rows, int64_t count, const float* peaks,
                  const float* temperatures, float* weights) {
  const int64_t blocks = logits.blocks(), parts = (blocks + kBlocksTogether - 1) / kBlocksTogether;
  const auto weigh_part = [&](const auto* data, int64_t i, int64_t part) {
    const auto* row = data + rows[i] * logits.stride;
    const __m512 peak = _mm512_set1_ps(peaks[i]), inverse = _mm512_set1_ps(1.f / temperatures[i]);
    const int64_t end = std::min(blocks, (part + 1) * kBlocksTogether);
    for (int64_t block = part * kBlocksTogether; block < end; ++block)
      weights[i * blocks + block] =
          block_weight(row + block * kPanel, logits.columns - block * kPanel, peak, inverse);
  };
  threads.run(count * parts, [&](int64_t piece) {
    if (logits.wide) weigh_part(static_cast<const float*>(logits.data), piece / parts, piece % parts);
    else weigh_part(static_cast<const bf16*>(logits.data), piece / parts, piece % parts);
  });
}

}  // namespace seedance
