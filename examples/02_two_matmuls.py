"""Two matmuls, out = (x @ a.T) @ b.T: what policies and orders change, and that they change no result.

    python examples/02_two_matmuls.py

A policy says which tiles of the first matmul share a semaphore: few semaphores are cheap to poll, many let
tiles of the second matmul start early. An order and an interleaving say which tiles come early at all.
"""

from __future__ import annotations

import numpy as np
from machine import executors, find_device, run

import interlace as il

POLICIES = (
    il.TileSync(),
    il.RowSync(),
    il.BatchedRowSync(2),
    il.StridedSync(2),
    il.ColumnSync(),
    il.KernelSync(),
)
ORDERS = (
    (il.RowMajor(), il.OpAfterOp()),
    (il.ColumnMajor(), il.OpAfterOp()),
    (il.Serpentine(), il.RowPanels(2)),
)


def main() -> None:
    device = find_device()
    if device == "cuda":
        m, k, n, p, tile, workers = 512, 512, 1024, 512, il.MatmulTile(64, 64, 64), 50
    else:
        m, k, n, p, tile, workers = 64, 32, 64, 32, il.MatmulTile(16, 16, 16), 6
    graph = il.workloads.two_matmuls(m, k, n, p, il.fp16, tile, tile)
    for op in graph.ops:
        rows, columns = op.grid
        print(f"{op.name}: {rows} x {columns} tiles, each a reduction of {op.reduction.chunks} chunks")

    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(graph.tensor(name).shape) for name in graph.inputs}
    inputs = {name: (v / v.shape[1] ** 0.5).astype(np.float16) for name, v in inputs.items()}
    x, a, b = (inputs[name].astype(np.float64) for name in "xab")
    gold = x @ a.T @ b.T

    def error(executor: object) -> float:
        return float(np.linalg.norm(run(executor, inputs)["out"] - gold) / np.linalg.norm(gold))

    print(f"\n{'policy':24}{'orders':32}{'semaphores':>10}{'waits':>7}{'polled':>8}{'chain':>7}{'waited':>8}")
    for policy in POLICIES:
        for order, interleaving in ORDERS:
            schedule = il.Schedule(workers, policy=policy, order=order, interleaving=interleaving)
            plan = il.build(graph, schedule)
            proof = il.verify(plan)
            # A policy coarsens and so loses nothing: the same dependencies are enforced under all of them.
            assert proof.edges == proof.edges_by_wait == graph.ops[1].tiles * graph.ops[0].grid[1]
            assert proof.longest_chain == 2
            reference = il.ReferenceExecutor(proof)
            assert error(reference) < 1e-12
            waited = reference.trace.waiting_ns  # the clock of this trace counts steps
            orders = f"{type(order).__name__}, {type(interleaving).__name__}"
            print(
                f"{policy!s:24}{orders:32}{plan.semaphores:10}{len(plan.waits):7}"
                f"{plan.waits.count.sum():8}{proof.longest_chain:7}{waited:8}"
            )
    print(
        "\npolled: semaphores that all waits together look at; chain: items on the longest chain of waits;\n"
        f"waited: steps that {workers} workers of the reference executor spend in waits"
    )

    print(f"\non {device or 'the base install, without torch and triton'}, worst relative error:")
    worst: dict[str, float] = {}
    for policy, (order, interleaving) in zip(POLICIES[:3], ORDERS, strict=True):
        # With chunk waits, a tile waits before the chunk of its reduction that needs the data.
        schedule = il.Schedule(workers, policy=policy, order=order, interleaving=interleaving, chunk_waits=True)
        for name, executor in executors(device, graph, schedule):
            worst[name] = max(worst.get(name, 0.0), error(executor))
    for name, value in worst.items():
        print(f"  {name:32}{value:.1e}")
        assert value < (1e-12 if name.startswith("reference") else 4 * il.fp16.epsilon), name


if __name__ == "__main__":
    main()
