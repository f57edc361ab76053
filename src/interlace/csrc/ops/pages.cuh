// Paged KV caches: the row of a cache that has a position of a sequence. kernels/pages.py has the layout. With PAGE 0
// each sequence has a cache of its own.
#pragma once
#include "rows.cuh"
#include "generated/arguments.cuh"

template <class A> DEVICE int pages_of_sequence(const A& a) { return (a.CAPACITY + PAGE - 1) / PAGE; }
// An entry of the block table. Loaded past the L1, which may hold that of the previous launch.
template <class A> DEVICE int entry_of(const A& a, int sequence, int page) {
  return __ldcg(a.table + (long long)sequence * pages_of_sequence(a) + page);
}
// The page that has a position of a sequence; negative without one.
template <class A> DEVICE int page_of(const A& a, int sequence, int at) {
  return min(entry_of(a, sequence, at / PAGE), a.PAGES - 1);
}
// The row of a position of a head in the cache as a matrix of D columns; negative without a page.
template <class A> DEVICE long long row_of(const A& a, int sequence, int head, int at) {
  if constexpr (PAGE == 0) {
    return ((long long)sequence * HEADS + head) * a.CAPACITY + at;
  } else {
    const int page = page_of(a, sequence, at);
    return page < 0 ? -1 : ((long long)page * HEADS + head) * PAGE + at % max(PAGE, 1);
  }
}
