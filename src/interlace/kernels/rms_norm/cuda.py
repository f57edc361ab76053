"""The CUDA C++ body of RMS normalisation, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.teams import FETCHED_ROWS, TEAM_SCRATCH_BYTES, TEAMS, in_ring
from interlace.kernels.text import TextBody

_ROW = r"""
template <class T> DEVICE void normalise(int n, const Row<T>& x, T* out, bool some, const Arguments& a) {
  float squares[PLACES] = {};
  visit(n, x, [&](int place, float value) { squares[place] += value * value; });
  const float scale = rsqrtf(team_sum(squares, 0) / n + a.EPS);
  const auto made = [&](float value, float gain) { return value * scale * gain; };
  if (some) map_rows(n, out, made, x, row_at(a.weight));
}
"""

_FETCHED = TextBody(
    TEAMS
    + FETCHED_ROWS
    + _ROW
    + r"""
typedef RowLoads<ElementOf<decltype(Arguments::x)>::Type, 1, N> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{a.x + (long long)tile.i * BM * N}, min(BM, a.M - tile.i * BM), N, N} {}
};
DEVICE void rms_norm_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    normalise(N, loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
""",
    "rms_norm_tile",
    constants=("BM", "N"),
    late=("x",),
    loads="Loads",
    proved=True,
    wide=True,
)

RMS_NORM_TEXT = TextBody(
    TEAMS
    + _ROW
    + r"""
DEVICE void rms_norm_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    normalise(a.N, row_at(a.x + (long long)min(row, a.M - 1) * a.N), a.out + (long long)row * a.N, row < a.M, a);
  }
}
""",
    "rms_norm_tile",
    constants=("BM",),
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
    wide=True,
    other=in_ring(_FETCHED, "N"),
)
