// Attention of any rows over paged keys and values: prompts and answers, of any sequences, in one call.
//
// A row sees the positions of its own sequence up to its own, or the last `window` of them. Where position p lies says
// the sequence's block table; in a layer with a window the table is a ring. Each row and head is computed by itself, in
// the order of positions, so its result is the same bits in any batch, whatever the chunks its prompt came in.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace seedance {

// One layer's keys and values: [slots][heads][dim].
struct Pages {
  bf16* keys;
  bf16* values;
  int64_t heads;
  int64_t key_dim;
  int64_t value_dim;
};

// The rows of one step. `blocks` holds a table for each group of layers and each sequence, in that order, which begins
// at table_start[group * sequences + sequence].
struct Step {
  int64_t rows;
  int64_t sequences;
  int64_t block_size;
  const int32_t* row_sequence;
  const int32_t* row_position;
  const int32_t* blocks;
  const int64_t* table_start;
  const int32_t* rings;  // for each group the length of its ring in blocks; 0 for none

  int64_t slot(int64_t group, int64_t sequence, int64_t position) const {
    int64_t block = position / block_size;
    if (rings[group]) block %= rings[group];
    return blocks[table_start[group * sequences + sequence] + block] * block_size + position % block_size;
  }

  int64_t slot_of_row(int64_t group, int64_t row) const { return slot(group, row_sequence[row], row_position[row]); }
};

// How a layer attends: to which group it belongs, how far it sees (0: all), what dot products are multiplied by.
struct Reach {
  int64_t group;
  int64_t window;
  float scaling;
};

inline void write_slot(const Pages& pages, int64_t slot, const bf16* keys, const bf16* values) {
  const size_t key_bytes = pages.heads * pages.key_dim * sizeof(bf16);
  const size_t value_bytes = pages.heads * pages.value_dim * sizeof(bf16);
  std::memcpy(pages.keys + slot * pages.heads * pages.key_dim, keys, key_bytes);
  std::memcpy(pages.values + slot * pages.heads * pages.value_dim, values, value_bytes);
}

// Calls run(j, slot, count) for each stretch of positions first + j .. that lies side by side, up to `last` inclusive.
template <class Run>
inline void for_each_run(const Step& step, int64_t group, int64_t sequence, int64_t first, int64_t last, const Run& run) {
  for (int64_t position = first; position <= last;) {
    const int64_t count = std::min(last + 1 - position, step.block_size - position % step.block_size);
    run(position - first, step.slot(group, sequence, position), count);
    position += count;
  }
}

// scores[head][j] of `count` neighbouring keys, at most KEYS, `stride` apart.
template <int HEADS, int KEYS>
inline void score(const bf16* query, const bf16* key, int64_t stride, int64_t count, int64_t dim, float scaling,
                  float* scores, int64_t scores_stride) {
  static_assert(HEADS * KEYS <= 16);
  __m512 sum[16];
  for (__m512& each : sum) each = _mm512_setzero_ps();
  const bf16* keys[KEYS];
  for (int k = 0; k < KEYS; ++k) keys[k] = key + std::min<int64_t>(k, count - 1) * stride;
  const auto add = [&](int64_t d, __mmask32 mask) {
    __m512bh part[KEYS];
#pragma GCC unroll 16
    for (int k = 0; k < KEYS; ++k) part[k] = (__m512bh)_mm512_maskz_loadu_epi16(mask, keys[k] + d);
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; ++h) {
      const __m512bh q = (__m512bh)_mm512_maskz_loadu_epi16(mask, query + h * dim + d);
#pragma GCC unroll 16
      for (int k = 0; k < KEYS; ++k) sum[h * KEYS + k] = _mm512_dpbf16_ps(sum[h * KEYS + k], part[k], q);
    }
  };
  int64_t d = 0;
  for (; d + 32 <= dim; d += 32) add(d, 0xffffffffu);
  if (d < dim) add(d, first32(dim - d));
  alignas(64) float sums[16];
  _mm512_store_ps(sums, _mm512_mul_ps(fold(sum, _mm512_add_ps), _mm512_set1_ps(scaling)));
  for (int h = 0; h < HEADS; ++h)
    for (int64_t k = 0; k < count; ++k) scores[h * scores_stride + k] = sums[h * KEYS + k];
}

// Turns scores into e^(score - highest), and returns one over their sum.
inline float exponentials(float* scores, int64_t count) {
  __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < count; j += 16)
    most = _mm512_mask_max_ps(most, first16(count - j), most, _mm512_maskz_loadu_ps(first16(count - j), scores + j));
  const __m512 highest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  for (int64_t j = 0; j < count; j += 16) {
    const __mmask16 mask = first16(count - j);
    const __m512 e = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, scores + j), highest));
    sum = _mm512_mask_add_ps(sum, mask, sum, e);
    _mm512_mask_storeu_ps(scores + j, mask, e);
  }
  return 1.f / _mm512_reduce_add_ps(sum);
}

// HEADS query heads that share one key head, of one row. Meanwhile the keys of the row `then` are fetched, if not -1.
template <int HEADS>
void attend_heads(const Step& step, const Reach& reach, const Pages& pages, int64_t row, int64_t head,
                  const bf16* query, bf16* out, int64_t then) {
  const int64_t sequence = step.row_sequence[row], position = step.row_position[row];
  const int64_t first = reach.window ? std::max<int64_t>(0, position + 1 - reach.window) : 0;
  const int64_t count = position + 1 - first;
  const int64_t key_stride = pages.heads * pages.key_dim, value_stride = pages.heads * pages.value_dim;
  thread_local std::vector<float> room;
  if (room.size() < static_cast<size_t>(HEADS * count)) room.resize(2 * HEADS * count);
  float* scores = room.data();
  for_each_run(step, reach.group, sequence, first, position, [&](int64_t j, int64_t slot, int64_t run) {
    constexpr int kKeys = 16 / HEADS;
    const bf16* key = pages.keys + slot * key_stride + head * pages.key_dim;
    const bf16* value = pages.values + slot * value_stride + head * pages.value_dim;
    const int64_t behind = first + j + run, following = std::min(position + 1 - behind, step.block_size);
    const bf16* next = key;
    if (following > 0)
      next = pages.keys + step.slot(reach.group, sequence, behind) * key_stride + head * pages.key_dim;
    for (int64_t i = 0; i < run; i += kKeys) {
      // Blocks lie anywhere, so no processor foresees what is wanted next: these keys' values, and the next block's keys.
      for (int64_t n = i; n < i + kKeys; ++n) {
        if (n < run) fetch(value + n * value_stride, pages.value_dim);
        if (n < following) fetch(next + n * key_stride, pages.key_dim);
      }
      score<HEADS, kKeys>(query, key + i * key_stride, key_stride, std::min<int64_t>(kKeys, run - i), pages.key_dim,
                          reach.scaling, scores + j + i, count);
    }
  });
  float weight[HEADS];
  for (int h = 0; h < HEADS; ++h) weight[h] = exponentials(scores + h * count, count);
  const int64_t dim = pages.value_dim;
  constexpr int kVectors = 4;
  for (int64_t d = 0; d < dim; d += 16 * kVectors) {
    __mmask16 mask[kVectors];
    for (int v = 0; v < kVectors; ++v) mask[v] = d + 16 * v < dim ? first16(dim - d - 16 * v) : 0;
    __m512 sum[HEADS][kVectors];
    for (int h = 0; h < HEADS; ++h)
      for (int v = 0; v < kVectors; ++v) sum[h][v] = _mm512_setzero_ps();
    for_each_run(step, reach.group, sequence, first, position, [&](int64_t j, int64_t slot, int64_t run) {
      const bf16* value = pages.values + slot * value_stride + head * dim + d;
      const bool more = then >= 0 && first + j <= step.row_position[then];
      const bf16* key = pages.keys + head * pages.key_dim + d;
      if (more) key += step.slot(reach.group, step.row_sequence[then], first + j) * key_stride;
      for (int64_t i = 0; i < run; ++i, value += value_stride) {
        if (more) fetch(key + i * key_stride, 16 * kVectors);
        __m512 values[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) values[v] = load(value + 16 * v, mask[v]);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; ++h) {
          const __m512 p = _mm512_set1_ps(scores[h * count + j + i]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[h][v] = _mm512_fmadd_ps(p, values[v], sum[h][v]);
        }
      }
    });
    for (int h = 0; h < HEADS; ++h)
      for (int v = 0; v < kVectors; ++v)
        store(out + h * dim + d + 16 * v, _mm512_mul_ps(sum[h][v], _mm512_set1_ps(weight[h])), mask[v]);
  }
}

// Query heads of one row, which its key heads share out in order: query [heads][key_dim] to out [heads][value_dim].
struct Queries {
  const bf16* data;
  int64_t stride;
  int64_t heads;
};

// out[row] for every row of the step that `row_of(i)` names, i below `count`; queries and results stand in order of i.
template <class RowOf>
void attend(Threads& threads, const Step& step, const Reach& reach, const Pages& pages, const Queries& queries,
            int64_t count, const RowOf& row_of, bf16* out, int64_t out_stride) {
  const int64_t shared = queries.heads / pages.heads;
  // Few rows: each head by itself, so that all threads have work. The bits are the same.
  const int64_t together = count * pages.heads < 4 * threads.count() ? 1 : std::min<int64_t>(4, shared);
  const int64_t parts = (shared + together - 1) / together;
  threads.run(count * pages.heads * parts, [&](int64_t piece) {
    const int64_t i = piece / (pages.heads * parts), head = piece / parts % pages.heads;
    const int64_t first = head * shared + piece % parts * together;
    const int64_t row = row_of(i);
    // Whose turn it probably is after this one; rows of one sequence find each other's keys in the cache.
    const int64_t next = i + threads.count() < count ? row_of(i + threads.count()) : row;
    const int64_t then = step.row_sequence[next] == step.row_sequence[row] ? -1 : next;
    const bf16* query = queries.data + i * queries.stride + first * pages.key_dim;
    bf16* to = out + i * out_stride + first * pages.value_dim;
    switch (std::min(together, (head + 1) * shared - first)) {
      case 1: return attend_heads<1>(step, reach, pages, row, head, query, to, then);
      case 2: return attend_heads<2>(step, reach, pages, row, head, query, to, then);
      case 3: return attend_heads<3>(step, reach, pages, row, head, query, to, then);
      default: return attend_heads<4>(step, reach, pages, row, head, query, to, then);
    }
  });
}

}  // namespace seedance
