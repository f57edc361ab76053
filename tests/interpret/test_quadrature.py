"""Adaptive quadrature under the Triton interpreter: the bodies mean what the reference does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.workloads import Quadrature, quadrature

from .cases import executor


@pytest.mark.parametrize("name", ["static", "ticket"])
def test_intervals_are_halved_where_the_reference_halves_them(name: str) -> None:
    problem = Quadrature.from_fields({}, gpu=False)
    graph = problem.build_graph(il.CPU)
    for seed in range(1):
        run, given = executor(name, graph), problem.make_inputs(seed)
        out = torch.full((1,), float("nan"))
        run.run({**{tensor: torch.from_numpy(value) for tensor, value in given.items()}, "out": out})
        right = problem.run_dense(np, {tensor: value.astype(np.float64) for tensor, value in given.items()})["out"]
        assert abs(out.item() - right[0]) < 1e-6 * right[0]
        wanted = problem.find_wanted_intervals(seed)
        assert 1 < wanted.sum() < len(wanted)
        assert (run.get_intermediate("wanted").numpy()[1:] != 0).tolist() == wanted[1:].tolist()


@pytest.mark.parametrize("op", ["level0", "level1", "level2", "total"])
def test_nothing_beyond_what_is_declared_is_touched(op: str) -> None:
    graph = quadrature(3, 2, 8, 1e-4)
    assert il.check_footprint(graph, op, device="cpu", tiles=(0,)).tiles == (0,)
    assert il.check_footprint(graph, op, device="reference", tiles=(0,)).tiles == (0,)
