// Sums of experts' counts over blocks of tokens.
#pragma once
#include "tiles_before.cuh"
#include "generated/arguments.cuh"

// Called by all threads: calls use(index, number) with each of `count` numbers. A thread has 4 neighbours at a time,
// where they are aligned, and AT_ONCE such loads in flight.
template <class F> DEVICE void for_each(const int* numbers, int count, F use) {
  const bool aligned = (unsigned long long)numbers % 16 == 0;
  for (int first = thread() * 4; first < count; first += THREADS * 4 * AT_ONCE) {
    int4 values[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int at = first + n * THREADS * 4;
      values[n] = make_int4(0, 0, 0, 0);
      if (aligned && at + 4 <= count) values[n] = __ldcg(reinterpret_cast<const int4*>(numbers + at));
      else if (at < count)
        values[n] = make_int4(__ldcg(numbers + at), __ldcg(numbers + min(at + 1, count - 1)),
                              __ldcg(numbers + min(at + 2, count - 1)), __ldcg(numbers + min(at + 3, count - 1)));
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int at = first + n * THREADS * 4;
      if (at < count) use(at, values[n].x);
      if (at + 1 < count) use(at + 1, values[n].y);
      if (at + 2 < count) use(at + 2, values[n].z);
      if (at + 3 < count) use(at + 3, values[n].w);
    }
  }
}
// Called by all threads: pairs of each expert, and those of them in the first `before` blocks of tokens.
DEVICE void sum_up(const int* counts, int blocks, int before, int* total, int* earlier) {
  for (int e = thread(); e < E; e += THREADS) total[e] = earlier[e] = 0;
  synchronise_block();
  for_each(counts, blocks * E, [&](int at, int count) {
    if (!count) return;
    atomicAdd(total + at % E, count);
    if (at / E < before) atomicAdd(earlier + at % E, count);
  });
  synchronise_block();
}
