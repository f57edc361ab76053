"""The error for a failed wait names the tile that never posted, however many waits lie between the two."""

from __future__ import annotations

import numpy as np
import pytest

from interlace.core.devices import CPU
from interlace.core.errors import HangError
from interlace.megakernel.constants import EMPTY
from interlace.megakernel.watchdog import make_hang_error
from interlace.plan.plan import Dispatch, Plan
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.policies.sync import RowSync, TileSync
from interlace.workloads import Quadrature

from .graphs import chain, item_at, two_matmuls


def error_of(plan: Plan, waiting: int, done: np.ndarray, **more: object) -> HangError:
    """Return the error for the first wait of an item."""
    row = int(plan.waits.ptr[waiting])
    semaphore, expected = int(plan.waits.first[row]), int(plan.waits.threshold[row])
    return make_hang_error(plan, waiting, semaphore, expected, expected - 1, done, **more)


@pytest.mark.parametrize("runs", [1, 7, 1 << 31, (1 << 31) + 1, (1 << 32) - 1])  # a device has int32 of them
@pytest.mark.parametrize("waiting", [2, 3, 4])
def test_what_never_posted_is_named_whichever_wait_behind_it_failed_first(waiting: int, runs: int) -> None:
    """The third tile of all ops lost its post too, which nothing here is behind."""
    plan = build(chain(5, 3), Schedule(4, policy=TileSync()))
    done = np.where(plan.items.post >= 0, runs, 0)
    done[[item_at(plan, "copy1", 1), *(item_at(plan, f"copy{n}", 2) for n in range(4))]] = runs - 1
    error = error_of(plan, item_at(plan, f"copy{waiting}", 1), done.astype(np.uint32).view(np.int32))
    assert error.producer == "op 'copy1', tile (1)"
    behind = "" if waiting == 2 else "after what posts it, "
    assert f"saw 0 before the watchdog fired; {behind}op 'copy1', tile (1) never posted." in str(error)


def test_several_that_never_posted_are_counted() -> None:
    plan = build(two_matmuls(), Schedule(4, policy=RowSync()))
    done = np.where(plan.items.post >= 0, 1, 0)
    done[[item_at(plan, "up", 0), item_at(plan, "up", 1)]] = 0
    waiting = int(np.flatnonzero(np.diff(plan.waits.ptr))[0])
    assert "; op 'up', tile (0, 0) and 1 more never posted." in str(error_of(plan, waiting, done))


def test_what_has_posted_since_was_late_and_is_not_called_missing() -> None:
    plan = build(chain(3, 2), Schedule(4, policy=TileSync()))
    done = np.where(plan.items.post >= 0, 1, 0)
    error = error_of(plan, item_at(plan, "copy1", 0), done)
    assert error.producer is None
    assert "; op 'copy0', tile (0) posted too late, or only when this wait had ended." in str(error)


def test_where_nobody_who_waits_notes_the_run_a_post_may_be_missing_although_all_have_posted_before() -> None:
    plan = build(chain(3, 2), Schedule(4, policy=TileSync()))
    error = error_of(plan, item_at(plan, "copy2", 0), np.where(plan.items.post >= 0, 3, 0))
    assert error.producer == "op 'copy1', tile (0)"
    assert "; op 'copy1', tile (0) never posted, or too late." in str(error)


def test_one_part_posts_for_a_tile_unless_all_parts_of_its_op_do() -> None:
    plan = build(two_matmuls(), Schedule(4, split={"up": SplitK(2)}))
    up = plan.items.op == 0
    done = np.where(up & (plan.items.k_lo > 0), 0, plan.items.post >= 0)
    waiting = int(np.flatnonzero(~up)[0])
    assert "never posted, or too late" in str(error_of(plan, waiting, done))
    assert "op 'up', tile (0, 0) never posted." in str(error_of(plan, waiting, done, cooperative={0}))


def test_a_part_whose_sums_come_late_names_what_the_tile_waits_for() -> None:
    """Semaphores behind those of the plan are of sums."""
    plan = build(two_matmuls(), Schedule(4, split={"down": SplitK(2)}))
    done = np.where(plan.items.post >= 0, 1, 0)
    waiting = item_at(plan, "down", 0)
    error = make_hang_error(plan, waiting, plan.semaphores, 1, 0, done)
    awaited = "waited for the sums of 1 other part of its tile and saw not all of them before the watchdog fired"
    assert f"{awaited}. The" in str(error)
    assert error.producer == plan.format_tile(waiting)
    done[item_at(plan, "up", 3)] = 0  # which the other part of the tile waits for
    error = make_hang_error(plan, waiting, plan.semaphores, 1, 0, done)
    assert "fired; after what posts it, op 'up', tile (0, 3) never posted." in str(error)
    assert error.producer == "op 'up', tile (0, 3)"


@pytest.mark.parametrize("dispatch", [Dispatch.STATIC, Dispatch.QUEUE])
def test_a_tile_that_runs_when_data_want_it_is_named_where_it_posts_in_any_case(dispatch: Dispatch) -> None:
    plan = build(Quadrature.from_fields({}, gpu=False).build_graph(CPU), Schedule(4, dispatch=dispatch))
    lost, waiting, ready = item_at(plan, "level3", 0), item_at(plan, "level4", 0), item_at(plan, "level5", 31)
    done = np.where(plan.items.post >= 0, 1, 0)
    done[lost] = 0
    assert error_of(plan, waiting, done).producer == "op 'level3', tile (0)"
    came = np.ones(len(plan.items), np.bool_)
    came[[waiting, ready]] = False
    assert make_hang_error(plan, 0, EMPTY, 2, 1, done, came).producer == "op 'level5', tile (31)"


def test_where_every_item_came_none_is_called_missing() -> None:
    plan = build(chain(2, 2), Schedule(2, Dispatch.DISPATCHER))
    done, came = np.where(plan.items.post >= 0, 1, 0), np.ones(len(plan.items), np.bool_)
    error = make_hang_error(plan, 0, EMPTY, 4, 0, done, came)
    assert (error.producer, error.item, error.seen) == (None, -1, 4)
    assert "all of 4 items came, and was not told that none is left before the watchdog fired" in str(error)
