// Token embedding: out[i] = table[tokens[i]]; token ids are clamped to the table.
//
// With SQUARED also what a folded norm of the next op needs (matmul/folded_norm.cuh): the row times `scale`, and for
// each SQUARED columns the sum of squares, added by neighbouring threads. These may be LL tensors. A tile is a row and
// BN columns.
#pragma once
#include "rows.cuh"
#include "../ll.cuh"
#include "generated/arguments.cuh"

template <class T> DEVICE void copy_row(T* out, const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  if (is_aligned(out + column) && is_aligned(row + column) && (end - column) % EACH == 0) {
    for (int at = column + thread() * EACH; at < end; at += THREADS * EACH) {
      *reinterpret_cast<Elements<T>*>(out + at) = piece_at(row + at, true);
    }
  } else {
    for (int at = column + thread(); at < end; at += THREADS) out[at] = row[at];
  }
}
// Copies, scales and squares.
template <class T>
DEVICE void copy_row_scaled(T* out, T* scaled, float* squares, const T* row, const T* scale, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS, LANES = SQUARED / EACH;
  const bool pieces = is_aligned(out + column) && is_aligned(scaled + column) && is_aligned(row + column) &&
                      is_aligned(scale + column) && (end - column) % EACH == 0;
  for (int first = column; first < end; first += THREADS * EACH) {  // whole warps, for the sums
    const int at = first + thread() * EACH;
    float sum = 0.0f;
    if (pieces && at < end) {
      const Elements<T> piece = piece_at(row + at, true), gain = piece_at(scale + at, true);
      Elements<T> result;
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        sum += widened(piece.items[e]) * widened(piece.items[e]);
        put(result.items + e, widened(piece.items[e]) * widened(gain.items[e]));
      }
      *reinterpret_cast<Elements<T>*>(out + at) = piece;
      *reinterpret_cast<Elements<T>*>(scaled + at) = result;
    } else {
      for (int e = at; e < min(at + EACH, end); ++e) {
        const T value = row[e];
        sum += widened(value) * widened(value);
        put(scaled + e, widened(value) * widened(scale[e]));
        out[e] = value;
      }
    }
    for (int distance = LANES / 2; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    if (at < end && at % SQUARED == 0) squares[at / SQUARED] = sum;
  }
}
// The same with `scaled` and `squares` as LL words; sums have the same order.
template <class A, class T>
DEVICE void publish_row(const Tile& tile, const A& a, T* out, const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS, LANES = SQUARED / EACH;
  const unsigned epoch = publication(tile, a.scaled_number, a.publications);
  const bool pieces = is_aligned(out + column) && is_aligned(row + column) && is_aligned(a.scale + column) &&
                      (end - column) % EACH == 0;
  for (int first = column; first < end; first += THREADS * EACH) {
    const int at = first + thread() * EACH;
    Elements<T> piece = {}, gain = {};
    if (pieces && at < end) {
      piece = piece_at(row + at, true), gain = piece_at(a.scale + at, true);
      *reinterpret_cast<Elements<T>*>(out + at) = piece;
    } else {
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        if (at + e < end) out[at + e] = piece.items[e] = row[at + e], gain.items[e] = a.scale[at + e];
    }
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; e += 2) {
      const float low = widened(piece.items[e]), high = widened(piece.items[e + 1]);
      sum += low * low;
      sum += high * high;
      const unsigned scaled_low = rounded<T>(low * widened(gain.items[e])).bits;
      const unsigned scaled_high = rounded<T>(high * widened(gain.items[e + 1])).bits;
      if (at + e < end)
        store_word(a.scaled + ((long long)tile.i * a.H + at + e) / 2, scaled_high << 16 | scaled_low, epoch);
    }
    for (int distance = LANES / 2; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    const long long blocks = (long long)tile.i * ((a.H + SQUARED - 1) / SQUARED);
    if (at < end && at % SQUARED == 0) store_word(a.squares + blocks + at / SQUARED, __float_as_uint(sum), epoch);
  }
  note_words(tile, a);
}
template <class A> DEVICE void embed(const Tile& tile, const A& a) {
  const int row = min(max(a.tokens[tile.i], 0), a.V - 1), column = tile.j * BN, end = min(column + BN, a.H);
  const long long at = (long long)tile.i * a.H;
  const auto* const from = a.table + (long long)row * a.H;
  if constexpr (scaled_words) {
    publish_row(tile, a, a.out + at, from, column, end);
  } else if constexpr (SQUARED > 0) {
    float* const squares = a.squares + (long long)tile.i * ((a.H + SQUARED - 1) / SQUARED);
    copy_row_scaled(a.out + at, a.scaled + at, squares, from, a.scale, column, end);
  } else {
    copy_row(a.out + at, from, column, end);
  }
}
DEVICE void embedding_tile(const Tile& tile, const Arguments& a) { embed(tile, a); }
