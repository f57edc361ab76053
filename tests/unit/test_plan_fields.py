"""Plans made by hand with fields of other types, and plan files with numbers beyond 64 bits: typed errors."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import ArgumentError, InterlaceError, PlanError, PlanFormatError, ShapeError
from interlace.graph.access import Access, Affine, Span
from interlace.graph.op import Op, Reduction
from interlace.plan.plan import Plan

from .graphs import two_matmuls

ODD = (None, True, 4.0, 4.5, float("nan"), "4", "ticket", (), {}, [1], object(), np.float64(4), Plan)


def build_plan() -> Plan:
    return il.build(two_matmuls(), il.Schedule(4))


@pytest.mark.parametrize("field", [f.name for f in fields(Plan)])
def test_fields_of_another_type_are_refused_by_name(field: str) -> None:
    plan = build_plan()
    for value in (*ODD, plan.items if field == "waits" else plan.waits):
        if type(value) is str and field in ("policy", "order"):
            assert il.verify(replace(plan, **{field: value})).edges > 0
        elif type(value) is not type(getattr(plan, field)):
            with pytest.raises(ArgumentError, match=f"Plan: {field} is "):
                replace(plan, **{field: value})


@pytest.mark.parametrize("value", [-1, 10**30])
def test_counts_beyond_what_a_plan_may_have_are_refused(value: int) -> None:
    for field in ("workers", "semaphores"):
        with pytest.raises(PlanError, match=field):
            il.verify(replace(build_plan(), **{field: value}))


def test_counts_are_ints_whatever_integers_they_are_given_as() -> None:
    plan = replace(build_plan(), workers=np.int64(4), semaphores=np.uint8(build_plan().semaphores))
    assert [type(n) for n in (plan.workers, plan.semaphores)] == [int, int]
    assert plan.to_json() == build_plan().to_json()


@pytest.mark.parametrize("value", [None, 4, "x", [None], [object()], [[1], [1, 2]], ["1"], [1.0], [2**64]])
def test_columns_of_no_integers_are_refused(value: Any) -> None:
    plan = build_plan()
    for name, table in (("items", plan.items), ("waits", plan.waits)):
        for column in fields(table):
            with pytest.raises(PlanError, match=column.name):
                il.verify(replace(plan, **{name: replace(table, **{column.name: value})}))


def test_columns_of_a_plan_cannot_be_made_writable() -> None:
    plan = build_plan()
    for same in (plan, copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), il.verify(plan).plan):
        for table in (same.items, same.waits):
            for field in fields(table):
                column = getattr(table, field.name)
                with pytest.raises(ValueError, match="read-only"):
                    column[0] = 1
                while isinstance(column, np.ndarray):
                    with pytest.raises(ValueError, match="WRITEABLE"):
                        column.setflags(write=True)
                    column = column.base
                assert isinstance(column, bytes)


def test_columns_are_copies() -> None:
    own = np.arange(3)
    items = il.plan.plan.Items(*[own] * 6)
    own[0] = 9
    assert items.op.tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", [None, b"{}", 1, ["{}"], {}])
def test_what_is_no_text_is_no_plan(text: Any) -> None:
    with pytest.raises(PlanFormatError, match="the text of a plan is"):
        il.read_plan(text)


def test_a_name_that_stands_twice_among_many_is_found_in_one_pass() -> None:
    names = ",".join(f'"n{n}":0' for n in range(200_000))
    with pytest.raises(PlanFormatError, match="'n7' stands twice"):
        il.read_plan("{" + names + ',"n7":1}')


HUGE = (2**62, 2**63 - 1, 2**63, 10**30)


@pytest.mark.parametrize("lo", [
    *(Affine(0, (n,)) for n in HUGE), *(Affine(0, (-n,)) for n in HUGE),
    *(Affine(0, (0, 0, n)) for n in HUGE), *(Affine(0, k_lo=n) for n in HUGE), *(Affine(-n) for n in HUGE[2:]),
])  # fmt: skip
def test_bounds_beyond_64_bits_are_refused_though_they_multiply_zero(lo: Affine) -> None:
    x, y = (il.Tensor(name, (4,), il.fp32) for name in "xy")
    reads, writes = Access("x", "x", (Span(lo, Affine(4)),)), Access("y", "y", (Span(Affine(0), Affine(4)),))
    with pytest.raises(ShapeError):
        Op("op", "any", (1, 1, 1), (reads,), (writes,), Reduction(1, 1))
    op = Op("op", "any", (1, 1, 1), (replace(reads, spans=(il.ALL,)),), (writes,), Reduction(1, 1))
    text = il.build(il.Graph("g", (x, y), (op,), ("x",), ("y",)), il.Schedule(1)).to_json()
    bound = f"[{lo.const},{[*lo.tile]},{lo.k_lo},{lo.k_hi}]".replace(" ", "")
    with pytest.raises(PlanFormatError):
        il.read_plan(text.replace("[0,[],0,0]", bound, 1))


def test_the_largest_factors_are_verified_or_refused() -> None:
    x, y = (il.Tensor(name, (4,), il.fp32) for name in "xy")
    every = Access("y", "y", (Span(Affine(0), Affine(4)),))
    outcomes = set()
    for power in range(56, 66):
        for factor in (2**power - 1, 2**power, 2**power + 1):
            for sign in (1, -1):
                try:
                    reads = Access("x", "x", (Span(Affine(0, (sign * factor,)), Affine(4)),))
                    op = Op("op", "any", (1,), (reads,), (every,))
                    il.verify(il.build(il.Graph("g", (x, y), (op,), ("x",), ("y",)), il.Schedule(1)))
                    outcomes.add((factor < 2**62, "verified"))
                except InterlaceError:
                    outcomes.add((factor < 2**62, "refused"))
    assert outcomes == {(True, "verified"), (False, "refused")}


def test_a_plan_that_is_read_holds_params_to_their_kernel() -> None:
    shape = il.workloads.FFNShape(16, 32, il.Activation.RELU, gated=False)
    text = il.build(il.workloads.ffn(16, shape, il.fp32), il.Schedule(2)).to_json()
    assert il.read_plan(text).to_json() == text
    with pytest.raises(PlanFormatError, match="has param K 100000, but"):
        il.read_plan(text.replace('"K":16', '"K":100000', 1))


@pytest.mark.parametrize(("field", "value"), [
    ("params", None), ("params", 4), ("params", (1,)), ("params", (("N",),)), ("params", (("N", 1, 2),)),
    ("body", True), ("body", "matmul"), ("body", lambda tile: tile),
])  # fmt: skip
def test_params_and_bodies_that_are_none_are_refused(field: str, value: Any) -> None:
    op = build_plan().graph.ops[0]
    with pytest.raises(InterlaceError, match=rf"{field}(\[0\])? is "):
        replace(op, **{field: value})


@pytest.mark.parametrize("tile", [None, 4, 4.0, (1.5,), ("a",)])
def test_factors_that_are_no_integers_are_refused(tile: Any) -> None:
    with pytest.raises(ShapeError, match="use integers"):
        Affine(0, tile)
