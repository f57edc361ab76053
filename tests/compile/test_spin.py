"""The spin kernel compiles in both launches, and its loop is not optimised away."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.bench.dispatch import _build_graph
from interlace.kernels.lint import lint

META = il.RunOptions("meta")


@pytest.mark.parametrize("dispatch", il.Dispatch)
def test_it_compiles_in_both_launches_and_keeps_the_memory_order(dispatch: il.Dispatch) -> None:
    plan = il.build(_build_graph(300), il.Schedule(132, dispatch))
    one = il.MegakernelExecutor(plan, META)
    assert lint(one.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert one.binary.resources.spill_bytes == 0
    if dispatch not in il.PersistentExecutor.dispatches:
        return
    (launch,) = il.PersistentExecutor(plan, META).build_launches()
    ptx = launch.compile_ahead().asm["ptx"]
    assert ptx.count("globaltimer") >= 2, "the loop reads the clock once"
    assert lint(ptx, posts=True, waits=True) == []
