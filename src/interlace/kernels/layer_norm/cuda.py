"""The CUDA C++ body of layer normalisation, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.teams import TEAM_SCRATCH_BYTES, TEAMS, fetched_rows, in_ring
from interlace.kernels.text import TextBody

_ROW = r"""
template <class T> DEVICE void normalise(const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = held<N>(all);
  Vector<T> weight = {a.weight}, bias = {a.bias};
  weight.load(x, 0), bias.load(x, 0);
  float sums[PLACES] = {}, squares[PLACES] = {};
  visit(x, [&](int place, float value) { sums[place] += value; });
  const float mean = team_sum(sums, 0) / N;
  visit(x, [&](int place, float value) { squares[place] += (value - mean) * (value - mean); });
  const float scale = rsqrtf(team_sum(squares, 1) / N + a.EPS);
  const auto made = [&](float value, float gain, float shift) { return (value - mean) * scale * gain + shift; };
  if (some) map_rows(out, made, x, weight, bias);
}
"""

_FETCHED = TextBody(
    fetched_rows("N")
    + _ROW
    + r"""
typedef RowLoads<1> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{a.x + (long long)tile.i * BM * N}, min(BM, a.M - tile.i * BM), N, N} {}
};
DEVICE void layer_norm_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    normalise(loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
""",
    "layer_norm_tile",
    constants=("BM", "N"),
    late=("x",),
    loads="Loads",
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
    wide=True,
)

LAYER_NORM_TEXT = TextBody(
    TEAMS
    + _ROW
    + r"""
DEVICE void layer_norm_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    normalise(row_at(a.x + (long long)min(row, a.M - 1) * N), a.out + (long long)row * N, row < a.M, a);
  }
}
""",
    "layer_norm_tile",
    constants=("BM", "N"),
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
    wide=True,
    other=in_ring(_FETCHED, "N"),
)
