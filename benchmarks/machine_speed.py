"""How fast a plan is simulated on one core: what an FFN touches, in which order, and items per second.

python benchmarks/machine_speed.py
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

import interlace as il
from interlace.kernels.matmul import Activation, MatmulTile
from interlace.sim.lockstep import interleave
from interlace.sim.machine import Costs, simulate
from interlace.sim.modes import PERSISTENT, SERIAL, hopper
from interlace.sim.traffic import touches
from interlace.workloads import FFNShape, ffn

ITEMS = 1_000_000
TOKENS = 8192


def best_seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """The best of some calls, after one that compiles."""
    call()
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return min(seconds)


def two_copies(items: int) -> il.Plan:
    """Half of the items wait for one of the others each."""
    rows = items // 2 * 64
    graph = il.workloads.two_copies(rows, 64)
    return il.build(graph, il.Choices(il.H200.sms, interleaving=il.Panels(500)))


def main() -> None:
    tile = MatmulTile(128, 256, 64)
    graph = ffn(TOKENS, FFNShape(4096, 14336, Activation.RELU, False), up=tile, down=tile)
    plan = il.build(graph, il.Choices(il.H200.sms, policy=il.RowSync(), order=il.GroupedPanels(8)))
    touched = touches(plan)
    print(f"FFN of {TOKENS} tokens, {len(plan.items)} items, {len(touched)} touches of {len(touched.units)} units:")
    print(f"  touches     {best_seconds(lambda: touches(plan)) * 1e3:8.1f} ms")
    print(f"  interleave  {best_seconds(lambda: interleave(plan, touched)) * 1e3:8.1f} ms")

    plan, random = two_copies(ITEMS), np.random.default_rng(0)
    print(f"{ITEMS} items on {plan.workers} workers, half of them with a wait, millions of items per second:")
    loads = {
        "compute bound": np.full(ITEMS, 1e3),
        "memory bound": np.full(ITEMS, 4e5),
        "mixed": random.uniform(0.0, 4e5, ITEMS),
    }
    for name, dram_bytes in loads.items():
        costs = Costs(np.full(ITEMS, 3e7), np.full(ITEMS, 2e5), dram_bytes, dram_bytes / 2, np.zeros(ITEMS))
        modes = {"persistent": PERSISTENT, "serial": SERIAL, "hopper": hopper(160 << 10)}
        speeds = {
            mode: ITEMS / best_seconds(lambda m=m, c=costs: simulate(plan, c, il.H200, m), 3) / 1e6
            for mode, m in modes.items()
        }
        print(f"  {name:14}" + "".join(f"{mode} {speed:5.2f}   " for mode, speed in speeds.items()))


if __name__ == "__main__":
    main()
