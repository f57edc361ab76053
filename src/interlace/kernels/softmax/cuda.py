"""The CUDA C++ body of softmax, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.teams import TEAM_SCRATCH_BYTES, TEAMS
from interlace.kernels.text import TextBody

SOFTMAX_TEXT = TextBody(
    TEAMS
    + r"""
DEVICE void softmax_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    const auto* const x = a.x + (long long)min(row, a.M - 1) * a.N;
    float most = __int_as_float(0xff800000), sum = 0.0f;  // minus infinity
    visit(a.N, x, [&](float value) { most = fmaxf(most, value); });
    most = team_most(most, 0);
    visit(a.N, x, [&](float value) { sum += exp2f((value - most) * a.EXPONENT); });
    const float share = 1.0f / team_sum(sum, 1);
    const auto made = [&](float value) { return exp2f((value - most) * a.EXPONENT) * share; };
    if (row < a.M) map_rows(a.N, a.out + (long long)row * a.N, made, x);
  }
}
""",
    "softmax_tile",
    constants=("BM",),
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
)
