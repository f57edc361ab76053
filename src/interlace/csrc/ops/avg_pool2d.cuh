// Average pooling of channels-last images. A tile is BP rows of output pixels of an image by BN channels; a window has R
// by S pixels. A warp computes an output pixel: its lanes are pieces of 16 bytes of channels by pixels of the window.
//
//   BN = 16 bf16 channels    2 pieces    lanes 2k and 2k + 1 add pixels k, k + 16, k + 32, ... of the window
#pragma once
#include "vectors.cuh"
#include "generated/arguments.cuh"

template <class T> DEVICE void average(const Tile& tile, const Arguments& a, const T* x, T* out) {
  constexpr int EACH = Piece<T>::ELEMENTS, ACROSS = BN / EACH, LANES = 32 / ACROSS, WINDOW = R * S;
  const bool aligned = is_aligned(x) && is_aligned(out);
  const int first = lane_of() / ACROSS, channel = tile.l * BN + lane_of() % ACROSS * EACH;
  const int first_row = tile.j * BP, pixels = min(BP, a.P - first_row) * a.Q;
  const T* const image = x + (long long)tile.i * a.H * a.W * a.C;
  for (int n = warp_of(); n < pixels; n += WARPS) {
    const int p = first_row + n / a.Q, q = n % a.Q;
    float sums[EACH] = {};
    if (channel < a.C)
#pragma unroll 4
      for (int k = first; k < WINDOW; k += LANES) {
        const int h = p * a.STRIDE_H + k / S, w = q * a.STRIDE_W + k % S;
        const Elements<T> values = piece_at(image + ((long long)h * a.W + w) * a.C + channel, aligned);
#pragma unroll
        for (int e = 0; e < EACH; ++e) sums[e] += widened(values.items[e]);
      }
#pragma unroll
    for (int distance = 16; distance >= ACROSS; distance /= 2)
#pragma unroll
      for (int e = 0; e < EACH; ++e) sums[e] += __shfl_xor_sync(0xffffffff, sums[e], distance);
    if (first || channel >= a.C) continue;
#pragma unroll
    for (int e = 0; e < EACH; ++e) sums[e] /= WINDOW;
    T* const to = out + (((long long)tile.i * a.P + p) * a.Q + q) * a.C + channel;
    if (aligned) {
      store_words(to, narrow<T>(sums));
      continue;
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) put(to + e, sums[e]);
  }
}
DEVICE void average_tile(const Tile& tile, const Arguments& a) { average(tile, a, a.x, a.out); }
