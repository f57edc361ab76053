// Copy a tile of BM rows by BN columns: y = x. M, N: rows and columns of the matrices.
#pragma once
#include "../ring/plain.cuh"
#include "generated/arguments.cuh"

// Copies in pieces V of one or more elements T.
template <class V, class T> DEVICE void copy_pieces(T* y, const T* x, const Tile& tile, int m, int n) {
  constexpr int EACH = sizeof(V) / sizeof(T), ROW = BN / EACH;
  for (int piece = thread(); piece < BM * ROW; piece += THREADS) {
    const int row = tile.i * BM + piece / ROW, column = tile.j * BN + piece % ROW * EACH;
    const long long at = (long long)row * n + column;
    if (row < m && column < n) *reinterpret_cast<V*>(y + at) = *reinterpret_cast<const V*>(x + at);
  }
}
template <class T> DEVICE void copy_elements(T* y, const T* x, const Tile& tile, int m, int n) {
  constexpr int EACH = sizeof(int4) / sizeof(T);
  const unsigned long long both = (unsigned long long)x | (unsigned long long)y;
  if constexpr (BN % EACH == 0)
    if (n % EACH == 0 && both % sizeof(int4) == 0) return copy_pieces<int4>(y, x, tile, m, n);
  copy_pieces<T>(y, x, tile, m, n);
}
DEVICE void copy_tile(const Tile& tile, const Arguments& a) { copy_elements(a.y, a.x, tile, a.M, a.N); }
