// Gather rows: out[r] = x[token[r]], or zeros where token[r] is no row of x. A tile is BM rows by BN columns.
#pragma once
#include "rows.cuh"
#include "generated/arguments.cuh"

// Copies pieces P; a thread has AT_ONCE loads in flight.
template <class P> DEVICE void gather_pieces(const Tile& tile, const Arguments& a, const P* x, P* out, int width) {
  constexpr int AT_ONCE = 4;
  const int begin = tile.j * BN * width / a.H, across = min((tile.j + 1) * BN, a.H) * width / a.H - begin;
  const int all = min(BM, a.R - tile.i * BM) * across;
#pragma unroll 1
  for (int first = thread(); first < all; first += THREADS * AT_ONCE) {
    P pieces[AT_ONCE];
    long long to[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int at = min(first + n * THREADS, all - 1), row = tile.i * BM + at / across, column = begin + at % across;
      const int token = a.token[row];
      to[n] = (long long)row * width + column;
      pieces[n] = P();
      if (token >= 0 && token < a.T) pieces[n] = x[(long long)token * width + column];
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
      if (first + n * THREADS < all) out[to[n]] = pieces[n];
  }
}
template <class T> DEVICE void gather(const Tile& tile, const Arguments& a, const T* x, T* out) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  if (is_aligned(x) && is_aligned(out) && a.H % EACH == 0 && BN % EACH == 0) {
    typedef Elements<T> P;
    gather_pieces(tile, a, reinterpret_cast<const P*>(x), reinterpret_cast<P*>(out), a.H / EACH);
  } else {
    gather_pieces(tile, a, x, out, a.H);
  }
}
DEVICE void gather_tile(const Tile& tile, const Arguments& a) { gather(tile, a, a.x, a.out); }
