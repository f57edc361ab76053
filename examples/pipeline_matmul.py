"""A matmul as plain loops, rewritten into a loader warp and consumer warpgroups with full and empty barriers.

    python examples/pipeline_matmul.py
    interlace pipeline examples/pipeline_matmul.py --stages 4 --warp-specialised --print cuda

The last part needs a Hopper GPU; the rest runs on NumPy alone.
"""

from __future__ import annotations

import numpy as np

from interlace.core.dtypes import bf16, fp32
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import ceil_div
from interlace.loops.ir.statements import Kernel
from interlace.loops.meaning.interpret import interpret
from interlace.loops.rewrite.circular import circular_buffer, lower

M, N, K, STAGES = 128, 128, 64, 4


def make_kernel() -> Kernel:
    """``c = a @ b.T`` for a (rows, depth), b (columns, depth): a block per tile, 64 of the reduction at a time."""
    k = Builder("matmul", threads=256)
    rows, columns, depth = (k.symbol(name) for name in ("rows", "columns", "depth"))
    a, b = k.input("a", (rows, depth), bf16), k.input("b", (columns, depth), bf16)
    c = k.output("c", (rows, columns), bf16)
    a_tile, b_tile = (k.shared(name, (n, K), bf16, swizzle_bytes=128) for name, n in (("a_tile", M), ("b_tile", N)))
    total = k.register("total", (M, N), fp32)
    with k.block("i", ceil_div(rows, M)) as i, k.block("j", ceil_div(columns, N)) as j:
        k.assign(total, 0)
        with k.serial("s", ceil_div(depth, K)) as s:
            k.load(a_tile, a.at(i * M, s * K))
            k.load(b_tile, b.at(j * N, s * K))
            k.matmul(total, a_tile, b_tile)
        k.store(c.at(i * M, j * N), total)
    return k.kernel()


KERNEL = make_kernel()
BUFFERED = ("a_tile", "b_tile")


def main() -> None:
    marked = KERNEL
    for tile in BUFFERED:
        marked = circular_buffer(marked, tile, STAGES)
    pipeline = lower(marked, warp_specialised=True)
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (n, 192)).astype(np.float32) for n in (130, 136))
    right = np.array_equal(interpret(pipeline, {"a": a, "b": b})["c"], interpret(KERNEL, {"a": a, "b": b})["c"])
    print("rewritten means the same:", right)
    run_on_gpu(marked)


def run_on_gpu(marked: Kernel) -> None:
    """Compiled by NVRTC and launched on torch tensors."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("no Hopper GPU here: not compiled, not run")
        return
    from interlace.loops.cuda.compiled import compile_kernel

    a, b = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    sizes = {"rows": 4096, "columns": 4096, "depth": 4096}
    matmul = compile_kernel(marked, warp_specialised=True)
    matmul.run({"a": a, "b": b, "c": c}, sizes, torch.cuda.current_stream().cuda_stream)
    gold = a.double() @ b.double().T
    print(f"on the GPU: relative error {float((c.double() - gold).norm() / gold.norm()):.1e}")


if __name__ == "__main__":
    main()
