"""How long releases take, by the bytes of bulk loads that are under way in the SM.

    python benchmarks/fences.py benchmarks/results/fences-h200.json

Needs a Hopper GPU. One block on each SM: a thread keeps some pieces of 16 KiB under way, from memory that no cache
holds; every two microseconds a warp stores 64 bytes, and measures how long what follows takes on the clock of its SM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from script import format_command, parse_arguments

from interlace.bench.record import write_record
from interlace.kernels.abi import Struct
from interlace.kernels.cuda.compiler import compile_source
from interlace.kernels.cuda.launcher import LoadedKernel
from interlace.kernels.cuda.ptx import PTX

MEASURES = ("csrc/ptx.cuh", "kernels/cuda/ptx.py")
PROTOCOL = (
    "a block of 256 threads on each SM, 64 times each, every two microseconds; cycles of the SM as nanoseconds at the "
    "rate that it had meanwhile, median and 95th percentile of all"
)
PIECE, MOST = 16384, 8
OPERANDS = Struct(
    "Probe",
    (
        ("source", "const unsigned char*"),
        ("to", "unsigned long long*"),
        ("counters", "int*"),
        ("cycles", "int*"),
        ("bytes", "long long"),
        ("pieces", "int"),
    ),
)
#: Step after the stores, by the lane that measures it.
WAYS = {
    "release of a counter": 'asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");',
    "fence": 'asm volatile("fence.acq_rel.gpu;" ::: "memory");',
}
TEXT = r"""
constexpr int TIMES = 64;
extern __shared__ __align__(1024) unsigned char shared_memory[];
DEVICE void begin(const Probe& p, unsigned base, int piece, long long& at) {
  const unsigned full = base + MOST * PIECE + piece * 8;
  mbarrier_arrive_expect_tx(full, PIECE);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(base + piece * PIECE), "l"(p.source + at), "r"(PIECE), "r"(full) : "memory");
  at += (long long)gridDim.x * PIECE;
  if (at >= p.bytes) at -= p.bytes;
}
extern "C" __global__ void __launch_bounds__(256, 1) probe(const __grid_constant__ Probe p) {
  const unsigned base = shared_address(shared_memory);
  volatile int* const over = reinterpret_cast<int*>(shared_memory + MOST * PIECE + MOST * 8);
  if (threadIdx.x == 0) {
    for (int n = 0; n < MOST; ++n) mbarrier_init(base + MOST * PIECE + n * 8, 1);
    fence_mbarrier_init();
    *over = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0 && p.pieces) {
    long long at = (long long)blockIdx.x * PIECE;
    for (int n = 0; n < p.pieces; ++n) begin(p, base, n, at);
    int left = 1 << 30;  // pieces that are still to land when all is over
    for (int n = 0; left > 0; ++n, --left) {
      const int piece = n % p.pieces;
      while (!mbarrier_try_wait(base + MOST * PIECE + piece * 8, n / p.pieces & 1)) {
      }
      if (left > p.pieces && *over) left = p.pieces;
      if (left > p.pieces) begin(p, base, piece, at);
    }
  } else if (threadIdx.x / 32 == 4) {
    unsigned long long* const stored = p.to + (long long)blockIdx.x * TIMES * 16;
    int* const counter = p.counters + blockIdx.x * 32;
    unsigned long long since = nanoseconds();
    while (nanoseconds() - since < 20000) {
    }
    const unsigned long long began = nanoseconds();
    const long long first = clock64();
    for (int n = 0; n < TIMES; ++n) {
      unsigned long long* const mine = stored + n * 16;
      since = nanoseconds();
      while (nanoseconds() - since < 1500 + (blockIdx.x * 37 + n * 101) % 1000) {
      }
      __syncwarp();
      const long long before = clock64();
      if (threadIdx.x % 32 < 8) mine[threadIdx.x % 32] = n;
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        WAY
        p.cycles[blockIdx.x * TIMES + n] = (int)(clock64() - before);
      }
    }
    if (threadIdx.x % 32 == 0) {
      *over = 1;
      counter[1] = (int)(clock64() - first), counter[2] = (int)(nanoseconds() - began);
    }
  }
}
"""


def measure(torch: Any) -> list[dict[str, Any]]:
    """A row for each number of bytes under way."""
    spec = torch.cuda.get_device_properties(0)
    blocks = spec.multi_processor_count
    source = torch.empty(blocks * PIECE * 500, dtype=torch.uint8, device="cuda")
    to = torch.zeros(blocks * 64 * 16, dtype=torch.int64, device="cuda")
    counters, cycles = (torch.zeros(blocks * n, dtype=torch.int32, device="cuda") for n in (32, 64))
    architecture = f"sm_{spec.major}{spec.minor}a"
    kernels = {}
    for name, way in WAYS.items():
        head = f"{OPERANDS.source}\n#define MOST {MOST}\n#define PIECE {PIECE}\n"
        binary = compile_source(head + TEXT.replace("WAY", way), "probe", architecture, preamble=PTX)
        kernels[name] = LoadedKernel(binary, MOST * PIECE + MOST * 8 + 64)
    rows = []
    for pieces in (0, 1, 2, 4, MOST):
        parameter = OPERANDS.pack(
            source=source, to=to, counters=counters, cycles=cycles, bytes=source.numel(), pieces=pieces
        )
        row: dict[str, Any] = {"bytes_under_way": pieces * PIECE, "ns": {}}
        for name, kernel in kernels.items():
            for _ in range(2):  # the second counts: code is there
                kernel.launch((blocks, 1, 1), 256, [parameter], torch.cuda.current_stream().cuda_stream)
            torch.cuda.synchronize()
            _, whole, elapsed = counters.cpu().numpy().reshape(blocks, 32)[:, :3].sum(axis=0, dtype=np.int64)
            ns = np.percentile(cycles.cpu().numpy() * (elapsed / whole), [50, 95])
            row["ns"][name] = {"median": float(ns[0]), "p95": float(ns[1])}
        rows.append(row)
        told = ", ".join(f"{name} {times['median']:.0f}" for name, times in row["ns"].items())
        print(f"{pieces * PIECE // 1024:4} KiB under way: {told}", flush=True)
    return rows


def main() -> None:
    import torch

    path = Path(*parse_arguments(__doc__, "record"))
    rows = measure(torch)
    write_record(path, format_command(path), PROTOCOL, MEASURES, {"rows": rows})


if __name__ == "__main__":
    main()
