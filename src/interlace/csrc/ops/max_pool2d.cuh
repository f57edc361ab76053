// Max-pooling of channels-last images. A tile is BP rows of output pixels of an image by BN channels; a window has R by
// S pixels.
#pragma once
#include "vectors.cuh"
#include "generated/arguments.cuh"

// The larger of two numbers, or NaN if one is.
DEVICE float most_of(float value, float other) { return other > value || other != other ? other : value; }
// A thread pools pieces of 16 bytes of channels. All pixels of a window are loaded at once: those beyond the image count
// as the nearest one inside, which is in the window, too, since the padding is at most half of it.
template <class T> DEVICE void pool(const Tile& tile, const Arguments& a, const T* x, T* out) {
  constexpr int EACH = Piece<T>::ELEMENTS, ACROSS = BN / EACH;
  const bool aligned = is_aligned(x) && is_aligned(out);
  const int first_row = tile.j * BP, all = min(BP, a.P - first_row) * a.Q * ACROSS;
  const T* const image = x + (long long)tile.i * a.H * a.W * a.C;
  for (int n = thread(); n < all; n += THREADS) {
    const int channel = tile.l * BN + n % ACROSS * EACH, q = n / ACROSS % a.Q, p = first_row + n / ACROSS / a.Q;
    if (channel >= a.C) continue;
    Elements<T> window[R * S];
#pragma unroll
    for (int k = 0; k < R * S; ++k) {
      const int h = min(max(p * a.STRIDE_H - a.PAD_H + k / S, 0), a.H - 1);
      const int w = min(max(q * a.STRIDE_W - a.PAD_W + k % S, 0), a.W - 1);
      window[k] = piece_at(image + ((long long)h * a.W + w) * a.C + channel, aligned);
    }
    float most[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) most[e] = widened(window[0].items[e]);
#pragma unroll
    for (int k = 1; k < R * S; ++k)
#pragma unroll
      for (int e = 0; e < EACH; ++e) most[e] = most_of(most[e], widened(window[k].items[e]));
    T* const to = out + (((long long)tile.i * a.P + p) * a.Q + q) * a.C + channel;
    if (aligned) {
      store_words(to, narrow<T>(most));
      continue;
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) put(to + e, most[e]);
  }
}
DEVICE void pool_tile(const Tile& tile, const Arguments& a) { pool(tile, a, a.x, a.out); }
