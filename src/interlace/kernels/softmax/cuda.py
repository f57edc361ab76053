"""The CUDA C++ body of softmax, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.teams import FETCHED_ROWS, TEAM_SCRATCH_BYTES, TEAMS, in_ring
from interlace.kernels.text import TextBody

_ROW = r"""
DEVICE float power_of_two(float exponent) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
  return y;
}
template <class T> DEVICE void share(int n, const Row<T>& x, T* out, bool some, const Arguments& a) {
  float peaks[PLACES], sums[PLACES] = {};
#pragma unroll
  for (int place = 0; place < PLACES; ++place) peaks[place] = __int_as_float(0xff800000);  // minus infinity
  visit(n, x, [&](int place, float value) { peaks[place] = fmaxf(peaks[place], value); });
  const float most = team_most(peaks, 0);
  visit(n, x, [&](int place, float value) { sums[place] += power_of_two((value - most) * a.EXPONENT); });
  const float share = 1.0f / team_sum(sums, 1);
  const auto made = [&](float value) { return power_of_two((value - most) * a.EXPONENT) * share; };
  if (some) map_rows(n, out, made, x);
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
DEVICE void softmax_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    share(N, loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
""",
    "softmax_tile",
    constants=("BM", "N"),
    late=("x",),
    loads="Loads",
    proved=True,
    wide=True,
)

SOFTMAX_TEXT = TextBody(
    TEAMS
    + _ROW
    + r"""
DEVICE void softmax_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    share(a.N, row_at(a.x + (long long)min(row, a.M - 1) * a.N), a.out + (long long)row * a.N, row < a.M, a);
  }
}
""",
    "softmax_tile",
    constants=("BM",),
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
    wide=True,
    other=in_ring(_FETCHED, "N"),
)
