"""The CUDA C++ body that joins the splits of attention, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

COMBINE_TEXT = TextBody(
    ROWS
    + r"""
// Two neighbours a thread; what it needs of some splits is under way at once, and all sums stay with their peak.
DEVICE void combine_tile(const Tile& tile, const Arguments& a) {
  constexpr int STEP = GROUP * D, AT_ONCE = SPLITS < 16 ? SPLITS : 16;
  const long long head = (long long)tile.i * HEADS + tile.j;
  for (int n = thread() * 2; n < STEP; n += THREADS * 2) {
    const float* const parts = a.parts + head * SPLITS * STEP + n;
    const float *const peaks = a.peak + head * SPLITS * GROUP + n / D, *const totals = a.total + (peaks - a.peak);
    float most = __int_as_float(0xff800000), whole = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int s = 0; s < SPLITS; s += AT_ONCE) {
      float2 pairs[AT_ONCE];
      float peak[AT_ONCE], total[AT_ONCE], higher = most;
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) {
        const int split = min(s + e, SPLITS - 1);  // behind the last it is loaded again, and counts nothing
        pairs[e] = __ldcg(reinterpret_cast<const float2*>(parts + split * STEP));
        peak[e] = __ldcg(peaks + split * GROUP), total[e] = __ldcg(totals + split * GROUP);
      }
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) higher = fmaxf(higher, peak[e]);
      const float fade = most < higher ? exp2f(most - higher) : 1.0f;
      whole *= fade, sum.x *= fade, sum.y *= fade;
      most = higher;
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) {
        const float share = s + e < SPLITS ? (peak[e] < most ? exp2f(peak[e] - most) : 1.0f) : 0.0f;
        whole += share * total[e], sum.x += share * pairs[e].x, sum.y += share * pairs[e].y;
      }
    }
    put(a.out + head * STEP + n, sum.x / whole), put(a.out + head * STEP + n + 1, sum.y / whole);
  }
}
""",
    "combine_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D"),
    paired=("parts",),
    proved=True,
)
