"""The CUDA C++ body of RMS normalisation, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

_MOST_WARPS = 8

RMS_NORM_TEXT = TextBody(
    ROWS
    + r"""
template <class T> DEVICE void normalise(T* out, const T* x, const T* weight, float eps) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  const bool pieces = by_pieces(x) && by_pieces(weight) && by_pieces(out) && H % EACH == 0;
  float squares = 0.0f;
  if (pieces) {
#pragma unroll 4
    for (int at = thread() * EACH; at < H; at += THREADS * EACH) {
      const Elements<T> piece = piece_at(x + at, true);
      for (int e = 0; e < EACH; ++e) squares += widened(piece.items[e]) * widened(piece.items[e]);
    }
  } else {
    for (int at = thread(); at < H; at += THREADS) squares += widened(x[at]) * widened(x[at]);
  }
  float* const sums = scratch<float>();
  squares = warp_sum(squares);
  if (lane_of() == 0) sums[warp_of()] = squares;
  synchronise_block();
  squares = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) squares += sums[warp];
  const float scale = rsqrtf(squares / H + eps);
  if (pieces) {
#pragma unroll 4
    for (int at = thread() * EACH; at < H; at += THREADS * EACH) {
      const Elements<T> piece = piece_at(x + at, true), gain = piece_at(weight + at, true);
      Elements<T> result;
      for (int e = 0; e < EACH; ++e) put(result.items + e, widened(piece.items[e]) * scale * widened(gain.items[e]));
      *reinterpret_cast<Elements<T>*>(out + at) = result;
    }
  } else {
    for (int at = thread(); at < H; at += THREADS) put(out + at, widened(x[at]) * scale * widened(weight[at]));
  }
}
DEVICE void rms_norm_tile(const Tile& tile, const Arguments& a) {
  const long long row = (long long)tile.i * H;
  normalise(a.out + row, a.x + row, a.weight, EPS);
}
""",
    "rms_norm_tile",
    constants=("H", "EPS"),
    scratch_bytes=lambda op: 4 * _MOST_WARPS,
    proved=True,
)
