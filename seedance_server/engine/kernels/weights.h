// A packed matrix of either kind: bfloat16, or 8 bits. Whoever multiplies needn't know which.
#pragma once

#include <cstdint>

#include "int8.h"
#include "matmul.h"
#include "threads.h"

namespace seedance {

struct Weights {
  void* panels;
  int64_t columns;
  int64_t width;
  int64_t bits;  // 16 or 8

  int64_t count() const { return (columns + kPanel - 1) / kPanel; }
  Packed packed() const { return {static_cast<const bf16*>(panels), columns, width}; }
  Int8 int8() const { return {static_cast<const uint8_t*>(panels), columns, width}; }
  int64_t panel_bytes() const { return bits == 8 ? int8().stride() : packed().stride() * static_cast<int64_t>(sizeof(bf16)); }
};

// As the products of either kind.
template <int GROUP = 1, class Finish>
void multiply(Threads& threads, const Rows& x, const Weights& weights, const Finish& finish) {
  if (weights.bits == 8) multiply<GROUP>(threads, x, weights.int8(), finish);
  else multiply<GROUP>(threads, x, weights.packed(), finish);
}

// from[columns][width] into the panels of `to`, which are zeroes.
inline void pack(Threads& threads, const bf16* from, const Weights& to) {
  threads.run(to.count(), [&](int64_t i) {
    uint8_t* panel = static_cast<uint8_t*>(to.panels) + i * to.panel_bytes();
    if (to.bits == 8) pack_panel(from, i * kPanel, to.int8(), panel);
    else pack_panel(from, to.columns, to.width, i * kPanel, reinterpret_cast<bf16*>(panel));
  });
}

// A column's weights as bfloat16.
inline void read_column(const Weights& weights, int64_t column, bf16* to) {
  if (weights.bits == 8) return read_column(weights.int8(), column, to);
  const bf16* panel = weights.packed().panel(column / kPanel) + column % kPanel * 2;
  for (int64_t k = 0; k < weights.width; ++k) to[k] = panel[k / 2 * 2 * kPanel + k % 2];
}

}  // namespace seedance
