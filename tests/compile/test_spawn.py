"""Launches with spawned items compile without a GPU and keep the memory order under each termination protocol."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import lint
from interlace.megakernel.options import Termination
from interlace.workloads import quadrature


@pytest.mark.parametrize("termination", Termination)
def test_each_way_to_the_end_keeps_the_memory_order(termination: Termination) -> None:
    plan = il.build(quadrature(3, 2, 8, 1e-4), il.Schedule(132, il.Dispatch.SPAWN))
    run = il.MegakernelExecutor(plan, il.RunOptions("meta", termination=termination))
    assert run.binary.resources.spill_bytes == 0
    assert run.binary.warnings == ()
    ptx = run.binary.ptx
    assert lint(ptx, posts=True, waits=True, posting_warp=True) == []
    assert ("atom.acq_rel.gpu.global.add.u32" in ptx) is (termination is Termination.DONE_ITEMS)
