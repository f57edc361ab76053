"""The CUDA C++ body of layer normalisation, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.teams import TEAM_SCRATCH_BYTES, TEAMS
from interlace.kernels.text import TextBody

LAYER_NORM_TEXT = TextBody(
    TEAMS
    + r"""
DEVICE void layer_norm_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    const auto* const x = a.x + (long long)min(row, a.M - 1) * a.N;
    float sum = 0.0f, squares = 0.0f;
    visit(a.N, x, [&](float value) { sum += value; });
    const float mean = team_sum(sum, 0) / a.N;
    visit(a.N, x, [&](float value) { squares += (value - mean) * (value - mean); });
    const float scale = rsqrtf(team_sum(squares, 1) / a.N + a.EPS);
    const auto made = [&](float value, float gain, float shift) { return (value - mean) * scale * gain + shift; };
    if (row < a.M) map_rows(a.N, a.out + (long long)row * a.N, made, x, a.weight, a.bias);
  }
}
""",
    "layer_norm_tile",
    constants=("BM",),
    scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
    proved=True,
)
