"""Row sums as plain loops, rewritten into a TMA and mbarrier pipeline, shown to be safe and right.

    python examples/pipeline_reduction.py
    interlace pipeline examples/pipeline_reduction.py --stages 4 --print ir

The last part needs a Hopper GPU; the rest runs on NumPy alone.
"""

from __future__ import annotations

import numpy as np

from interlace.core.dtypes import fp32
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import ceil_div
from interlace.loops.ir.statements import Kernel, ReduceOp
from interlace.loops.meaning.interpret import interpret
from interlace.loops.proof.prove import prove
from interlace.loops.rewrite.circular import circular_buffer, lower

ROWS, COLUMNS, STAGES = 16, 256, 4


def make_kernel() -> Kernel:
    """``y[i] = sum of x[i, :]``: a block per 16 rows walks along them, 256 columns at a time. No barrier in sight."""
    k = Builder("row_sum", threads=256)
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), fp32), k.output("y", (m,), fp32)
    tile, total = k.shared("tile", (ROWS, COLUMNS), fp32), k.register("total", (ROWS, 1), fp32)
    with k.block("b", ceil_div(m, ROWS)) as b:
        k.assign(total, 0)
        with k.serial("c", ceil_div(n, COLUMNS)) as c:
            k.load(tile, x.at(b * ROWS, c * COLUMNS))
            k.reduce(total, ReduceOp.SUM, tile, axes=(1,), shape=(ROWS, COLUMNS))
        k.store(y.at(b * ROWS), total)
    return k.kernel()


KERNEL = make_kernel()
BUFFERED = ("tile",)


def main() -> None:
    marked = circular_buffer(KERNEL, "tile", STAGES)
    pipeline = lower(marked)
    x = np.random.default_rng(0).standard_normal((40, 1000)).astype(np.float32)
    plain, buffered = interpret(KERNEL, {"x": x})["y"], interpret(pipeline, {"x": x})["y"]
    print("rewritten means the same:", np.array_equal(plain, buffered))
    print("right:", np.allclose(buffered, x.sum(1), rtol=1e-4, atol=1e-3))
    print("no hazard in", prove(marked).events, "events")
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

    x = torch.randn(16384, 16384, device="cuda")
    y = torch.empty(16384, device="cuda")
    compile_kernel(marked).run({"x": x, "y": y}, {"m": 16384, "n": 16384}, torch.cuda.current_stream().cuda_stream)
    print("on the GPU:", torch.allclose(y, x.double().sum(1).float(), rtol=1e-4, atol=1e-2))


if __name__ == "__main__":
    main()
