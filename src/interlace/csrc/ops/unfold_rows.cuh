// Taps of a row as channels: channel s * C + c of output pixel q is x[q * stride - padding + s * dilation, c], or zero
// outside of the row and from channel TAPS * C on. A tile is BP rows of an image; a thread makes pieces of 16 bytes.
//
//   7 taps of 3 bf16 channels, WIDTH = 24    piece 1 has channels 8 to 15: taps 2 (c = 2), 3, 4 (all three) and 5 (c = 0)
#pragma once
#include "vectors.cuh"
#include "generated/arguments.cuh"

template <class T> DEVICE void unfold(const Tile& tile, const Arguments& a, const T* x, T* out) {
  constexpr int EACH = Piece<T>::ELEMENTS, ACROSS = WIDTH / EACH;
  const bool aligned = is_aligned(out);
  const int first_row = tile.j * a.BP, all = min(a.BP, a.H - first_row) * a.Q * ACROSS;
  const long long plane = (long long)a.H * a.W;
  const T* const image = x + tile.i * plane * C;
  for (int n = thread(); n < all; n += THREADS) {
    const int first = n % ACROSS * EACH, q = n / ACROSS % a.Q, h = first_row + n / ACROSS / a.Q;
    float values[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int s = (first + e) / C, c = (first + e) % C, w = q * a.STRIDE - a.PAD + s * a.DILATION;
      const long long pixel = (long long)h * a.W + w;
      values[e] = 0.0f;
      if (s < TAPS && w >= 0 && w < a.W) values[e] = widened(image[CHANNELS_LAST ? pixel * C + c : c * plane + pixel]);
    }
    T* const to = out + (((long long)tile.i * a.H + h) * a.Q + q) * WIDTH + first;
    if (aligned) {
      store_words(to, narrow<T>(values));
      continue;
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) put(to + e, values[e]);
  }
}
DEVICE void unfold_tile(const Tile& tile, const Arguments& a) { unfold(tile, a, a.x, a.out); }
