// Scan columns of a row, 16 bytes at a time.
#pragma once

constexpr int AT_ONCE = 16;  // pieces under way of a thread: a tile is mostly one trip to memory
// Of columns that are whole pieces, those of each thread in ascending order; the last is read for what lies behind it.
template <class T> DEVICE void look_at(Found& found, const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
#pragma unroll 1
  for (int first = column + thread() * EACH; first < end; first += AT_ONCE * THREADS * EACH) {
    Elements<T> pieces[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) pieces[n] = piece_at(row + min(first + n * THREADS * EACH, end - EACH), true);
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        const float value = widened(pieces[n].items[e]);
        if (value > found.value) found = Found{value, min(first + n * THREADS * EACH, end - EACH) + e};
      }
  }
}
