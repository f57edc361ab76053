"""The CUDA C++ bodies of argmax, for the one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

_MOST_WARPS = 8
#: Behind ``ROWS``: what is larger, or as large and first, of threads.
FIRST = r"""
struct Found {
  float value;
  int at;
};
// The larger, of equal ones the first. Rows of NaN give a place too, so that what reads it stays inside its table.
DEVICE Found first_of(Found a, Found b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}
DEVICE Found first_of_block(Found found) {
  for (int distance = 16; distance; distance /= 2) {
    const float value = __shfl_xor_sync(0xffffffff, found.value, distance);
    found = first_of(found, Found{value, __shfl_xor_sync(0xffffffff, found.at, distance)});
  }
  Found* const each = scratch<Found>();
  if (lane_of() == 0) each[warp_of()] = found;
  synchronise_block();
  for (int warp = 0; warp < WARPS; ++warp) found = first_of(found, each[warp]);
  return found;
}
// What a tile of columns leaves, given what each of its threads has.
template <class A> DEVICE void leave_first(const Tile& tile, const A& a, Found mine) {
  const Found found = first_of_block(mine);
  if (thread() == 0) {
    a.best[tile.i * a.TILES + tile.j] = found.value;
    a.at[tile.i * a.TILES + tile.j] = found.at;
  }
}
constexpr unsigned LOWEST = 0xff800000;  // minus infinity
"""

#: Behind ``FIRST``.
_BY_PIECES = r"""
constexpr int AT_ONCE = 16;  // pieces under way of a thread: a tile is mostly one trip to memory
// Of columns that are whole pieces, those of each thread in ascending order; the last is read for what lies behind it.
template <class T> DEVICE void look_at(Found& found, const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
#pragma unroll 1
  for (int first = column + thread() * EACH; first < end; first += AT_ONCE * THREADS * EACH) {
    Elements<T> pieces[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) pieces[n] = piece_at(row + min(first + n * THREADS * EACH, end - EACH), true);
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        const float value = widened(pieces[n].items[e]);
        if (value > found.value) found = Found{value, min(first + n * THREADS * EACH, end - EACH) + e};
      }
  }
}
"""
_MOST = _BY_PIECES + r"""
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
"""
#: The same where rows begin anywhere: by 16 bytes but for the ends of a row.
_RAGGED_MOST = _BY_PIECES + r"""
template <class T> DEVICE Found most_of(const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  Found found = {__int_as_float(LOWEST), end - 1};
  const int head = min(column + before_pieces(row + column), end), tail = head + (end - head) / EACH * EACH;
  look_at(found, row, head, tail);
  const int at = column + thread() < head ? column + thread() : tail + thread() - (head - column);
  return at < end ? first_of(found, Found{widened(row[at]), at}) : found;
}
"""
_MOST_TILE = r"""
DEVICE void most_tile(const Tile& tile, const Arguments& a) {
  leave_first(tile, a, most_of(a.x + (long long)tile.i * a.N, tile.j * BN, min((tile.j + 1) * BN, a.N)));
}
"""


def _ragged(op: Op, tensors: Mapping[str, Tensor]) -> TextBody | None:
    by_pieces = int(op.param("N")) * tensors["x"].dtype.itemsize % 16 == 0
    return None if by_pieces else replace(MOST_TEXT, text=ROWS + FIRST + _RAGGED_MOST + _MOST_TILE, other=None)


MOST_TEXT = TextBody(
    ROWS + FIRST + _MOST + _MOST_TILE,
    "most_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _MOST_WARPS,
    proved=True,
    other=_ragged,
)

FIRST_OF_MOST_TEXT = TextBody(
    ROWS
    + FIRST
    + r"""
DEVICE void first_tile(const Tile& tile, const Arguments& a) {
  const float* const best = a.best + tile.i * a.TILES;
  const int* const at = a.at + tile.i * a.TILES;
  Found found = {__int_as_float(LOWEST), at[0]};
  for (int n = thread(); n < a.TILES; n += THREADS) found = first_of(found, Found{best[n], at[n]});
  found = first_of_block(found);
  if (thread() == 0) a.out[tile.i] = found.at;
}
""",
    "first_tile",
    scratch_bytes=lambda op: 8 * _MOST_WARPS,
    proved=True,
)
