// Merge the rows of a token's experts: out[t] = sum over k of weights[t, k] * y[place[t, k]]. A tile is BM tokens by BN
// columns; places that are no row of y count nothing.
#pragma once
#include "vectors.cuh"
#include "generated/arguments.cuh"

// A thread has one piece of a row, from all experts at once; single elements where rows are no multiple of 16 bytes.
template <class T> DEVICE void merge(const Tile& tile, const Arguments& a, const T* y, T* out) {
  constexpr int EACH = H % Piece<T>::ELEMENTS ? 1 : Piece<T>::ELEMENTS, ACROSS = BN / EACH;
  for (int piece = thread(); piece < BM * ACROSS; piece += THREADS) {
    const int t = tile.i * BM + piece / ACROSS, column = tile.j * BN + piece % ACROSS * EACH;
    if (t >= a.T || column >= H) continue;
    int rows[CHOSEN];
    float weights[CHOSEN], sums[EACH];
#pragma unroll
    for (int k = 0; k < CHOSEN; ++k) {
      rows[k] = a.place[(long long)t * CHOSEN + k], weights[k] = a.weights[(long long)t * CHOSEN + k];
      if (rows[k] < 0 || rows[k] >= a.R) rows[k] = -1;
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) sums[e] = 0.0f;
#pragma unroll
    for (int k = 0; k < CHOSEN; ++k) {
      if (rows[k] < 0) continue;
      const T* const from = y + (long long)rows[k] * H + column;
      if constexpr (EACH > 1) {
        const Elements<T> made = piece_at(from, is_aligned(from));
#pragma unroll
        for (int e = 0; e < EACH; ++e) sums[e] += weights[k] * widened(made.items[e]);
      } else {
        sums[0] += weights[k] * widened(*from);
      }
    }
    T* const to = out + (long long)t * H + column;
    if constexpr (EACH > 1) {
      if (is_aligned(to)) {
        store_words(to, narrow<T>(sums));
        continue;
      }
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) put(to + e, sums[e]);
  }
}
DEVICE void merge_tile(const Tile& tile, const Arguments& a) { merge(tile, a, a.y, a.out); }
