"""Models have the steps and orders of the code: they are read from its text, and a text that loses one is caught.

What the model takes from each text: which steps every role takes, in which order, and what the instructions that post
and poll say of order and scope. So a protocol that is changed in the code alone is checked as it is there, or fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from interlace.core.errors import EarlyEndError, ProtocolError, QueueOverflowError
from interlace.csrc import expand, include
from interlace.kernels.cuda.preamble import SEMAPHORES
from interlace.kernels.cuda.ptx import PTX
from interlace.kernels.matmul.megakernel_body import MATMUL
from interlace.loops.cuda.preamble import ITEMS
from interlace.megakernel.constants import SHARED, define_constants
from interlace.megakernel.dispatch import select_code
from interlace.megakernel.options import Termination
from interlace.plan.plan import Dispatch

from ..protocols.check import check
from ..protocols.emptied import Emptied
from ..protocols.errors import DoubledItemError, OverwriteError, StaleReadError, StuckError
from ..protocols.handover import HandOff, Steps
from ..protocols.lists import HELD, Lists
from ..protocols.mailboxes import ONE_LAUNCH, Mailboxes
from ..protocols.operations import ACQUIRE_RELEASE, GPU, RELAXED, Order, Scope
from ..protocols.outstanding import Ends, Outstanding
from ..protocols.overlapping import Overlapping
from ..protocols.ready_queue import Looks, ReadyQueue


def in_braces(text: str, name: str) -> str:
    """The body of a function of CUDA C++."""
    found = re.search(rf"\b{name}\([^;{{}}]*\) \{{", text)
    assert found is not None, f"the text has no {name}; the model speaks of it"
    depth, at = 1, found.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return re.sub(r"//.*", "", text[found.end() : at])


#: Structs of ``dispatch/spawn.cuh`` that detect the end, in their order there.
TERMINATIONS = tuple(Termination)


def without(text: str, name: str) -> str:
    """The text without the first definition of a function."""
    found = re.search(rf"[^\n]*\b{name}\([^;{{}}]*\) \{{", text)
    assert found is not None
    return text[: found.start()] + text[found.end() + len(in_braces(text, name)) :]


def launch_text(dispatch: Dispatch, termination: Termination = Termination.COUNT) -> str:
    """The text of a launch without comments, and without functions that others hide."""
    code = select_code(dispatch, termination=termination)
    source = define_constants({**SHARED, **code.constants}) + include("ring/ring.cuh") + code.source
    text = re.sub(r" *//.*", "", expand(source + include("ring/plain.cuh") + include("roles.cuh")))
    if dispatch is Dispatch.SPAWN:
        earlier = TERMINATIONS.index(termination)
        for name in [*earlier * ("count_off", "ended"), *["expect"] * (termination is Termination.VOTES)]:
            text = without(text, name)
    for name in ("publish", "finish", "serve"):
        if len(re.findall(rf"\bvoid {name}\(", text)) > 1:
            text = without(text, name)
    return text


LAUNCHES = {f"launch {dispatch.value}": launch_text(dispatch) for dispatch in Dispatch}
LAUNCH = next(iter(LAUNCHES))  # of which changes are tried
BLOCKS = expand(PTX + SEMAPHORES + ITEMS)
TRITON = (Path(__file__).parents[2] / "src/interlace/kernels/primitives/semaphore.py").read_text()


def find_body(text: str, name: str) -> str:
    """The body of a function of Python."""
    found = re.search(rf"^def {name}\(.*\n((?:    .*\n|\n)*)", text, re.MULTILINE)
    assert found is not None, f"the text has no {name}; the model speaks of it"
    return found[1]


@dataclass(frozen=True)
class Text:
    """Functions of a text."""

    text: str
    find: Callable[[str, str], str] = in_braces

    def body(self, name: str) -> str:
        return self.find(self.text, name)

    def steps(self, name: str, means: Mapping[str, str | Steps]) -> Steps:
        """Return the steps that the patterns in a function's body stand for, in their order."""
        body = self.body(name)
        found = sorted((m.start(), meant) for pattern, meant in means.items() for m in re.finditer(pattern, body))
        return tuple(step for _, meant in found for step in ((meant,) if isinstance(meant, str) else meant))

    def instruction(self, name: str, kind: str) -> tuple[Order, Scope]:
        """The order and scope of the instruction of a function."""
        found = re.search(rf'"{kind}\.(\w+)\.(gpu|cta)\b', self.body(name))
        assert found is not None, f"{name} has no {kind} with an order and a scope"
        return Order(found[1]), Scope(found[2])


def until(steps: Steps, last: str) -> Steps:
    """Steps up to the first of a kind."""
    assert last in steps, f"no step {last!r} in {steps}"
    return steps[: steps.index(last) + 1]


def of_launch(text: str) -> HandOff:
    """The hand-off of the megakernel."""
    launch = Text(text)
    hand_over = launch.steps("hand_over", {r"synchronise\(\)": "synchronise", r"mbarrier_arrive\(finished": "arrive"})
    storing = launch.steps("run_consumer", {r"\bcompute\(": "store", r"\bhand_over\(": hand_over})
    adds = {r"\b(?:fetch_)?add_release\(launch\.semaphores": "post"}
    by = {r"\bpublish\(": launch.steps("publish", adds)} if "publish(" in launch.body("run_storer") else adds
    posting = launch.steps("run_storer", {r"\bawait\w*\((?:launch, )?finished\(": "await", **by})
    add = re.search(r"\b(\w*add_release)\(launch\.semaphores", text)
    await_rows = launch.steps("await_rows", {r"\bawait_posts\(": "poll", r"__syncwarp\(\)": "synchronise"})
    opening = launch.steps("open_load", {r"mbarrier_arrive_expect_tx\(load_full": "arrive"})
    waiting = launch.steps("run_dependent_loader", {r"\bawait_rows\(": await_rows, r"\bload\(": opening})
    await_stage = launch.steps("await_stage", {r"\bawait\((?:launch, )?load_full": "await"})
    reading = Text(text[text.index("struct Plain") :]).steps(
        "compute", {r"\bawait_stage\(": await_stage, r"\bBODY\(": "read"}
    )
    post, post_scope = launch.instruction(add[1] if add else "add_release", "(?:red|atom)")
    poll, poll_scope = _poll(launch)
    return HandOff(storing, posting, _waiting(until(waiting, "arrive")), reading, post, post_scope, poll, poll_scope)


def of_blocks(text: str) -> HandOff:
    """Return the hand-off of a launch of one block per item, in which the thread that posts has stored, too."""
    blocks = Text(text)
    barrier = {r"__syncthreads\(\)": "synchronise"}
    storing = until(blocks.steps("end_item", barrier | {r"\badd_release\(": "post"}), "post")[:-1]
    waiting = until(
        blocks.steps("begin_item", barrier | {r"\bawait_posts\(": "poll", r"fence\.proxy": "arrive"}), "arrive"
    )
    post, post_scope = blocks.instruction("add_release", "red")
    poll, poll_scope = _poll(blocks)
    return HandOff(
        *(("store", *storing, "arrive"), ("await", "post"), _waiting(waiting), ("await", "read")),
        *(post, post_scope, poll, poll_scope),
    )


def of_triton(text: str) -> HandOff:
    """Return the hand-off of Triton programs."""
    triton = Text(text, find_body)
    barrier = {r"tl\.debug_barrier\(\)": "synchronise"}
    adds = {r"tl\.atomic_add\(sync\.semaphores \+ tile\.post": "post"}
    storing = until(triton.steps("post", barrier | adds), "post")[:-1]
    waiting = triton.steps("_wait_row", barrier | {r"_load_acquire\(pointer": "poll"})
    post = re.search(r'semaphores.*sem="(\w+)", scope="(\w+)"', triton.body("post"))
    assert post is not None
    poll, poll_scope = triton.instruction("_load_acquire", "ld")
    return HandOff(
        *(("store", *storing, "arrive"), ("await", "post"), (*_waiting(waiting), "arrive"), ("await", "read")),
        *(Order(post[1]), Scope(post[2]), poll, poll_scope),
    )


def _poll(text: Text) -> tuple[Order, Scope]:
    """Find the instruction by way of the functions that lead to it."""
    assert "posts_behind(target, at)" in text.body("await_posts")
    load = re.search(r"\b(load_\w+)\(at\)", text.body("posts_behind"))
    assert load is not None
    return text.instruction(load[1], "ld")


def _waiting(steps: Steps) -> Steps:
    """From the first poll on; polls and barriers that follow each other are one."""
    steps = steps[steps.index("poll") :]
    return tuple(step for n, step in enumerate(steps) if step == "arrive" or steps[n - 1 : n] != (step,))


def of_stealing(text: str) -> Lists:
    """Lists that others take from, in the megakernel."""
    launch, by = Text(text), of_launch(text)
    left = r"atomicCAS\(at\(launch, list\), head, word\(row \+ some, row \+ length\(rows\)\)\)"
    swap = {left: "swap", r"if \(seen == head\) break": "check", r"head = seen": "retry"}
    swap |= {r"if \(some > 1\) .*at\(launch, blockIdx\.x\) = word\(row \+ 1, row \+ some\)": "keep"}
    again = launch.body("take").partition("while (row < 0")[2]
    settling = {r"(?<=\n      )await_finished\(launch, sent, 0\)": "settle"}
    settling |= {
        r"ahead = .*&& waits_for_none\(launch, held\);\n      if \(!ahead\) await_finished\(launch, sent, 0\)": "free"
    }
    steals = Text(f"again() {{{again}}}").steps("again", {**settling, r"take_from\(": "take"})
    held = re.search(r"constexpr int HELD = (\d+)", text)
    assert held is not None
    assert int(held[1]) == HELD
    own = r"await_finished\(launch, sent, HELD - 1\);\n.*\n      row = take_from\(launch, blockIdx\.x, 1\)"
    assert re.search(own, launch.body("take").partition("while (row < 0")[0])
    taking = launch.steps("take_from", swap)
    checks, settles, frees = taking[:3] == ("swap", "check", "retry"), steals[0] != "take", steals[0] == "free"
    return Lists(
        checks=checks, settles=settles, frees=frees, keeps=taking[-1:] == ("keep",), post=by.post, wait=by.poll
    )


def of_queue(text: str) -> ReadyQueue:
    """The queue of ready items in the megakernel. Atomic functions and volatile accesses are relaxed there."""
    launch, by = Text(text), of_launch(text)
    order = {r"\bfetch_add_release\(": "post", r"atomicAdd\(queue\.met": "count", r"\bpush\(": "put"}
    assert launch.steps("publish", order) == ("post", "count", "put")
    assert launch.steps("push", {r"atomicAdd\(queue\.tail": "draw", r"\*\(volatile": "store"}) == ("draw", "store")
    with_it = re.search(r"met = atomicAdd\(queue\.met \+ group, 1u\) \+ 1 == ", launch.body("publish"))
    return ReadyQueue(looks=Looks.WITH if with_it else Looks.BEHIND, post=by.post, wait=by.poll)


def of_dispatcher(text: str) -> Mailboxes:
    """The mailboxes of the megakernel: volatile accesses, which are relaxed, by three warps."""
    launch, by = Text(text), of_launch(text)
    box = re.compile(r"volatile unsigned long long\* mailbox\(const Launch& launch, unsigned run, int block, int n\)")
    held = re.search(r"launch\.heads\) \+ \(\(run & 1\) \* launch\.programs \+ block\) \* HELD \+\s+n % HELD;", text)
    assert box.search(text)
    assert held
    taking = launch.steps("take", {r"await_finished\(launch, sent, HELD - 1\)": "settle", r"\bmailbox\(": "look"})
    assert taking == ("settle", "look")
    waits = re.search(r"seen >> 32 != run \+ 1 \|\| \(\(unsigned\)seen & \((.*)\)\) != mine;", text)
    fills = re.search(r"mailbox\(.*given\[k\]\) = mail\(run, (turn\(given\[k\]\) \| )?row\[k\]\);", text)
    assert waits, "whoever takes does not look at the turn"
    assert fills
    posting = launch.steps(
        "run_storer", {r"\bpublish\(": "post", r"\bfinish\(": "empty", r"arrive\(received": "finished"}
    )
    assert posting == ("finished", "post", "empty")
    turns = waits[1] == "EMPTIED | TURN" and fills[1] is not None
    looks = "given[k] - back[k] == held" in launch.body("serve")
    return replace(ONE_LAUNCH, boxes=HELD, turns=turns, looks=looks, post=by.post, wait=by.poll)


def of_spawning(text: str, ends: Ends) -> Outstanding:
    """The queue to which items come when others spawn them, in the megakernel, and how it ends."""
    launch = Text(text)
    counted = r"^\s*if \(first_lane\(\)\) atomicAdd\(counter_of\(launch, run, OUTSTANDING\)"
    spawned = launch.steps(
        "spawn", {r"\bexpect\(": "expect", r"TAIL\), \(unsigned\)count": "draw", r"store_queue_slot\(": "put"}
    )
    assert spawned in (("expect", "draw", "put"), ("draw", "put", "expect"))
    published = launch.steps("publish", {r"\bspawn\(": "spawn", r"\bcount_off\(": "off"})
    assert set(published) == {"spawn", "off"}
    put, scope = launch.instruction("store_queue_slot", "st")
    take, take_scope = launch.instruction("load_queue_slot", "ld")
    assert scope is take_scope is Scope.GPU
    made = Outstanding(
        ends=ends, counts_first=spawned[0] == "expect", off_last=published[-1] == "off", put=put, take=take
    )
    if ends is Ends.VOTES:
        steps = {r"place - [\w.]+ < \(int\)came": "behind", r"store_queue_slot\(launch\.queue\.votes": "vote"}
        looks = launch.steps("ended", {**steps, r"load_queue_slot\(launch\.queue\.votes \+ n\)": "look"})
        assert looks[-2:] == ("vote", "look")
        return replace(made, behind=looks[0] == "behind", off=put, end=take)
    assert re.search(counted, launch.body("expect"), re.MULTILINE)
    off, _ = launch.instruction("count_off", "(?:red|atom)")
    if ends is Ends.DONE_ITEMS:
        assert "queue.ready + (int)__shfl_sync(0xffffffff, before, 0) != 1) return" in launch.body("count_off")
        return replace(made, off=off)
    end, _ = launch.instruction("load_acquire" if "load_acquire(" in launch.body("ended") else "load_relaxed", "ld")
    return replace(made, off=off, end=end)


READ: dict[str, tuple[str, Callable[[str], HandOff]]] = {
    **{name: (text, of_launch) for name, text in LAUNCHES.items()},
    "blocks": (BLOCKS, of_blocks),
    "triton": (TRITON, of_triton),
}


@pytest.mark.parametrize("name", READ)
def test_the_model_is_what_the_text_does(name: str) -> None:
    text, read = READ[name]
    assert read(text) == HandOff()
    assert check(read(text).model()).states == 190


@pytest.mark.parametrize(
    ("name", "pattern", "instead", "error"),
    [
        (LAUNCH, r"red\.release\.gpu", "red.relaxed.gpu", StaleReadError),
        (LAUNCH, r"red\.release\.gpu", "red.release.cta", StaleReadError),
        (LAUNCH, r"ld\.acquire\.gpu", "ld.relaxed.gpu", StaleReadError),
        (LAUNCH, r"load_acquire\(at\)", "load_relaxed(at)", StaleReadError),
        (LAUNCH, r"  synchronise\(\);\n(?=.*mbarrier_arrive\(finished)", "", StaleReadError),
        (LAUNCH, r".*mbarrier_arrive\(finished.*\n", "", StuckError),
        (LAUNCH, r".*await\w*\((?:launch, )?finished.*\n", "", StaleReadError),
        (LAUNCH, r".*add_release\(launch\.semaphores.*\n", "", StuckError),
        (LAUNCH, r"    __syncwarp\(\);\n(?=  \}\n\})", "", StaleReadError),
        (LAUNCH, r"  await\((?:launch, )?load_full.*\n(?=  await)", "", StaleReadError),
        (LAUNCH, r"    (compute\(.*\n)    (hand_over\(.*\n)", r"    \2    \1", StaleReadError),
        ("blocks", r"    __syncthreads\(\);\n(?=.*add_release)", "", StaleReadError),
        ("blocks", r"( +__syncthreads\(\);\n    \}\n +)__syncthreads\(\);", "    }", StaleReadError),
        ("triton", r'sem="release"', 'sem="relaxed"', StaleReadError),
        ("triton", r" +tl\.debug_barrier\(\)\n(?= +tl\.atomic_add\(sync\.semaphores)", "", StaleReadError),
        ("triton", r"    tl\.debug_barrier\(\)\n(?=\n\n@triton\.jit\ndef is_blocked)", "", StaleReadError),
    ],
)
def test_a_text_without_it_is_caught(name: str, pattern: str, instead: str, error: type[ProtocolError]) -> None:
    text, read = READ[name]
    changed, count = re.subn(pattern, instead, text)
    assert count
    with pytest.raises(error):
        check(read(changed).model())


def test_lists_are_those_of_the_text_and_a_text_that_does_not_settle_or_check_is_caught() -> None:
    text = LAUNCHES["launch stealing"]
    assert of_stealing(text) == Lists()
    few = replace(of_stealing(text), lists=((2,), (0, 1)))
    assert check(few.model()).states == 496
    for pattern, error in (
        (r"      if \(!ahead\) await_finished\(launch, sent, 0\);\n", StuckError),
        (r" +if \(seen == head\) break;\n", DoubledItemError),
        (r"(?<=word\()row \+ 1(?=, row \+ some)", DoubledItemError),
        (r"red\.release\.gpu", StaleReadError),
    ):
        instead = "red.relaxed.gpu" if error is StaleReadError else "row" if "row" in pattern else ""
        changed, count = re.subn(pattern, instead, text)
        assert count
        lists = ((), (0, 1, 2)) if instead == "row" else few.lists
        with pytest.raises(error):
            check(replace(of_stealing(changed), lists=lists, most=2).model())


def test_mailboxes_are_those_of_the_text_and_a_text_without_turns_or_looks_is_caught() -> None:
    text = LAUNCHES["launch dispatcher"]
    assert of_dispatcher(text) == ONE_LAUNCH
    one = ((), (0,), (), ())
    for pattern, instead, error in (
        (r"turn\(given\[k\]\) \| row\[k\]", "row[k]", DoubledItemError),
        (r"given\[k\] - back\[k\] == held", "true", OverwriteError),
        (r"red\.release\.gpu", "red.relaxed.gpu", StaleReadError),
    ):
        changed, count = re.subn(pattern, instead, text)
        assert count
        read = of_dispatcher(changed)
        few = read if error is StaleReadError else replace(read, producers=one, workers=1)
        with pytest.raises(error):
            check(few.model())


def of_overlapping(text: str) -> Overlapping:
    """Mailboxes of runs that overlap under dependent launch."""
    launch = Text(text)
    begins = launch.steps(
        "serve", {r"for \(unsigned sweeps": "sweep", r"await_launch_before\(\)": "wait", r"\} \*mailbox": "fill"}
    )
    assert begins == ("sweep", "wait")
    told = launch.steps("take", {r"if \(row != STOP\) return": "told", r"await_launch_before\(\)": "wait"})
    sets = 2 if "((run & 1) * launch.programs + block) * HELD" in launch.body("mailbox") else 1
    return Overlapping(items=1, sets=sets, settles=told == ("told", "wait"))


def test_runs_overlap_as_in_the_text_and_a_text_that_begins_the_next_early_or_shares_mailboxes_is_caught() -> None:
    text = LAUNCHES["launch dispatcher"]
    assert of_overlapping(text) == Overlapping(items=1)
    early = r"    await_launch_before\(\);\n(?=    if \(first_lane)"
    shared = r"\(\(run & 1\) \* launch\.programs \+ block\)"
    for pattern, instead in ((early, ""), (shared, "block")):
        changed, count = re.subn(pattern, instead, text)
        assert count == 1
        with pytest.raises(OverwriteError):
            check(of_overlapping(changed).model())


def test_the_queue_is_that_of_the_text_and_a_text_that_wakes_twice_is_caught() -> None:
    text = LAUNCHES["launch queue"]
    assert of_queue(text) == ReadyQueue()
    few = ReadyQueue(((), (), (0, 1)), workers=2, capacity=3)
    for pattern, instead, error in (
        (
            r"atomicAdd\(queue\.met \+ group, 1u\) \+ 1 ==",
            "atomicAdd(queue.met + group, 1u), queue.met[group] ==",
            QueueOverflowError,
        ),
        (r"atom\.release\.gpu", "atom.relaxed.gpu", StaleReadError),
    ):
        changed, count = re.subn(pattern, instead, text)
        assert count
        with pytest.raises(error):
            check(replace(of_queue(changed), producers=few.producers, workers=2, capacity=3).model())


def of_sums(text: str) -> Emptied:
    """Sums of parts of tiles in the megakernel, which are polled. Two of the four words of an access stand for one."""
    launch, by = Text(text), of_launch(text)
    partials, matmul = (Text(text[text.index(f"struct {name} ") :]) for name in ("Partials", "Matmul"))
    assert launch.instruction("load_words", "ld") == launch.instruction("store_words", "st") == (RELAXED, GPU)
    polled, emptied = (launch.body(name).count("EMPTY_WORD") for name in ("any_empty", "empty_words"))
    polls = r"if \(any_empty\(values\[n\]\)\) values\[n\] = load_words", r"if \(!missing\) return true"
    polled *= launch.steps("await_words", dict(zip(polls, ("load", "end"), strict=True))) == ("load", "end")
    takes = {r"!await_words\(launch, values": "poll", r"empty_words\(at\(n\)\)": "empty"}
    assert partials.steps("await", takes) == ("poll", "empty")[: 1 + bool(emptied)]
    waits = {r"await_stage\(": "wait", r"\bstore_partials\(": "leave", r"\b(?:load_early|reduce)\(": "look"}
    waited = matmul.steps("compute_with", waits)[:1] == ("wait",)
    ahead = {r"await\(load_full\(": "wait", r"::add\(": "multiply"}
    waited &= matmul.steps("multiply_held", ahead)[:1] == ("wait",)
    by_whom = {"writer_waits": waited, "reader_waits": waited}
    return Emptied(polled=polled // 2, emptied=emptied // 2, post=by.post, wait=by.poll, **by_whom)


def test_sums_are_polled_as_in_the_text_and_a_text_that_looks_at_half_or_leaves_half_is_caught() -> None:
    text = LAUNCHES[LAUNCH] + expand(MATMUL)
    assert of_sums(text) == Emptied()
    for pattern, instead, error in (
        (r"__float_as_uint\(v\.[yz]\) == EMPTY_WORD \|\|\s+", "", StaleReadError),
        (r"EMPTY_WORD, EMPTY_WORD\); \}", "z, w); }", StaleReadError),
        (r"      await_stage\(stage\);\n(?=      const unsigned weights)", "", StaleReadError),
        (r"      await\(load_full\(stage.slot\), stage.phase\);\n(?=      const .* tokens)", "", StaleReadError),
        (r"red\.release\.gpu", "red.relaxed.gpu", OverwriteError),
    ):
        changed, count = re.subn(pattern, instead, text)
        assert count, pattern
        with pytest.raises(error):
            check(of_sums(changed).model())


SPAWNED = {Ends(kind.value): launch_text(Dispatch.SPAWN, kind) for kind in Termination}


@pytest.mark.parametrize("ends", Ends)
def test_the_queue_of_spawned_items_is_that_of_the_text(ends: Ends) -> None:
    of_count = Outstanding(ends=ends)
    assert of_spawning(SPAWNED[ends], ends) == (
        replace(of_count, off=ACQUIRE_RELEASE) if ends is Ends.DONE_ITEMS else of_count
    )


@pytest.mark.parametrize(
    ("ends", "pattern", "instead", "error"),
    [
        (
            Ends.COUNT,
            r" +Termination::expect\(launch, item\.run, count\);\n([\s\S]*?item\.run, queue\.rows\[child\] \+ 1u\);\n)",
            r"\1      Termination::expect(launch, item.run, count);\n",
            EarlyEndError,
        ),
        (
            Ends.COUNT,
            r"  (const int beyond = spawn[\s\S]*?)  Termination::count_off\(launch, item\);\n",
            r"  Termination::count_off(launch, item);\n  \1",
            EarlyEndError,
        ),
        (
            Ends.COUNT,
            r"red\.release\.gpu\.global\.add\.s32 \[%0\], %1",
            "red.relaxed.gpu.global.add.s32 [%0], %1",
            EarlyEndError,
        ),
        (Ends.COUNT, r"queue\.ready \+ load_acquire", "queue.ready + load_relaxed", EarlyEndError),
        (Ends.COUNT, r"st\.release\.gpu\.global\.b64", "st.relaxed.gpu.global.b64", StaleReadError),
        (Ends.DONE_ITEMS, r"ld\.acquire\.gpu\.global\.b64", "ld.relaxed.gpu.global.b64", StaleReadError),
        (Ends.DONE_ITEMS, r"atom\.acq_rel\.gpu\.global\.add\.u32", "atom.release.gpu.global.add.u32", EarlyEndError),
        (Ends.VOTES, r"  if \(__any_sync\(0xffffffff, place - .*\n", "", EarlyEndError),
        (Ends.VOTES, r"st\.release\.gpu\.global\.b64", "st.relaxed.gpu.global.b64", ProtocolError),
    ],
)
def test_a_text_that_ends_early_or_hands_over_nothing_is_caught(
    ends: Ends, pattern: str, instead: str, error: type[ProtocolError]
) -> None:
    changed, count = re.subn(pattern, instead, SPAWNED[ends])
    assert count == 1
    with pytest.raises(error):
        check(replace(of_spawning(changed, ends), makes=((1, 2), (), ()), capacity=3).model())
