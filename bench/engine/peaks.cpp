// What the cores can do at best: read memory, and multiply bf16 pairs that are in registers already.
#include <immintrin.h>

#include <cstdint>

extern "C" {

// Their sum, so that each is read; four sums at a time never wait for an addition.
double peak_read(const float* numbers, int64_t count) {
  __m512 sums[4] = {};
  for (int64_t i = 0; i + 64 <= count; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(numbers + i + 16 * j));
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

// In each round sixteen times 32 products, added to sums that don't wait for each other. They stay in registers only
// where every loop over them is unrolled.
double peak_multiply(int64_t rounds, uint16_t number) {
  const __m512bh x = (__m512bh)_mm512_set1_epi16(number);
  __m512 sums[16] = {};
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      sums[j] = _mm512_dpbf16_ps(sums[j], x, x);
      asm volatile("" : "+v"(sums[j]));  // or the compiler would know the end
    }
  __m512 all = sums[0];
#pragma GCC unroll 16
  for (int j = 1; j < 16; ++j) all = _mm512_add_ps(all, sums[j]);
  return _mm512_reduce_add_ps(all);
}
}
