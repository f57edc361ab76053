"""Every kernel of ``loops/frontend/library.py``, small, at depths 1 to 4 in both forms, for the CUDA sanitizers.

    PYTHONPATH=src compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize_pipelines.py
    PYTHONPATH=src compute-sanitizer --tool racecheck python benchmarks/sanitize_pipelines.py matmul

The second runs the kernels whose name contains ``matmul``. Tiles are small, rings go round twice or more, extents
leave tails. Prints a line for each kernel: OK, or WRONG where it differs from what the interpreter makes of the loops.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
from script import parse_arguments

from interlace.core.dtypes import bf16
from interlace.loops import library
from interlace.loops.cuda.compiled import CompiledKernel, compile_kernel
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import Copy, Load, LoopKernel, MemorySpace, ReduceOp
from interlace.loops.ir.traverse import walk
from interlace.loops.meaning.interpret import interpret
from interlace.loops.rewrite.circular import circular_buffer

LINE, PLANE = {"n": 64 * 9 + 3}, {"m": 11, "n": 64 * 8 + 20}
PRODUCT = {"rows": 136, "columns": 72, "depth": 64 * 7 + 8}
KERNELS = {
    "copy_1d": (library.copy_1d(tile=64), LINE),
    "copy_1d_cp_async": (library.copy_1d(tile=64, by=Copy.CP_ASYNC), LINE),
    "copy_1d_plain": (library.copy_1d(tile=64, by=Copy.PLAIN), LINE),
    "copy_1d_bf16": (library.copy_1d(tile=64, dtype=bf16), LINE),
    "copy_2d": (library.copy_2d(tile=(8, 64), walk=8), PLANE),
    "copy_3d": (library.copy_3d(tile=(2, 8, 64)), {"d": 3, **PLANE}),
    "transpose": (library.transpose(walk=8), {"m": 70, "n": 32 * 8 + 20}),
    "pointwise": (library.pointwise(tile=(4, 64), walk=8), PLANE),
    "pointwise_cp_async": (library.pointwise(tile=(4, 64), walk=8, plain=Copy.CP_ASYNC), PLANE),
    "row_sum": (library.reduce_inner(tile=(8, 64)), {"m": 35, "n": 148}),
    "row_max": (library.reduce_inner(tile=(8, 64), op=ReduceOp.MAX), {"m": 35, "n": 148}),
    "column_sum": (library.reduce_outer(tile=(16, 64)), {"m": 16 * 8 + 5, "n": 84}),
    "layer_norm": (library.layer_norm(columns=512), {"m": 11}),
    "matmul": (library.matmul(), PRODUCT),
    "matmul_bias": (library.matmul_bias(), PRODUCT),
    "matmul_batched": (library.matmul_batched(), {"batch": 2, **PRODUCT}),
}


def forms(kernel: LoopKernel) -> Iterator[tuple[str, CompiledKernel]]:
    """The kernel with every tile that it loads as a ring, by depth and form."""
    loaded = [kernel.find_tensor(s.dst.tensor) for s in walk(kernel.body) if isinstance(s, Load)]
    for stages in (1, 2, 3, 4):
        ringed = kernel
        for tile in (t.name for t in loaded if t.memory is MemorySpace.SHARED):
            ringed = circular_buffer(ringed, tile, stages)
        yield f"{stages} stages", compile_kernel(ringed)
        yield f"{stages} stages, warp-specialised", compile_kernel(ringed, warp_specialised=True)


def find_wrong(name: str) -> Iterator[str]:
    """The forms of a kernel that give something else than its loops."""
    import torch

    kernel, sizes = KERNELS[name]
    types = {t.name: torch.bfloat16 if t.dtype == bf16 else torch.float32 for t in kernel.tensors}
    random, arrays = np.random.default_rng(0), {}
    for t in (t for t in kernel.tensors if t.memory is MemorySpace.GLOBAL):
        values = random.standard_normal([evaluate(n, sizes) for n in t.shape], np.float32)
        arrays[t.name] = values * np.float32("nan") if t.is_written else values
    ((output, right),) = interpret(kernel, arrays, sizes).items()
    bound = max(kernel.find_tensor(output).dtype.epsilon, 1e-5) * np.abs(right).max()
    for form, compiled in forms(kernel):
        tensors = {n: torch.tensor(a, device="cuda").to(types[n]) for n, a in arrays.items()}
        compiled.run(tensors, sizes, torch.cuda.current_stream().cuda_stream)
        if not np.abs(tensors[output].double().cpu().numpy() - right).max() <= bound:
            yield form


def main(part: str = "") -> None:
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # else memcheck sees one allocation around all tensors
    failed, names = False, [name for name in KERNELS if part in name]
    for name in names:
        bad = list(find_wrong(name))
        failed |= bool(bad)
        print(f"{name}: {f'WRONG at {bad}' if bad else 'OK'}", flush=True)
    sys.exit(failed if names else f"no kernel is called {part!r}")


if __name__ == "__main__":
    main(*parse_arguments(__doc__, optional=("part",)))
