"""The CUDA C++ body that joins the splits of attention, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

COMBINE_TEXT = TextBody(
    ROWS
    + r"""
DEVICE void combine_tile(const Tile& tile, const Arguments& a) {
  const long long head = (long long)tile.i * HEADS + tile.j;
  const float* const peaks = a.peak + head * SPLITS * GROUP;
  const float* const totals = a.total + head * SPLITS * GROUP;
  const float* const parts = a.parts + head * SPLITS * GROUP * D;
  float* const shares = scratch<float>();  // (splits, group): what each split counts
  for (int g = warp_of(); g < GROUP; g += WARPS) {
    float most = __int_as_float(0xff800000);
    for (int s = lane_of(); s < SPLITS; s += 32) most = fmaxf(most, peaks[s * GROUP + g]);
    most = warp_most(most);
    float whole = 0.0f;
    for (int s = lane_of(); s < SPLITS; s += 32) whole += exp2f(peaks[s * GROUP + g] - most) * totals[s * GROUP + g];
    whole = warp_sum(whole);
    for (int s = lane_of(); s < SPLITS; s += 32) shares[s * GROUP + g] = exp2f(peaks[s * GROUP + g] - most) / whole;
  }
  synchronise_block();
  for (int n = thread(); n < GROUP * D; n += THREADS) {
    float sum = 0.0f;
#pragma unroll 16
    for (int s = 0; s < SPLITS; ++s) sum += shares[s * GROUP + n / D] * parts[s * GROUP * D + n];
    put(a.out + head * GROUP * D + n, sum);
  }
}
""",
    "combine_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D"),
    scratch_bytes=lambda op: 4 * int(op.param("SPLITS")) * int(op.param("GROUP")),
    proved=True,
)
