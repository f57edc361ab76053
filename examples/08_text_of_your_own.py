"""CUDA C++ of your own beside a product of the package, in one launch: a norm over rows, then a matmul.

    python examples/08_text_of_your_own.py

    y[r, :] = gain * x[r, :] / sqrt(mean(x[r, :]^2) + eps)          the text below, a user's
    out = y @ weight.T                                              the package's

The text says how one tile is computed, and nothing of waits: the launch waits before it and posts behind it, as the
plan says. The matmul's weights stream ahead while the norm still runs. Nothing proves that the text touches what its op
declares; the proof says so, and on a Hopper GPU the footprint check looks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import interlace as il
from interlace.core.errors import CompileError, NoDeviceError

TEXT = r"""
DEVICE void norm_rows(const Tile& tile, const Arguments& a) {
  // A warp for each row: 4 or 8 of them share the tile.
  const int warp = thread() / 32, lane = thread() % 32;
  for (int row = tile.i * BM + warp; row < min((tile.i + 1) * BM, a.M); row += THREADS / 32) {
    const auto* const x = a.x + (long long)row * a.N;
    auto* const y = a.y + (long long)row * a.N;
    float squares = 0.0f;
    for (int n = lane; n < a.N; n += 32) squares += widened(x[n]) * widened(x[n]);
    for (int distance = 16; distance; distance /= 2) squares += __shfl_xor_sync(0xffffffff, squares, distance);
    const float scale = rsqrtf(squares / a.N + a.eps);
    for (int n = lane; n < a.N; n += 32) y[n] = rounded<bf16>(widened(x[n]) * scale * widened(a.gain[n]));
  }
}
"""


def reference(_, regions, params):
    x = regions["x"]
    return {"y": regions["gain"] * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + params["eps"])}


NORM = il.Kernel("norm", il.Reference(reference), megakernel=il.CudaBody(TEXT, "norm_rows", constants=("BM",)))


def norm(name: str, x: il.Tensor, gain: il.Tensor, y: il.Tensor, bm: int = 8, kernel: il.Kernel = NORM) -> il.Op:
    (m, n), (i,) = x.shape, il.axes(1)
    return kernel.make_op(
        name,
        grid=(-(-m // bm),),
        reads={"x": (x, (i.block(bm), il.ALL)), "gain": (gain, (il.ALL,))},
        writes={"y": (y, (i.block(bm), il.ALL))},
        params={"M": m, "N": n, "BM": bm, "eps": 1e-5},
    )


def make_graph(m: int, n: int, kernel: il.Kernel = NORM) -> il.Graph:
    x, y, out = (il.Tensor(name, (m, n), il.bf16) for name in ("x", "y", "out"))
    gain, weight = il.Tensor("gain", (n,), il.fp32), il.Tensor("weight", (n, n), il.bf16)
    product = il.matmul("product", y, weight, out, tile=il.MatmulTile(64, 32, 64))
    ops = (norm("norm", x, gain, y, kernel=kernel), product)
    return il.Graph("norm-product", (x, gain, weight, y, out), ops, ("x", "gain", "weight"), ("out",))


def compiled(graph: il.Graph, schedule: il.Schedule) -> None:
    """Compile for a Hopper GPU that need not be here."""
    launch = il.MegakernelExecutor(il.build(graph, schedule), il.RunOptions("meta"))
    print(f"one launch of {[op.kernel for op in graph.ops]}: {launch.binary.resources.spill_bytes} bytes spilled")
    wrong = replace(NORM, megakernel=replace(NORM.megakernel, source=TEXT.replace("lane; n", "lanes; n", 1)))
    try:
        il.MegakernelExecutor(il.build(make_graph(128, 256, wrong), schedule), il.RunOptions("meta")).binary  # noqa: B018
    except CompileError as error:
        told = next(line for line in str(error).splitlines() if "norm.cu(" in line)
        print(f"a mistake in the text, CompileError: {told}")
    else:
        raise AssertionError("an unknown name was compiled")


def run(graph: il.Graph, schedule: il.Schedule, inputs: dict[str, np.ndarray], gold: np.ndarray) -> None:
    """On the Hopper GPU that is here."""
    executor = il.MegakernelExecutor(il.build(graph, schedule))
    import torch  # which is there, if that went well

    tensors = {t.name: torch.from_numpy(inputs[t.name]).cuda() for t in map(graph.tensor, graph.inputs)}
    tensors = {name: t if name == "gain" else t.bfloat16() for name, t in tensors.items()}
    tensors["out"] = executor.allocate_tensor("out").fill_(float("nan"))
    executor.run(tensors)
    executor.synchronize()
    error = error_of(tensors["out"].double().cpu().numpy(), gold)
    print(f"one launch: error {error:.1e}")
    assert error < 2e-2  # of bf16
    print(il.check_footprint(graph, "norm", device="cuda"))


def error_of(out: np.ndarray, gold: np.ndarray) -> float:
    """Relative, in the Frobenius norm."""
    return float(np.linalg.norm(out - gold) / np.linalg.norm(gold))


def main() -> None:
    m, n = 128, 256
    graph, schedule = make_graph(m, n), il.Schedule(16, policy=il.RowSync())
    proof = il.verify(il.build(graph, schedule))
    print(proof)

    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((m, n)), "weight": random.standard_normal((n, n)) / n**0.5}
    inputs = {name: value.astype(np.float32) for name, value in {**inputs, "gain": random.random(n)}.items()}
    x = inputs["x"].astype(np.float64)
    gold = inputs["gain"] * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) @ inputs["weight"].T
    error = error_of(il.ReferenceExecutor(proof, seed=0).run(inputs)["out"], gold)
    print(f"reference, random interleaving: error {error:.1e}")
    assert error < 1e-5

    try:
        compiled(graph, schedule)
    except NoDeviceError as error:
        print(f"not compiled here: {error}")
    try:
        run(graph, schedule, inputs, gold)
    except NoDeviceError as error:
        print(f"not run here: {error}")


if __name__ == "__main__":
    main()
