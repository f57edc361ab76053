"""Block-sparse products in the megakernel on the emulator: right for any table, and planted faults are reported."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError, LaunchEndedError  # noqa: E402

from ..block_sparse import break_table, build_chain, build_product, compute_exact, draw_table, make_inputs  # noqa: E402
from ..cases import relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

TOLERANCE = 4e-3  # of bf16
FEW, TALL, LONG, WRITTEN = "few rows", "tall tiles of half a block row", "more blocks than lanes", "a written table"
CHAIN = "a chain"

#: m, n, k, number of blocks, extents of a block, dtype; tile; stages of the ring.
CASES: dict[str, tuple[tuple[Any, ...], il.MatmulTile, int]] = {
    # Stages of two blocks, of which the last one of a row may have one.
    FEW: ((5, 256, 192, 7, (64, 64), il.bf16), il.MatmulTile(8, 64, 128), 3),
    # Stages of half a block.
    TALL: ((131, 256, 256, 3, (64, 128), il.fp16), il.MatmulTile(128, 32, 64, num_warps=8), 2),
    LONG: ((8, 256, 40 * 64, 100, (64, 64), il.bf16), il.MatmulTile(8, 64, 64), 2),
    # Few tiles write it, so that the loader gets ahead of them.
    WRITTEN: ((5, 128, 192, 2, (64, 64), il.bf16), il.MatmulTile(8, 64, 64), 3),
    CHAIN: ((5, 256, 256, 9, (64, 64), il.bf16), il.MatmulTile(8, 64, 64), 3),
}

#: Changes of the text, the case that they break, and the kind of the fault; none where results are wrong.
FAULTS = {
    "blocks of whatever row came before": (
        "    await(prefetch_full(stage.slot), stage.phase);\n    const int4 header",
        "    const int4 header",
        FEW,
        "race",
    ),
    "a table that is not there yet": (
        "      await_launch_before();\n      await_rows(launch, item, item.wait_lo, item.wait_hi);\n    }",
        "    }",
        WRITTEN,
        "race",
    ),
    "blocks beyond the last one": (", 0), op.blocks);", ", 0), 1 << 20);", FEW, "bounds"),
    "blocks before the first one": (
        "const int first = max((int)uniform(__ldcg(pointers)), 0);",
        "const int first = (int)uniform(__ldcg(pointers));",
        FEW,
        "bounds",
    ),
    "columns that wrap": (
        "column >= 0 && column < op.k / DEPTH ? column * DEPTH : op.k",
        "(int)((unsigned)column * DEPTH)",
        FEW,
        "",
    ),
    "a block that repeats at the end of a row": (
        "at < depth ? row + at / DEPTH * HEIGHT : beyond",
        "row",
        FEW,
        "",
    ),
}


def build_launch(name: str, change: tuple[str, str] | None = None) -> EmulatedLaunch:
    """Tickets would not claim the product before the ops that write its table have begun; a static schedule does."""
    shape, tile, stages = CASES[name]
    if name == CHAIN:
        m, n, _, count, (block, _), _ = shape
        graph = build_chain(m, n, count, block, tile)
    else:
        graph = build_product(*shape, tile=tile, writes_table=name == WRITTEN)
    return EmulatedLaunch(il.build(graph, il.Schedule(1, il.Dispatch.STATIC)), stages=stages, change=change)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: build_launch(name) for name in CASES}
    made |= {name: build_launch(case, (before, after)) for name, (before, after, case, _) in FAULTS.items()}
    prepare([*made.values()])
    return made


def draw_inputs(name: str, seed: int, *, broken: bool) -> dict[str, torch.Tensor]:
    (_, n, k, count, (height, depth), _), _, _ = CASES[name]
    columns, rows = draw_table(n // height, k // depth, count, seed)
    if broken:
        columns, rows = break_table(np.resize(columns, max(count, 4))[:count], rows, k // depth)
    return make_inputs(launches()[name].plan.graph, columns, rows, seed)


def run_poisoned(run: EmulatedLaunch, given: dict[str, torch.Tensor], seed: int) -> torch.Tensor:
    """Run over NaN, and over a table whose entries are all out of range."""
    run.seed, out = seed, run.allocate_tensor("out")
    for value in (*map(run.get_intermediate, run.plan.graph.intermediates), out):
        value.fill_(float("nan") if value.is_floating_point() else 1 << 28)
    run.run({**given, "out": out})
    return out


@pytest.mark.parametrize("name", CASES)
def test_any_table_is_right_run_after_run(name: str) -> None:
    run = launches()[name]
    for seed in range(3):
        broken = seed == 2 and name == FEW
        given = draw_inputs(name, seed, broken=broken)
        out = run_poisoned(run, given, seed)
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(out, compute_exact(run.plan.graph, given)) < TOLERANCE


def test_only_a_weight_that_no_op_writes_is_loaded_before_the_waits() -> None:
    loads = {name: launches()[name].composition.source.count("PREFETCHED = true") for name in (FEW, CHAIN, WRITTEN)}
    assert loads == {FEW: 1, CHAIN: 1, WRITTEN: 0}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported(name: str) -> None:
    run, (_, _, case, kind) = launches()[name], FAULTS[name]
    errors = []
    for seed in range(3):
        given = draw_inputs(case, seed, broken=seed > 0 and case == FEW)
        with suppress(HangError, LaunchEndedError):
            errors.append(relative_error(run_poisoned(run, given, seed), compute_exact(run.plan.graph, given)))
        run._reset()
    kinds = {fault.kind for fault in run.faults}
    assert kind in kinds if kind else max(errors) > TOLERANCE
