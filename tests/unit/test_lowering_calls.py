"""Work that lowering does: Python calls to make a megakernel executor, and the modules that data cross."""

from __future__ import annotations

import cProfile
import pstats
import sys
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import interlace as il
from interlace.core.devices import H200
from interlace.executors.megakernel import MegakernelExecutor
from interlace.megakernel.lower import lower
from interlace.plan.verify import verify
from interlace.workloads import FeedForward
from interlace.workloads.decode import Decode

SOURCES = Path(il.__file__).parent


def test_an_executor_of_a_step_of_148_ops_takes_a_third_of_the_calls() -> None:
    """A third of the 1.55 million calls that it took before each op of a layer was looked at once for all layers."""
    graph = Decode.from_fields({}, True, "llama3.2-1b").build_graph(H200)
    assert len(graph.ops) == 148
    proof = verify(il.autoplan(graph, H200))
    first = MegakernelExecutor(proof, il.RunOptions("meta"))  # caches the proof of the launched form
    assert len(first.lowered.ll_edges.sizes) == 44
    profile = cProfile.Profile()
    made = profile.runcall(MegakernelExecutor, proof, il.RunOptions("meta"))
    assert made.lowered.ll_edges == first.lowered.ll_edges
    assert pstats.Stats(profile).total_calls <= 520_000


@pytest.mark.parametrize(
    ("preset", "m"), [("llama3-8b", 16), ("swiglu", 5), ("relu", 77), ("gelu", 300), ("gpt3-145b-tp8", 700)]
)
def test_data_cross_few_modules_from_a_proof_to_the_source(preset: str, m: int) -> None:
    """At most 30, counting by calls, besides the room ``graph``, which lowering enters through ``Dependencies``."""
    graph = FeedForward.from_fields({"m": m}, True, preset).build_graph(H200)
    proof = verify(il.autoplan(graph, H200, il.MegakernelExecutor))
    modules = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCES in path.parents:
            modules.add(path.relative_to(SOURCES).as_posix())

    sys.setprofile(record)
    try:
        source = lower(proof, H200, il.RunOptions("meta")).source
    finally:
        sys.setprofile(None)
    assert source.stages > 2
    route = {module for module in modules if not module.startswith("graph/")}
    assert {"megakernel/lower.py", "megakernel/compose.py", "kernels/matmul/megakernel_body.py"} <= route
    assert len(route) <= 30, sorted(route)
