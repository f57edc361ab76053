"""The memory that protocols are checked on allows what PTX allows, and forbids what it forbids: litmus tests.

Names are those of the literature; a run that must not be, or may be, ends in ``StaleReadError("is_seen")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlace.core.errors import EarlyEndError, ModelError

from ..protocols import check as checking
from ..protocols.check import Checked, Model, check
from ..protocols.errors import DoubledItemError, LostItemError, OverwriteError, StaleReadError, StuckError
from ..protocols.operations import (
    ACQUIRE,
    ACQUIRE_RELEASE,
    BLOCK,
    GPU,
    RELAXED,
    RELEASE,
    Add,
    Await,
    Done,
    Ended,
    Fence,
    Load,
    Operation,
    Order,
    Process,
    Read,
    Store,
    Swap,
    Write,
    at_least,
    expect_equal,
    other_than,
)


def straight(*operations: Operation) -> Process:
    """A worker that does one thing after another, whatever it finds."""

    def process() -> Iterator[Any]:
        for operation in operations:
            _ = yield operation

    return process


def looks(
    *words: str, finds: tuple[int, ...], order: Order = RELAXED, first: tuple[Operation, ...] = (), others: int = 0
) -> Process:
    """A worker that says "seen" if it finds that, and so many others found theirs before."""

    def process() -> Iterator[Any]:
        yield from straight(*first)()
        found = []
        for word in words:
            found.append((yield Load(word, order)))
        right = tuple(found) == finds
        if (yield Add("right", int(right))) == others and right:
            raise StaleReadError("seen")

    return process


def passing(store: Operation, *load: Operation) -> tuple[Process, ...]:
    """Message passing: data is stored before ``store``, and read behind ``load``."""
    return straight(Write("data", 7), store), straight(*load, Read("data", 7))


def is_seen(*workers: Process) -> bool:
    """Return True if some run shows it."""
    try:
        check(Model("litmus", {"x": 0, "y": 0, "right": 0}, workers))
    except StaleReadError as error:
        return "seen" in str(error)
    return False


def test_loads_of_one_word_never_go_back() -> None:
    assert not is_seen(straight(Store("x", 1), Store("x", 2)), looks("x", "x", finds=(2, 1)))
    assert not is_seen(straight(Store("x", 1), Store("x", 2)), looks("x", "x", finds=(1, 0)))
    assert is_seen(straight(Store("x", 1), Store("x", 2)), looks("x", "x", finds=(0, 2)))


def test_relaxed_stores_to_two_words_are_seen_in_either_order() -> None:
    assert is_seen(straight(Store("x", 1), Store("y", 1)), looks("y", "x", finds=(1, 0)))
    assert is_seen(straight(Store("x", 1), Store("y", 1, RELEASE)), looks("y", "x", finds=(1, 0)))
    assert is_seen(straight(Store("x", 1), Store("y", 1)), looks("y", "x", finds=(1, 0), order=ACQUIRE))
    assert not is_seen(straight(Store("x", 1), Store("y", 1, RELEASE)), looks("y", "x", finds=(1, 0), order=ACQUIRE))


def test_each_of_two_workers_may_miss_what_the_other_stored_before_it_looked() -> None:
    for order in (RELAXED, ACQUIRE):
        assert is_seen(
            *(looks(b, finds=(0,), order=order, first=(Store(a, 1, RELEASE),), others=1) for a, b in ("xy", "yx"))
        )


def test_two_workers_may_see_two_stores_in_opposite_orders() -> None:
    writers = straight(Store("x", 1, RELEASE)), straight(Store("y", 1, RELEASE))
    readers = (looks(*words, finds=(1, 0), order=ACQUIRE, others=1) for words in ("xy", "yx"))
    assert is_seen(*writers, *readers)


def test_what_one_acquired_it_releases_to_the_next() -> None:
    between = straight(Await("x", expect_equal(1), ACQUIRE), Store("y", 1, RELEASE))
    assert not is_seen(straight(Store("x", 1, RELEASE)), between, looks("y", "x", finds=(1, 0), order=ACQUIRE))
    between = straight(Await("x", expect_equal(1)), Store("y", 1, RELEASE))
    assert not is_seen(
        straight(Store("x", 1)), between, looks("y", "x", finds=(1, 0), order=ACQUIRE)
    )  # of x itself it is
    assert is_seen(
        straight(Store("x", 1)), straight(Await("x", expect_equal(1)), Store("y", 1)), looks("y", "x", finds=(1, 0))
    )


@pytest.mark.parametrize(
    ("post", "poll"),
    [
        ((Store("flag", 1, RELEASE),), (Await("flag", expect_equal(1), ACQUIRE),)),
        ((Add("flag", 1, RELEASE),), (Await("flag", at_least(1), ACQUIRE),)),
        ((Add("flag", 1, ACQUIRE_RELEASE),), (Await("flag", other_than(0), ACQUIRE),)),
        ((Fence(), Store("flag", 1)), (Await("flag", expect_equal(1)), Fence())),
        ((Fence(), Add("flag", 1)), (Await("flag", expect_equal(1), ACQUIRE),)),
        ((Swap("flag", 0, 1, RELEASE),), (Await("flag", expect_equal(1), ACQUIRE),)),
    ],
)
def test_a_release_that_is_acquired_orders_ordinary_accesses_and_either_alone_does_not(
    post: tuple[Operation, ...], poll: tuple[Operation, ...]
) -> None:
    words = {"data": 0, "flag": 0}
    writer, reader = (Write("data", 7), *post), (*poll, Read("data", 7))
    assert check(Model("passing", words, (straight(*writer), straight(*reader)))) == Checked(3, 2)
    for ops in ((weaker(writer), reader), (writer, weaker(reader))):
        with pytest.raises(StaleReadError, match="data may be read as 0: nothing orders the read behind"):
            check(Model("passing", words, tuple(straight(*side) for side in ops)))


def weaker(operations: tuple[Operation, ...]) -> Iterator[Operation]:
    """The same in relaxed order, without fences."""
    for operation in operations:
        if not isinstance(operation, Fence):
            yield replace(operation, order=RELAXED) if hasattr(operation, "order") else operation


def test_a_chain_of_adds_releases_for_all_who_added() -> None:
    def model(order: Order) -> Model:
        adds = [straight(Write(word, 1), Add("count", 1, order)) for word in ("a", "b")]
        reader = straight(Await("count", at_least(2), ACQUIRE), Read("a", 1), Read("b", 1))
        return Model("chain", {"a": 0, "b": 0, "count": 0}, (*adds, reader))

    assert check(model(RELEASE)).states > 3
    with pytest.raises(StaleReadError, match="worker 2 awaits count >= 2"):
        check(model(RELAXED))
    mixed = straight(Write("a", 1), Add("count", 1, RELEASE)), straight(Add("count", 1))
    last = straight(Await("count", at_least(2), ACQUIRE), Read("a", 1))
    with pytest.raises(StaleReadError):  # the add of the other may come first, and then the second is not released
        check(Model("chain", {"a": 0, "count": 0}, (straight(Add("count", 1, RELEASE), Write("a", 1)), mixed[1], last)))
    assert check(Model("chain", {"a": 0, "count": 0}, (*mixed, last))).states > 3


def test_a_release_for_the_block_tells_other_blocks_nothing() -> None:
    for store, load, blocks, right in (
        (BLOCK, BLOCK, (0, 0), True),
        (BLOCK, GPU, (0, 0), True),
        (GPU, GPU, (0, 1), True),
        (BLOCK, GPU, (0, 1), False),
        (GPU, BLOCK, (0, 1), False),
    ):
        workers = passing(Store("flag", 1, RELEASE, store), Await("flag", expect_equal(1), ACQUIRE, load))
        model = Model("scopes", {"data": 0, "flag": 0}, workers, blocks=blocks)
        if right:
            assert check(model).states == 3
        else:
            with pytest.raises(StaleReadError, match="of another block"):
                check(model)


def test_a_read_must_be_released_before_its_word_is_stored_again() -> None:
    def model(done: Order, seen_by: Order) -> Model:
        reader = straight(Read("data", 0), Add("read", 1, done))
        writer = straight(Await("read", expect_equal(1), seen_by), Write("data", 7))
        return Model("again", {"data": 0, "read": 0}, (reader, writer))

    assert check(model(RELEASE, ACQUIRE)).states == 3
    for done, seen_by in ((RELAXED, ACQUIRE), (RELEASE, RELAXED)):
        with pytest.raises(OverwriteError, match="data is stored while worker 0 may still read it"):
            check(model(done, seen_by))


def test_stores_that_nothing_orders_are_refused_and_atomics_lose_nothing() -> None:
    with pytest.raises(OverwriteError, match="x is stored while nothing orders this"):
        check(Model("stores", {"x": 0}, (straight(Store("x", 1)), straight(Store("x", 2)))))
    with pytest.raises(OverwriteError, match="x is changed atomically where a store"):
        check(Model("stores", {"x": 0}, (straight(Store("x", 1)), straight(Add("x", 2)))))
    with pytest.raises(StaleReadError, match="is an ordinary one"):
        check(Model("stores", {"x": 0}, (straight(Write("x", 1)), straight(Load("x")))))

    def claims() -> Iterator[Any]:
        if (yield Swap("x", 0, 1)) == 0:
            yield Done(0)

    assert check(Model("claims", {"x": 0}, (claims,) * 3, 1)).states > 3


def test_items_are_done_once_and_none_is_lost() -> None:
    done = straight(Add("x", 1), Done(0))
    assert check(Model("once", {"x": 0}, (done,), 1)).states == 2
    with pytest.raises(DoubledItemError, match="item 0 is done twice"):
        check(Model("twice", {"x": 0}, (done, done), 1))
    with pytest.raises(LostItemError, match="item 1 is never done"):
        check(Model("lost", {"x": 0}, (done,), 2))


def test_who_takes_all_to_be_done_must_have_been_told_so() -> None:
    def model(order: Order) -> Model:
        return Model(
            "end",
            {"x": 0},
            (straight(Done(0), Add("x", 1, order)), straight(Await("x", expect_equal(1), ACQUIRE), Ended())),
            1,
        )

    assert check(model(RELEASE)).states == 3
    with pytest.raises(EarlyEndError, match="item 0 is not known to be done"):
        check(model(RELAXED))


def test_waits_that_nobody_answers_and_values_that_pass_unseen_are_told() -> None:
    with pytest.raises(StuckError, match="then worker 1 awaits x >= 2"):
        check(Model("never", {"x": 0}, (straight(Add("x", 1)), straight(Await("x", at_least(2))))))
    with pytest.raises(StuckError, match=r"worker 0 stores x = 2 .*then worker 1 awaits x == 1"):
        check(
            Model("passes", {"x": 0}, (straight(Store("x", 1), Store("x", 2)), straight(Await("x", expect_equal(1)))))
        )

    def polls() -> Iterator[Any]:
        return () if (yield Load("x")) < 2 else None

    with pytest.raises(StuckError, match="worker 1 loads x"):
        check(Model("polls", {"x": 0}, (straight(Add("x", 1)), polls)))
    assert check(Model("polls", {"x": 0}, (straight(Add("x", 2)), polls))).states == 3


def test_a_model_too_large_to_follow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MOST_STATES", 100)
    with pytest.raises(ModelError, match="more than 100 states; model fewer items"):
        check(Model("large", {"x": 0}, (straight(*[Add("x", 1)] * 20),) * 3))


def test_the_example_of_the_page_on_memory_order_is_what_check_says() -> None:
    def model(order: Order) -> Model:
        def producer() -> Process:
            yield Write("data", 7)
            yield Add("semaphore", 1, order)

        def consumer() -> Process:
            yield Await("semaphore", at_least(1), ACQUIRE)
            yield Read("data", 7)

        return Model("post", {"data": 0, "semaphore": 0}, (producer, consumer))

    assert check(model(RELEASE)).states == 3
    page = (Path(__file__).parents[2] / "benchmarks/notes/memory-order.md").read_text()
    with pytest.raises(StaleReadError) as caught:
        check(model(RELAXED))
    assert f"    {caught.value}\n" in page
