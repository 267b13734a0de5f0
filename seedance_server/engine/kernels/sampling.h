// Chooses tokens from rows of logits: the C++ twin of sampler.py, in three rounds over all rows.
//
// Nothing is sorted. What truncation leaves lies among the tokens above some logit that is known to be low enough
// beforehand, from the blocks' weights and maxima; those are collected by id, and where the line ends among them is
// found by halving. Each row is computed in one order whatever is beside it and whoever does it.
#pragma once

#include <numeric>

#include "lines.h"
#include "threads.h"

namespace seedance {

constexpr int64_t kMostReported = 20;  // MAX_TOP_LOGPROBS of sampling_params.py

// What came of one row; structures.py has its twin.
struct Choice {
  float peak;           // of the logits as they came; nothing else is known unless it is finite
  float adjusted_peak;  // no token unless it is finite
  int32_t id;
  float logit;       // as it came
  double log_total;  // of exp(logit - peak) over the vocabulary, where log-probabilities are wanted
  int32_t top_ids[kMostReported];
  float top_logits[kMostReported];
};

constexpr float kLog2OfE = 1.44269504f;

// 2^x for x <= 0, to 2 units in the last place of what x's own rounding makes of it; 1 at 0.
inline __m512 power_of_2(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-160.f));  // gives 0
  const __m512 n = _mm512_roundscale_ps(x, 0), f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.535336188e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339887440e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028e-1f));
  return _mm512_scalef_ps(_mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f)), n);
}

// How logits become weights: exp((logit - peak) / temperature).
struct Weighing {
  __m512 peak, scale;

  Weighing(float peak, float temperature)
      : peak(_mm512_set1_ps(peak)), scale(_mm512_set1_ps(kLog2OfE / temperature)) {}

  __m512 of(__m512 logits) const { return power_of_2(_mm512_mul_ps(_mm512_sub_ps(logits, peak), scale)); }
  __m512 of(Block block) const { return _mm512_add_ps(of(block.low), of(block.high)); }
};

// The sums of sixteen blocks' weights, where they exist. What is ruled out weighs nothing, so it isn't looked at.
template <class Load>
inline __m512 weigh_blocks(const Weighing& weighing, const float* maxima, __mmask16 exist, const Load& load) {
  const __m512 greatest = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), exist, maxima);
  const uint32_t any = _mm512_cmp_ps_mask(greatest, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
  if (!any) return _mm512_setzero_ps();
  __m512 sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = any >> i & 1 ? weighing.of(load(i)) : _mm512_setzero_ps();
  return fold(sums, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}

// Weights of a line's blocks, and what they come to: added one after the other.
class BlockWeights {
 public:
  void open(int64_t blocks) { weights_.resize(blocks); }
  float* at(int64_t block) { return weights_.data() + block; }

  double total() const {
    double sum = 0;
    for (const float weight : weights_) sum += weight;
    return sum;
  }

  // The first block whose end lies beyond the target, or the last one; `before` gets the sum of those before it.
  int64_t find(double target, double& before) const {
    const int64_t last = static_cast<int64_t>(weights_.size()) - 1;
    before = 0;
    for (int64_t block = 0; block < last; ++block) {
      if (before + weights_[block] > target) return block;
      before += weights_[block];
    }
    return last;
  }

  // How far below the peak, in units of its temperature, a token may lie so that all below it weigh no more than
  // `most`: at least so far. A block's tokens below weigh no more than the block, nor than 32 times what one may.
  float depth_of_tail(double most) const {
    float near = 0, far = 104;  // beyond which exp gives 0
    for (int i = 0; i < 10; ++i) {
      const float middle = (near + far) / 2;
      (tail_at_most(std::exp(-middle)) * 1.001 <= most ? far : near) = middle;
    }
    return far;
  }

 private:
  double tail_at_most(float one) const {
    __m512 sum = _mm512_setzero_ps();
    const __m512 all = _mm512_set1_ps(kPanel * one);
    for (size_t i = 0; i < weights_.size(); i += 16) {
      const __mmask16 mask = first16(static_cast<int64_t>(weights_.size() - i));
      sum = _mm512_add_ps(sum, _mm512_min_ps(all, _mm512_maskz_loadu_ps(mask, weights_.data() + i)));
    }
    return _mm512_reduce_add_ps(sum);
  }

  std::vector<float> weights_;
};

// What a thread needs for one line after the other.
struct Scratch {
  Tokens tokens, heavier, rest;
  std::vector<float> weights, numbers;
};

// Where in a line of tokens, best first, lower ids first among equals, it has come to a weight.
struct Edge {
  float score = -INFINITY;       // of the last one inside
  int64_t equals = INT64_MAX;    // of that score, how many are inside
};

// Tokens stand in `all` with their scores. Those before the edge weigh less than `target`.
inline Edge find_edge(const Tokens& all, const std::vector<float>& weights, double target, Scratch& scratch) {
  // Scores and weights still in question; both are floats, so one of them travels as an "id".
  Tokens &in = scratch.heavier, &out = scratch.rest;
  in.clear(all.count);
  for (int64_t i = 0; i < all.count; i += 16)
    in.add(_mm512_castps_si512(_mm512_loadu_ps(weights.data() + i)), _mm512_loadu_ps(all.numbers.get() + i),
           first16(all.count - i));
  double before = 0;
  while (in.count) {
    const auto [least, most] = in.range();
    if (most == least) break;
    const float halfway = least + (most - least) / 2, pivot = halfway < most ? halfway : least;
    double heavier = 0;
    out.clear(in.count);
    int64_t above = 0;
    for (int64_t i = 0; i < in.count; i += 16) {
      const __mmask16 exist = first16(in.count - i);
      const __m512 scores = _mm512_loadu_ps(in.numbers.get() + i);
      const __m512i bits = _mm512_loadu_si512(in.ids.get() + i);
      const __mmask16 better = _mm512_mask_cmp_ps_mask(exist, scores, _mm512_set1_ps(pivot), _CMP_GT_OQ);
      const __m512 mass = _mm512_maskz_mov_ps(better, _mm512_castsi512_ps(bits));
      heavier += _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(mass)),
                                                    _mm512_cvtps_pd(_mm512_extractf32x8_ps(mass, 1))));
      // The better ones stay in front, in place: what is written was read.
      out.add(bits, scores, static_cast<__mmask16>(exist & ~better));
      _mm512_storeu_ps(in.numbers.get() + above, _mm512_maskz_compress_ps(better, scores));
      _mm512_storeu_si512(in.ids.get() + above, _mm512_maskz_compress_epi32(better, bits));
      above += __builtin_popcount(better);
    }
    if (before + heavier >= target) {
      in.count = above;  // the edge is among them
    } else {
      before += heavier;
      std::swap(in, out);
    }
  }
  if (!in.count) return {};
  Edge edge{in.numbers[0], 0};
  const float weight = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(in.ids[0])));
  while (edge.equals < in.count && before < target) before += weight, ++edge.equals;
  return edge;
}

// One row, through the rounds.
class Chooser {
 public:
  void open(const Logits& logits, const Request& request) {
    request_ = &request;
    draws_ = reports_ = false;
    plain_.open(logits, request.row);
    if (!std::isfinite(plain_.peak())) return;
    if (request.is_adjusted()) adjusted_.adjust(plain_, request);
    draws_ = request.temperature > 0 && std::isfinite(line().peak()) && needs_sums();
    reports_ = request.reported >= 0;
    if (draws_) drawn_.open(plain_.blocks());
    if (reports_) reported_.open(plain_.blocks());
  }

  // Second round: the weights of some blocks, sixteen at a time.
  void weigh(int64_t from, int64_t to) {
    if (!draws_ && !reports_) return;
    const bool same = !request_->is_adjusted() && draws_ && request_->temperature == 1;
    const Weighing drawn(line().peak(), request_->temperature), reported(plain_.peak(), 1);
    for (int64_t first = from; first < to; first += 16) {
      const __mmask16 exist = first16(to - first);
      __m512 sums = _mm512_setzero_ps();
      if (draws_) {
        sums = weigh_blocks(drawn, line().maxima() + first, exist, [&](int i) { return line().load(first + i); });
        _mm512_mask_storeu_ps(drawn_.at(first), exist, sums);
      }
      if (!reports_) continue;
      if (!same)
        sums = weigh_blocks(reported, plain_.maxima() + first, exist, [&](int i) { return plain_.load(first + i); });
      _mm512_mask_storeu_ps(reported_.at(first), exist, sums);
    }
  }

  // Third round.
  Choice finish(Scratch& scratch) {
    Choice choice{.peak = plain_.peak(), .adjusted_peak = NAN, .id = -1};
    if (!std::isfinite(choice.peak)) return choice;
    choice.adjusted_peak = line().peak();
    if (!std::isfinite(choice.adjusted_peak)) return choice;
    if (!(request_->temperature > 0)) choice.id = line().first();
    else if (request_->is_truncated(line().columns())) choice.id = draw_truncated(scratch);
    else choice.id = draw();
    if (reports_) report(choice, scratch);
    return choice;
  }

 private:
  const Line& line() const { return request_->is_adjusted() ? adjusted_ : plain_; }

  // Whether the draw depends on the weight of the whole vocabulary.
  bool needs_sums() const {
    return !request_->is_truncated(line().columns()) ||
           (request_->top_p < 1 && request_->top_k >= line().columns());
  }

  float score(float logit) const { return (logit - line().peak()) / request_->temperature; }

  // The lowest logit whose score may be as high as that.
  float logit_of(double score) const {
    const double distance = -score * request_->temperature * (1 + 1e-5);
    return static_cast<float>(std::max<double>(line().peak() - distance, -FLT_MAX));
  }

  int32_t draw() const {
    double before = 0;
    const double target = drawn_.total() * request_->number;
    const int64_t block = drawn_.find(target, before);
    const Block found = line().load(block);
    const Weighing weighing(line().peak(), request_->temperature);
    float numbers[kPanel];
    store_block(numbers, {weighing.of(found.low), weighing.of(found.high)});
    // A block's own sum was rounded, so its last weights may fall short of the target.
    int32_t last = 0;
    double sum = 0;
    for (int32_t i = 0; i < kPanel; ++i) {
      if (!(numbers[i] > 0)) continue;
      last = i, sum += numbers[i];
      if (before + sum > target) break;
    }
    return static_cast<int32_t>(block * kPanel) + last;
  }

  static void weigh_scores(const float* scores, int64_t count, float* weights) {
    for (int64_t i = 0; i < count; i += 16)
      _mm512_storeu_ps(weights + i, power_of_2(_mm512_mul_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(kLog2OfE))));
  }

  int32_t draw_truncated(Scratch& scratch) {
    Tokens& left = scratch.tokens;
    std::vector<float>& weights = scratch.weights;
    const Request& request = *request_;
    const bool has_top_k = request.top_k < line().columns();
    double total = 0;
    float least = -FLT_MAX;
    if (has_top_k) {
      const float edge = line().reached_by(request.top_k);
      least = edge > -INFINITY ? logit_of(score(edge)) : -FLT_MAX;
    } else {
      if (request.min_p > -INFINITY) least = logit_of(request.min_p);
      if (request.top_p < 1) {
        total = drawn_.total();
        const double tail = total * (1 - request.top_p) - total * 1e-6;
        if (tail > 0) least = std::max(least, logit_of(-drawn_.depth_of_tail(tail)));
      }
    }
    line().collect(least, left);
    for (int64_t i = 0; i < left.count; ++i) left.numbers[i] = score(left.numbers[i]);
    if (has_top_k && left.count > request.top_k) {
      scratch.numbers.assign(left.numbers.get(), left.numbers.get() + left.count);
      const auto edge = scratch.numbers.begin() + request.top_k - 1;
      std::nth_element(scratch.numbers.begin(), edge, scratch.numbers.end(), std::greater<float>());
      left.filter([&, least_score = *edge](int64_t i) { return left.numbers[i] >= least_score; });
    }
    weights.resize(left.count + 16);
    weigh_scores(left.numbers.get(), left.count, weights.data());
    if (request.top_p < 1) {
      if (has_top_k) total = std::accumulate(weights.begin(), weights.begin() + left.count, 0.0);
      Edge edge = find_edge(left, weights, total * request.top_p, scratch);
      edge.equals = std::max<int64_t>(edge.equals, 1);
      left.filter([&](int64_t i) {
        return left.numbers[i] > edge.score || (left.numbers[i] == edge.score && edge.equals-- > 0);
      });
    }
    // The best one always stays, for min_p is at most 1.
    left.filter([&](int64_t i) { return left.numbers[i] >= request.min_p; });
    weigh_scores(left.numbers.get(), left.count, weights.data());
    const double target = std::accumulate(weights.begin(), weights.begin() + left.count, 0.0) * request.number;
    double sum = 0;
    int64_t place = 0;
    for (; place < left.count - 1; ++place)
      if ((sum += weights[place]) > target) break;
    return left.ids[place];
  }

  void report(Choice& choice, Scratch& scratch) {
    choice.log_total = std::log(reported_.total());
    choice.logit = plain_.logit(choice.id);
    const int64_t count = request_->reported;
    if (!count) return;
    Tokens& best = scratch.tokens;
    plain_.collect(plain_.reached_by(count), best);
    std::vector<int32_t> order(best.count);
    for (int64_t i = 0; i < best.count; ++i) order[i] = static_cast<int32_t>(i);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
      return best.numbers[a] != best.numbers[b] ? best.numbers[a] > best.numbers[b] : a < b;
    });
    for (int64_t i = 0; i < count; ++i)
      choice.top_ids[i] = best.ids[order[i]], choice.top_logits[i] = best.numbers[order[i]];
  }

  const Request* request_ = nullptr;
  Line plain_, adjusted_;
  bool draws_ = false, reports_ = false;  // which weights are needed
  BlockWeights drawn_, reported_;
};

constexpr int64_t kBlocksTogether = 512;  // of a row, in a piece of work: 10 to 20 microseconds

inline void choose(Threads& threads, const Logits& logits, const Request* requests, int64_t count, Choice* choices) {
  thread_local std::vector<Chooser> kept;  // of the caller: fresh pages cost as much as the work
  std::vector<Chooser>& rows = kept;       // inside the pieces `kept` would be another thread's
  if (static_cast<int64_t>(rows.size()) < count) rows.resize(count);
  const int64_t blocks = logits.blocks(), parts = (blocks + kBlocksTogether - 1) / kBlocksTogether;
  threads.run(count, [&](int64_t i) { rows[i].open(logits, requests[i]); });
  threads.run(count * parts, [&](int64_t piece) {
    const int64_t from = piece % parts * kBlocksTogether;
    rows[piece / parts].weigh(from, std::min(blocks, from + kBlocksTogether));
  });
  threads.run(count, [&](int64_t i) {
    thread_local Scratch scratch;
    choices[i] = rows[i].finish(scratch);
  });
}

}  // namespace seedance
