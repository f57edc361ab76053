"""A wrong number of a publication, and a publication that comes too early, end in errors that name them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import CoverageError, HangError  # noqa: E402
from interlace.executors.megakernel import MegakernelExecutor  # noqa: E402
from interlace.kernels.abi import ITEM  # noqa: E402
from interlace.plan.plan import Dispatch, Plan  # noqa: E402

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402
from .graphs import drop_waits, expect_refusal  # noqa: E402
from .test_ll import HASTE_S, chain, posts_of, run_chain, sound, waits_of  # noqa: E402

emulated = pytest.mark.skipif(bool(MISSING), reason=MISSING)

WORDS = "scaled", "squares"
OWN = "const unsigned epoch = publication(item, op.number, op.publications);"
#: Of the publication of who stores, by whom it is polled.
WRONG = {(by, wrong): (4096 * (by == "consumers"), wrong) for by in ("consumers", "loader") for wrong in (0, 1, -1)}


@cache
def launch_numbered() -> dict[tuple[str, int], EmulatedLaunch]:
    """Chains in one block whose ops store a number that is so much too high."""
    every = {}
    for key, (here, wrong) in WRONG.items():
        change = OWN, OWN.replace("op.number", f"op.number + {wrong}")
        every[key] = chain(3, 1, here, ll_tensors=(*WORDS, "inner"), change=change, timeout_s=HASTE_S)
    prepare([*every.values()])
    return every


@emulated
@pytest.mark.parametrize(("by", "wrong"), WRONG)
def test_a_number_that_is_off_by_one_ends_in_an_error_that_names_who_wants_it_and_of_what(by: str, wrong: int) -> None:
    run = launch_numbered()[by, wrong]
    if not wrong:
        assert torch.equal(run_chain(run), run_chain(sound(3)["semaphores"]))
        return
    says = r"^op 'second', tile \(0, \d\) .* waited for words of 'scaled' and 'squares' .*; op 'first', tile \(0, 0\)"
    with pytest.raises(HangError, match=says):
        run_chain(run)


@cache
def twice(workers: int) -> Plan:
    """Two products leave ``scaled``, one behind the other, and nothing but an overwrite orders the second of them."""
    shapes = {"x": (3, 128), "w": (320, 128), "scale": (320,), "up": (192, 320), "v": (320, 128), "down": (64, 320)}
    shapes |= {"scaled": (3, 320), "inner": (3, 192), "out": (3, 64)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    t["squares"] = il.Tensor("squares", (3, 20), il.fp32)
    left: dict[str, Any] = {name: t[name] for name in ("scale", "scaled", "squares")}
    normed: dict[str, Any] = {"x_squares": t["squares"], "eps": 1e-2}

    def tile(columns: int) -> il.MatmulTile:
        return il.MatmulTile(8, columns, 64, swap_ab=True)

    ops = (
        il.matmul("first", t["x"], t["w"], **left, tile=tile(16)),
        il.matmul("second", t["scaled"], t["up"], t["inner"], **normed, tile=tile(24)),
        il.matmul("third", t["x"], t["v"], **left, tile=tile(16)),
        il.matmul("fourth", t["scaled"], t["down"], t["out"], **normed, tile=tile(16)),
    )
    inputs = "x", "w", "scale", "up", "v", "down"
    graph = il.Graph("twice", (*t.values(),), ops, inputs, ("inner", "out"))
    return il.build(graph, il.Schedule(workers, Dispatch.STATIC))


def overwrites(plan: Plan) -> list[int]:
    """Rows of the waits of ``third`` for ``second``."""
    third, second = (plan.graph.op_index(op) for op in ("third", "second"))
    posts = plan.items.post[plan.items.op == second]
    mine = plan.items.op[plan.waits.item] == third
    found: list[int] = np.flatnonzero(mine & np.isin(plan.waits.first, posts)).tolist()
    return found


def test_who_overwrites_words_waits_for_all_who_poll_them_and_a_plan_without_that_wait_is_refused() -> None:
    plan = twice(2)
    run = MegakernelExecutor(plan, il.RunOptions("meta", ll_tensors=WORDS))
    assert [waits_of(run, op) > 0 for op in ("second", "third", "fourth")] == [False, True, False]
    assert posts_of(run, "second") == 8
    early = drop_waits(plan, *overwrites(plan))
    says = "op 'third', tile (0, ", "overwrites scaled[", "which op 'second', tile (0, "
    expect_refusal(early, CoverageError, *says, "still reads (WAR through 'scaled'")
    with pytest.raises(CoverageError, match="WAR through 'scaled'"):
        MegakernelExecutor(early, il.RunOptions("meta", ll_tensors=WORDS))


def moved_ahead(run: EmulatedLaunch, op: str, of: str) -> None:
    """Let the items of an op run ahead of those of the one before it, of one worker, and wait for nothing."""
    index, rows = run.plan.graph.op_index, run._items.view(-1, ITEM.columns)
    mine, before = (np.flatnonzero(run._table.items["op"] == index(name)) for name in (op, of))
    assert before[-1] + 1 == mine[0]
    for name in ("wait_lo", "wait_mid"):
        rows[mine, ITEM.get_column(name)] = rows[mine, ITEM.get_column("wait_hi")]
    rows[before[0] : mine[-1] + 1] = rows[[*mine, *before]]


@emulated
def test_words_that_are_stored_over_before_they_are_polled_end_in_an_error_that_names_them() -> None:
    run = EmulatedLaunch(twice(1), stages=3, ll_tensors=WORDS, timeout_s=HASTE_S)
    semaphores = EmulatedLaunch(twice(1), stages=3, ll_tensors=())
    prepare([run, semaphores])
    random, graph = torch.Generator().manual_seed(0), run.plan.graph
    given = {name: torch.randn(graph.tensor(name).shape, generator=random).bfloat16() for name in graph.inputs}

    def results(of: EmulatedLaunch) -> list[torch.Tensor]:
        made = {name: of.allocate_tensor(name) for name in graph.outputs}
        of.run({**given, **made})
        return [*made.values()]

    right = results(semaphores)
    assert all(map(torch.equal, results(run), right))
    moved_ahead(run, "third", "second")
    says = r"^op 'second', tile \(0, \d\) .* waited for words of 'scaled' and 'squares' before the watchdog fired"
    with pytest.raises(HangError, match=says):
        results(run)
    assert all(map(torch.equal, results(run), right)), "the next run is as new"
    moved_ahead(semaphores, "third", "second")
    assert not torch.equal(results(semaphores)[0], right[0]), "of tensors it is other bits"
