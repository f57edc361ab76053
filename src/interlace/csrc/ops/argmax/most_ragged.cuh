// Argmax of columns of a row that begins anywhere: by pieces between its ends.
#pragma once
#include "pieces.cuh"

template <class T> DEVICE Candidate max_of(const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  Candidate best = {__int_as_float(LOWEST), end - 1};
  const int head = min(column + before_pieces(row + column), end), tail = head + (end - head) / EACH * EACH;
  scan_pieces(best, row, head, tail);
  const int at = column + thread() < head ? column + thread() : tail + thread() - (head - column);
  return at < end ? first_of(best, Candidate{widened(row[at]), at}) : best;
}
