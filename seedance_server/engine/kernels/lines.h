// Rows of logits as requests want them: as they came, or with penalties, biases and only some tokens allowed.
//
// A row is read by blocks of 32 tokens. Few blocks of it are changed, and those are kept beside it: nothing is copied.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "matmul.h"
#include "vectors.h"

namespace seedance {

// What one request asks of one row of logits; structures.py has its twin.
struct Request {
  int64_t row;  // of the logits
  // Tokens of prompt and output, each once, and what their logits are divided by (multiplied, if negative).
  const int32_t* seen;
  int64_t seen_count;
  float repetition;
  // Tokens of the output, each once, and how often.
  const int32_t* said;
  const int32_t* times;
  int64_t said_count;
  double presence;
  double frequency;
  // Tokens and what is added to their logits: -inf for a ban.
  const int32_t* biased;
  const float* biases;
  int64_t biased_count;
  const uint8_t* allowed;  // for each token whether it can be chosen; null if all can
  float temperature;       // 0: the most likely token is chosen
  int64_t top_k;           // the number of columns where there is no such bound
  double top_p;            // 1 where there is no such bound
  double min_p;            // its natural logarithm; -inf where there is no such bound
  double number;           // in [0, 1): where in the line of tokens the draw falls
  int32_t reported;        // of how many of the best tokens the logits are wanted; -1 if no log-probabilities are

  bool is_adjusted() const { return seen_count || said_count || biased_count || allowed; }
  bool is_truncated(int64_t columns) const { return top_k < columns || top_p < 1 || min_p > -INFINITY; }
};

// Two halves of a block.
struct Block {
  __m512 low, high;
};

inline Block load_block(const float* p, __mmask32 mask) {
  const __m512 nothing = _mm512_set1_ps(-INFINITY);
  return {_mm512_mask_loadu_ps(nothing, static_cast<__mmask16>(mask), p),
          _mm512_mask_loadu_ps(nothing, static_cast<__mmask16>(mask >> 16), p + 16)};
}

inline Block load_block(const bf16* p, __mmask32 mask) {
  const __m512i numbers = _mm512_mask_loadu_epi16(_mm512_set1_epi16(static_cast<short>(0xff80)), mask, p);  // -inf
  return {widen(_mm512_castsi512_si256(numbers)), widen(_mm512_extracti64x4_epi64(numbers, 1))};
}

inline void store_block(float* p, Block block) {
  _mm512_storeu_ps(p, block.low);
  _mm512_storeu_ps(p + 16, block.high);
}

// The greatest of a block, NaN if there is one.
inline float greatest(Block block) {
  if (_mm512_cmp_ps_mask(block.low, block.high, _CMP_UNORD_Q)) return NAN;
  return _mm512_reduce_max_ps(_mm512_max_ps(block.low, block.high));
}

// Rows of logits, in bfloat16 or float32, `stride` numbers apart, and the greatest of each block, which may be null.
struct Logits {
  const void* data;
  int64_t stride;
  int64_t columns;
  const bf16* maxima;
  int32_t wide;  // float32

  int64_t blocks() const { return (columns + kPanel - 1) / kPanel; }
  __mmask32 tokens_of(int64_t block) const { return first32(columns - block * kPanel); }

  // Beyond the vocabulary it reads -inf.
  Block load(int64_t row, int64_t block) const {
    const int64_t first = row * stride + block * kPanel;
    if (wide) return load_block(static_cast<const float*>(data) + first, tokens_of(block));
    return load_block(static_cast<const bf16*>(data) + first, tokens_of(block));
  }
};

// Tokens and a number for each, by id. Keeps its memory, with room for a vector more than is asked for.
struct Tokens {
  int64_t count = 0;
  std::unique_ptr<int32_t[]> ids;
  std::unique_ptr<float[]> numbers;

  // `room` is no more than an address until something is put there.
  void clear(int64_t room) {
    count = 0;
    if (room + 16 <= room_) return;
    room_ = room + 16;
    ids.reset(new int32_t[room_]);
    numbers.reset(new float[room_]);
  }

  // Those of 16 that the mask names.
  void add(__m512i some_ids, __m512 some_numbers, __mmask16 mask) {
    _mm512_storeu_si512(ids.get() + count, _mm512_maskz_compress_epi32(mask, some_ids));
    _mm512_storeu_ps(numbers.get() + count, _mm512_maskz_compress_ps(mask, some_numbers));
    count += __builtin_popcount(mask);
  }

  // The least and the greatest number.
  std::pair<float, float> range() const {
    __m512 least = _mm512_set1_ps(INFINITY), most = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < count; i += 16) {
      const __m512 some = _mm512_loadu_ps(numbers.get() + i);
      const __mmask16 exist = first16(count - i);
      least = _mm512_mask_min_ps(least, exist, least, some), most = _mm512_mask_max_ps(most, exist, most, some);
    }
    return {_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(most)};
  }

  // Those for which stays(i).
  template <class Stays>
  void filter(const Stays& stays) {
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i) {
      const bool stay = stays(i);
      ids[left] = ids[i], numbers[left] = numbers[i];
      left += stay;
    }
    count = left;
  }

 private:
  int64_t room_ = 0;
};

// One row of logits, perhaps adjusted, and the greatest of its blocks.
class Line {
 public:
  // As it came.
  void open(const Logits& logits, int64_t row) {
    logits_ = &logits, row_ = row, allowed_ = nullptr;
    place_.clear();
    maxima_.resize(logits.blocks());
    if (logits.maxima) {
      const bf16* known = logits.maxima + row * logits.blocks();
      for (int64_t block = 0; block < blocks(); ++block) maxima_[block] = widen(known[block]);
    } else {
      for (int64_t block = 0; block < blocks(); ++block) maxima_[block] = greatest(load(block));
    }
    find_peak();
  }

  // Like another, which came as it is, but as the request wants it.
  void adjust(const Line& plain, const Request& request) {
    logits_ = plain.logits_, row_ = plain.row_, allowed_ = request.allowed;
    place_.assign(blocks(), -1);
    changed_.clear();
    touched_.clear();
    if (!allowed_) maxima_ = plain.maxima_;
    else maxima_.resize(blocks());
    for (int64_t i = 0; i < request.seen_count; ++i) fetch(request.seen[i]);
    for (int64_t i = 0; i < request.seen_count; ++i)
      change(request.seen[i], [&](float logit) {
        return logit < 0 ? logit * request.repetition : logit / request.repetition;
      });
    for (int64_t i = 0; i < request.said_count; ++i)
      change(request.said[i], [&, penalty = request.presence + request.frequency * request.times[i]](float logit) {
        return logit - static_cast<float>(penalty);
      });
    for (int64_t i = 0; i < request.biased_count; ++i)
      change(request.biased[i], [bias = request.biases[i]](float logit) { return logit + bias; });
    if (allowed_) {
      for (int64_t block = 0; block < blocks(); ++block)
        maxima_[block] = allows(block) ? greatest(load(block)) : -INFINITY;
    } else {
      for (const int64_t block : touched_) maxima_[block] = greatest(load(block));
    }
    find_peak();
  }

  int64_t blocks() const { return logits_->blocks(); }
  int64_t columns() const { return logits_->columns; }
  float peak() const { return peak_; }
  const float* maxima() const { return maxima_.data(); }

  Block load(int64_t block) const {
    Block found = place_.empty() || place_[block] < 0 ? logits_->load(row_, block)
                                                      : load_block(changed_.data() + place_[block], 0xffffffffu);
    if (allowed_) {
      const __mmask32 stays = allows(block);
      const __m512 nothing = _mm512_set1_ps(-INFINITY);
      found.low = _mm512_mask_mov_ps(nothing, static_cast<__mmask16>(stays), found.low);
      found.high = _mm512_mask_mov_ps(nothing, static_cast<__mmask16>(stays >> 16), found.high);
    }
    return found;
  }

  float logit(int64_t id) const {
    float numbers[kPanel];
    store_block(numbers, load(id / kPanel));
    return numbers[id % kPanel];
  }

  // The first token that has the peak.
  int32_t first() const {
    const int64_t block = std::find(maxima_.begin(), maxima_.end(), peak_) - maxima_.begin();
    const Block found = load(block);
    const __m512 peak = _mm512_set1_ps(peak_);
    const uint32_t low = _mm512_cmp_ps_mask(found.low, peak, _CMP_EQ_OQ);
    const uint32_t high = _mm512_cmp_ps_mask(found.high, peak, _CMP_EQ_OQ);
    return static_cast<int32_t>(block * kPanel + __builtin_ctz(low | high << 16));
  }

  // A logit that at least so many tokens reach, and not many more; -inf where only a look into blocks could tell.
  float reached_by(int64_t count) const {
    float depth = 1;
    while (reaching(peak_ - depth) < count)
      if (!std::isfinite(peak_ - (depth *= 2))) return -INFINITY;
    float near = 0;
    for (int i = 0; i < 12 && reaching(peak_ - depth) > 2 * count; ++i) {
      const float middle = (near + depth) / 2;
      (reaching(peak_ - middle) < count ? near : depth) = middle;
    }
    return peak_ - depth;
  }

  // All tokens whose logit is at least so high.
  void collect(float least, Tokens& found) const {
    found.clear(blocks() * kPanel);
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 bound = _mm512_set1_ps(least);
    for (int64_t i = 0; i < blocks(); i += 16) {
      for (uint32_t some = blocks_reaching(bound, i); some; some &= some - 1) {
        const int64_t block = i + __builtin_ctz(some);
        const Block values = load(block);
        const __mmask32 exists = logits_->tokens_of(block);
        const __m512i ids = _mm512_add_epi32(steps, _mm512_set1_epi32(static_cast<int>(block * kPanel)));
        found.add(ids, values.low,
                  _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(exists), values.low, bound, _CMP_GE_OQ));
        found.add(_mm512_add_epi32(ids, _mm512_set1_epi32(16)), values.high,
                  _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(exists >> 16), values.high, bound, _CMP_GE_OQ));
      }
    }
  }

 private:
  __mmask32 allows(int64_t block) const {
    const __m256i flags = _mm256_maskz_loadu_epi8(logits_->tokens_of(block), allowed_ + block * kPanel);
    return _mm256_test_epi8_mask(flags, flags);
  }

  // Which of sixteen blocks hold a token that reaches the bound.
  __mmask16 blocks_reaching(__m512 bound, int64_t first) const {
    const __mmask16 exist = first16(blocks() - first);
    return _mm512_mask_cmp_ps_mask(exist, _mm512_maskz_loadu_ps(exist, maxima_.data() + first), bound, _CMP_GE_OQ);
  }

  int64_t reaching(float least) const {
    int64_t count = 0;
    for (int64_t i = 0; i < blocks(); i += 16)
      count += __builtin_popcount(blocks_reaching(_mm512_set1_ps(least), i));
    return count;
  }

  void fetch(int64_t id) const {
    if (id < 0 || id >= columns()) return;
    const int64_t place = row_ * logits_->stride + id;
    const char* data = static_cast<const char*>(logits_->data);
    _mm_prefetch(data + place * (logits_->wide ? sizeof(float) : sizeof(bf16)), _MM_HINT_T1);
  }

  // Of an id beyond the vocabulary, which a tokenizer may have, there is no logit.
  template <class Change>
  void change(int64_t id, const Change& change_logit) {
    if (id < 0 || id >= columns()) return;
    const int64_t block = id / kPanel;
    if (place_[block] < 0) {
      place_[block] = static_cast<int32_t>(changed_.size());
      changed_.resize(changed_.size() + kPanel);
      touched_.push_back(block);
      store_block(changed_.data() + place_[block], logits_->load(row_, block));
    }
    float& logit = changed_[place_[block] + id % kPanel];
    logit = change_logit(logit);
  }

  void find_peak() {
    __m512 most = _mm512_set1_ps(-INFINITY);
    __mmask16 unknown = 0;
    for (int64_t i = 0; i < blocks(); i += 16) {
      const __m512 some = _mm512_mask_loadu_ps(most, first16(blocks() - i), maxima_.data() + i);
      unknown |= _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
      most = _mm512_max_ps(most, some);
    }
    peak_ = unknown ? NAN : _mm512_reduce_max_ps(most);
  }

  const Logits* logits_ = nullptr;
  int64_t row_ = 0;
  const uint8_t* allowed_ = nullptr;
  float peak_ = 0;
  std::vector<float> maxima_;
  std::vector<int32_t> place_;    // by block: where in `changed_` it stands, or -1; empty if nothing is changed
  std::vector<float> changed_;    // whole blocks
  std::vector<int64_t> touched_;  // which
};

}  // namespace seedance
