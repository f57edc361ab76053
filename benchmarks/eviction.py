"""Bytes of data to evict first that the L2 keeps: which share of them is there when they are read again.

    python benchmarks/eviction.py benchmarks/results/eviction-h200.json

Needs a Hopper GPU and ``ncu``; takes less than 40 s. All SMs together read a footprint round after round with the L2's
policy ``evict_first``, and after each chunk one that is never read again; these fill the cache. In each round the parts
move to the next SM, so that no L1 has what its SM reads. For comparison the same with the default policy. The share of
the footprint that is found again is counted after a warm-up.

The model (``sim/l2``) keeps ``evict_first_bytes`` on each side and evicts equal shares of them. It is run over the same
accesses with many values; printed is the value with the least squared error, next to the one in the device's data.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from script import format_command, parse_arguments

from interlace.bench.counters import count_launches
from interlace.bench.record import write_record
from interlace.core.devices import DeviceSpec
from interlace.executors.gpu import detect_spec
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import AccessStream

CHUNK_WORDS = 1024
CHUNK_BYTES = 4 * CHUNK_WORDS
#: Chunks of each SM; a footprint of one chunk for each of 132 SMs is 528 KiB.
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 40)
POLICIES = ("evict_first", "")
#: Chunks of each SM that are read once in a launch: 124 MiB in all, more than the L2 holds.
FRESH_CHUNKS = 240
CANDIDATES = [int(mib * (1 << 20)) for mib in np.arange(1, 8.01, 0.5)]
METRICS = {"dram_read_bytes": "dram__bytes_read.sum"}


@triton.jit
def _read(data, fresh, out, chunks, steps, POLICY: tl.constexpr, WORDS: tl.constexpr):
    """Read ``chunks`` chunks of data in turn in so many steps, and after each one that is not read again."""
    MODIFIER: tl.constexpr = ".cg" if POLICY == "" else ""  # no load has both a modifier and a policy
    total = tl.zeros((WORDS,), tl.int32)
    for n in range(steps):
        part = (tl.program_id(0) + n // chunks) % tl.num_programs(0)
        at = ((n % chunks) * tl.num_programs(0) + part).to(tl.int64) * WORDS
        total += tl.load(data + at + tl.arange(0, WORDS), cache_modifier=MODIFIER, eviction_policy=POLICY)
        at = (n * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * WORDS
        total += tl.load(fresh + at + tl.arange(0, WORDS), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def warming_pass(data, fresh, out, chunks, steps, POLICY: tl.constexpr, WORDS: tl.constexpr):
    """A pass that is not counted."""
    _read(data, fresh, out, chunks, steps, POLICY, WORDS)


@triton.jit
def counted_pass(data, fresh, out, chunks, steps, POLICY: tl.constexpr, WORDS: tl.constexpr):
    """The pass that the profiler counts."""
    _read(data, fresh, out, chunks, steps, POLICY, WORDS)


def list_cases() -> list[tuple[str, int]]:
    """Return policy and chunks of an SM of each case, in the order in which they run."""
    return [(policy, chunks) for policy in POLICIES for chunks in CHUNKS]


def run_child() -> None:
    """Run all cases, for the profiler."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    data = torch.zeros(max(CHUNKS) * sms * CHUNK_WORDS, dtype=torch.int32, device="cuda")
    fresh = torch.zeros((2, FRESH_CHUNKS * sms * CHUNK_WORDS), dtype=torch.int32, device="cuda")
    out = torch.zeros(sms, dtype=torch.int32, device="cuda")
    for policy, chunks in list_cases():
        for kernel, part in zip((warming_pass, counted_pass), fresh, strict=True):
            kernel[(sms,)](data, part, out, chunks, FRESH_CHUNKS, policy, CHUNK_WORDS, num_warps=8)
    torch.cuda.synchronize()


def measure(sms: int) -> list[dict[str, Any]]:
    """Return a row for each case, with the share of its footprint that was found again.

    Raises:
        ProfilerError: ``ncu`` is not there, or may not read counters.
    """
    rows = []
    counted = count_launches([sys.executable, __file__], "counted_pass", METRICS, flush=False)
    for (policy, chunks), counts in zip(list_cases(), counted, strict=True):
        kept = 2 - counts["dram_read_bytes"] / (FRESH_CHUNKS * sms * CHUNK_BYTES)
        rows.append({"policy": policy or "default", "chunks": chunks, "kept": round(kept, 4), **counts})
    return rows


def predict_kept(device: DeviceSpec, chunks: int, policy: str = "evict_first") -> float:
    """Return the share of a footprint that the model finds again, after as many steps that it does not count."""
    step, sm = np.divmod(np.arange(2 * FRESH_CHUNKS * device.sms), device.sms)
    footprint = chunks * device.sms
    again = step % chunks * device.sms + (sm + step % FRESH_CHUNKS // chunks) % device.sms
    unit = np.stack([again, footprint + np.arange(len(step))], 1).ravel().astype(np.int32)
    worker, never = np.repeat(sm, 2).astype(np.int32), np.zeros(len(unit), np.bool_)
    stream = AccessStream(unit, never, worker, worker, (unit < footprint) & (policy == "evict_first"))
    missed = simulate_missed_bytes(stream, np.full(footprint + len(step), CHUNK_BYTES), device.l2)
    counted = (unit < footprint) & (np.arange(len(unit)) >= len(step))
    return 1 - float(missed[counted].mean()) / CHUNK_BYTES


def fit_kept(device: DeviceSpec, rows: list[dict[str, Any]]) -> dict[int, float]:
    """Return the squared error of the shares that the model keeps, by each candidate of ``evict_first_bytes``."""
    kept = {row["chunks"]: row["kept"] for row in rows if row["policy"] == "evict_first"}
    errors = {}
    for nbytes in CANDIDATES:
        own = replace(device, l2=replace(device.l2, evict_first_bytes=nbytes))
        errors[nbytes] = sum((predict_kept(own, chunks) - share) ** 2 for chunks, share in kept.items())
    return errors


def main(path: str) -> None:
    """Measure, fit, print and record."""
    spec = detect_spec(torch, torch.device("cuda", torch.cuda.current_device()))
    rows = measure(spec.sms)
    for row in rows:
        row["predicted"] = round(predict_kept(spec, row["chunks"], row["policy"]), 4)
        kib = row["chunks"] * spec.sms * CHUNK_BYTES // 1024
        print(f"{row['policy']:12} {kib:6} KiB: kept {row['kept']:.2f}, predicted {row['predicted']:.2f}")
    errors = fit_kept(spec, rows)
    best = min(errors, key=lambda nbytes: errors[nbytes])
    print(f"l2.evict_first_bytes = {best:_} fits best; the device's data have {spec.l2.evict_first_bytes:_}")
    figures = {"rows": rows, "evict_first_bytes": best, "squared_errors": {str(n): e for n, e in errors.items()}}
    protocol = "ncu, clocks and caches as they are; share of a footprint's bytes not read from memory, after a warm-up"
    write_record(Path(path), format_command(Path(path)), protocol, ("core/devices", "sim"), figures)


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record")) if len(sys.argv) > 1 else run_child()
