// Argmax of columns of a row that are whole pieces of 16 bytes.
#pragma once
#include "first.cuh"

constexpr int AT_ONCE = 16;  // pieces of a thread in flight: most tiles need one trip to memory
// A thread scans its columns in ascending order; in place of pieces beyond the end it reads the last one again.
template <class T> DEVICE void scan_pieces(Candidate& best, const T* row, int column, int end) {
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
        if (value > best.value) best = Candidate{value, min(first + n * THREADS * EACH, end - EACH) + e};
      }
  }
}
