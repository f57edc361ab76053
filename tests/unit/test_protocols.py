"""Protocols between workers are right under every interleaving as the code orders them; a planted fault has a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from interlace.core.errors import ArgumentError, EarlyEndError, ProtocolError, QueueOverflowError

from ..protocols.check import Model, check
from ..protocols.emptied import Emptied
from ..protocols.errors import DoubledItemError, OverwriteError, StaleReadError, StuckError
from ..protocols.handover import HandOff
from ..protocols.kept import Kept
from ..protocols.lists import Lists
from ..protocols.mailboxes import ONE_LAUNCH, Mailboxes
from ..protocols.operations import ACQUIRE, ACQUIRE_RELEASE, BLOCK, RELAXED, RELEASE, Load
from ..protocols.outstanding import Ends, Outstanding
from ..protocols.overlapping import Overlapping
from ..protocols.ready_queue import Looks, ReadyQueue
from ..protocols.tagged import Tagged

Protocol = HandOff | Lists | ReadyQueue | Mailboxes | Overlapping | Outstanding | Emptied | Tagged | Kept

#: The same in fewer items or workers, in which a fault shows as well.
TWO_LISTS = Lists(((2,), (0, 1)))
HALVES = Lists(((), (0, 1, 2)), most=2)
TWO_QUEUED = ReadyQueue(((), (), (0, 1)), workers=2, capacity=3)
BY_QUEUE = replace(TWO_QUEUED, wait=None, post=RELAXED, put=RELEASE, take=ACQUIRE, count=ACQUIRE_RELEASE)
ONE_BLOCK = replace(ONE_LAUNCH, producers=((), (0,), (), ()), workers=1)
THREE_MADE = Outstanding(((1, 2), (), ()), capacity=3)
BY_DONE_ITEMS = replace(THREE_MADE, ends=Ends.DONE_ITEMS, off=ACQUIRE_RELEASE)
BY_VOTES = replace(THREE_MADE, ends=Ends.VOTES)
LOADED = Tagged(((1, 2), (1, 2)), loaders=True)


@pytest.mark.parametrize(
    ("protocol", "states"),
    [
        (HandOff(), 190),
        (Lists(((1,), (0,), ())), 7381),
        (TWO_LISTS, 496),
        (Lists(((), (0, 1, 2))), 3059),
        (HALVES, 2345),
        (Lists(((3,), (0, 1, 2)), most=2), 1135),
        (replace(TWO_QUEUED, workers=3), 2131),
        (replace(TWO_QUEUED, producers=((), (), (0, 1), (0,)), capacity=4), 1065),
        (ReadyQueue(((), (0,), (1,)), workers=2, capacity=3), 163),
        (replace(BY_QUEUE, workers=3), 1681),
        (Mailboxes(), 84),
        (Mailboxes(((), (0,), (0,), (1, 2)), workers=3), 126),
        (ONE_LAUNCH, 836),
        (ONE_BLOCK, 999),
        pytest.param(Overlapping(items=1), 7236, marks=pytest.mark.thorough),
        (Overlapping(runs=2), 2166),
        (Outstanding(), 6313),
        pytest.param(Outstanding(((1,), ()), workers=3, capacity=2), 6856, marks=pytest.mark.thorough),
        (BY_DONE_ITEMS, 855),
        (replace(BY_DONE_ITEMS, makes=((1,), ()), workers=3, capacity=2), 4618),
        (BY_VOTES, 5731),
        (Emptied(), 35),
        (Emptied(((0, 1), (1, 0))), 22),
        (Tagged(), 63),
        (Tagged(tags=2), 63),
        (Tagged(((1, 3), (2,))), 18),
        (Tagged(polls=False, hint=ACQUIRE_RELEASE), 63),
        (Tagged(loaders=True), 313),
        (LOADED, 207),
        (Kept(), 1383),
        (Kept((1, 2, 2)), 379),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_as_the_code_orders_it_every_interleaving_is_right(protocol: Protocol, states: int) -> None:
    assert check(protocol.model()).states == states


@pytest.mark.parametrize(
    ("protocol", "fault", "error", "says"),
    [
        # A tile is handed over.
        (HandOff(), {"post": RELAXED}, StaleReadError, "tile 0, part 0 may be read as 0"),
        (HandOff(), {"poll": RELAXED}, StaleReadError, "tile 0, part 0 may be read as 0"),
        (HandOff(), {"post_scope": BLOCK}, StaleReadError, "its store of 1 is of another block"),
        (HandOff(), {"poll_scope": BLOCK}, StaleReadError, "its store of 1 is of another block"),
        (HandOff(), {"storing": ("store", "arrive")}, StaleReadError, "tile 0, part 1 may be read as 0"),
        (HandOff(), {"storing": ("synchronise", "store", "arrive")}, StaleReadError, "tile 0, part 1"),
        (HandOff(), {"storing": ("store", "synchronise")}, StuckError, "worker 2 awaits finished >= 1"),
        (HandOff(), {"posting": ("post",)}, StaleReadError, "tile 0, part 0 may be read as 0"),
        (HandOff(), {"posting": ("await",)}, StuckError, "worker 4 awaits semaphore 0 >= 1"),
        (HandOff(), {"waiting": ("poll", "arrive")}, StaleReadError, "tile 1 may be read as 0"),
        (HandOff(), {"waiting": ("synchronise", "poll", "arrive")}, StaleReadError, "tile 1 may be read as 0"),
        (HandOff(), {"reading": ("read",)}, StaleReadError, "tile 0, part 0 may be read as 0"),
        # Items are taken from lists.
        (TWO_LISTS, {"post": RELAXED}, StaleReadError, "data 1 may be read as 0"),
        (TWO_LISTS, {"wait": RELAXED}, StaleReadError, "data 1 may be read as 0"),
        (TWO_LISTS, {"checks": False}, DoubledItemError, "item 0 is done twice"),
        (TWO_LISTS, {"settles": False}, StuckError, "worker 1 awaits semaphore 1 >= 1"),
        (HALVES, {"settles": False}, StuckError, "awaits semaphore"),
        (HALVES, {"keeps": False}, DoubledItemError, "item 0 is done twice"),
        # Ready items are queued.
        (TWO_QUEUED, {"post": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (TWO_QUEUED, {"wait": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (TWO_QUEUED, {"wait": None}, StaleReadError, "data 0 may be read as 0"),
        (BY_QUEUE, {"put": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (BY_QUEUE, {"take": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (BY_QUEUE, {"count": RELEASE}, StaleReadError, "data 0 may be read as 0"),
        (BY_QUEUE, {"count": ACQUIRE}, StaleReadError, "data 0 may be read as 0"),
        (TWO_QUEUED, {"looks": Looks.BEFORE}, StuckError, "awaits place 2 != 0"),
        (TWO_QUEUED, {"looks": Looks.BEHIND}, QueueOverflowError, "item 2 is put into a queue of 3"),
        (ReadyQueue(workers=2, capacity=5), {"looks": Looks.BEHIND}, DoubledItemError, "item 2 is done twice"),
        (TWO_QUEUED, {"capacity": 2}, QueueOverflowError, "item 2 is put into a queue of 2"),
        # A dispatcher fills mailboxes.
        (Mailboxes(), {"put": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (Mailboxes(), {"take": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (Mailboxes(), {"empty": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (Mailboxes(), {"see": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (Mailboxes(((), (), ())), {"looks": False}, OverwriteError, "mailbox 0 of 0 is stored while nothing orders"),
        (Mailboxes(), {"awaits_end": False}, EarlyEndError, "item 3 is not known to be done"),
        (ONE_LAUNCH, {"post": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (ONE_LAUNCH, {"wait": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (ONE_BLOCK, {"turns": False}, DoubledItemError, "item 0 is done twice"),
        (ONE_BLOCK, {"looks": False}, OverwriteError, "mailbox 0 of 0 is stored while nothing orders"),
        # Runs overlap.
        (Overlapping(items=1), {"settles": False}, OverwriteError, "mailbox 0 of set 0 is stored while nothing orders"),
        (Overlapping(runs=2), {"sets": 1}, OverwriteError, "mailbox 1 of set 0 is stored while nothing orders"),
        # Items make items, until none is outstanding.
        (THREE_MADE, {"put": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (THREE_MADE, {"take": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (THREE_MADE, {"off": RELAXED}, EarlyEndError, "item 0 is not known to be done"),
        (THREE_MADE, {"end": RELAXED}, EarlyEndError, "item 0 is not known to be done"),
        (THREE_MADE, {"counts_first": False}, EarlyEndError, "item 2 is not known to be done"),
        (THREE_MADE, {"off_last": False}, EarlyEndError, "item 0 is not known to be done"),
        (THREE_MADE, {"capacity": 2}, QueueOverflowError, "item 2 is put into a queue of 2"),
        (BY_DONE_ITEMS, {"put": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (BY_DONE_ITEMS, {"take": RELAXED}, StaleReadError, "data 0 may be read as 0"),
        (BY_DONE_ITEMS, {"off": RELEASE}, EarlyEndError, "item 1 is not known to be done"),
        (BY_DONE_ITEMS, {"off": ACQUIRE}, EarlyEndError, "item 1 is not known to be done"),
        (BY_DONE_ITEMS, {"counts_first": False}, QueueOverflowError, "item 2 is put into a queue of 3"),
        (BY_DONE_ITEMS, {"off_last": False}, EarlyEndError, "item 0 is not known to be done"),
        (BY_VOTES, {"off": RELAXED}, EarlyEndError, "item 0 is not known to be done"),
        (BY_VOTES, {"end": RELAXED}, EarlyEndError, "item 0 is not known to be done"),
        (BY_VOTES, {"behind": False}, EarlyEndError, "item 2 is not known to be done"),
        (BY_VOTES, {"capacity": 2}, QueueOverflowError, "item 2 is put into a queue of 2"),
        # Words are polled, and emptied.
        (Emptied(), {"polled": 1}, StaleReadError, "x 1 of round 0 is read as 0, and should be 10"),
        (Emptied(), {"emptied": 1}, StaleReadError, "x 1 of round 1 is read as 10, and should be 20"),
        (Emptied(), {"post": RELAXED}, OverwriteError, "x 0 is stored while nothing orders this behind the store of 0"),
        (Emptied(), {"wait": RELAXED}, OverwriteError, "x 0 is stored while nothing orders this behind the store of 0"),
        (Emptied(), {"writer_waits": False}, StaleReadError, "x 0 of round 0 is read as 20, and should be 10"),
        (Emptied(), {"reader_waits": False}, StaleReadError, "x 0 of round 1 is read as 10, and should be 20"),
        # Data carry their number.
        (Tagged(), {"tags": 1}, StaleReadError, "publication 1 is read as 0, and should be 10"),
        (Tagged(((1, 3), (2,))), {"tags": 2}, StaleReadError, "publication 2 is read as 0, and should be 20"),
        (Tagged(), {"awaits": (0,)}, StuckError, "worker 2 awaits x has number 1"),
        (Tagged(), {"awaits": (0,), "exact": False}, StaleReadError, "publication 1 is read as 20"),
        (Tagged(), {"whole": False}, StaleReadError, "publication 1 is read as 0, and should be 10"),
        (Tagged(), {"polls": False}, StaleReadError, "publication 1 is read as 0, and should be 10"),
        (LOADED, {"arrive": RELAXED}, StaleReadError, "slot 0 may be read as 0: nothing orders the read"),
        (LOADED, {"wait": RELAXED}, StaleReadError, "slot 0 may be read as 0: nothing orders the read"),
        (LOADED, {"hands_back": False}, OverwriteError, "slot 0 is stored while worker 2 may still read it"),
        (LOADED, {"polls": False}, StaleReadError, "slot 0 is read as 0, and should be 10"),
        (LOADED, {"awaits": (0,), "exact": False}, StaleReadError, "slot 1 is read as 20, and should be 10"),
        (Kept(), {"meets": False}, StaleReadError, "kept 1 is read as 0, and should be 12"),
        (Kept(), {"leaves": False}, OverwriteError, "kept 0 is stored while worker 2 may still read it"),
        (Kept(), {"looks": False}, StaleReadError, "kept 0 is read as 11, and should be 21"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_planted_fault_is_told_by_name(
    protocol: Protocol, fault: dict[str, Any], error: type[ProtocolError], says: str
) -> None:
    with pytest.raises(ProtocolError, match=says) as caught:
        check(replace(protocol, **fault).model())
    assert type(caught.value) is error


def test_steps_and_words_that_do_not_exist_and_processes_that_do_nothing_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no step 'wait' here; use one of store, synchronise, arrive"):
        HandOff(storing=("wait",)).model()

    def loads() -> Any:
        yield Load("y")

    def idles(n: int = 0) -> Any:
        if n == 3:
            yield Load("x")
        return ((n + 1) % 3,)

    with pytest.raises(ArgumentError, match="process 0 goes on and on"):
        check(Model("idles", {"x": 0}, (idles,)))
    with pytest.raises(ArgumentError, match="no word 'y'; the model has x"):
        check(Model("words", {"x": 0}, (loads,)))
