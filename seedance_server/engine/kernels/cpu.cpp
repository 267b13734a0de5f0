// The engine's CPU kernels behind a plain C interface: pointers and sizes in, nothing thrown, nothing kept but threads.
//
// Built for processors with AVX-512 and its bfloat16 products; whoever loads this has asked the processor first. Rows
// are bfloat16 unless said otherwise. Shapes are the caller's promise: `bindings.py` checks them.
#include <sys/mman.h>

#include "matmul.h"
#include "threads.h"

using namespace seedance;

extern "C" {

// To be raised with every change to a signature below: a library from another time is refused.
int seedance_interface() { return 1; }

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

int64_t seedance_packed_bytes(int64_t columns, int64_t width) {
  const Packed packed{nullptr, columns, width};
  return packed.count() * packed.stride() * static_cast<int64_t>(sizeof(bf16));
}

// weights[columns][width] into panels.
void seedance_pack(void* threads, const bf16* weights, int64_t columns, int64_t width, bf16* panels) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  const Packed packed{panels, columns, width};
  pool.run(packed.count(), [&](int64_t panel) {
    pack_panel(weights, columns, width, panel * kPanel, panels + panel * packed.stride());
  });
}

// y[rows][columns] = x[rows][width] weights^T + bias. `bias` and `maxima` [rows][panels] may be null.
void seedance_linear(void* threads, const bf16* x, int64_t rows, int64_t x_stride, const bf16* panels, int64_t columns,
                     int64_t width, const bf16* bias, bf16* y, int64_t y_stride, bf16* maxima) {
  Threads& pool = *static_cast<Threads*>(threads);
  const std::lock_guard turn(pool.turn());
  const Packed packed{panels, columns, width};
  multiply(pool, Rows{x, rows, x_stride}, packed, StoreRows{y, y_stride, columns, bias, maxima, packed.count()});
}

}  // extern "C"
