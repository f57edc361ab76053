"""Numbers of publications wrap at 2^32: words of the run before are taken for none of this one there either."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned  # noqa: E402
from ..thorough import some  # noqa: E402
from .test_ll import chain, draw_inputs, launches, run_chain, sound, steps  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

WORDS = "scaled", "squares", "inner"
#: Ops of a chain, and so publications of a run.
OPS = 3
#: Runs ahead of four of which the third begins with number 0, in whose midst numbers pass 2^31, and where that of the
#: run itself wraps.
AHEAD = 2**32 // OPS - 2, 2**31 - 1, 2**32 - 2
#: Looks for its number, or for a later one.
NOT_EXACT = "return (unsigned)(word >> 32) == publication;", "return (unsigned)(word >> 32) >= publication;"


def go_on(run: EmulatedLaunch, runs: int) -> None:
    """As behind so many runs, given what one from the start has left."""
    publications = max(worded.epochs_per_run for worded in run.lowered.ll_edges.ops.values())
    for counter in (run._semaphores, run._done, run._counters):
        counter.copy_((counter.long() * runs).to(counter.dtype))
    for words in run._words.values():
        later = words.numpy().view(np.uint64)
        later += np.uint64((runs - 1) * publications % 2**32 << 32)


def numbers_left(run: EmulatedLaunch) -> dict[str, list[int]]:
    """Return the numbers of each tensor's words, each once."""
    found = {name: np.unique(words.numpy().view(np.uint64) >> 32) for name, words in run._words.items()}
    return {name: numbers.tolist() for name, numbers in found.items()}


def last_numbers(run: EmulatedLaunch, runs: int) -> dict[str, list[int]]:
    """Return the numbers of the ops that write each tensor last, in the run after this many runs."""
    found: dict[str, list[int]] = {}
    for number, op in enumerate(run.plan.graph.ops):
        worded = run.lowered.ll_edges.get_ll(number)
        for access in op.writes:
            if access.arg in worded.epochs:
                found[access.tensor] = [(runs * worded.epochs_per_run + worded.epochs[access.arg]) % 2**32]
    return found


@cache
def others() -> dict[str, EmulatedLaunch]:
    """Chains by the loader of one block: of changed text, and of tokens that may come with fewer rows."""
    every = {
        "not exact": chain(OPS, 1, 0, ll_tensors=WORDS, change=NOT_EXACT),
        "short": chain(OPS, 1, 0, ll_tensors=WORDS, short_inputs=("x",)),
        "semaphores, short": chain(OPS, 1, ll_tensors=(), short_inputs=("x",)),
    }
    prepare([*every.values()])
    return every


@pytest.mark.parametrize("by", ["words", "words, by the loader"])
@pytest.mark.parametrize("ahead", AHEAD)
def test_chains_are_right_where_numbers_wrap_and_leave_no_word_of_the_run_before(ahead: int, by: str) -> None:
    run, semaphores = sound(OPS)[by], sound(OPS)["semaphores"]
    run._reset()
    run_chain(run, 9)
    assert numbers_left(run) == last_numbers(run, 0)
    go_on(run, ahead)
    assert numbers_left(run) == last_numbers(run, ahead - 1)
    for seed in range(4):
        assert torch.equal(run_chain(run, seed), run_chain(semaphores, seed))
        assert numbers_left(run) == last_numbers(run, ahead + seed)
    assert [str(fault) for fault in run.faults] == []
    run._reset()


def test_among_these_numbers_are_0_and_both_sides_of_two_to_the_31() -> None:
    of = [{(runs * OPS + n) % 2**32 for runs in range(ahead, ahead + 4) for n in range(1, OPS + 1)} for ahead in AHEAD]
    assert [numbers >= {2**32 - 1, 0, 1} for numbers in of] == [True, False, True]
    assert [numbers >= {2**31 - 1, 2**31} for numbers in of] == [False, True, False]


@pytest.mark.parametrize("splits", some([2, 1], lambda splits: splits == 2))
def test_steps_are_right_where_numbers_wrap_whoever_leaves_words(splits: int) -> None:
    """Embeddings, heads, splits of attention and what joins them, products with a norm behind them and without."""
    run = launches(splits)["words"]
    run._reset()
    steps("words", 1, splits=splits)
    assert numbers_left(run) == last_numbers(run, 0)
    ahead = 2**32 // len(run.plan.graph.ops) - 2
    go_on(run, ahead)
    found, right = (steps(name, 4, splits=splits) for name in ("words", "semaphores"))
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    assert numbers_left(run) == last_numbers(run, ahead + 3)
    run._reset()


@pytest.mark.parametrize("ahead", AHEAD)
def test_who_takes_later_numbers_too_takes_those_of_the_run_before_where_they_wrap(ahead: int) -> None:
    run, wraps = others()["not exact"], ahead != 2**31 - 1
    run._reset()
    same = [torch.equal(run_chain(run, 9), run_chain(sound(OPS)["semaphores"], 9))]
    go_on(run, ahead)
    same += [torch.equal(run_chain(run, seed), run_chain(sound(OPS)["semaphores"], seed)) for seed in range(4)]
    assert (same[0], all(same)) == (True, not wraps)
    run._reset()


def test_of_tokens_that_come_short_every_word_is_stored_all_the_same() -> None:
    run, semaphores = others()["short"], others()["semaphores, short"]
    for ahead in (1, AHEAD[0]):
        run._reset()
        run_chain(run, 9)
        go_on(run, ahead)
        for seed, rows in enumerate((2, 3, 1, 2)):
            tokens = draw_inputs(run, seed)
            tokens["x"] = tokens["x"][:rows]
            found, right = (run_poisoned(of, tokens, seed)[:rows] for of in (run, semaphores))
            assert torch.equal(found, right)
            assert numbers_left(run) == last_numbers(run, ahead + seed)
    assert [str(fault) for fault in run.faults] == []
