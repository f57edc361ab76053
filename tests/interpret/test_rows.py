"""Ops that go through rows, under the Triton interpreter: right, and within what they declare."""

from __future__ import annotations

import pytest
import torch

import interlace as il

from ..cases import relative_error
from ..rows import CASES
from .cases import executor


@pytest.mark.parametrize("name", CASES)
def test_rows_are_right_under_triton(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    out = torch.full(inputs["x"].shape, float("nan"), dtype=inputs["x"].dtype)
    executor("ticket", case.graph).run({**inputs, "out": out})
    assert relative_error(out, case.exact(inputs)) < case.tolerance


@pytest.mark.parametrize("name", [name for name in CASES if "warp" in name or "plus" in name])
def test_rows_touch_what_they_declare(name: str) -> None:
    graph = CASES[name].graph
    for device in ("reference", "cpu"):
        il.check_footprint(graph, graph.ops[0].name, device=device, tiles=(graph.ops[0].tiles - 1,))
