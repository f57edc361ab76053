// Words that are polled for their own data: 32 bits of global memory, empty (EMPTY_WORD) or a value.
//
// The writer stores the value, the reader loads the word until it is not empty and then stores EMPTY_WORD, all in
// relaxed order. Neither a fence nor a release stands between the stores of data and those who wait for them: a fence
// ends only when the loads in flight on its SM end.
//
//   writer    fill_words                                      each word is there by itself
//   reader    load_words; await_words; empty_words; ...; post  words that have not arrived are loaded again
//
// An access of 16 bytes is one relaxed access for each of its words, so a reader may find some of them and not others.
// No order beyond that of one word is needed, since a word carries all that its reader wants:
//
// - Each word has one writer and one reader between two times that it is empty. The writer has waited for something
//   after the reader's post of the last value. So its store follows that of the empty word, and the reader of its
//   value, who has waited too, does not find an older one.
// - A reader loads a word before it empties it. Accesses of a thread to one word stay in order.
// - What the writer itself has read is complete, as its values have gone into the word.
//
// tests/protocols/emptied.py is a model of this under weak memory. Memory of words is empty at first, and is emptied
// again after a hang.
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
// Returns the bits of a value; a NaN that has the bits of an empty word becomes another NaN.
DEVICE unsigned filled(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits == EMPTY_WORD ? 0x7fffffffu : bits;
}
DEVICE void fill_words(float4* at, float x, float y, float z, float w) {
  store_words(at, filled(x), filled(y), filled(z), filled(w));
}
DEVICE void fill_two_words(float2* at, float x, float y) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), "r"((int)filled(x)),
               "r"((int)filled(y))
               : "memory");
}
// Called by each thread for itself: waits until none of its words is empty. Reloads pieces that have empty words, piece
// n from `at(n)`. After some tries it polls one piece alone, since many threads poll next to those that still work.
// Returns false if the watchdog ended the wait; the caller then records it (`give_up`).
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
      // Looks for another thread's failure only now and then, since that takes as long as a poll.
      if (nanoseconds() - since > launch.timeout_ns || load_relaxed(launch.fault)) return false;
    }
  }
}
