// Data polled for a sentinel that no producer stores (kernels/primitives/words_cuda.py).
#pragma once
#include "semaphore.cuh"

DEVICE bool any_empty(const float4& v) {
  return __float_as_uint(v.x) == EMPTY_WORD || __float_as_uint(v.y) == EMPTY_WORD ||
         __float_as_uint(v.z) == EMPTY_WORD || __float_as_uint(v.w) == EMPTY_WORD;
}
DEVICE float4 load_words(const float4* at) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return v;
}
DEVICE void store_words(float4* at, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"((int)x),
               "r"((int)y), "r"((int)z), "r"((int)w)
               : "memory");
}
DEVICE void empty_words(float4* at) { store_words(at, EMPTY_WORD, EMPTY_WORD, EMPTY_WORD, EMPTY_WORD); }
// A value that has the bits of an empty word, a NaN, becomes the usual NaN.
DEVICE unsigned filled(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits == EMPTY_WORD ? 0x7fffffffu : bits;
}
DEVICE void fill_words(float4* at, float x, float y, float z, float w) {
  store_words(at, filled(x), filled(y), filled(z), filled(w));
}
// By each thread for itself, until none of its words is empty: pieces that have empty words are loaded again, from
// where `at` says. After some tries one of them is polled alone, as many threads do so beside those who still work.
// False where the watchdog ended it; the caller then says what was waited for (`give_up`).
template <int N, class L, class AT> DEVICE bool await_words(const L& launch, float4 (&values)[N], const AT& at) {
  unsigned long long since = 0;
#pragma unroll 1
  for (unsigned tries = 1;; ++tries) {
    const float4* missing = nullptr;
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (any_empty(values[n])) values[n] = load_words(missing = at(n));
    if (!missing) return true;
    __nanosleep(32);
#pragma unroll 1
    while (tries >= 8 && any_empty(load_words(missing))) {
      __nanosleep(32);
      if (++tries % 64) continue;
      if (!since) since = nanoseconds();
      // Another's failure is looked for now and then, since that takes as long as a poll.
      if (nanoseconds() - since > launch.timeout_ns || load_relaxed(launch.fault)) return false;
    }
  }
}
