"""The CUDA C++ body of pointwise arithmetic, for the one launch."""

from __future__ import annotations

from interlace.graph.op import Op
from interlace.kernels import gelu
from interlace.kernels.cuda.teams import TEAMS, fetched_rows, in_ring
from interlace.kernels.text import TextBody

_ROW = (
    gelu.CUDA
    + r"""
DEVICE float sigmoid(float value) { return __fdividef(1.0f, 1.0f + __expf(-value)); }
DEVICE float activated(float value) {
  if (ACTIVATION == 1) return fmaxf(value, 0.0f);
  if (ACTIVATION == 2) return gelu(value);
  if (ACTIVATION == 3) return value * sigmoid(value);
  return value;
}
template <class T, class U, class V>
DEVICE void point(int n, T* out, const Row<T>& x, const Row<U>& times, const Row<V>& plus) {
  const auto scaled = [](float x, float y) { return activated(x) * y; };
  const auto added = [](float x, float y) { return activated(x) + y; };
  const auto both = [](float x, float y, float z) { return activated(x) * y + z; };
  if constexpr (TIMES_ROWS >= 0 && PLUS_ROWS >= 0) {
    map_rows(n, out, both, x, times, plus);
  } else if constexpr (TIMES_ROWS >= 0) {
    map_rows(n, out, scaled, x, times);
  } else if constexpr (PLUS_ROWS >= 0) {
    map_rows(n, out, added, x, plus);
  } else {
    map_rows(n, out, activated, x);
  }
}
"""
)
_CONSTANTS = ("BM", "BN", "ACTIVATION", "TIMES_ROWS", "PLUS_ROWS")


def _matrices(op: Op) -> int:
    return 1 + sum(int(op.param(name)) > 0 for name in ("TIMES_ROWS", "PLUS_ROWS"))


_FETCHED = TextBody(
    fetched_rows("BN")
    + _ROW
    + r"""
constexpr int OPERANDS = 1 + (TIMES_ROWS > 0) + (PLUS_ROWS > 0);
typedef RowLoads<OPERANDS> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{}, min(BM, a.M - tile.i * BM), min(BN, a.N - tile.j * BN), a.N} {
    const long long first = (long long)tile.i * BM * a.N + tile.j * BN;
    from[0] = a.x + first;
    if (TIMES_ROWS > 0) from[OPERANDS > 1] = a.times + first;
    if (PLUS_ROWS > 0) from[OPERANDS - 1] = a.plus + first;
  }
};
DEVICE void elementwise_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  const int column = tile.j * BN;
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    const auto times = TIMES_ROWS > 0 ? loads.row(OPERANDS > 1, row, stage) : row_at(a.times + column);
    const auto plus = PLUS_ROWS > 0 ? loads.row(OPERANDS - 1, row, stage) : row_at(a.plus + column);
    point(loads.columns, a.out + ((long long)tile.i * BM + row) * a.N + column, loads.row(0, row, stage), times, plus);
  });
}
""",
    "elementwise_tile",
    constants=_CONSTANTS,
    optional=("times", "plus"),
    late=("x", "times", "plus"),
    loads="Loads",
    proved=True,
    wide=True,
)

ELEMENTWISE_TEXT = TextBody(
    TEAMS
    + _ROW
    + r"""
DEVICE void elementwise_tile(const Tile& tile, const Arguments& a) {
  const int column = tile.j * BN, n = min(BN, a.N - column);
  for (int row = tile.i * BM + team(); row < min((tile.i + 1) * BM, a.M); row += TEAMS) {
    const long long at = (long long)row * a.N + column;
    const auto times = row_at(a.times + (TIMES_ROWS > 0 ? at : column));
    point(n, a.out + at, row_at(a.x + at), times, row_at(a.plus + (PLUS_ROWS > 0 ? at : column)));
  }
}
""",
    "elementwise_tile",
    constants=_CONSTANTS,
    optional=("times", "plus"),
    proved=True,
    wide=True,
    other=in_ring(_FETCHED, "BN", _matrices),
)
