// What the sampler asks of whole rows of logits, by blocks of 32 tokens: their weights, and copies to be changed.
#pragma once

#include <algorithm>
#include <cmath>
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
inline float block_weight(const Number* block, int64_t tokens, float peak, float inverse) {
  const auto half = [&](int64_t first) {
    const __mmask16 mask = first16(std::max<int64_t>(0, tokens - first));
    const __m512 distance = _mm512_sub_ps(load(block + first, mask), _mm512_set1_ps(peak));
    const __m512 score = _mm512_mul_ps(distance, _mm512_set1_ps(inverse));
    return _mm512_maskz_mov_ps(mask, exp(score));
  };
  return _mm512_reduce_add_ps(_mm512_add_ps(half(0), half(16)));
}

// Copies one block of logits, of which only the allowed tokens count; `allowed` may be nothing. Returns the greatest,
// NaN if there is one.
template <class Number>
inline float copy_block(const Number* block, const uint8_t* allowed, int64_t tokens, float* to) {
  const __m512 nothing = _mm512_set1_ps(-INFINITY);
  const __mmask32 mask = first32(tokens);
  __mmask32 stays = mask;
  if (allowed) {
    const __m256i flags = _mm256_maskz_loadu_epi8(mask, allowed);
    stays = _mm256_test_epi8_mask(flags, flags);
  }
  const auto half = [&](int64_t first) {
    const __mmask16 exists = static_cast<__mmask16>(mask >> first), stay = static_cast<__mmask16>(stays >> first);
    const __m512 value = _mm512_mask_mov_ps(nothing, stay, load(block + first, exists));
    _mm512_mask_storeu_ps(to + first, exists, value);
    return value;
  };
  const __m512 low = half(0), high = half(16);
  if (_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q)) return NAN;
  return _mm512_reduce_max_ps(_mm512_max_ps(low, high));
}

constexpr int64_t kBlocksTogether = 512;  // of a row, in a piece of work: 10 to 20 microseconds

// Calls each(i, block, tokens of rows[i] in that block, how many) for all blocks of `count` rows.
template <class Each>
inline void each_block(Threads& threads, const Logits& logits, const int64_t* rows, int64_t count, const Each& each) {
  const int64_t blocks = logits.blocks(), parts = (blocks + kBlocksTogether - 1) / kBlocksTogether;
  const auto part_of_row = [&](const auto* data, int64_t i, int64_t part) {
    const auto* row = data + rows[i] * logits.stride;
    const int64_t end = std::min(blocks, (part + 1) * kBlocksTogether);
    for (int64_t block = part * kBlocksTogether; block < end; ++block)
      each(i, block, row + block * kPanel, logits.columns - block * kPanel);
  };
  threads.run(count * parts, [&](int64_t piece) {
    if (logits.wide) part_of_row(static_cast<const float*>(logits.data), piece / parts, piece % parts);
    else part_of_row(static_cast<const bf16*>(logits.data), piece / parts, piece % parts);
  });
}

}  // namespace seedance
