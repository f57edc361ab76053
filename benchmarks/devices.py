"""Ceilings, cache and latencies of the GPU at hand: what a chip's data file in ``core/devices`` is made from.

    python benchmarks/devices.py [FOLDER]

Writes device-<name>.json into the folder, benchmarks/results by default, and prints the lines for the data file. The
curve of the L2 takes ``ncu``, which must be allowed to read counters; without it, that part is left out and said so.
Not measured here, because they are fitted to traffic and times of matmuls: what misses and partial sums cost an SM, the
fill, and what stages cost (``fit_matmul_cost.py``); nor what the L2 keeps of data to evict first (``eviction.py``).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import l2_curve
import numpy as np
import torch
import triton
import triton.language as tl
from script import RESULTS, make_parser

from interlace.bench import sync
from interlace.bench.record import write_record
from interlace.bench.timing import time_medians
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DTYPES
from interlace.core.errors import ProfilerError
from interlace.executors.gpu import detect_spec, get_torch_dtype
from interlace.kernels.primitives.semaphore import read_clock_ns

PROTOCOL = (
    "CUDA-graph replays, variants interleaved, median of 20; streams: the best of several launch shapes; SM rates: one "
    "block per SM; latencies: 1,000 rounds, median of 11; L2: ncu, fifth pass"
)
STREAM_BYTES = 4 << 30
RESIDENT_BYTES = 8 << 20  # read again and again: from the L2
EXTENT = 8192  # of the matmuls
EMPTY = 100  # kernels in one graph


@triton.jit
def read_stream(data, out, words, WORDS: tl.constexpr):
    """Programs read the same data in turn, each every so many chunks."""
    total = tl.zeros((WORDS,), tl.int32)
    for chunk in range(tl.program_id(0), words // WORDS, tl.num_programs(0)):
        total |= tl.load(data + chunk.to(tl.int64) * WORDS + tl.arange(0, WORDS), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def read_again(data, out, ns, words, rounds, WORDS: tl.constexpr):
    """Every program reads all of the data ``rounds`` times, beginning at a place of its own, and tells how long."""
    total = tl.zeros((WORDS,), tl.int32)
    chunks = words // WORDS
    first = tl.program_id(0) * (chunks // tl.num_programs(0))
    begin = read_clock_ns(False)
    for n in range(rounds * chunks):
        total |= tl.load(data + (first + n) % chunks * WORDS + tl.arange(0, WORDS), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))
    tl.debug_barrier()
    tl.store(ns + tl.program_id(0), read_clock_ns(False) - begin)


@triton.jit
def empty_kernel(out):
    """Nothing."""


def dram(gpu: DeviceSpec) -> dict[str, Any]:
    """Bytes per second from memory: of all SMs, and of one alone."""
    data = torch.zeros(STREAM_BYTES // 4, dtype=torch.int32, device="cuda")
    out = torch.zeros(gpu.sms * 8, dtype=torch.int32, device="cuda")

    def variants(per_sm: tuple[int, ...], sms: int, nbytes: int) -> dict[str, Callable[[], Any]]:
        return {
            f"{blocks} blocks to an SM, chunks of {words} words, {warps} warps": partial(
                read_stream[(sms * blocks,)], data, out, nbytes // 4, words, num_warps=warps
            )
            for blocks in per_sm
            for words in (4096, 8192, 16384)
            for warps in (8, 16)
        }

    share = STREAM_BYTES // 64  # of one SM, more than the L2 holds
    together = time_medians(variants((1, 2, 4), gpu.sms, STREAM_BYTES))
    alone = time_medians(variants((1,), 1, share))
    best, one = (min(times, key=lambda n: times[n].median_us) for times in (together, alone))
    return {
        "bytes_per_s": STREAM_BYTES / together[best].median_us * 1e6,
        "shape": best,
        "sm_bytes_per_s": share / alone[one].median_us * 1e6,
        "sm_shape": one,
    }


def l2(gpu: DeviceSpec) -> dict[str, float]:
    """Bytes per second of one SM through the L2, alone and beside all others, and how far SMs differ."""
    data = torch.zeros(RESIDENT_BYTES // 4, dtype=torch.int32, device="cuda")
    out = torch.zeros(gpu.sms, dtype=torch.int32, device="cuda")
    ns = torch.zeros(gpu.sms, dtype=torch.int64, device="cuda")

    def samples(sms: int, rounds: int) -> np.ndarray[Any, Any]:
        found = []
        for _ in range(11):
            read_again[(sms,)](data, out, ns, RESIDENT_BYTES // 4, rounds, 8192, num_warps=16)
            found.append(ns[:sms].cpu().numpy().copy())
        return np.median(found[1:], axis=0)

    alone, together = samples(1, 4), samples(gpu.sms, 8)
    return {
        "sm_alone_bytes_per_s": 4 * RESIDENT_BYTES / float(alone[0]) * 1e9,
        "sm_bytes_per_s": 8 * RESIDENT_BYTES / float(np.median(together)) * 1e9,
        "spread": float(together.max() / together.min() - 1),
    }


def matmuls() -> dict[str, float]:
    """FLOP/s of a large matmul of cuBLAS in each dtype, on random data."""
    rates = {}
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in DTYPES:
        a, b = (torch.randn(EXTENT, EXTENT, device="cuda").to(get_torch_dtype(torch, dtype.name)) for _ in range(2))
        out = torch.empty_like(a)
        times = time_medians({"matmul": partial(torch.matmul, a, b, out=out)})
        rates[dtype.name] = 2 * EXTENT**3 / times["matmul"].median_us * 1e6
    return rates


def empty_kernel_ns() -> float:
    """From one empty kernel to the next in a CUDA graph."""
    out = torch.zeros(1, device="cuda")

    def launches() -> None:
        for _ in range(EMPTY):
            empty_kernel[(1,)](out, num_warps=4)

    return time_medians({"empty": launches}, calls=EMPTY)["empty"].median_us * 1e3


def half_kept_bytes(rows: list[dict[str, Any]], readers: int) -> float:
    """The footprint of which half is kept, if so many SMs read each line."""
    mine = [row for row in rows if row["readers"] == readers]
    kept = np.array([row["kept"] for row in mine])
    mib = np.array([row["mib"] for row in mine])
    return float(np.interp(-0.5, -kept, mib)) * (1 << 20)


def clocks() -> str:
    """Return clocks and power as nvidia-smi reports them."""
    query = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv"], capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Measure, print and record."""
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS)
    folder = parser.parse_args().folder
    gpu = detect_spec(torch, torch.device("cuda", torch.cuda.current_device()))
    told = {"name": gpu.name, "capability": gpu.capability, "sms": gpu.sms, "smem_bytes": gpu.smem_bytes}
    told |= {"l2_bytes": gpu.l2_bytes, "clock_hz": gpu.clock_hz, "bus_bytes_per_s": gpu.bus_bytes_per_s}
    figures: dict[str, Any] = {"driver": told, "dram": dram(gpu), "l2": l2(gpu), "flops_per_s": matmuls()}
    figures |= {"clocks": clocks(), "nanoseconds": {**sync.measure_costs(), "empty kernel": empty_kernel_ns()}}
    try:
        rows = l2_curve.measure()
        figures["l2_curve"] = rows
        few, many = (half_kept_bytes(rows, readers) for readers in (min(l2_curve.READERS), max(l2_curve.READERS)))
        figures["l2"] |= {"half_kept_bytes_read_by_one": few, "half_kept_bytes_read_by_many": many}
    except ProfilerError as error:
        print(f"no curve of the L2: {error}")
    ns = figures["nanoseconds"]
    print(f"dram_bytes_per_s = {figures['dram']['bytes_per_s']:.3g}")
    print("rates = {", ", ".join(f"{name} = {rate:.3g}" for name, rate in figures["flops_per_s"].items()), "}")
    print(f"sm_dram_bytes_per_s = {figures['dram']['sm_bytes_per_s']:.3g}")
    print(f"sm_l2_bytes_per_s = {figures['l2']['sm_bytes_per_s']:.3g}")
    print(f"l2.side_bytes = {figures['l2'].get('half_kept_bytes_read_by_many', 0):_.0f}")
    print(f"latencies.post_ns = {ns['post']:.0f}, wait_ns = {ns['satisfied wait']:.0f}, ", end="")
    print(f"hand_off_ns = {ns['one-way hand-over']:.0f}, ticket_ns = {ns['ticket']:.0f}")
    name = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower().removeprefix("nvidia "))
    path = folder / f"device-{name}.json"
    write_record(path, "python benchmarks/devices.py", PROTOCOL, sync.MEASURES, figures)
    print(path)


if __name__ == "__main__":
    main()
