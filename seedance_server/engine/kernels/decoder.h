// A whole decoder in one call: embedding, layers over the paged cache, final norm, head.
//
// It knows one shape of layer, that of Llama and those after it: norm, attention with rotary positions, residual, norm,
// gated feed-forward, residual; biases, norms of queries and keys, and norms behind attention and feed-forward may be
// there or not. Which model has that shape is decided and proved elsewhere (`decoder.py`).
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "matmul.h"
#include "rows.h"
#include "threads.h"
#include "weights.h"

namespace seedance {

struct Linear {
  Weights weights;
  const bf16* bias;  // or nothing
};

struct Layer {
  Linear query_key_value;  // columns of all query heads, then key heads, then value heads
  Linear output;
  Linear gate_up;  // panels of gate and up in turn
  Linear down;
  Norm before_attention;
  Norm query;
  Norm key;
  Norm after_attention;
  Norm before_feed_forward;
  Norm after_feed_forward;
  Reach reach;
  int64_t plane;
  int64_t rotary;  // which of the tables
};

// Tables of [positions][key_dim].
struct Rotary {
  const bf16* cosines;
  const bf16* sines;
};

struct Model {
  const Layer* layers;
  int64_t layer_count;
  int64_t hidden;
  int64_t query_heads;
  int64_t feed_forward;
  Activation activation;
  Norm final_norm;
  Weights head;
  // Embeddings: rows of their own, or those of the head where the two are one.
  const bf16* embeddings;
  float embedding_scale;
};

// Rows on lines of the first-level cache that don't evict each other: an odd number of lines apart.
inline int64_t row_stride(int64_t dim) { return ((dim * 2 + 63) / 64 | 1) * 32; }

struct Matrix {
  std::vector<bf16> data;
  int64_t stride = 0;

  void resize(int64_t rows, int64_t dim) {
    stride = row_stride(dim);
    if (data.size() < static_cast<size_t>(rows * stride)) data.resize(rows * stride);
  }
  bf16* row(int64_t i) { return data.data() + i * stride; }
  Rows rows(int64_t count) { return Rows{data.data(), count, stride}; }
};

class Decoder {
 public:
  // logits[wanted][vocabulary] and the maximum of each of their panels, for the rows named.
  void run(Threads& threads, const Model& model, const Step& step, const Pages* planes, const Rotary* rotaries,
           const int64_t* ids, const int64_t* wanted, int64_t wanted_count, bf16* logits, bf16* maxima) {
    const Pages& shape = planes[0];
    reserve(model, shape, step.rows);
    each_row(threads, step.rows, [&](int64_t row) {
      embed(model, ids[row], state_.row(row));
      normalise(model.layers[0].before_attention, state_.row(row), model.hidden, input_.row(row));
    });
    int64_t rows = step.rows;
    for (int64_t i = 0; i < model.layer_count; ++i) {
      const Layer& layer = model.layers[i];
      const bool last = i + 1 == model.layer_count;
      product(threads, layer.query_key_value, input_.rows(rows), mixed_);
      each_row(threads, rows, [&](int64_t row) { place(model, layer, step, planes[layer.plane], rotaries, row); });
      if (last) {  // keys and values are written: from here on only the wanted rows matter
        for (int64_t w = 0; w < wanted_count; ++w) move_row(wanted[w], w, model.hidden);
        rows = wanted_count;
      }
      const Queries queries{mixed_.data.data(), mixed_.stride, model.query_heads};
      if (last)  // queries of the wanted rows stay where they are
        attend_wanted(threads, step, layer.reach, planes[layer.plane], queries, wanted, rows);
      else
        attend(threads, step, layer.reach, planes[layer.plane], queries, rows, [](int64_t row) { return row; },
               attended_.row(0), attended_.stride);
      product(threads, layer.output, attended_.rows(rows), output_);
      each_row(threads, rows, [&](int64_t row) {
        add_and_normalise(model, layer.after_attention, layer.before_feed_forward, row);
      });
      gated_.resize(rows, model.feed_forward);
      multiply<2>(threads, input_.rows(rows), layer.gate_up.weights,
                  StoreGated{gated_.row(0), gated_.stride, model.feed_forward, layer.gate_up.bias, model.activation});
      product(threads, layer.down, gated_.rows(rows), output_);
      each_row(threads, rows, [&](int64_t row) {
        add_and_normalise(model, layer.after_feed_forward,
                          last ? model.final_norm : model.layers[i + 1].before_attention, row);
      });
    }
    multiply(threads, input_.rows(rows), model.head,
             StoreRows{logits, model.head.columns, model.head.columns, nullptr, maxima, model.head.count()});
  }

 private:
  void reserve(const Model& model, const Pages& shape, int64_t rows) {
    state_.resize(rows, model.hidden);
    input_.resize(rows, model.hidden);
    output_.resize(rows, model.hidden);
    mixed_.resize(rows, (model.query_heads + shape.heads) * shape.key_dim + shape.heads * shape.value_dim);
    attended_.resize(rows, model.query_heads * shape.value_dim);
    gated_.resize(rows, model.feed_forward);
  }

  template <class PerRow>
  static void each_row(Threads& threads, int64_t rows, const PerRow& per_row) {
    constexpr int64_t kTogether = 4;  // rows of one piece: some microseconds of work
    threads.run((rows + kTogether - 1) / kTogether, [&](int64_t piece) {
      for (int64_t row = piece * kTogether; row < std::min(rows, (piece + 1) * kTogether); ++row) per_row(row);
    });
  }

  static void product(Threads& threads, const Linear& linear, const Rows& x, Matrix& y) {
    multiply(threads, x, linear.weights,
             StoreRows{y.row(0), y.stride, linear.weights.columns, linear.bias, nullptr, 0});
  }

  static void embed(const Model& model, int64_t id, bf16* row) {
    const int64_t dim = model.hidden;
    if (model.embeddings) {
      std::memcpy(row, model.embeddings + id * dim, dim * sizeof(bf16));
    } else {
      read_column(model.head, id, row);
    }
    const __m512 scale = _mm512_set1_ps(model.embedding_scale);
    for (int64_t k = 0; k < dim; k += 16) {
      const __mmask16 mask = first16(dim - k);
      store(row + k, _mm512_mul_ps(load(row + k, mask), scale), mask);
    }
  }

  // Norms and positions of a row's queries and keys; its keys and values go into the cache.
  void place(const Model& model, const Layer& layer, const Step& step, const Pages& pages, const Rotary* rotaries,
             int64_t row) {
    const int64_t dim = pages.key_dim;
    const bf16* cosines = rotaries[layer.rotary].cosines + step.row_position[row] * dim;
    const bf16* sines = rotaries[layer.rotary].sines + step.row_position[row] * dim;
    bf16* at = mixed_.row(row);
    for (int64_t head = 0; head < model.query_heads + pages.heads; ++head, at += dim) {
      const Norm& norm = head < model.query_heads ? layer.query : layer.key;
      if (norm.weights) normalise(norm, at, dim, at);
      rotate(at, cosines, sines, dim);
    }
    write_slot(pages, step.slot_of_row(layer.reach.group, row), at - pages.heads * dim, at);
  }

  void move_row(int64_t from, int64_t to, int64_t dim) {
    if (from != to) std::memcpy(state_.row(to), state_.row(from), dim * sizeof(bf16));
  }

  void attend_wanted(Threads& threads, const Step& step, const Reach& reach, const Pages& pages, Queries queries,
                     const int64_t* wanted, int64_t count) {
    const size_t bytes = queries.heads * pages.key_dim * sizeof(bf16);
    for (int64_t w = 0; w < count; ++w)
      if (wanted[w] != w) std::memcpy(mixed_.row(w), mixed_.row(wanted[w]), bytes);
    attend(threads, step, reach, pages, queries, count, [=](int64_t w) { return wanted[w]; }, attended_.row(0),
           attended_.stride);
  }

  // The residual, and the input of what comes next.
  void add_and_normalise(const Model& model, const Norm& after, const Norm& before, int64_t row) {
    if (after.weights) normalise(after, output_.row(row), model.hidden, output_.row(row));
    add_to(state_.row(row), output_.row(row), model.hidden);
    normalise(before, state_.row(row), model.hidden, input_.row(row));
  }

  Matrix state_, input_, output_, mixed_, attended_, gated_;
};

}  // namespace seedance
