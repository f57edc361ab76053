"""Words that say themselves whether they are there, as CUDA C++: data that are polled in place of a semaphore.

A word is 32 bits of global memory, *empty* or a value. Who writes it stores the value, who reads it loads it until it
is not empty, and then stores that it is empty again, all in relaxed order. Neither a fence nor a release stands between
the stores of the data and those who wait for them: a fence ends only when the loads do that are under way in its SM.

    writer    store_words                                       each word is there by itself
    reader    load_words; await_words; empty_words; ...; post   what is not there yet is loaded again

An access of 16 bytes is one relaxed access for each of its words, so a reader may find some of them and not others. No
order is needed beyond that of one word, since a word carries all that its reader wants:

- Each word has one writer and one reader between two times that it is empty. The writer has waited for whatever stands
  behind the reader's post of the last value; so its store comes behind that of the empty word, and the reader of its
  value, who has waited too, does not find an older one.
- A reader loads a word before it empties it. Accesses of a thread to one word stay in order.
- What the writer has read itself is over, as its values have gone into the word.

``protocols/emptied`` is this under weak memory. Memory of words is empty at first, and made so again after a hang.
"""

from __future__ import annotations

#: Each byte of an empty word. As a float32 that is a NaN, in place of which the usual NaN is stored.
EMPTY_BYTE = 0xFF

WORDS = f"\nconstexpr unsigned EMPTY_WORD = {EMPTY_BYTE}u * 0x01010101u;" + r"""
DEVICE bool any_empty(const float4& v) {
  return __float_as_uint(v.x) == EMPTY_WORD || __float_as_uint(v.y) == EMPTY_WORD ||
         __float_as_uint(v.z) == EMPTY_WORD || __float_as_uint(v.w) == EMPTY_WORD;
}
DEVICE float4 load_words(const float4* at) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(__cvta_generic_to_global(at)) : "memory");
  return v;
}
DEVICE void store_words(float4* at, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"l"(__cvta_generic_to_global(at)), "r"((int)x), "r"((int)y), "r"((int)z), "r"((int)w) : "memory");
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
"""
