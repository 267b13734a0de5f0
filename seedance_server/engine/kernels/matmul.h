// The product of bfloat16 rows with packed weights, in float32.
//
// Weights are packed in panels of 32 columns: [columns/32][width/2][32][2], so that each step of a panel is two
// registers of pairs, and a panel is read from its first to its last byte. Every element of the result is one chain of
// additions over the pairs in order, whatever rows stand beside it: a row's result is the same bits in any batch.
// Nothing here splits the width, and nobody may.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "threads.h"
#include "vectors.h"

namespace seedance {

constexpr int kPanel = 32;
constexpr int64_t kPairBytes = kPanel * 2 * sizeof(bf16);

struct Packed {
  const bf16* panels;
  int64_t columns;
  int64_t width;

  int64_t count() const { return (columns + kPanel - 1) / kPanel; }
  int64_t stride() const { return (width + 1) / 2 * 2 * kPanel; }
  const bf16* panel(int64_t i) const { return panels + i * stride(); }
};

// Rows of `width` numbers, `stride` apart.
struct Rows {
  const bf16* data;
  int64_t count;
  int64_t stride;

  const bf16* row(int64_t i) const { return data + i * stride; }
};

// Copies columns [first, first + count) of a panel order from weights[column][width]; columns beyond `columns` are 0.
inline void pack_panel(const bf16* weights, int64_t columns, int64_t width, int64_t first, bf16* panel) {
  const int64_t pairs = (width + 1) / 2;
  constexpr int64_t kTogether = 128;  // pairs of each column: 16 KiB that are written while they are in the cache
  for (int64_t start = 0; start < pairs; start += kTogether) {
    const int64_t end = std::min(pairs, start + kTogether);
    for (int64_t column = 0; column < kPanel; ++column) {
      const bf16* from = weights + (first + column) * width;
      const int64_t whole = first + column < columns ? std::min(end, width / 2) : start;
      bf16* to = panel + column * 2;
      for (int64_t k = start; k < whole; ++k) std::memcpy(to + k * kPanel * 2, from + 2 * k, 2 * sizeof(bf16));
      for (int64_t k = whole; k < end; ++k) {  // beyond the matrix, or half a pair
        to[k * kPanel * 2] = first + column < columns ? from[2 * k] : 0;
        to[k * kPanel * 2 + 1] = 0;
      }
    }
  }
}

inline __m512i broadcast_pair(const bf16* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// What is fetched meanwhile, some bytes of it for each pair of the width. It lies a panel or two ahead, so that the
// second-level cache is near enough; where several tiles share the work, a nearer one took 2 percent less time.
struct Ahead {
  const char* at = nullptr;
  int64_t step = 0;  // up to two cache lines

  void fetch(int64_t pair) const {
    if (step == 0) return;
    const char* line = at + pair * step;
    if (step < kLine) return _mm_prefetch(line, _MM_HINT_T0);
    _mm_prefetch(line, _MM_HINT_T1);
    if (step > kLine) _mm_prefetch(line + kLine, _MM_HINT_T1);
  }
};

// ROWS rows times one panel, all in registers; sums[row][column].
template <int ROWS>
inline void multiply_tile(const bf16* x, int64_t stride, const Packed& weights, int64_t panel, float* sums,
                          const Ahead& ahead) {
  constexpr int kHalves = 2;  // of a panel, 16 columns each
  __m512 sum[ROWS][kHalves];
  for (int r = 0; r < ROWS; ++r)
    for (int h = 0; h < kHalves; ++h) sum[r][h] = _mm512_setzero_ps();
  const bf16* w = weights.panel(panel);
  const auto step = [&](const bf16* at, auto&& pair_of_row) {
    __m512bh column[kHalves];
#pragma GCC unroll 8
    for (int h = 0; h < kHalves; ++h)
      column[h] = (__m512bh)_mm512_loadu_si512(at + h * kPanel);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const __m512bh pair = (__m512bh)pair_of_row(r);
#pragma GCC unroll 8
      for (int h = 0; h < kHalves; ++h) sum[r][h] = _mm512_dpbf16_ps(sum[r][h], column[h], pair);
    }
  };
  const int64_t pairs = weights.width / 2;
  for (int64_t k = 0; k < pairs; ++k) {
    ahead.fetch(k);
    step(w + k * 2 * kPanel, [&](int r) { return broadcast_pair(x + r * stride + 2 * k); });
  }
  if (weights.width % 2 == 1)  // the pair's upper half is no number of ours
    step(w + pairs * 2 * kPanel, [&](int r) { return _mm512_set1_epi32(x[r * stride + 2 * pairs]); });
  for (int r = 0; r < ROWS; ++r)
    for (int h = 0; h < kHalves; ++h) _mm512_storeu_ps(sums + (r * kHalves + h) * 16, sum[r][h]);
}

constexpr int kMostRows = 12;  // of a tile: 24 sums, 2 columns and a pair fill 27 of the 32 registers

template <int ROWS = kMostRows>
inline void multiply_rows(int rows, const bf16* x, int64_t stride, const Packed& w, int64_t panel, float* sums,
                          const Ahead& ahead) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) multiply_tile<ROWS>(x, stride, w, panel, sums, ahead);
    else multiply_rows<ROWS - 1>(rows, x, stride, w, panel, sums, ahead);
  }
}

// How many of the `left` rows the next tile takes: never a full tile and then a sliver.
inline int64_t tile_rows(int64_t left, int64_t most) {
  if (left <= most) return left;
  return left < 2 * most ? (left + 1) / 2 : most;
}

inline int64_t tiles_of(int64_t rows) { return (rows + kMostRows - 1) / kMostRows; }

constexpr int64_t kRowsThatWait = 8;  // up to so many wait for memory anyway, and prefetching only costs them time
constexpr int64_t kRowsInCache = 192;  // rows that go through all panels together: they stay in the second-level cache

// x times weights, by groups of GROUP neighbouring panels. finish(row, rows, group, sums...) gets the float sums[rows][32]
// of each panel of a finished group. Of more than a few rows the processor alone would read a panel during its first
// tile and nothing during the others: so the tiles fetch what comes next, their next group or, behind the last one of a
// piece, the piece that probably is.
template <int GROUP = 1, class Matrix, class Finish>
void multiply(Threads& threads, const Rows& x, const Matrix& weights, const Finish& finish) {
  const int64_t groups = weights.count() / GROUP;
  const int64_t together = std::max<int64_t>(1, groups / (8 * threads.count()));
  threads.run((groups + together - 1) / together, [&](int64_t piece) {
    alignas(64) float sums[GROUP][kMostRows * kPanel];
    const int64_t end = std::min(groups, (piece + 1) * together);
    for (int64_t block = 0; block < x.count; block += kRowsInCache) {
      const int64_t block_end = std::min(x.count, block + kRowsInCache);
      const int64_t tiles = tiles_of(block_end - block);
      for (int64_t group = piece * together; group < end; ++group) {
        const int64_t next = group + 1 < end ? group + 1 : (piece + threads.count()) * together;
        Ahead ahead;
        if (next < groups && block_end - block > kRowsThatWait)
          ahead = {reinterpret_cast<const char*>(weights.panel(next * GROUP)), kPairBytes / tiles};
        for (int64_t row = block, rows; row < block_end; row += rows) {
          rows = tile_rows(block_end - row, kMostRows);
          for (int g = 0; g < GROUP; ++g) {
            multiply_rows(static_cast<int>(rows), x.row(row), x.stride, weights, group * GROUP + g, sums[g], ahead);
            ahead.at += weights.width / 2 * ahead.step;
          }
          if constexpr (GROUP == 1) finish(row, rows, group, sums[0]);
          else finish(row, rows, group, sums[0], sums[1]);
        }
      }
    }
  });
}

// Writes sums plus bias as bfloat16 rows, and the maximum of each written panel.
struct StoreRows {
  bf16* y;
  int64_t stride;
  int64_t columns;
  const bf16* bias;    // or nothing
  bf16* maxima;        // or nothing: [row][panel]
  int64_t maxima_stride;

  void operator()(int64_t row, int64_t rows, int64_t panel, const float* sums) const {
    const int64_t first = panel * kPanel;
    const __mmask32 mask = first32(columns - first);
    const __mmask16 low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
    for (int64_t r = 0; r < rows; ++r, sums += kPanel) {
      __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + 16);
      if (bias) {
        a = _mm512_add_ps(a, load(bias + first, low));
        b = _mm512_add_ps(b, load(bias + first + 16, high));
      }
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
      bf16* to = y + (row + r) * stride + first;
      if (maxima && mask == 0xffffffffu && reinterpret_cast<intptr_t>(to) % kLine == 0)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), both);  // logits: of most nobody reads more than the maximum
      else
        _mm512_mask_storeu_epi16(to, mask, both);
      if (maxima) maxima[(row + r) * maxima_stride + panel] = highest(a, b, low, high);
    }
  }

  // NaN if there is one: who picks the highest must learn of it.
  static bf16 highest(__m512 a, __m512 b, __mmask16 low, __mmask16 high) {
    const __m512 least = _mm512_set1_ps(-INFINITY);
    a = _mm512_mask_mov_ps(least, low, a);
    b = _mm512_mask_mov_ps(least, high, b);
    if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)) return 0x7fc0;
    return narrow(_mm512_reduce_max_ps(_mm512_max_ps(a, b)));
  }
};

}  // namespace seedance
