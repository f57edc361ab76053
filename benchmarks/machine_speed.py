"""How fast a plan is simulated on one core: what an FFN touches, in which order, and items per second.

python benchmarks/machine_speed.py --out benchmarks/results/machine-cpu.json
"""

from __future__ import annotations

from functools import partial

import numpy as np
from script import parse_out, round_figure, time_host_s

import interlace as il
from interlace.bench.record import read_cpu_name, write_cpu_record
from interlace.kernels.matmul import Activation, MatmulTile
from interlace.sim.lockstep import interleave
from interlace.sim.machine import Costs, simulate
from interlace.sim.modes import PERSISTENT, SERIAL, make_megakernel_mode
from interlace.sim.traffic import list_touches
from interlace.workloads import FFNShape, ffn

MEASURES = (
    "sim/boxes.py",
    "sim/engine.py",
    "sim/lockstep.py",
    "sim/machine.py",
    "sim/memory.py",
    "sim/state.py",
    "sim/traffic.py",
    "sim/units.py",
)
ROUNDS = 5
ITEMS = 1_000_000
TOKENS = 8192


def two_copies(items: int) -> il.Plan:
    """Half of the items wait for one of the others each."""
    rows = items // 2 * 64
    graph = il.workloads.two_copies(rows, 64)
    return il.build(graph, il.Schedule(il.H200.sms, interleaving=il.RowPanels(500)))


def touching() -> dict[str, float]:
    """Milliseconds from the plan of an FFN to the stream of its accesses."""
    tile = MatmulTile(128, 256, 64)
    graph = ffn(TOKENS, FFNShape(4096, 14336, Activation.RELU, False), up=tile, down=tile)
    plan = il.build(graph, il.Schedule(il.H200.sms, policy=il.RowSync(), order=il.GroupedColumnMajor(8)))
    touched = list_touches(plan)
    steps = {"touches": lambda: list_touches(plan), "interleave": lambda: interleave(plan, touched)}
    return {
        "tokens": TOKENS,
        "items": len(plan.items),
        "touches": len(touched),
        "units": len(touched.units),
        **{f"{step}_ms": round_figure(seconds * 1e3) for step, seconds in time_host_s(steps, ROUNDS).items()},
    }


def simulating() -> list[dict[str, str | float]]:
    """Millions of items per second, by what binds the items and by mode."""
    plan, random = two_copies(ITEMS), np.random.default_rng(0)
    loads = {
        "compute bound": np.full(ITEMS, 1e3),
        "memory bound": np.full(ITEMS, 4e5),
        "mixed": random.uniform(0.0, 4e5, ITEMS),
    }
    modes = {"persistent": PERSISTENT, "serial": SERIAL, "ring_launch": make_megakernel_mode(160 << 10)}
    rows: list[dict[str, str | float]] = []
    for name, dram_bytes in loads.items():
        costs = Costs(np.full(ITEMS, 3e7), np.full(ITEMS, 2e5), dram_bytes, dram_bytes / 2, np.zeros(ITEMS))
        calls = {name: partial(simulate, plan, costs, il.H200, mode) for name, mode in modes.items()}
        rates = {name: round_figure(ITEMS / seconds / 1e6) for name, seconds in time_host_s(calls, ROUNDS).items()}
        rows.append({"items": name, **rates})
    return rows


def main() -> None:
    out = parse_out(__doc__)
    ffn_row = touching()
    print(f"one core of {read_cpu_name()}, median of {ROUNDS}")
    print("FFN of {tokens} tokens, {items} items, {touches} touches of {units} units:".format(**ffn_row))
    for step in ("touches", "interleave"):
        print(f"  {step:12}{ffn_row[f'{step}_ms']:8.1f} ms")
    print(f"{ITEMS} items on {il.H200.sms} workers, half of them with a wait, millions of items per second:")
    rows = simulating()
    for row in rows:
        print(f"  {row['items']:14}" + "".join(f"{mode} {row[mode]:5.2f}   " for mode in list(row)[1:]))
    if out is not None:
        protocol = (
            f"one core; median of {ROUNDS} calls after one that compiles; rows: {ITEMS} items on {il.H200.sms} "
            "workers, half of them with a wait, in millions of items per second"
        )
        command = "python benchmarks/machine_speed.py"
        write_cpu_record(out, command, protocol, MEASURES, {"ffn": ffn_row, "rows": rows}, ("numpy", "numba"))


if __name__ == "__main__":
    main()
