"""How many accesses a second the cache engines replay, beside libCacheSim's LRU on the same streams.

    python benchmarks/cache_speed.py --out benchmarks/results/cache-cpu.json

A unit is a tile of 128 x 64 in bf16, 16 KiB. The streams:
``gemm`` is 8192 cubed with 128 x 128 x 64 tiles, 132 workers each a tile ahead in step, K-chunk by K-chunk;
``random`` draws units uniformly and ``zipf`` with probability 1 / rank. ``l2`` is what predictions go through: the same
capacity in two sides, of which each is near half of the workers. Everything runs on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import libcachesim
import numpy as np
from script import parse_out, round_figure, time_host_s

from interlace.bench.record import read_cpu_name, write_cpu_record
from interlace.core.devices import L2
from interlace.orders.cache import simulate_lru, simulate_lru_mask, simulate_opt
from interlace.orders.distances import compute_stack_distances
from interlace.policies.orders import GroupedColumnMajor, Order, RowMajor
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import AccessStream

MEASURES = ("orders/cache.py", "orders/distances.py", "sim/l2.py")
ROUNDS = 5
WORKERS = 132
UNIT_BYTES = 128 * 64 * 2
L2_UNITS = 50 * 2**20 // UNIT_BYTES
DRAWN = 2_000_000
# libCacheSim was fastest with 2^16 buckets in its hash table; its default of 2^24 takes twice the time.
HASH_POWER = 16
ORACLE = np.dtype([("time", "<u4"), ("object", "<u8"), ("bytes", "<u4"), ("next", "<i8")])


def gemm(order: Order, extent: int = 8192, workers: int = WORKERS) -> np.ndarray:
    """Units of A, then of B, each row panel by row panel: a tile's chunks of both operands follow each other."""
    tiles, chunks = extent // 128, extent // 64
    permutation = order.compute_permutation((tiles, tiles))
    stream = []
    for wave in range(0, len(permutation), workers):
        row, column = np.divmod(permutation[wave : wave + workers], tiles)
        panels = np.stack([row, tiles + column], -1).reshape(1, -1)
        stream.append((panels * chunks + np.arange(chunks)[:, None]).reshape(-1))
    return np.concatenate(stream).astype(np.int32)


def random(units: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, units, DRAWN, dtype=np.int32)


def zipf(units: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    reached = np.cumsum(1 / np.arange(1, units + 1))
    rank = np.searchsorted(reached, rng.random(DRAWN) * reached[-1])
    return rng.permutation(units).astype(np.int32)[rank]


# Name, stream, capacity in units. A random stream is hardest where half of it hits: nothing predicts it.
STREAMS: tuple[tuple[str, Callable[[], np.ndarray], int], ...] = (
    ("gemm, grouped by 8", lambda: gemm(GroupedColumnMajor(8)), L2_UNITS),
    ("gemm, row-major", lambda: gemm(RowMajor()), L2_UNITS),
    ("random, 16 thousand units", lambda: random(16_384), 8192),
    ("random, 100 thousand units", lambda: random(100_000), 50_000),
    ("zipf, 16 thousand units", lambda: zipf(16_384), L2_UNITS),
    ("zipf, 100 thousand units", lambda: zipf(100_000), L2_UNITS),
)


def read_by_workers(units: np.ndarray) -> AccessStream:
    """Reads, two at a time, by one worker after the other; as the streams of ``gemm`` are."""
    place = np.arange(len(units), dtype=np.int32) // 2
    never = np.zeros(len(units), np.bool_)
    return AccessStream(units, never, place, place % np.int32(WORKERS), never)


def measure(name: str, units: np.ndarray, capacity: int, trace: Path) -> dict[str, Any]:
    """Accesses per second of every engine on one stream, in millions; checks that hits are the same."""
    requests = np.zeros(len(units), ORACLE)
    requests["object"], requests["bytes"], requests["next"] = units + 1, 1, -1
    requests.tofile(trace)
    reader = libcachesim.TraceReader(str(trace), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    sizes = np.where(np.arange(int(units.max()) + 1) % 3 == 0, 2, 1) * UNIT_BYTES
    capacity_bytes = int(capacity * sizes.mean())

    stream, equal = read_by_workers(units), np.full(len(sizes), UNIT_BYTES)
    l2 = L2(sides=2, side_bytes=capacity * UNIT_BYTES // 2)

    def library() -> float:
        reader.reset()
        return float(libcachesim.LRU(capacity, hashpower=HASH_POWER).process_trace(reader)[0])

    hits = simulate_lru(units, capacity).hits
    if round((1 - library()) * len(units)) != hits or compute_stack_distances(units).count_hits(capacity) != hits:
        raise SystemExit(f"{name}: engines disagree")
    engines: dict[str, Callable[[], Any]] = {
        "lru": lambda: simulate_lru(units, capacity),
        "lru_mask": lambda: simulate_lru_mask(units, capacity),
        "lru_with_sizes": lambda: simulate_lru(units, capacity_bytes, sizes),
        "l2": lambda: simulate_missed_bytes(stream, equal, l2),
        "opt": lambda: simulate_opt(units, capacity),
        "stack_distances": lambda: compute_stack_distances(units),
        "stack_distances_with_sizes": lambda: compute_stack_distances(units, sizes),
        "libcachesim_lru": library,
    }
    rates = {engine: len(units) / time / 1e6 for engine, time in time_host_s(engines, ROUNDS).items()}

    return {
        "stream": name,
        "accesses": len(units),
        "units": int(units.max()) + 1,
        "capacity_units": capacity,
        "lru_hit_rate": round(hits / len(units), 4),
        "opt_hit_rate": round(simulate_opt(units, capacity).hits / len(units), 4),
        "millions_per_second": {engine: round_figure(rate) for engine, rate in rates.items()},
        "lru_over_libcachesim": round(rates["lru"] / rates["libcachesim_lru"], 1),
    }


def main() -> None:
    out = parse_out(__doc__)
    print(f"million accesses per second on one core of {read_cpu_name()}")
    rows = []
    with TemporaryDirectory() as folder:
        for name, stream, capacity in STREAMS:
            row = measure(name, stream(), capacity, Path(folder) / "trace.bin")
            rows.append(row)
            print(f"\n{name}: {row['lru_hit_rate']:.1%} of {row['accesses']} accesses hit {capacity} units")
            for engine, rate in row["millions_per_second"].items():
                print(f"  {engine:28}{rate:8.3g}")
            print(f"  {'lru / libcachesim_lru':28}{row['lru_over_libcachesim']:8.3g}")
    if out is not None:
        protocol = (
            f"one core; median of {ROUNDS} rounds, engines one after the other in each; libCacheSim reads a binary "
            f"trace from the page cache and has 2^{HASH_POWER} buckets"
        )
        packages = ("numpy", "numba", "libcachesim")
        write_cpu_record(out, "python benchmarks/cache_speed.py", protocol, MEASURES, {"rows": rows}, packages)


if __name__ == "__main__":
    main()
