"""The CUDA text of the library's kernels on the emulator: right, and no race, in both forms at one to four stages."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import bf16, fp16
from interlace.loops import library
from interlace.loops.cuda.emit import emit_kernel
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import Copy, LoopKernel, MemorySpace, ReduceOp
from interlace.loops.meaning.interpret import interpret
from interlace.loops.rewrite.circular import circular_buffer, lower

from ..emulator.build import MISSING, build
from ..emulator.compare import Trial, inputs_of, troubles
from ..emulator.items import sync_of
from ..emulator.launch import launch

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: Kernels with small tiles, and extents with more steps than stages and tails at the ends.
KERNELS: dict[str, tuple[LoopKernel, dict[str, int]]] = {
    "copy_1d": (library.copy_1d(tile=64, walk=6), {"n": 1000}),
    "copy_1d_async": (library.copy_1d(tile=64, walk=6, by=Copy.CP_ASYNC, dtype=bf16), {"n": 1000}),
    "copy_1d_plain": (library.copy_1d(tile=64, walk=6, by=Copy.PLAIN), {"n": 777}),
    "copy_2d": (library.copy_2d(tile=(4, 64), walk=6, dtype=fp16), {"m": 6, "n": 456}),
    "copy_3d": (library.copy_3d(tile=(2, 4, 32)), {"d": 3, "m": 6, "n": 180}),
    "transpose": (library.transpose(tile=(16, 32), walk=5), {"m": 20, "n": 140}),
    "pointwise": (library.pointwise(tile=(2, 64), walk=6), {"m": 3, "n": 356}),
    "pointwise_async": (library.pointwise(tile=(2, 64), walk=6, plain=Copy.CP_ASYNC), {"m": 3, "n": 356}),
    "row_sum": (library.reduce_inner(tile=(4, 64), walk=3), {"m": 10, "n": 180}),
    "row_max": (library.reduce_inner(tile=(4, 64), walk=3, op=ReduceOp.MAX), {"m": 10, "n": 180}),
    "column_sum": (library.reduce_outer(tile=(8, 64)), {"m": 45, "n": 100}),
    "layer_norm": (library.layer_norm(columns=512, chunk=64, walk=6), {"m": 7}),
    "matmul": (library.matmul(m=64, n=64, threads=128), {"rows": 70, "columns": 72, "depth": 328}),
    "matmul_fp16": (library.matmul(m=128, n=32, threads=256, dtype=fp16), {"rows": 70, "columns": 40, "depth": 328}),
    "matmul_bias": (library.matmul_bias(m=128, n=40, threads=128), {"rows": 70, "columns": 40, "depth": 328}),
    "matmul_batched": (
        library.matmul_batched(m=64, n=64, threads=128),
        {"batch": 3, "rows": 64, "columns": 64, "depth": 136},
    ),
}
#: Of layer normalisation alone the results are no small integers.
TOLERANCES = {"layer_norm": 1e-5}


def _make_rings(kernel: LoopKernel, stages: int) -> LoopKernel:
    """Every tile of ``kernel`` a ring; of no stages, none."""
    tiles = [tensor.name for tensor in kernel.tensors if tensor.memory is MemorySpace.SHARED]
    for name in tiles if stages else ():
        kernel = circular_buffer(kernel, name, stages)
    return kernel


#: Kernels that differ from another in copies, a dtype or an operation: at how many stages they are tried often.
VARIANTS = "copy_1d_async", "copy_1d_plain", "pointwise_async", "row_max", "matmul_fp16", "matmul_batched"
STAGES, FEW = (0, 1, 3), (0, 3)  # 0: no ring


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, FEW if name in VARIANTS else STAGES) for name in KERNELS),
        *(
            pytest.param(name, (1, 2, 4) if name in VARIANTS else (2, 4), marks=pytest.mark.thorough)
            for name in KERNELS
        ),
    ],
)
def test_the_text_of_a_library_kernel_is_right_and_free_of_races(name: str, every: tuple[int, ...]) -> None:
    kernel, sizes = KERNELS[name]
    tolerance = TOLERANCES.get(name, 0)
    trials = []
    for stages in every:
        marked = _make_rings(kernel, stages)
        for specialised in (False, True) if stages else (False,):
            label = f"{name} at {stages} stages{', specialised' * specialised}"
            trials.append(Trial(label, marked, specialised, sizes, tolerance))
    assert troubles(trials, seeds=2) == []


@pytest.mark.parametrize("specialised", [False, True], ids=["block", "specialised"])
def test_kernels_for_items_of_a_plan_are_right_and_post_when_all_is_written(specialised: bool) -> None:
    names = ("copy_2d", "pointwise_async", "row_sum", "layer_norm", "matmul_bias")
    marked = [_make_rings(KERNELS[name][0], 2) for name in names]
    built = build([emit_kernel(lower(k, warp_specialised=specialised), H200, items=True) for k in marked])
    for number, name in enumerate(names):
        kernel, sizes = KERNELS[name]
        inputs = inputs_of(kernel, sizes)
        grid = tuple(evaluate(n, sizes) for n in built.texts[number].grid)
        sync = sync_of(grid)
        run = launch(built, number, inputs, sizes, seed=number, sync=sync)
        assert [str(fault) for fault in run.faults] == []
        for output, meant in interpret(kernel, inputs, sizes).items():
            np.testing.assert_allclose(run.outputs[output], meant, rtol=TOLERANCES.get(name, 0), atol=1e-5)
        assert sync.semaphores.tolist() == [1] * (1 + prod(grid))
        assert sync.done.tolist() == [1] * prod(grid)
        assert not sync.fault.any()
        assert (sync.trace["arrived_ns"] < sync.trace["start_ns"]).all()
        assert (sync.trace["start_ns"] < sync.trace["end_ns"]).all()


def test_items_wait_for_the_posts_of_their_run_also_when_counters_wrap() -> None:
    kernel, sizes = KERNELS["row_sum"]
    built = build([emit_kernel(lower(_make_rings(kernel, 2)), H200, items=True)])
    grid = tuple(evaluate(n, sizes) for n in built.texts[0].grid)
    for run in (0, 2**31 - 1, 2**32 - 1):
        nobody, posted = sync_of(grid, posted=0, run=run), sync_of(grid, run=run)
        launch(built, 0, inputs_of(kernel, sizes), sizes, sync=nobody)
        assert nobody.fault.tolist() == [1]
        assert nobody.record["failed"] == 1
        found = nobody.record[["semaphore", "expected", "seen"]].tolist()
        assert found == [(0, 1, 0)]
        launch(built, 0, inputs_of(kernel, sizes), sizes, sync=posted)
        assert posted.fault.tolist() == [0]


def test_a_post_before_a_bulk_store_is_written_is_reported() -> None:
    kernel, sizes = KERNELS["copy_2d"]
    emitted = emit_kernel(lower(_make_rings(kernel, 2)), H200, items=True)
    built = build(
        [replace(emitted, cuda_source=emitted.cuda_source.replace("bulk_wait<0>();", "bulk_wait_read<0>();"))]
    )
    sync = sync_of(tuple(evaluate(n, sizes) for n in emitted.grid))
    run = launch(built, 0, inputs_of(kernel, sizes), sizes, sync=sync)
    assert {"pending"} == run.kinds
    assert "a post before" in run.faults[0].text


def test_the_kernels_of_the_golden_files_are_right_and_free_of_races() -> None:
    extents = {"n": 1540, "m": 18, "d": 3, "rows": 130, "columns": 136, "depth": 328, "batch": 2}
    trials = [
        Trial(name, example.kernel, example.warp_specialised, {s: extents[s] for s in example.kernel.symbols}, 1e-5)
        for name, example in library.build_examples().items()
        if name != "transpose"  # whose meaning takes the interpreter seconds at these tiles
    ]
    assert troubles(trials) == []
