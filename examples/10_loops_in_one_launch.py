"""Your own loops, a product of the package and CUDA C++ of your own, in one launch.

    python examples/10_loops_in_one_launch.py

    h = x @ w.T                                   the package's
    g = silu(h) * gate                            loops over tiles, a user's
    y[r, :] = g[r, :] / max(|g[r, :]|)            text of a tile, a user's

In the loops stand no barrier, no wait and no stage. In the launch, tiles of ``h`` and ``gate`` come through the ring
that all ops share: those of ``gate``, which no op writes, ahead of every wait. The loops are proved to keep to their
stages; of the text nothing is proved, and the proof says so. The last parts need NVRTC and a Hopper GPU.
"""

from __future__ import annotations

import numpy as np

import interlace as il
from interlace import loops
from interlace.core.errors import NoDeviceError

ROWS, COLUMNS = 16, 128

TEXT = r"""
DEVICE void scale_rows(const Tile& tile, const Arguments& a) {
  // A warp for each row: 4 or 8 of them share the tile.
  const int warp = thread() / 32, lane = thread() % 32;
  for (int row = tile.i * BM + warp; row < min((tile.i + 1) * BM, a.M); row += THREADS / 32) {
    const auto* const g = a.g + (long long)row * a.N;
    float most = 0.0f;
    for (int n = lane; n < a.N; n += 32) most = fmaxf(most, fabsf(widened(g[n])));
    for (int distance = 16; distance; distance /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
    for (int n = lane; n < a.N; n += 32) a.y[(long long)row * a.N + n] = rounded<bf16>(widened(g[n]) / most);
  }
}
"""


def make_gate() -> loops.LoopKernel:
    """``g = silu(h) * gate``: a block per 16 rows walks along them, 128 columns at a time."""
    k = loops.Builder("gate", threads=128)
    m, n = k.symbol("m"), k.symbol("n")
    h, gate, g = k.input("h", (m, n), il.bf16), k.input("gate", (m, n), il.bf16), k.output("g", (m, n), il.bf16)
    h_tile, gate_tile = (k.shared(name, (ROWS, COLUMNS), il.bf16) for name in ("h_tile", "gate_tile"))
    with k.block("b", loops.ceil_div(m, ROWS)) as b, k.serial("c", loops.ceil_div(n, COLUMNS)) as c:
        k.load(h_tile, h.at(b * ROWS, c * COLUMNS))
        k.load(gate_tile, gate.at(b * ROWS, c * COLUMNS))
        k.assign(g.at(b * ROWS, c * COLUMNS), h_tile / (1 + loops.exp(-h_tile)) * gate_tile)
    return k.build_kernel()


SCALE = il.Kernel(
    "scale",
    il.Reference(lambda _, regions, params: {"y": regions["g"] / np.abs(regions["g"]).max(axis=1, keepdims=True)}),
    megakernel=il.CudaBody(TEXT, "scale_rows", constants=("BM",)),
)


def make_graph(m: int, n: int) -> il.Graph:
    x, h, gate, g, y = (il.Tensor(name, (m, n), il.bf16) for name in ("x", "h", "gate", "g", "y"))
    weight, (i,) = il.Tensor("weight", (n, n), il.bf16), il.axes(1)
    block = i.block(8), il.ALL
    params = {"M": m, "N": n, "BM": 8}
    ops = (
        il.matmul("product", x, weight, h, tile=il.MatmulTile(64, 64, 64)),
        loops.as_op("gate", make_gate(), {"h": h, "gate": gate, "g": g}),
        SCALE.make_op("scale", (-(-m // 8),), {"g": (g, block)}, {"y": (y, block)}, params=params),
    )
    return il.Graph("gated", (x, weight, h, gate, g, y), ops, ("x", "weight", "gate"), ("y",))


def print_roles() -> None:
    """What each role of the launch does of the loops, where ``h`` is another op's and ``gate`` is not."""
    print(loops.print_kernel(loops.share_ring(make_gate(), pre_wait=("gate",))))


def run(graph: il.Graph, schedule: il.Schedule, inputs: dict[str, np.ndarray], gold: np.ndarray) -> None:
    """On the Hopper GPU that is here."""
    executor = il.MegakernelExecutor(il.build(graph, schedule))
    import torch  # which is there, if that went well

    tensors = {name: torch.from_numpy(value).cuda().bfloat16() for name, value in inputs.items()}
    tensors["y"] = executor.allocate_tensor("y").fill_(float("nan"))
    executor.run(tensors)
    executor.synchronize()
    error = error_of(tensors["y"].double().cpu().numpy(), gold)
    print(f"one launch: error {error:.1e}")
    assert error < 2e-2  # of bf16


def error_of(out: np.ndarray, gold: np.ndarray) -> float:
    """Relative, in the Frobenius norm."""
    return float(np.linalg.norm(out - gold) / np.linalg.norm(gold))


def main() -> None:
    print_roles()
    m, n = 128, 256
    graph, schedule = make_graph(m, n), il.Schedule(16, policy=il.RowSync())
    proof = il.verify(il.build(graph, schedule))
    print(proof)

    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(graph.tensor(name).shape).astype(np.float32) for name in graph.inputs}
    inputs["weight"] /= n**0.5
    x, weight, gate = (inputs[name].astype(np.float64) for name in ("x", "weight", "gate"))
    h = x @ weight.T
    g = h / (1 + np.exp(-h)) * gate
    gold = g / np.abs(g).max(axis=1, keepdims=True)
    error = error_of(il.ReferenceExecutor(proof, seed=0).run(inputs)["y"], gold)
    print(f"reference, random interleaving: error {error:.1e}")
    assert error < 1e-2  # loops round what they leave in bf16

    try:
        launch = il.MegakernelExecutor(proof, il.RunOptions("meta"))
        print(f"one launch of {[op.name for op in graph.ops]}: {launch.binary.resources.spill_bytes} bytes spilled")
    except NoDeviceError as error:
        print(f"not compiled here: {error}")
    try:
        run(graph, schedule, inputs, gold)
    except NoDeviceError as error:
        print(f"not run here: {error}")


if __name__ == "__main__":
    main()
