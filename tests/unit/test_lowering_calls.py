"""Work that lowering does: Python calls to make a megakernel executor."""

from __future__ import annotations

import cProfile
import pstats

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import interlace as il
from interlace.core.devices import H200
from interlace.executors.megakernel import MegakernelExecutor
from interlace.plan.verify import verify
from interlace.workloads.decode import Decode


def test_an_executor_of_a_step_of_148_ops_takes_a_third_of_the_calls() -> None:
    """A third of the 1.55 million calls that it took before each op of a layer was looked at once for all layers."""
    graph = Decode.of({}, True, "llama3.2-1b").build_graph(H200)
    assert len(graph.ops) == 148
    proof = verify(il.autoplan(graph, H200))
    first = MegakernelExecutor(proof, il.RunOptions("meta"))  # caches the proof of the launched form
    assert len(first.lowered.ll_edges.sizes) == 44
    profile = cProfile.Profile()
    made = profile.runcall(MegakernelExecutor, proof, il.RunOptions("meta"))
    assert made.lowered.ll_edges == first.lowered.ll_edges
    assert pstats.Stats(profile).total_calls <= 520_000
