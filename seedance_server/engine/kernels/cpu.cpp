// The engine's CPU kernels behind a plain C interface: pointers and sizes in, nothing thrown, nothing kept but threads.
//
// Built for processors with AVX-512 and its bfloat16 products; whoever loads this has asked the processor first. Rows
// are bfloat16 unless said otherwise. Shapes are the caller's promise: the Python modules beside this file check them.
#include <sys/mman.h>

#include "attention.h"
#include "decoder.h"
#include "matmul.h"
#include "sampling.h"
#include "threads.h"
#include "weights.h"

using namespace seedance;

extern "C" {

// To be raised with every change to a signature below: a library from another time is refused.
int seedance_interface() { return 6; }

void* seedance_threads_start(int count) { return new Threads(count); }

void seedance_threads_stop(void* threads) { delete static_cast<Threads*>(threads); }

// Zeroed memory for weights, on huge pages where the system has them: read twice as fast as from small ones.
void* seedance_map(int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t room = bytes + kHugePage;
  char* start = static_cast<char*>(mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (start == MAP_FAILED) return nullptr;
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<intptr_t>(start) + kHugePage - 1) & -kHugePage);
  if (aligned > start) munmap(start, aligned - start);
  if (start + room > aligned + bytes) {
    char* end = reinterpret_cast<char*>((reinterpret_cast<intptr_t>(aligned + bytes) + 4095) & -4096);
    if (start + room > end) munmap(end, start + room - end);
  }
  madvise(aligned, bytes, MADV_HUGEPAGE);  // before the first touch, or it is too late; a wish, not a need
  return aligned;
}

void seedance_unmap(void* memory, int64_t bytes) { munmap(memory, bytes); }

// Of all panels; those that `weights` points to aren't looked at.
int64_t seedance_packed_bytes(const Weights* weights) { return weights->count() * weights->panel_bytes(); }

// from[columns][width] into the panels of `to`, which are zeroes.
void seedance_pack(void* threads, const bf16* from, const Weights* to) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  pack(pool, from, *to);
}

// y[rows][columns] = x[rows][width] weights^T + bias. `bias` and `maxima` [rows][panels] may be null.
void seedance_linear(void* threads, const bf16* x, int64_t rows, int64_t x_stride, const Weights* weights,
                     const bf16* bias, bf16* y, int64_t y_stride, bf16* maxima) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  multiply(pool, Rows{x, rows, x_stride}, *weights,
           StoreRows{y, y_stride, weights->columns, bias, maxima, weights->count()});
}

// Stores keys [rows][heads][key_dim] and values [rows][heads][value_dim] of the step's rows, then attends: from queries
// [rows][query_heads][key_dim] to out [rows][query_heads][value_dim].
void seedance_attend(void* threads, const Step* step, const Reach* reach, const Pages* pages, int64_t query_heads,
                     const bf16* queries, const bf16* keys, const bf16* values, bf16* out) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  const int64_t key_row = pages->heads * pages->key_dim, value_row = pages->heads * pages->value_dim;
  for (int64_t row = 0; row < step->rows; ++row)
    write_slot(*pages, step->slot_of_row(reach->group, row), keys + row * key_row, values + row * value_row);
  attend(pool, *step, *reach, *pages, Queries{queries, query_heads * pages->key_dim, query_heads}, step->rows,
         [](int64_t row) { return row; }, out, query_heads * pages->value_dim);
}

// choices[count]: what each of the requests makes of its row of logits.
void seedance_choose(void* threads, const Logits* logits, const Request* requests, int64_t count, Choice* choices) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  choose(pool, *logits, requests, count, choices);
}

void* seedance_decoder_open() { return new Decoder; }

void seedance_decoder_close(void* decoder) { delete static_cast<Decoder*>(decoder); }

// One forward pass of all rows of a step: ids[rows], and wanted[wanted_count] the ascending rows whose logits
// [vocabulary] and maxima [panels] are written. planes[] are the cache's, rotaries[] the tables that the layers name.
void seedance_decoder_run(void* decoder, void* threads, const Model* model, const Step* step, const Pages* planes,
                          const Rotary* rotaries, const int64_t* ids, const int64_t* wanted, int64_t wanted_count,
                          bf16* logits, bf16* maxima) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  static_cast<Decoder*>(decoder)->run(pool, *model, *step, planes, rotaries, ids, wanted, wanted_count, logits, maxima);
}

}  // extern "C"
