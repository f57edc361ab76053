"""Row sums as plain loops: made a TMA and mbarrier pipeline, proved, and used as an op of a graph.

    python examples/06_row_sums_as_loops.py
    interlace pipeline examples/06_row_sums_as_loops.py --stages 4 --print ir

    y[i, j] = gain[j] * x[i, j]
    sums[i] = y[i, 0] + y[i, 1] + ...

You write loops over tiles and say which tile is to be loaded ahead. Barriers, phases, the prologue and the drain
follow; what each block reads and writes is found in the loops. The last part needs a Hopper GPU; the rest runs on
NumPy alone, in seconds.
"""

from __future__ import annotations

import numpy as np

import interlace as il
from interlace import loops

ROWS, COLUMNS, STAGES = 16, 256, 4


def make_scale() -> loops.LoopKernel:
    """``y = gain * x``: a block per 16 rows walks along them, 256 columns at a time."""
    k = loops.Builder("scale", threads=256)
    m, n = k.symbol("m"), k.symbol("n")
    x, gain, y = k.input("x", (m, n), il.fp32), k.input("gain", (n,), il.fp32), k.output("y", (m, n), il.fp32)
    tile = k.shared("tile", (ROWS, COLUMNS), il.fp32)
    factors = k.register("factors", (1, COLUMNS), il.fp32)
    with k.block("b", loops.ceil_div(m, ROWS)) as b, k.serial("c", loops.ceil_div(n, COLUMNS)) as c:
        k.load(tile, x.at(b * ROWS, c * COLUMNS))
        k.load(factors, gain.at(c * COLUMNS), loops.Copy.PLAIN)
        k.assign(y.at(b * ROWS, c * COLUMNS), tile * factors)
    return k.build_kernel()


def make_row_sum() -> loops.LoopKernel:
    """``y[i] = sum of x[i, :]``, in the same walk. No barrier in sight."""
    k = loops.Builder("row_sum", threads=256)
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), il.fp32), k.output("y", (m,), il.fp32)
    tile, total = k.shared("tile", (ROWS, COLUMNS), il.fp32), k.register("total", (ROWS, 1), il.fp32)
    with k.block("b", loops.ceil_div(m, ROWS)) as b:
        k.assign(total, 0)
        with k.serial("c", loops.ceil_div(n, COLUMNS)) as c:
            k.load(tile, x.at(b * ROWS, c * COLUMNS))
            k.reduce(total, loops.ReduceOp.SUM, tile, axes=(1,), shape=(ROWS, COLUMNS))
        k.store(y.at(b * ROWS), total)
    return k.build_kernel()


# What `interlace pipeline` looks for in a file.
KERNEL = make_row_sum()
BUFFERED = ("tile",)


def make_graph(m: int, n: int) -> il.Graph:
    """Both kernels with their tiles loaded ahead, as ops: a tile of an op is a block of its kernel."""
    x, y = il.Tensor("x", (m, n), il.fp32), il.Tensor("y", (m, n), il.fp32)
    gain, sums = il.Tensor("gain", (n,), il.fp32), il.Tensor("sums", (m,), il.fp32)
    scale, row_sum = (loops.circular_buffer(kernel, "tile", STAGES) for kernel in (make_scale(), KERNEL))
    ops = (
        loops.as_op("scale", scale, {"x": x, "gain": gain, "y": y}),
        loops.as_op("sum", row_sum, {"x": y, "y": sums}, warp_specialised=True),
    )
    return il.Graph("scale-sum", (x, gain, y, sums), ops, inputs=("x", "gain"), outputs=("sums",))


def main() -> None:
    marked = loops.circular_buffer(KERNEL, "tile", STAGES)
    pipeline = loops.lower(marked)
    random = np.random.default_rng(0)
    x, gain = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 1000), (1000,)))
    plain, buffered = (loops.interpret(kernel, {"x": x})["y"] for kernel in (KERNEL, pipeline))
    print("rewritten means the same:", np.array_equal(plain, buffered))
    print("right:", np.allclose(buffered, x.sum(1), rtol=1e-4, atol=1e-3))
    print("no hazard in", loops.prove(marked).events, "events")

    graph = make_graph(40, 1000)
    print(f"\n{graph}")
    proof = il.verify(il.build(graph, il.Schedule(workers=4, policy=il.RowSync())))
    print(f"\n{proof.edges} dependencies enforced: a block of sums waits for one block of scale")
    sums = il.ReferenceExecutor(proof, seed=0).run({"x": x, "gain": gain})["sums"]
    print("as ops of a graph, right:", np.allclose(sums, (gain * x).sum(1), rtol=1e-4, atol=1e-3))
    run_on_gpu()


def run_on_gpu() -> None:
    """Compiled by NVRTC: one kernel alone on torch tensors, and both as a graph, a stream for each."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("no Hopper GPU here: not compiled, not run")
        return
    n = 16384
    x, gain = torch.randn(n, n, device="cuda"), torch.randn(n, device="cuda")
    sums = torch.empty(n, device="cuda")
    row_sum = loops.compile_kernel(loops.circular_buffer(KERNEL, "tile", STAGES))
    row_sum.run({"x": x, "y": sums}, {"m": n, "n": n}, torch.cuda.current_stream().cuda_stream)
    print("on the GPU:", torch.allclose(sums, x.double().sum(1).float(), rtol=1e-4, atol=1e-2))
    plan = il.build(make_graph(n, n), il.Schedule(workers=il.H200.sms, policy=il.RowSync()))
    executor = il.SemaphoreStreamsExecutor(plan)
    executor.run({"x": x, "gain": gain, "sums": sums})
    executor.synchronize()
    gold = (gain.double() * x.double()).sum(1).float()
    print("as ops of a graph:", torch.allclose(sums, gold, rtol=1e-4, atol=1e-2))


if __name__ == "__main__":
    main()
