// Columns of rows that are aligned to 16 bytes.
#pragma once

// Of some columns of a row.
template <class T> DEVICE Found most_of(const T* row, int column, int end) {
  Found found = {__int_as_float(LOWEST), end - 1};
  if (by_pieces(row + column) && (end - column) % Piece<T>::ELEMENTS == 0) {
    look_at(found, row, column, end);
  } else {
#pragma unroll 8
    for (int at = column + thread(); at < end; at += THREADS) {
      const float value = widened(row[at]);
      if (value > found.value) found = Found{value, at};
    }
  }
  return found;
}
