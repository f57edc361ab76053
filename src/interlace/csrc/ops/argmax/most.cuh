// Argmax of columns of a row: by pieces where they are aligned to 16 bytes, else element by element.
#pragma once
#include "pieces.cuh"

template <class T> DEVICE Candidate max_of(const T* row, int column, int end) {
  Candidate best = {__int_as_float(LOWEST), end - 1};
  if (is_aligned(row + column) && (end - column) % Piece<T>::ELEMENTS == 0) {
    scan_pieces(best, row, column, end);
  } else {
#pragma unroll 8
    for (int at = column + thread(); at < end; at += THREADS) {
      const float value = widened(row[at]);
      if (value > best.value) best = Candidate{value, at};
    }
  }
  return best;
}
