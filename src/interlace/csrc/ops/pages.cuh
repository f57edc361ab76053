// Pages of a paged KV cache (kernels/pages.py).
#pragma once

template <class A> DEVICE int pages_of_sequence(const A& a) { return (a.CAPACITY + PAGE - 1) / PAGE; }
// An entry of the table. Past the nearest cache, which may have what was there a launch ago.
template <class A> DEVICE int entry_of(const A& a, int sequence, int page) {
  return __ldcg(a.table + (long long)sequence * pages_of_sequence(a) + page);
}
// The page that has a position of a sequence, negative where there is none.
template <class A> DEVICE int page_of(const A& a, int sequence, int at) {
  return min(entry_of(a, sequence, at / PAGE), a.PAGES - 1);
}
// The row of a cache, as one matrix of D columns, that has a position of a head; negative where there is no page.
template <class A> DEVICE long long row_of(const A& a, int sequence, int head, int at) {
  if constexpr (PAGE == 0) {
    return ((long long)sequence * HEADS + head) * a.CAPACITY + at;
  } else {
    const int page = page_of(a, sequence, at);
    return page < 0 ? -1 : ((long long)page * HEADS + head) * PAGE + at % max(PAGE, 1);
  }
}
