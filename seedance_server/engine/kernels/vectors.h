// Sixteen numbers at a time: bfloat16 in memory, float32 in registers, and the functions that models apply to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace seedance {

using bf16 = uint16_t;

inline __mmask16 first16(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }
inline __mmask32 first32(int64_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1; }

inline __m512 widen(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }
inline __m256i narrow(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }  // to nearest, ties to even
inline __m512 rounded(__m512 v) { return widen(narrow(v)); }

inline __m512 load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline __m512 load(const bf16* p, __mmask16 mask) { return widen(_mm256_maskz_loadu_epi16(mask, p)); }
inline void store(bf16* p, __m512 v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v)); }
inline void store(bf16* p, __m512 v, __mmask16 mask) { _mm256_mask_storeu_epi16(p, mask, narrow(v)); }

inline float widen(bf16 v) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(v << 16))); }
inline bf16 narrow(float v) { return static_cast<bf16>(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(v)), 0)); }

constexpr int64_t kLine = 64;  // bytes of a cache line

// Brings a row into the second-level cache, some time later.
inline void fetch(const bf16* row, int64_t dim) {
  for (int64_t i = 0; i < dim; i += kLine / 2) _mm_prefetch(reinterpret_cast<const char*>(row + i), _MM_HINT_T1);
}

// Sixteen vectors folded to a number each, in the order of _mm512_reduce_add_ps: halves first, then their halves.
template <class Both>
inline __m512 fold(const __m512 (&vectors)[16], const Both& both) {
  __m512 halves[8], quarters[4], pairs[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = vectors[2 * i], b = vectors[2 * i + 1];
    halves[i] = both(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // from here on each of the four lanes holds a part of another vector
    const __m512 a = halves[2 * i], b = halves[2 * i + 1];
    quarters[i] = both(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = quarters[2 * i], b = quarters[2 * i + 1];
    pairs[i] = both(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  const __m512 a = pairs[0], b = pairs[1];
  const __m512 all = both(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  // Lane l holds vectors l, 4 + l, 8 + l and 12 + l.
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all);
}

// e^x to 2 units in the last place; 0 below the normal range.
inline __m512 exp(__m512 x) {
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-104.f)), _mm512_set1_ps(89.f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  return _mm512_scalef_ps(p, n);
}

inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

inline __m512 silu(__m512 x) { return _mm512_mul_ps(x, sigmoid(x)); }

// The tanh form of GELU: x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
inline __m512 gelu_tanh(__m512 x) {
  const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_mul_ps(x, x), x), _mm512_set1_ps(0.044715f), x);
  return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(cubic, _mm512_set1_ps(1.5957691216f))));
}

}  // namespace seedance
