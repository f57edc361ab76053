"""Two copies, z = y = x: a graph, its dependencies, a plan, the proof, and every way to run it.

    python examples/01_two_copies.py

The last part runs on whatever is here: NumPy alone, the Triton interpreter, or a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from machine import executors, find_device, run

import interlace as il
from interlace.core.errors import CoverageError

M, N = 128, 128


def make_graph() -> il.Graph:
    """The tiles differ in shape, so that no tile of the second copy matches one of the first."""
    x, y, z = (il.Tensor(name, (M, N), il.fp16) for name in "xyz")
    first = il.copy("first", x, y, tile=(32, 64))
    second = il.copy("second", y, z, tile=(64, 32))
    return il.Graph("two-copies", (x, y, z), (first, second), inputs=("x",), outputs=("z",))


def without_waits_of(plan: il.Plan, item: int) -> il.Plan:
    """The plan with the waits of one item left out, as a bug in a planner might do."""
    waits, sizes = plan.waits, np.diff(plan.waits.ptr)
    keep = np.repeat(np.arange(len(sizes)) != item, sizes)
    sizes[item] = 0
    columns = {name: getattr(waits, name)[keep] for name in ("first", "count", "stride", "threshold", "k")}
    return replace(plan, waits=replace(waits, ptr=np.r_[0, np.cumsum(sizes)], **columns))


def main() -> None:
    graph = make_graph()
    print(graph)

    dependencies = il.Dependencies(graph)
    (link,) = dependencies.links
    first, second = graph.ops
    needed = dependencies.find_tile_producers(link)[7]  # tile number 7 is the last one, (1, 3)
    region = graph.compute_region(second, link.target, tile=7, k_lo=0, k_hi=1)
    print(f"\n{second.format_tile(7)} reads {region} and so depends ({link.hazard.name}) on")
    for tile in needed:
        print(f"  {first.format_tile(tile)}")
    assert needed.tolist() == [5, 7]

    schedule = il.Schedule(workers=4, policy=il.TileSync())
    plan = il.build(graph, schedule)
    last = len(plan.items) - 1
    row = plan.waits.ptr[last]
    w = plan.waits
    print(f"\nplan: {len(plan.items)} items, {plan.semaphores} semaphores, {len(w)} waits")
    print(f"{plan.format_item(last)} waits for {w.count[row]} semaphores from {w.first[row]}", end=" ")
    print(f"in steps of {w.stride[row]}, until each has {w.threshold[row]} post")

    proof = il.verify(plan)
    print(f"proof: {proof.edges} dependencies enforced, {proof.edges_by_wait} of them by waits")
    assert proof.edges == proof.edges_by_wait == dependencies.count_edges() == 16

    print("\nwithout that wait:")
    try:
        il.verify(without_waits_of(plan, last))
    except CoverageError as error:
        print(f"  CoverageError: {error}")
    else:
        raise AssertionError("a plan that lacks a wait passed")

    device = find_device()
    x = np.random.default_rng(0).standard_normal((M, N)).astype(np.float16)
    print(f"\non {device or 'the base install, without torch and triton'}:")
    for name, executor in executors(device, graph, schedule):
        assert np.array_equal(run(executor, {"x": x})["z"], x), name
        print(f"  {name:32} z == x")


if __name__ == "__main__":
    main()
