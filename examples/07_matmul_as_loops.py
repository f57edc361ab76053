"""A matmul as plain loops: a loader warp, consumer warpgroups, and full and empty barriers follow.

    python examples/07_matmul_as_loops.py
    interlace pipeline examples/07_matmul_as_loops.py --stages 4 --warp-specialised --print cuda

The last part needs a Hopper GPU; the rest runs on NumPy alone, in seconds.
"""

from __future__ import annotations

import numpy as np

import interlace as il
from interlace import loops

M, N, K, STAGES = 128, 128, 64, 4


def make_kernel() -> loops.LoopKernel:
    """``c = a @ b.T`` for a (rows, depth), b (columns, depth): a block per tile, 64 of the reduction at a time."""
    k = loops.Builder("matmul", threads=256)
    rows, columns, depth = (k.symbol(name) for name in ("rows", "columns", "depth"))
    a, b = k.input("a", (rows, depth), il.bf16), k.input("b", (columns, depth), il.bf16)
    c = k.output("c", (rows, columns), il.bf16)
    a_tile, b_tile = (k.shared(name, (n, K), il.bf16, swizzle_bytes=128) for name, n in (("a_tile", M), ("b_tile", N)))
    total = k.register("total", (M, N), il.fp32)
    with k.block("i", loops.ceil_div(rows, M)) as i, k.block("j", loops.ceil_div(columns, N)) as j:
        k.assign(total, 0)
        with k.serial("s", loops.ceil_div(depth, K)) as s:
            k.load(a_tile, a.at(i * M, s * K))
            k.load(b_tile, b.at(j * N, s * K))
            k.matmul(total, a_tile, b_tile)
        k.store(c.at(i * M, j * N), total)
    return k.build_kernel()


# What `interlace pipeline` looks for in a file.
KERNEL = make_kernel()
BUFFERED = ("a_tile", "b_tile")


def main() -> None:
    marked = KERNEL
    for tile in BUFFERED:
        marked = loops.circular_buffer(marked, tile, STAGES)
    pipeline = loops.lower(marked, warp_specialised=True)
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (n, 192)).astype(np.float32) for n in (130, 136))
    plain, pipelined = (loops.interpret(kernel, {"a": a, "b": b})["c"] for kernel in (KERNEL, pipeline))
    print("rewritten means the same:", np.array_equal(plain, pipelined))
    print("no hazard in", loops.prove(marked, warp_specialised=True).events, "events")
    run_on_gpu(marked)


def run_on_gpu(marked: loops.LoopKernel) -> None:
    """Compiled by NVRTC and launched on torch tensors."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("no Hopper GPU here: not compiled, not run")
        return
    a, b = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    sizes = {"rows": 4096, "columns": 4096, "depth": 4096}
    matmul = loops.compile_kernel(marked, warp_specialised=True)
    matmul.run({"a": a, "b": b, "c": c}, sizes, torch.cuda.current_stream().cuda_stream)
    gold = a.double() @ b.double().T
    print(f"on the GPU: relative error {float((c.double() - gold).norm() / gold.norm()):.1e}")


if __name__ == "__main__":
    main()
