"""Law 2: what was proved stays so. Nobody changes a plan under its proof, and only ``verify`` makes one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import PlanError
from interlace.plan.plan import Items, Waits
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.sync import RowSync

from .graphs import column, two_matmuls


def proof() -> Proof:
    return verify(build(two_matmuls(), Schedule(4, policy=RowSync())))


def arrays(value: object) -> Iterator[np.ndarray]:
    """All arrays that a value holds, however deep."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from arrays(entry)
    elif isinstance(value, dict):
        yield from arrays(tuple(value.values()))
    elif is_dataclass(value):
        yield from arrays(tuple(getattr(value, f.name) for f in fields(value)))


@pytest.mark.parametrize(
    "copied",
    [lambda p: p, copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))],
    ids=["itself", "copy", "deepcopy", "pickle"],
)
def test_no_array_of_a_proof_can_be_written(copied: Callable[[Proof], Proof]) -> None:
    found = copied(proof())
    assert found == proof()
    held = list(arrays(found))
    assert len(held) == len(fields(Items)) + len(fields(Waits))
    for array in held:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
    with pytest.raises(ValueError, match="read-only"):
        found.plan.waits.threshold[0] += 1


def test_who_made_the_columns_cannot_change_the_plan() -> None:
    """Not through the arrays handed in, nor through a larger one of which they are views."""
    plan = build(two_matmuls(), Schedule(4, policy=RowSync()))
    names = [f.name for f in fields(Waits)]
    mine = {name: np.array(getattr(plan.waits, name)) for name in names}
    wide = np.repeat(mine["threshold"], 2)
    own = replace(plan, waits=Waits(**{**mine, "threshold": wide[::2]}))
    found = verify(own)
    wide[:] = 0
    for values in mine.values():
        values[:] = 0
    assert found.plan == plan


def test_another_plan_under_a_proof_is_refused() -> None:
    other = build(two_matmuls(), Schedule(2))
    with pytest.raises(PlanError, match=r"made by hand proves nothing; take the one that interlace\.verify\(plan\)"):
        replace(proof(), plan=other)
    with pytest.raises(PlanError, match="made by hand"):
        Proof(other, 0, 0, (), 1, 1, True)


def test_a_column_that_is_no_array_is_named() -> None:
    ragged: Any = [[1], [2, 3]]
    with pytest.raises(PlanError, match=r"Items\.tile is no array"):
        Items(column(0), ragged, column(0), column(1), column(-1), column(-1))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (two_matmuls(), "a Graph is no Plan; make one with interlace.build(graph, "),
        ("plan.json", "'plan.json' is no Plan; "),
        (il.Plan, "the class Plan is no Plan; "),
        (None, "None is no Plan; "),
    ],
    ids=["graph", "str", "class", "None"],
)
def test_what_is_no_plan_is_answered_with_how_to_make_one(value: Any, what: str) -> None:
    for take in (verify, il.ReferenceExecutor, il.SerialExecutor, il.MegakernelExecutor):
        with pytest.raises(PlanError) as caught:
            take(value)
        assert str(caught.value).startswith(what)
        assert "\n" not in str(caught.value)


def test_a_proof_names_four_unproved_ops_and_counts_the_others() -> None:
    def chain(ops: int) -> Proof:
        tensors = [il.Tensor(f"t{n}", (4,), il.fp32) for n in range(ops + 1)]
        text = "DEVICE void body(const Tile& tile, const Arguments& a) {}"
        kernel = il.Kernel("text", megakernel=il.CudaBody(text, "body"))
        made = [kernel.make_op(f"op{n}", (1,), {"x": (x, (il.ALL,))}, {"y": (y, (il.ALL,))})
                for n, (x, y) in enumerate(pairwise(tensors))]  # fmt: skip
        return verify(build(il.Graph("chain", tuple(tensors), tuple(made), ("t0",), (f"t{ops}",)), Schedule(1)))

    assert str(proof()).endswith("dependencies enforced, no deadlock, no race")
    assert str(chain(1)).endswith(", provided that op 'op0' touches what its access maps say, which is not proved")
    assert "ops 'op0', 'op1', 'op2', 'op3' touch what their" in str(chain(4))
    assert "ops 'op0', 'op1', 'op2', 'op3' and 3 more touch what their" in str(chain(7))
    assert len(chain(7).unproved_ops) == 7
