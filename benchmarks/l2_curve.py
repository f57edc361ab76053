"""How much of a cyclic read stream the L2 keeps, by footprint and by how many SMs read each line.

    python benchmarks/l2_curve.py benchmarks/results/l2-h200.json

Needs a GPU and ``ncu``. Every footprint is read through four times, then once more under the profiler; chunks of 16 KiB
are read in order, so the stream is cyclic. With several readers, as many SMs read each chunk at about the same time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from script import format_command, parse_arguments

from interlace.bench.counters import count_launches
from interlace.bench.record import write_record

MIB = (8, 16, 20, 24, 26, 28, 30, 32, 34, 36, 40, 44, 47, 50, 52, 54, 57, 60, 62, 65, 68, 75, 90)
READERS = (1, 2, 4, 12, 44)
CHUNK_WORDS = 4096
METRICS = {"dram_read_bytes": "dram__bytes_read.sum", "l2_sectors": "lts__t_sectors_op_read.sum"}


@triton.jit
def _read(data, out, chunks, GROUPS: tl.constexpr, WORDS: tl.constexpr):
    """Group ``g`` of SMs reads the chunks g, g + GROUPS, ..."""
    total = tl.zeros((WORDS,), tl.int32)
    for chunk in range(tl.program_id(0) % GROUPS, chunks, GROUPS):
        total += tl.load(data + chunk.to(tl.int64) * WORDS + tl.arange(0, WORDS), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def warming_pass(data, out, chunks, GROUPS: tl.constexpr, WORDS: tl.constexpr):
    """A pass that is not counted."""
    _read(data, out, chunks, GROUPS, WORDS)


@triton.jit
def counted_pass(data, out, chunks, GROUPS: tl.constexpr, WORDS: tl.constexpr):
    """The pass that the profiler counts."""
    _read(data, out, chunks, GROUPS, WORDS)


def cases() -> list[tuple[int, int]]:
    """(readers, MiB) in the order in which they run."""
    return [(readers, mib) for readers in READERS for mib in MIB]


def child() -> None:
    """All cases, for the profiler."""
    data = torch.zeros(max(MIB) << 18, dtype=torch.int32, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.zeros(sms, dtype=torch.int32, device="cuda")
    for readers, mib in cases():
        chunks = (mib << 18) // CHUNK_WORDS
        for kernel in (*[warming_pass] * 4, counted_pass):
            kernel[(sms,)](data, out, chunks, sms // readers, CHUNK_WORDS, num_warps=8)
    torch.cuda.synchronize()


def measure() -> list[dict[str, Any]]:
    """A row for each case: which share of the footprint the L2 kept.

    Raises:
        ProfilerError: ``ncu`` is not there, or may not read counters.
    """
    rows = []
    counted = count_launches([sys.executable, __file__], "counted_pass", METRICS, flush=False)
    for (readers, mib), counts in zip(cases(), counted, strict=True):
        rate = 1 - counts["dram_read_bytes"] / (mib << 20)
        rows.append({"readers": readers, "mib": mib, "kept": round(rate, 4), **counts})
    return rows


def main(path: str) -> None:
    """Measure, print and record."""
    rows = measure()
    for readers in READERS:
        kept = "  ".join(f"{row['mib']}: {row['kept']:.2f}" for row in rows if row["readers"] == readers)
        print(f"{readers:3d} readers  {kept}")
    protocol = "ncu, clocks and caches as they are; share of a footprint's bytes not read from memory, fifth pass"
    write_record(Path(path), format_command(Path(path)), protocol, (), {"rows": rows})


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record")) if len(sys.argv) > 1 else child()
