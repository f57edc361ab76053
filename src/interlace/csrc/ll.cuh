// LL protocol, as NCCL names it (nccl/src/device/prims_ll.h): 32 bits of data and a 32-bit epoch in one 64-bit word,
// stored and loaded with relaxed order.
//
// A consumer polls the word itself until its epoch matches: no flag, no fence, no release. A fence would wait for all
// bulk loads in flight on its SM (benchmarks/notes/memory-order.md). The code calls an epoch the number of a
// publication.
//
//   words of q in a launch of 20 ops     run 0, op 1: epoch 2     run 0, op 11: epoch 12     run 1, op 1: epoch 22
//   attention of run 0, after op 11      polls until the epoch is 12, then uses the lower half
//
// megakernel/ll_edges.py: which tensors use LL, their epochs, and why no word is overwritten before all have read it.
// tests/protocols/tagged.py and, for words that a block polls once, tests/protocols/kept.py are models of it.
#pragma once
#include "tile.cuh"
#include "ring/plain.cuh"

// Returns the epoch of an op's outputs in the run of an item; a run has `numbers` epochs. It wraps modulo 2^32.
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
// Stores two neighbours at a multiple of 16 bytes; each is a word of its own.
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
// COUNT words of a thread, all of one epoch. Each round reloads the words that have not arrived, all in flight at once.
template <int COUNT> struct Words {
  unsigned long long words[COUNT];
  unsigned wanted;
  DEVICE Words() {}
  DEVICE explicit Words(unsigned wanted) : wanted(wanted) { forget(); }
  DEVICE void forget() {
#pragma unroll
    for (int n = 0; n < COUNT; ++n) words[n] = word_of(0, wanted - 1);
  }
  // `at(n)` returns the address of word n.
  template <class F> DEVICE void ask(F at) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
      if (!is_of(words[n], wanted)) load_word(words[n], at(n));
  }
  // `at(n)` returns the address of words n and n + 1, for even n.
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
  // Marks a word as arrived that no producer stores.
  DEVICE void skip(int n) { words[n] = word_of(0, wanted); }
  DEVICE unsigned data(int n) const { return data_of(words[n]); }
  DEVICE float number(int n) const { return __uint_as_float(data(n)); }
};
// Watchdog of a thread that polls words.
struct Patience {
  unsigned long long since = 0;
  int asked = 0;
  // Returns whether to give up, after a round in which a word of epoch `wanted` had not arrived.
  DEVICE bool over(const Tile& tile, unsigned wanted, unsigned number) {
    return over(*tile.launch, *tile.item, wanted, number);
  }
  DEVICE bool over(const Launch& launch, const Item& item, unsigned wanted, unsigned number) {
    if (++asked % 64) return false;  // reading the clock takes longer than most waits
    const unsigned long long now = nanoseconds();
    if (!since) since = now;
    if (now - since <= launch.timeout_ns) return load_relaxed(launch.fault) != 0;
    give_up(launch, item.number, AWAITED_WORDS, (int)number, (int)wanted);
    return true;
  }
};
// Called by the threads of an item after its words: notes for the watchdog that it stored them, if it has no post.
DEVICE void note_words(const Launch& launch, const Item& item) {
  if (thread() == 0 && item.post < 0) launch.done[item.number] = (int)(item.run + 1);
}
template <class A> DEVICE void note_words(const Tile& tile, const A&) { note_words(*tile.launch, *tile.item); }
