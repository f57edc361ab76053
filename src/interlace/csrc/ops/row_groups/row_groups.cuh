// Row groups: the warps of a tile in groups of GROUP_THREADS threads, each of which has one row at a time.
//
// of_tile.cuh or of_row.cuh chooses GROUP_THREADS and ROW_GROUPS. A row is read and written in pieces of 16 bytes
// between its ends:
//
//   visit      calls a function with each element, in the same order every time
//   map_rows   out[n] = f(rows[n] ...)
//   hold       a row of a thread in registers, so that it is read from memory once
//   Vector     a vector that all rows share, such as the weight of a norm
#pragma once
#include "../vectors.cuh"
#include "generated/row_groups.cuh"

DEVICE int row_group() { return thread() / GROUP_THREADS; }
DEVICE int member() { return thread() % GROUP_THREADS; }
// Reduces a value of each member. Successive reductions alternate between slots 0 and 1 of the scratch.
template <class F> DEVICE float reduce(float value, int slot, F join) {
  for (int distance = 16; distance; distance /= 2) value = join(value, __shfl_xor_sync(0xffffffff, value, distance));
  if (GROUP_THREADS == 32) return value;
  float* const each = group_scratch(slot);
  if (lane_of() == 0) each[member() / 32] = value;
  synchronise_group();
  float result = each[0];
  for (int warp = 1; warp < GROUP_THREADS / 32; ++warp) result = join(result, each[warp]);
  return result;
}
// Reduces SLOTS independent values of each member, such as the sums of `visit`.
constexpr int SLOTS = 8;
template <class F> DEVICE float reduce_slots(const float (&values)[SLOTS], int slot, F join) {
  float result = values[0];
#pragma unroll
  for (int n = 1; n < SLOTS; ++n) result = join(result, values[n]);
  return reduce(result, slot, join);
}
DEVICE float group_sum(const float (&values)[SLOTS], int slot) {
  return reduce_slots(values, slot, [](float a, float b) { return a + b; });
}
DEVICE float group_max(const float (&values)[SLOTS], int slot) {
  return reduce_slots(values, slot, [](float a, float b) { return fmaxf(a, b); });
}

// True if rows have the same alignment, so that their pieces begin at the same elements.
template <class T, class... S> DEVICE bool same_alignment(const T* row, const S*... others) {
  return (... && (((unsigned long long)row ^ (unsigned long long)others) % 16 == 0));
}
// A row: its elements in memory, and where to read those between its ends, which may be a stage in shared memory.
template <class T> struct Row {
  const T *all, *between;
};
template <class T> DEVICE Row<T> row_at(const T* all) { return {all, all}; }
// Calls look(slot, value) with each element of a row, in the same order every time. Values of different slots are
// independent.
template <class T, class F> DEVICE void visit(int n, const Row<T>& row, F look) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  const int head = min(n, before_pieces(row.all)), tail = head + (n - head) / EACH * EACH;
#pragma unroll 8
  for (int at = head + member() * EACH; at < tail; at += GROUP_THREADS * EACH) {
    float values[EACH];
    widen<T>(words_at(row.between + at), values);
#pragma unroll
    for (int e = 0; e < EACH; ++e) look(e, values[e]);
  }
  if (member() < head) look(0, widened(row.all[member()]));
  if (tail + member() < n) look(0, widened(row.all[tail + member()]));
}
template <class T> struct Widened {
  float values[Piece<T>::ELEMENTS];
  DEVICE explicit Widened(const int4& piece) { widen<T>(piece, values); }
};
template <class T, class F, class... W> DEVICE int4 map_values(F map, const W&... values) {
  float result[Piece<T>::ELEMENTS];
#pragma unroll
  for (int e = 0; e < Piece<T>::ELEMENTS; ++e) result[e] = map(values.values[e]...);
  return narrow<T>(result);
}
template <class T, class F, class... P> DEVICE int4 map_piece(F map, const P&... pieces) {
  return map_values<T>(map, Widened<T>(pieces)...);
}
// Pieces of a row that a thread loads before it stores the first result.
constexpr int AHEAD = 4;
template <class T> struct Ahead {
  int4 pieces[AHEAD];
  DEVICE explicit Ahead(const T* at) {
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) pieces[n] = words_at(at + n * GROUP_THREADS * Piece<T>::ELEMENTS);
  }
};
template <class T, class F, class... S> DEVICE void map_pieces(T* out, F map, const Ahead<S>&... rows) {
#pragma unroll
  for (int n = 0; n < AHEAD; ++n)
    store_words(out + n * GROUP_THREADS * Piece<T>::ELEMENTS, map_piece<T>(map, rows.pieces[n]...));
}
// out[n] = map(rows[n] ...), by pieces, or element by element if the rows have different alignments. Loads precede
// stores in the source, since the compiler moves none across: a store might change what is loaded.
template <class T, class F, class... S> DEVICE void map_rows(int n, T* out, F map, const Row<S>&... rows) {
  constexpr int EACH = Piece<T>::ELEMENTS, STEP = GROUP_THREADS * EACH;
  const int head = same_alignment(out, rows.all...) ? min(n, before_pieces(out)) : n,
            tail = head + (n - head) / EACH * EACH;
  int at = head + member() * EACH;
#pragma unroll 1
  for (; at + (AHEAD - 1) * STEP < tail; at += AHEAD * STEP) {
    map_pieces(out + at, map, Ahead<S>(rows.between + at)...);
  }
#pragma unroll 1
  for (; at < tail; at += STEP) { store_words(out + at, map_piece<T>(map, words_at(rows.between + at)...)); }
#pragma unroll 1
  for (int at = member(); at < head; at += GROUP_THREADS) put(out + at, map(widened(rows.all[at])...));
  if (tail + member() < n) put(out + tail + member(), map(widened(rows.all[tail + member()])...));
}

// A row in registers, each thread's pieces of it; with COUNT 0, for longer rows, in memory.
template <class T, int COUNT> struct Held {
  const T* all;
  int n, head, tail, left;  // left: elements from the thread's first piece to the tail
  int4 pieces[COUNT];
  DEVICE Held(int n, const Row<T>& row) : all(row.all), n(n), head(min(n, before_pieces(row.all))) {
    tail = head + (n - head) / Piece<T>::ELEMENTS * Piece<T>::ELEMENTS;
    left = tail - offset(0);
#pragma unroll
    for (int p = 0; p < COUNT; ++p)
      if (has(p)) pieces[p] = words_at(row.between + offset(p));
  }
  DEVICE int offset(int p) const { return head + (p * GROUP_THREADS + member()) * Piece<T>::ELEMENTS; }
  DEVICE bool has(int p) const { return p * GROUP_THREADS * Piece<T>::ELEMENTS < left; }
};
template <class T> struct Held<T, 0> {
  int n;
  Row<T> row;
  DEVICE Held(int n, const Row<T>& row) : n(n), row(row) {}
};
constexpr int MOST_HELD = 16;
template <int N, class T> DEVICE auto hold(const Row<T>& row) {
  constexpr int COUNT = (N + GROUP_THREADS * Piece<T>::ELEMENTS - 1) / (GROUP_THREADS * Piece<T>::ELEMENTS);
  return Held<T, COUNT <= MOST_HELD ? COUNT : 0>(N, row);
}
// A vector that all rows share. It loads AT_ONCE pieces at a time, the first of them before a row's reductions.
constexpr int AT_ONCE = 8;
template <class T> struct Vector {
  const T* all;
  int4 pieces[AT_ONCE];
  template <int COUNT> DEVICE void load(const Held<T, COUNT>& row, int from) {
    if (!same_alignment(row.all, all)) return;
#pragma unroll
    for (int p = 0; p < AT_ONCE && from + p < COUNT; ++p)
      if (row.has(from + p)) pieces[p] = words_at(all + row.offset(from + p));
  }
  DEVICE void load(const Held<T, 0>& row, int from) {}
};
template <class T, int COUNT, class F> DEVICE void visit(const Held<T, COUNT>& row, F look) {
  if constexpr (COUNT == 0) {
    visit(row.n, row.row, look);
  } else {
#pragma unroll
    for (int p = 0; p < COUNT; ++p) {
      if (!row.has(p)) continue;
      float values[Piece<T>::ELEMENTS];
      widen<T>(row.pieces[p], values);
#pragma unroll
      for (int e = 0; e < Piece<T>::ELEMENTS; ++e) look(e, values[e]);
    }
    if (member() < row.head) look(0, widened(row.all[member()]));
    if (row.tail + member() < row.n) look(0, widened(row.all[row.tail + member()]));
  }
}
template <class T, int COUNT, class F, class... V>
DEVICE void map_rows(T* out, F map, const Held<T, COUNT>& row, Vector<V>&... vectors) {
  if constexpr (COUNT == 0) {
    map_rows(row.n, out, map, row.row, row_at(vectors.all)...);
  } else if (same_alignment(out, row.all, vectors.all...)) {
#pragma unroll
    for (int from = 0; from < COUNT; from += AT_ONCE) {
      if (from) (vectors.load(row, from), ...);
#pragma unroll
      for (int p = 0; p < AT_ONCE && from + p < COUNT; ++p)
        if (row.has(from + p))
          store_words(out + row.offset(from + p), map_piece<T>(map, row.pieces[from + p], vectors.pieces[p]...));
    }
    if (member() < row.head) put(out + member(), map(widened(row.all[member()]), widened(vectors.all[member()])...));
    const int last = row.tail + member();
    if (last < row.n) put(out + last, map(widened(row.all[last]), widened(vectors.all[last])...));
  } else {
#pragma unroll 1
    for (int at = member(); at < row.n; at += GROUP_THREADS)
      put(out + at, map(widened(row.all[at]), widened(vectors.all[at])...));
  }
}
