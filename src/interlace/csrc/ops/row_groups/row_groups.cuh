// Row groups: warps that share rows.
#pragma once

DEVICE int team() { return thread() / TEAM; }
DEVICE int member() { return thread() % TEAM; }
// Of what all members have. Reductions that follow each other have unlike places, 0 and 1.
template <class F> DEVICE float of_team(float mine, int place, F join) {
  for (int distance = 16; distance; distance /= 2) mine = join(mine, __shfl_xor_sync(0xffffffff, mine, distance));
  if (TEAM == 32) return mine;
  float* const each = shared_by_team(place);
  if (lane_of() == 0) each[member() / 32] = mine;
  synchronise_team();
  float found = each[0];
  for (int warp = 1; warp < TEAM / 32; ++warp) found = join(found, each[warp]);
  return found;
}
// Of what members have in several places each.
constexpr int PLACES = 8;
template <class F> DEVICE float of_places(const float (&values)[PLACES], int place, F join) {
  float found = values[0];
#pragma unroll
  for (int n = 1; n < PLACES; ++n) found = join(found, values[n]);
  return of_team(found, place, join);
}
DEVICE float team_sum(const float (&values)[PLACES], int place) {
  return of_places(values, place, [](float a, float b) { return a + b; });
}
DEVICE float team_most(const float (&values)[PLACES], int place) {
  return of_places(values, place, [](float a, float b) { return fmaxf(a, b); });
}

// Whether rows lie alike, so that where one has a piece all have.
template <class T, class... S> DEVICE bool alike(const T* row, const S*... others) {
  return (... && (((unsigned long long)row ^ (unsigned long long)others) % 16 == 0));
}
// A row: its elements, and where those between its ends are to be taken from, which may be shared memory.
template <class T> struct Row {
  const T *all, *between;
};
template <class T> DEVICE Row<T> row_at(const T* all) { return {all, all}; }
// Each element of a row, by 16 bytes but for its ends, in the same order every time: `look(place, value)`, where
// those of unlike places do not wait for each other.
template <class T, class F> DEVICE void visit(int n, const Row<T>& row, F look) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  const int head = min(n, before_pieces(row.all)), tail = head + (n - head) / EACH * EACH;
#pragma unroll 8
  for (int at = head + member() * EACH; at < tail; at += TEAM * EACH) {
    float values[EACH];
    widen<T>(words_at(row.between + at), values);
#pragma unroll
    for (int e = 0; e < EACH; ++e) look(e, values[e]);
  }
  if (member() < head) look(0, widened(row.all[member()]));
  if (tail + member() < n) look(0, widened(row.all[tail + member()]));
}
template <class T> struct Widened {
  float of[Piece<T>::ELEMENTS];
  DEVICE explicit Widened(const int4& piece) { widen<T>(piece, of); }
};
template <class T, class F, class... W> DEVICE int4 map_values(F made, const W&... values) {
  float result[Piece<T>::ELEMENTS];
#pragma unroll
  for (int e = 0; e < Piece<T>::ELEMENTS; ++e) result[e] = made(values.of[e]...);
  return narrowed<T>(result);
}
template <class T, class F, class... P> DEVICE int4 map_piece(F made, const P&... pieces) {
  return map_values<T>(made, Widened<T>(pieces)...);
}
// Pieces of a row that a thread loads before it stores the first of what it makes of them.
constexpr int AHEAD = 4;
template <class T> struct Ahead {
  int4 pieces[AHEAD];
  DEVICE explicit Ahead(const T* at) {
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) pieces[n] = words_at(at + n * TEAM * Piece<T>::ELEMENTS);
  }
};
template <class T, class F, class... S> DEVICE void map_pieces(T* out, F made, const Ahead<S>&... rows) {
#pragma unroll
  for (int n = 0; n < AHEAD; ++n)
    store_words(out + n * TEAM * Piece<T>::ELEMENTS, map_piece<T>(made, rows.pieces[n]...));
}
// ``out[n] = made(rows[n]...)``, likewise, or one by one if the rows do not lie alike. Loads stand before stores, which
// they do not pass: for all that the compiler knows, those change what is loaded.
template <class T, class F, class... S> DEVICE void map_rows(int n, T* out, F made, const Row<S>&... rows) {
  constexpr int EACH = Piece<T>::ELEMENTS, STEP = TEAM * EACH;
  const int head = alike(out, rows.all...) ? min(n, before_pieces(out)) : n, tail = head + (n - head) / EACH * EACH;
  int at = head + member() * EACH;
#pragma unroll 1
  for (; at + (AHEAD - 1) * STEP < tail; at += AHEAD * STEP) {
    map_pieces(out + at, made, Ahead<S>(rows.between + at)...);
  }
#pragma unroll 1
  for (; at < tail; at += STEP) { store_words(out + at, map_piece<T>(made, words_at(rows.between + at)...)); }
#pragma unroll 1
  for (int at = member(); at < head; at += TEAM) put(out + at, made(widened(rows.all[at])...));
  if (tail + member() < n) put(out + tail + member(), made(widened(rows.all[tail + member()])...));
}

// A row of which each thread has its pieces in registers, or, longer ones, none.
template <class T, int COUNT> struct Held {
  const T* all;
  int n, head, tail, left;  // elements from the first piece of the thread on
  int4 pieces[COUNT];
  DEVICE Held(int n, const Row<T>& row) : all(row.all), n(n), head(min(n, before_pieces(row.all))) {
    tail = head + (n - head) / Piece<T>::ELEMENTS * Piece<T>::ELEMENTS;
    left = tail - place(0);
#pragma unroll
    for (int p = 0; p < COUNT; ++p)
      if (has(p)) pieces[p] = words_at(row.between + place(p));
  }
  DEVICE int place(int p) const { return head + (p * TEAM + member()) * Piece<T>::ELEMENTS; }
  DEVICE bool has(int p) const { return p * TEAM * Piece<T>::ELEMENTS < left; }
};
template <class T> struct Held<T, 0> {
  int n;
  Row<T> row;
  DEVICE Held(int n, const Row<T>& row) : n(n), row(row) {}
};
constexpr int MOST_HELD = 16;
template <int N, class T> DEVICE auto held(const Row<T>& row) {
  constexpr int COUNT = (N + TEAM * Piece<T>::ELEMENTS - 1) / (TEAM * Piece<T>::ELEMENTS);
  return Held<T, COUNT <= MOST_HELD ? COUNT : 0>(N, row);
}
// What all rows have in common, of which some pieces are loaded at once: the first ahead of a row's reductions.
constexpr int AT_ONCE = 8;
template <class T> struct Vector {
  const T* all;
  int4 pieces[AT_ONCE];
  template <int COUNT> DEVICE void load(const Held<T, COUNT>& row, int from) {
    if (!alike(row.all, all)) return;
#pragma unroll
    for (int p = 0; p < AT_ONCE && from + p < COUNT; ++p)
      if (row.has(from + p)) pieces[p] = words_at(all + row.place(from + p));
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
DEVICE void map_rows(T* out, F made, const Held<T, COUNT>& row, Vector<V>&... vectors) {
  if constexpr (COUNT == 0) {
    map_rows(row.n, out, made, row.row, row_at(vectors.all)...);
  } else if (alike(out, row.all, vectors.all...)) {
#pragma unroll
    for (int from = 0; from < COUNT; from += AT_ONCE) {
      if (from) (vectors.load(row, from), ...);
#pragma unroll
      for (int p = 0; p < AT_ONCE && from + p < COUNT; ++p)
        if (row.has(from + p))
          store_words(out + row.place(from + p), map_piece<T>(made, row.pieces[from + p], vectors.pieces[p]...));
    }
    if (member() < row.head) put(out + member(), made(widened(row.all[member()]), widened(vectors.all[member()])...));
    const int last = row.tail + member();
    if (last < row.n) put(out + last, made(widened(row.all[last]), widened(vectors.all[last])...));
  } else {
#pragma unroll 1
    for (int at = member(); at < row.n; at += TEAM)
      put(out + at, made(widened(row.all[at]), widened(vectors.all[at])...));
  }
}
