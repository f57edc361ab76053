"""A kernel with a body in CUDA source, as a user would write it: rows divided by their root mean square."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import interlace as il

#: Prefix of CUDA source that is also compiled outside of the megakernel.
GUARD = "#ifndef DEVICE\n#define DEVICE __device__\n#endif\n"
NORM_TEXT = r"""
// The sum over all threads of the block, through one of two places in turn: who writes has met those who read before.
DEVICE float sum_of_block(float value, int turn) {
  float* const sums = scratch<float>() + turn % 2 * (THREADS / 32);
  for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  if (thread() % 32 == 0) sums[thread() / 32] = value;
  synchronise_block();
  float sum = 0.0f;
  for (int warp = 0; warp < THREADS / 32; ++warp) sum += sums[warp];
  return sum;
}
DEVICE void norm_rows(const Tile& tile, const Arguments& a) {
  for (int turn = 0; turn < BM && tile.i * BM + turn < a.M; ++turn) {
    const int row = tile.i * BM + turn;
    const auto* const x = a.x + (long long)row * a.N;
    float squares = 0.0f;
    for (int n = thread(); n < a.N; n += THREADS) squares += widened(x[n]) * widened(x[n]);
    const float scale = rsqrtf(sum_of_block(squares, turn) / a.N + a.eps);
    for (int n = thread(); n < a.N; n += THREADS) {
      const float y = widened(x[n]) * scale * (a.weight ? widened(a.weight[n]) : 1.0f);
      a.y[(long long)row * a.N + n] = rounded<bf16>(y);
    }
  }
}
"""


def _finish(_: object, regions: Mapping[str, np.ndarray], params: Mapping[str, float]) -> dict[str, np.ndarray]:
    x = regions["x"]
    scale = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + params["eps"])
    return {"y": x * scale * regions.get("weight", 1.0)}


NORM = il.Kernel(
    "rms norm",
    il.Reference(_finish),
    megakernel=il.CudaBody(
        GUARD + NORM_TEXT, "norm_rows", constants=("BM",), optional_args=("weight",), scratch_bytes=lambda op: 64
    ),
)


def norm(name: str, x: il.Tensor, y: il.Tensor, weight: il.Tensor | None = None, bm: int = 8) -> il.Op:
    """Build an op: rows of x (M, N) divided by their root mean square, times a weight (N,) of any dtype."""
    (m, n), (i,) = x.shape, il.axes(1)
    return NORM.make_op(
        name,
        (-(-m // bm),),
        {"x": (x, (i.block(bm), il.ALL)), **({} if weight is None else {"weight": (weight, (il.ALL,))})},
        {"y": (y, (i.block(bm), il.ALL))},
        params={"M": m, "N": n, "BM": bm, "eps": 1e-5},
    )


def chain(m: int, tile: il.MatmulTile, *, weight: bool = True, bm: int = 8) -> il.Graph:
    """Build a chain: a matmul, a normalisation of its rows, a copy, and another matmul."""
    shapes = {"x": (m, 128), "w_up": (192, 128), "w_down": (128, 192), "h": (m, 192), "g": (m, 192), "c": (m, 192)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    t["out"] = il.Tensor("out", (m, 128), il.bf16)
    if weight:
        t["scale"] = il.Tensor("scale", (192,), il.fp32)
    ops = (
        il.matmul("up", t["x"], t["w_up"], t["h"], tile=tile),
        norm("norm", t["h"], t["g"], t.get("scale"), bm),
        il.copy("copy", t["g"], t["c"], tile=(8, 64)),
        il.matmul("down", t["c"], t["w_down"], t["out"], tile=tile),
    )
    inputs = [name for name in ("x", "w_up", "w_down", "scale") if name in t]
    return il.Graph("chain", (*t.values(),), ops, (*inputs,), ("out",))
