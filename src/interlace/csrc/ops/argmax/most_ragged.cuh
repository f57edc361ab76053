// Columns of rows that begin anywhere: 16 bytes at a time but for the ends.
#pragma once

template <class T> DEVICE Found most_of(const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  Found found = {__int_as_float(LOWEST), end - 1};
  const int head = min(column + before_pieces(row + column), end), tail = head + (end - head) / EACH * EACH;
  look_at(found, row, head, tail);
  const int at = column + thread() < head ? column + thread() : tail + thread() - (head - column);
  return at < end ? first_of(found, Found{widened(row[at]), at}) : found;
}
