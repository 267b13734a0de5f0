// Weights of 8 bits: whole numbers from -127 to 127, and a factor for each column's every kGroup of them.
//
// A panel has the order of matmul.h, a byte for a number; behind each group of its steps stand the group's factors, so
// that it is read from its first to its last byte, too. Rows stay bfloat16, which holds the whole numbers exactly: they
// are looked up in a table on the way into the registers, beside the additions, which need other parts of the
// processor. An element of the result is one chain over the groups, each the chain of its pairs in order times its
// factor, whatever rows stand beside it: a row's result is the same bits in any batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "matmul.h"
#include "vectors.h"

// What looks numbers up: not every processor that has bfloat16 products has it, so whoever calls has asked.
#define SEEDANCE_LOOKS_UP __attribute__((target("avx512vbmi")))

namespace seedance {

constexpr int kGroup = 64;  // of the width: bench/README.md compares sizes

struct Int8 {
  const uint8_t* panels;
  int64_t columns;
  int64_t width;

  static constexpr int64_t kFactorBytes = kPanel * sizeof(float);
  static constexpr int64_t kGroupBytes = kGroup * kPanel + kFactorBytes;  // of all groups but a width's last

  int64_t count() const { return (columns + kPanel - 1) / kPanel; }
  int64_t groups() const { return (width + kGroup - 1) / kGroup; }
  int64_t stride() const { return (width + 1) / 2 * 2 * kPanel + groups() * kFactorBytes; }
  const uint8_t* panel(int64_t i) const { return panels + i * stride(); }
  const uint8_t* group(int64_t of, int64_t i) const { return panel(of) + i * kGroupBytes; }
  int64_t group_width(int64_t i) const { return std::min<int64_t>(kGroup, width - i * kGroup); }
  static const float* factors(const uint8_t* group, int64_t width) {
    return reinterpret_cast<const float*>(group + (width + 1) / 2 * 2 * kPanel);
  }
  // Where a group has column `column`'s number `k`. A step's 64 bytes lie such that those of one half of the panel are
  // every other eight: so they come apart when their lower and upper bytes are put together.
  static int64_t place(int64_t column, int64_t k) {
    const int64_t half = column / 16, at = column % 16 * 2 + k % 2;
    return k / 2 * 2 * kPanel + at / 8 * 16 + half * 8 + at % 8;
  }
};

constexpr float kLeast = 1e-30f;  // a group of smaller numbers is 0: what they'd be multiplied by could be infinite

// Seven bits of size and one of sign: -0 is 0.
inline uint8_t code_of(float number) {
  const int whole = static_cast<int>(std::nearbyint(number));
  return static_cast<uint8_t>(whole < 0 ? 0x80 - whole : whole);
}

inline float number_of(uint8_t code) { return static_cast<float>(code & 0x80 ? -(code & 0x7f) : code); }

// Columns [first, first + 32) of weights[column][width] as a panel, which was zeroes; what is beyond stays so.
inline void pack_panel(const bf16* weights, int64_t first, const Int8& as, uint8_t* panel) {
  for (int64_t g = 0; g < as.groups(); ++g) {
    const int64_t width = as.group_width(g);
    uint8_t* group = panel + g * Int8::kGroupBytes;
    float* factors = const_cast<float*>(Int8::factors(group, width));
    for (int64_t column = 0; column < std::min<int64_t>(kPanel, as.columns - first); ++column) {
      const bf16* from = weights + (first + column) * as.width + g * kGroup;
      float most = 0;
      for (int64_t k = 0; k < width; ++k) most = std::max(most, std::abs(widen(from[k])));
      if (most < kLeast) continue;
      factors[column] = most / 127;
      const float to_whole = 127 / most;
      for (int64_t k = 0; k < width; ++k) group[Int8::place(column, k)] = code_of(widen(from[k]) * to_whole);
    }
  }
}

// A column's weights as bfloat16: an embedding, where the head's weights are the embeddings.
inline void read_column(const Int8& weights, int64_t column, bf16* to) {
  const int64_t at = column % kPanel;
  for (int64_t g = 0; g < weights.groups(); ++g) {
    const uint8_t* group = weights.group(column / kPanel, g);
    const float factor = Int8::factors(group, weights.group_width(g))[at];
    for (int64_t k = 0; k < weights.group_width(g); ++k) *to++ = narrow(factor * number_of(group[Int8::place(at, k)]));
  }
}

// Lower and upper bytes of the bfloat16 numbers 0 to 127.
struct Bytes {
  alignas(64) uint8_t lower[128];
  alignas(64) uint8_t upper[128];

  constexpr Bytes() : lower(), upper() {
    for (int number = 1; number < 128; ++number) {
      int exponent = 0;
      while (number >> (exponent + 1)) ++exponent;
      const int bits = (127 + exponent) << 7 | ((number << (7 - exponent)) & 0x7f);
      lower[number] = static_cast<uint8_t>(bits);
      upper[number] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
inline constexpr Bytes kBytes;

// A step of a panel as bfloat16: pairs of its lower and its upper 16 columns.
struct Halves {
  __m512bh low, high;
};

SEEDANCE_LOOKS_UP inline Halves look_up(const uint8_t* codes) {
  const __m512i code = _mm512_loadu_si512(codes);
  const __m512i lower = _mm512_permutex2var_epi8(_mm512_load_si512(kBytes.lower), code, _mm512_load_si512(kBytes.lower + 64));
  const __m512i size = _mm512_permutex2var_epi8(_mm512_load_si512(kBytes.upper), code, _mm512_load_si512(kBytes.upper + 64));
  constexpr int kSizeOrSign = 0xf8;  // of the code's sign bits alone
  const __m512i upper = _mm512_ternarylogic_epi32(size, code, _mm512_set1_epi8(-128), kSizeOrSign);
  return {(__m512bh)_mm512_unpacklo_epi8(lower, upper), (__m512bh)_mm512_unpackhi_epi8(lower, upper)};
}

constexpr int64_t kAhead = 4096;  // bytes of a panel to fetch: without, 8 rows take a fourth longer

// Adds the products of ROWS rows with one group of a panel to sums[row][column].
template <int ROWS>
SEEDANCE_LOOKS_UP inline void add_group(const bf16* x, int64_t stride, const uint8_t* group, int64_t width, float* sums) {
  __m512 low[ROWS], high[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) low[r] = high[r] = _mm512_setzero_ps();
  const int64_t pairs = width / 2;
  for (int64_t k = 0; k < pairs; ++k) {
    _mm_prefetch(reinterpret_cast<const char*>(group + k * 2 * kPanel + kAhead), _MM_HINT_T0);
    const Halves columns = look_up(group + k * 2 * kPanel);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const __m512bh pair = (__m512bh)broadcast_pair(x + r * stride + 2 * k);
      low[r] = _mm512_dpbf16_ps(low[r], columns.low, pair);
      high[r] = _mm512_dpbf16_ps(high[r], columns.high, pair);
    }
  }
  if (width % 2 == 1) {  // the pair's upper half is no number of ours
    const Halves columns = look_up(group + pairs * 2 * kPanel);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const __m512bh pair = (__m512bh)_mm512_set1_epi32(x[r * stride + 2 * pairs]);
      low[r] = _mm512_dpbf16_ps(low[r], columns.low, pair);
      high[r] = _mm512_dpbf16_ps(high[r], columns.high, pair);
    }
  }
  const float* factors = Int8::factors(group, width);
  const __m512 of_low = _mm512_loadu_ps(factors), of_high = _mm512_loadu_ps(factors + 16);
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r, sums += kPanel) {
    _mm512_storeu_ps(sums, _mm512_fmadd_ps(low[r], of_low, _mm512_loadu_ps(sums)));
    _mm512_storeu_ps(sums + 16, _mm512_fmadd_ps(high[r], of_high, _mm512_loadu_ps(sums + 16)));
  }
}

template <int ROWS = kMostRows>
inline void add_group_rows(int64_t rows, const bf16* x, int64_t stride, const uint8_t* group, int64_t width, float* sums) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) add_group<ROWS>(x, stride, group, width, sums);
    else add_group_rows<ROWS - 1>(rows, x, stride, group, width, sums);
  }
}

// As that of matmul.h. A group fetches for itself what comes next.
inline void multiply_rows(int rows, const bf16* x, int64_t stride, const Int8& weights, int64_t panel, float* sums,
                          const Ahead&) {
  std::memset(sums, 0, rows * kPanel * sizeof(float));
  for (int64_t g = 0; g < weights.groups(); ++g)
    add_group_rows(rows, x + g * kGroup, stride, weights.group(panel, g), weights.group_width(g), sums);
}

}  // namespace seedance
