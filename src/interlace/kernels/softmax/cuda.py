"""The CUDA C++ body of softmax, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.teams import TEAM_SCRATCH_BYTES, TEAMS, fetched_rows, in_ring
from interlace.kernels.text import TextBody

_ROW = r"""
DEVICE float power_of_two(float exponent) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
  return y;
}
template <class T> DEVICE void share(const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = held<N>(all);
  float peaks[PLACES], sums[PLACES] = {};
#pragma unroll
  for (int place = 0; place < PLACES; ++place) peaks[place] = __int_as_float(0xff800000);  // minus infinity
  visit(x, [&](int place, float value) { peaks[place] = fmaxf(peaks[place], value); });
  const float most = team_most(peaks, 0);
  visit(x, [&](int place, float value) { sums[place] += power_of_two((value - most) * a.EXPONENT); });
  const float share = 1.0f / team_sum(sums, 1);
  const auto made = [&](float value) { return power_of_two((value - most) * a.EXPONENT) * share; };
  if (some) map_rows(out, made, x);
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
DEVICE void softmax_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    share(loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
""",
    "softmax_tile",
    constants=("BM", "N"),
    late=("x",),
    loads="Loads",
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
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
    share(row_at(a.x + (long long)min(row, a.M - 1) * N), a.out + (long long)row * N, row < a.M, a);
  }
}
""",
    "softmax_tile",
    constants=("BM", "N"),
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
    wide=True,
    other=in_ring(_FETCHED, "N"),
)
