// LL protocol, as NCCL names it: data and an epoch in one 64-bit word (kernels/primitives/tagged_cuda.py).
#pragma once
#include "tile.cuh"
#include "ring/plain.cuh"
#include "generated/words.cuh"

// The publication of an op in the run of an item: `numbers` of them in each run.
DEVICE unsigned publication(const Item& item, unsigned number, unsigned numbers) { return item.run * numbers + number; }
DEVICE unsigned publication(const Tile& tile, unsigned number, unsigned numbers) {
  return publication(*tile.item, number, numbers);
}
DEVICE unsigned long long word_of(unsigned data, unsigned publication) {
  return (unsigned long long)publication << 32 | data;
}
DEVICE void store_word(unsigned long long* at, unsigned data, unsigned publication) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)),
               "l"(word_of(data, publication))
               : "memory");
}
// Two neighbours, at a multiple of 16 bytes; each of them is a word of its own.
DEVICE void store_two_words(unsigned long long* at, float first, float second, unsigned publication) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)),
               "l"(word_of(__float_as_uint(first), publication)), "l"(word_of(__float_as_uint(second), publication))
               : "memory");
}
DEVICE void load_word(unsigned long long& word, const unsigned long long* at) {
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(__cvta_generic_to_global(at)) : "memory");
}
DEVICE void load_two_words(unsigned long long& first, unsigned long long& second, const unsigned long long* at) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
}
DEVICE bool is_of(unsigned long long word, unsigned publication) { return (unsigned)(word >> 32) == publication; }
DEVICE unsigned data_of(unsigned long long word) { return (unsigned)word; }
// COUNT words of a thread, all of one publication. Those that are not there yet are asked for again, all at once.
template <int COUNT> struct Words {
  unsigned long long words[COUNT];
  unsigned wanted;
  DEVICE Words() {}
  DEVICE explicit Words(unsigned wanted) : wanted(wanted) { forget(); }
  DEVICE void forget() {
#pragma unroll
    for (int n = 0; n < COUNT; ++n) words[n] = word_of(0, wanted - 1);
  }
  // `at(n)`: where the n-th lies.
  template <class F> DEVICE void ask(F at) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
      if (!is_of(words[n], wanted)) load_word(words[n], at(n));
  }
  // `at(n)`: where the n-th and the one behind it lie, for even n.
  template <class F> DEVICE void ask_two(F at) {
#pragma unroll
    for (int n = 0; n < COUNT; n += 2)
      if (!is_of(words[n], wanted) || !is_of(words[n + 1], wanted)) load_two_words(words[n], words[n + 1], at(n));
  }
  DEVICE bool came() const {
    bool all = true;
#pragma unroll
    for (int n = 0; n < COUNT; ++n) all &= is_of(words[n], wanted);
    return all;
  }
  // That nobody leaves.
  DEVICE void skip(int n) { words[n] = word_of(0, wanted); }
  DEVICE unsigned data(int n) const { return data_of(words[n]); }
  DEVICE float number(int n) const { return __uint_as_float(data(n)); }
};
// How long a thread has polled for words.
struct Patience {
  unsigned long long since = 0;
  int asked = 0;
  // Whether it must give up, behind a try that left some out, of which one is of the publication `wanted`.
  DEVICE bool over(const Tile& tile, unsigned wanted, unsigned number) {
    return over(*tile.launch, *tile.item, wanted, number);
  }
  DEVICE bool over(const Launch& launch, const Item& item, unsigned wanted, unsigned number) {
    if (++asked % 64) return false;  // reading the clock takes longer than what is mostly waited for
    const unsigned long long now = nanoseconds();
    if (!since) since = now;
    if (now - since <= launch.timeout_ns) return load_relaxed(launch.fault) != 0;
    give_up(launch, item.number, AWAITED_WORDS, (int)number, (int)wanted);
    return true;
  }
};
// By the threads of an item, behind its words: that it has left them, for the watchdog, where nobody awaits its post.
DEVICE void note_words(const Launch& launch, const Item& item) {
  if (thread() == 0 && item.post < 0) launch.done[item.number] = (int)(item.run + 1);
}
template <class A> DEVICE void note_words(const Tile& tile, const A&) { note_words(*tile.launch, *tile.item); }
