"""Every tiling that is offered to megakernel matmuls compiles, and only fix-ups of wide tiles spill."""

from __future__ import annotations

import pytest

import interlace as il

from ..cases import ffn_shape
from ..likely_settings import Offered, list_offered
from ..thorough import some

#: Every n-th case runs in every test run; these cover all widths and both operands.
OFTEN = len(list_offered()) // 8


@pytest.mark.parametrize("case", some(list_offered(), lambda case: list_offered().index(case) % OFTEN == 0), ids=str)
def test_every_tiling_that_is_offered_compiles_without_spills(case: Offered) -> None:
    graph = il.workloads.ffn(case.m, ffn_shape(case.kind), il.bf16, case.up, case.down)
    binary = il.MegakernelExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta")).binary
    assert binary.resources.spill_bytes == 0
    assert not binary.warnings


def test_tilings_that_are_offered_are_of_all_kinds() -> None:
    tiles = {tile for case in list_offered() for tile in (case.up, case.down)}
    assert {tile.num_warps for tile in tiles} == {4, 8, 12}
    assert {tile.n for tile in tiles if tile.swap_ab and tile.n < 64} == {16, 32, 48, 56}
    assert {tile.n for tile in tiles if not tile.swap_ab} >= {*range(96, 257, 16)}
    assert {tile.m for tile in tiles if tile.swap_ab} >= {8, 16, 24, 64, 128, 192}
