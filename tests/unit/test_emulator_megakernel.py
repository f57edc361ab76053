"""The text of the megakernel on the emulator: whole plans are right, run after run, and planted faults are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError  # noqa: E402
from interlace.csrc import read_header  # noqa: E402
from interlace.kernels.abi import ITEM  # noqa: E402
from interlace.megakernel.constants import LAST  # noqa: E402
from interlace.plan.plan import Waits  # noqa: E402

from ..cases import TORCH, relative_error, strike_posts  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

A, NAN = il.Activation, float("nan")
FUNCTIONS = {
    A.NONE: lambda x: x,
    A.RELU: torch.relu,
    A.SILU: torch.nn.functional.silu,
    A.GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
SEEDS = range(3)
RUNS = range(3)
#: Of bf16: results are rounded, and so is what is between the products.
TOLERANCE = {"bf16": 4e-3, "fp16": 5e-4}


def tile(m: int, n: int, k: int = 64, warps: int = 4, swap_ab: bool = False) -> il.MatmulTile:
    return il.MatmulTile(m, n, k, num_warps=warps, swap_ab=swap_ab)


def ffn(
    m: int,
    up: il.MatmulTile,
    down: il.MatmulTile,
    activation: il.Activation = A.RELU,
    hidden: int = 128,
    width: int = 192,
    extras: tuple[str, ...] = (),
    dtype: str = "bf16",
    less: int = 0,
) -> il.Graph:
    """Two products; ``extras`` are "gate", "bias" (of both) and "residual" (x, of the second).

    out has so many columns ``less`` than x.
    """
    shapes = {"x": (m, hidden), "w_up": (width, hidden), "w_down": (hidden - less, width)}
    shapes |= {"w_gate": (width, hidden)} if "gate" in extras else {}
    shapes |= {"b_up": (width,), "b_down": (hidden,)} if "bias" in extras else {}
    t = {name: il.Tensor(name, shape, il.dtype(dtype)) for name, shape in shapes.items()}
    h, out = il.Tensor("h", (m, width), il.dtype(dtype)), il.Tensor("out", (m, hidden - less), il.dtype(dtype))
    residual = t["x"] if "residual" in extras else None
    ops = (
        il.matmul("up", t["x"], t["w_up"], h, gate=t.get("w_gate"), bias=t.get("b_up"), activation=activation, tile=up),
        il.matmul("down", h, t["w_down"], out, bias=t.get("b_down"), residual=residual, tile=down),
    )
    return il.Graph("ffn", (*t.values(), h, out), ops, tuple(t), ("out",))


def compute_exact(graph: il.Graph, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """In float64, from the numbers that the tensors have."""
    d = {name: value.double() for name, value in t.items()}
    h = d["x"] @ d["w_up"].T + d.get("b_up", 0.0)
    h = FUNCTIONS[A(graph.op("up").param("ACTIVATION"))](h if "w_gate" not in d else d["x"] @ d["w_gate"].T)
    h = h * (d["x"] @ d["w_up"].T) if "w_gate" in d else h
    residual = d["x"] if any(a.arg == "residual" for a in graph.op("down").reads) else 0.0
    return h @ d["w_down"].T + d.get("b_down", 0.0) + residual


def inputs_of(graph: il.Graph) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = [graph.tensor(name) for name in graph.inputs]
    scale = {t.name: t.shape[-1] ** -0.5 if t.name.startswith("w") else 1.0 for t in tensors}
    return {t.name: (torch.randn(t.shape) * scale[t.name]).to(TORCH[t.dtype.name]) for t in tensors}


def run_once(run: EmulatedLaunch, seed: int) -> torch.Tensor:
    return run_poisoned(run, inputs_of(run.plan.graph), seed)


def check(run: EmulatedLaunch, seed: int) -> None:
    graph = run.plan.graph
    error = relative_error(run_once(run, seed), compute_exact(graph, inputs_of(graph)))
    assert ([str(fault) for fault in run.faults], run.sums_left) == ([], 0)
    assert error < TOLERANCE[graph.tensor("out").dtype.name]


def launch(graph: il.Graph, stages: int, in_flight_bytes: int = 1 << 20, options: dict | None = None, **schedule):
    plan = il.build(graph, il.Schedule(**{"workers": 1, **schedule}))
    return EmulatedLaunch(plan, stages=stages, in_flight_bytes=in_flight_bytes, **(options or {}))


STATIC = {"dispatch": il.Dispatch.STATIC}
LAUNCHES = {
    "one token, 24 and 40 wide": lambda: launch(ffn(1, tile(64, 24), tile(64, 40)), 3),
    "bias and residual, 56 and 112 wide": lambda: launch(
        ffn(17, tile(64, 56), tile(64, 112), A.GELU_TANH, extras=("bias", "residual")), 2
    ),
    "gated, stages of two panels, few in flight, an odd row, static": lambda: launch(
        ffn(40, tile(64, 40, 128), tile(64, 24), A.SILU, extras=("gate",), less=7), 4, 2 * 40 * 128 * 2, **STATIC
    ),
    "two blocks of rows in fp16": lambda: launch(
        ffn(125, tile(128, 24), tile(64, 112), A.SILU, dtype="fp16"), 3, 2 * 112 * 64 * 2
    ),
    "two warpgroups, some with no token": lambda: launch(
        ffn(40, tile(128, 104, warps=8), tile(128, 56, warps=8), A.NONE, extras=("residual",)),
        3,
        options={"trace": True},
    ),
    "weights held, of four stages and of two, deep ones, in two blocks of rows": lambda: launch(
        ffn(33, tile(40, 64, 128, swap_ab=True), tile(40, 128, swap_ab=True), A.SILU, extras=("gate",), hidden=512),
        4,
    ),
    "weights held, parts of one stage": lambda: launch(
        ffn(24, tile(24, 64, swap_ab=True), tile(24, 64, swap_ab=True), hidden=256, width=192),
        6,
        split={"up": il.SplitK(2), "down": il.SplitK(3)},
    ),
    "two warpgroups of two blocks of rows, few of them loaded": lambda: launch(
        ffn(5, tile(256, 24, 128, 8), tile(256, 40, warps=8), A.NONE), 2
    ),
    "one of each, dependent launch, more blocks than items": lambda: launch(
        ffn(40, tile(64, 112), tile(24, 128, 128, swap_ab=True), extras=("bias",)),
        3,
        options={"dependent_launch": True},
        workers=9,
    ),
    "transposed and gated, two warpgroups": lambda: launch(
        ffn(33, tile(56, 128, 64, 8, True), tile(24, 128, 64, 8, True), A.SILU, extras=("gate", "residual")), 2
    ),
    "two parts, gated, two warpgroups": lambda: launch(
        ffn(40, tile(128, 56, warps=8), tile(128, 40, warps=8), A.SILU, extras=("gate",), less=3), 3, split=il.SplitK(2)
    ),
    "three warpgroups, few tokens of the last": lambda: launch(
        ffn(135, tile(192, 24, warps=12), tile(192, 40, warps=12), A.GELU_TANH, extras=("bias", "residual")), 3
    ),
    "three warpgroups, weights as rows, two parts, gated": lambda: launch(
        ffn(40, tile(40, 192, warps=12, swap_ab=True), tile(24, 192, warps=12, swap_ab=True), A.SILU, extras=("gate",)),
        3,
        split={"down": il.SplitK(2)},
    ),
    "five parts, dispatcher": lambda: launch(
        ffn(20, tile(64, 64), tile(64, 40), width=320), 3, split={"down": il.SplitK(5)}, dispatch=il.Dispatch.DISPATCHER
    ),
    "five parts, stealing": lambda: launch(
        ffn(20, tile(64, 64), tile(64, 40), width=320), 3, split={"down": il.SplitK(5)}, dispatch=il.Dispatch.STEALING
    ),
    "stream-k, transposed, an odd row, waits by chunk, queue": lambda: launch(
        ffn(33, tile(24, 64, swap_ab=True), tile(40, 64, swap_ab=True), width=320, less=1),
        4,
        chunk_waits=True,
        dispatch=il.Dispatch.QUEUE,
        split={"down": il.StreamK(3)},
        interleaving=il.RowPanels(1),
    ),
}


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: make() for name, make in LAUNCHES.items()}
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_whole_plan_is_right_run_after_run_whatever_the_schedule(name: str) -> None:
    run = launches()[name]
    for seed in RUNS:
        check(run, seed)
    items, workers = len(run.plan.items), run._table.workers
    per_run = workers if run.is_resident else items + workers
    assert run._counters[0] == len(RUNS) * per_run


def test_counters_wrap() -> None:
    run = launches()["two parts, gated, two warpgroups"]
    run._reset()
    check(run, 0)
    posts = [counter.clone() for counter in (run._semaphores, run._counters)]
    assert all(counter.any() for counter in posts)
    for runs in (2**31 - 1, 2**31, 2**32 - 1, 2**32):
        for counter, once in zip((run._semaphores, run._counters), posts, strict=True):
            counter.copy_((once.long() * runs).to(counter.dtype))
        check(run, seed=runs % 7)


def test_a_trace_has_every_item() -> None:
    run = launches()["two warpgroups, some with no token"]
    run._reset()
    run_once(run, 0)
    trace = run.read_trace()
    assert (trace.wait_ns > 0).all()
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns < trace.end_ns).all()


def test_a_missing_post_ends_in_an_error_and_the_next_run_is_right() -> None:
    run = launches()["one token, 24 and 40 wide"]
    strike_posts(run, [3])
    with pytest.raises(HangError, match="never posted"):
        run_once(run, 0)
    check(run, 1)


_LOAD = "    prefetch(launch, item, stage, n, tickets);\n"
_WAIT = "      load(launch, item, k, until, stage);\n"
_DRAW = "    row = tickets.take(launch, sent_already);\n    if (row >= 0"
ROLES = read_header("roles.cuh")
_FROM_DRAW = ROLES[ROLES.index(_DRAW) : ROLES.index(_WAIT) + len(_WAIT)]
_KNOWN = "*(volatile int*)&launch.done[item.number]"
_TRAP = (
    f"    if (item.code & {LAST} && {_KNOWN} != (int)(item.run + 1) && {_KNOWN} != -(int)(item.run + 1)) "
    'asm volatile("trap;");\n'
)
_MARKED = f"      if (first_lane()) {_KNOWN} = -(int)(item.run + 1);\n{_WAIT}"
#: A trap where the next item is drawn behind one of the last whose tokens nobody loads yet.
_EARLY = _FROM_DRAW, _TRAP + _FROM_DRAW.replace(_WAIT, _MARKED)
#: Who draws comes late, when all that it loaded may be computed.
_LATE = _LOAD, f"{_LOAD}    for (int late = 0; late < 3000; ++late) __nanosleep(1000);\n"


def products(widths: tuple[int, ...], *tiles: il.MatmulTile) -> il.Graph:
    """One behind the other, of five tokens."""
    names = (*(f"x{n}" for n in range(len(tiles))), "out")
    t = [il.Tensor(name, (5, width), il.bf16) for name, width in zip(names, widths, strict=True)]
    w = [il.Tensor(f"w{n}", (more, width), il.bf16) for n, (width, more) in enumerate(pairwise(widths))]
    ops = tuple(il.matmul(f"op{n}", t[n], w[n], t[n + 1], tile=tile) for n, tile in enumerate(tiles))
    return il.Graph("products", (*t, *w), ops, ("x0", *(weight.name for weight in w)), ("out",))


def test_of_tokens_that_do_not_come_no_product_is_said_to_read_them() -> None:
    """Out of 64 or 128 tokens, in tiles of 64, five come: their box has eight."""
    short = {"short_inputs": ("x",)}
    runs = [launch(ffn(m, tile(64, 64), tile(64, 64)), 3, options=short) for m in (64, 128)]
    prepare(runs)
    for run in runs:
        given = inputs_of(run.plan.graph)
        given["x"] = given["x"][:5].contiguous()
        found = run_poisoned(run, given, 0)[:5]
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(found, compute_exact(run.plan.graph, given)) < TOLERANCE["bf16"]


_LAST_ITEMS = {
    "as long as the ring": (6, products((128, 256, 128), tile(64, 64), tile(64, 32))),
    "longer than the ring": (6, products((128, 384, 128), tile(64, 64), tile(64, 32))),
    "longer, behind products whose weights are held": (
        4,
        products((128, 384, 128), *(tile(8, n, swap_ab=True) for n in (48, 32))),
    ),
    "short, behind products whose weights are held": (
        4,
        products((128, 256, 128, 64), *(tile(8, n, swap_ab=True) for n in (48, 32, 16))),
    ),
}


@pytest.mark.parametrize("name", _LAST_ITEMS)
def test_nothing_is_drawn_behind_one_of_the_last_items_before_it_begins(name: str) -> None:
    """Whoever is free first would have several, and who comes later none."""
    workers, graph = _LAST_ITEMS[name]
    plan = il.build(graph, il.Schedule(workers))
    run = EmulatedLaunch(
        plan, stages=4, at_once=True, timeout_s=2.0, change=_EARLY, dependent_launch=True, ll_tensors=()
    )
    prepare([run])
    for seed in SEEDS:
        run_once(run, seed)
    assert [str(fault) for fault in run.faults] == []


@pytest.mark.parametrize("k", [256, 320, 384, 448, 512])
def test_who_draws_late_behind_an_item_longer_than_the_ring_waits_for_nothing(k: int) -> None:
    """Slots for tokens may be turns on by then; that of the first of the last stages is as it is waited for."""
    plan = il.build(products((128, k, 64), *(tile(8, n, swap_ab=True) for n in (48, 32))), il.Schedule(2))
    run = EmulatedLaunch(plan, stages=3, at_once=True, timeout_s=2.0, change=_LATE, ll_tensors=())
    prepare([run])
    for seed in SEEDS:
        run_once(run, seed)
    assert [str(fault) for fault in run.faults] == []


_MEET = "  synchronise();\n  if (threadIdx.x % 128 == 0) mbarrier_arrive(finished(n % TICKETS));\n"
_TAKEN = "  if (first_lane()) mbarrier_arrive(received(message));\n  return last.y;\n"
_UNDER_WAY = "wgmma_wait<1>();\n      if (before >= 0)"
_LAST = "      if (before >= 0) release(stage, before);\n"
#: Changes of the text, and the kind of the fault that is reported.
FAULTS = {
    "a slot that is not handed back": (_LAST, "", "deadlock"),
    "a loader that counts other stages": (
        "k = k_lo; k < k_hi; k += BK",
        "k = k_lo + BK; k < k_hi; k += BK",
        "trap",
    ),
    "a message that is not received": (_TAKEN, _TAKEN.partition("\n")[2], "deadlock"),
    "one arrival too few": ("(received(t), WARPGROUPS * 4 + 2)", "(received(t), WARPGROUPS * 4 + 1)", "pending"),
    "other bytes than are loaded": ("IN_FLIGHT, GATES * PANELS *", "IN_FLIGHT, GATES *", "barrier"),
    "a slot filled before it is empty": (
        "  await(prefetch_empty(stage.slot), stage.phase ^ 1);\n  if (in_flight",
        "  if (in_flight",
        "race",
    ),
    "a slot of tokens filled before it is empty": (
        "  await(load_empty(stage.slot), stage.phase ^ 1);\n  __syncwarp();",
        "  __syncwarp();",
        "race",
    ),
    "a slot handed back before its products end": (_UNDER_WAY, _UNDER_WAY.replace("<1>", "<2>"), "race"),
    "products that do not wait for tokens": (
        "const Stage& stage) {\n  await(load_full(stage.slot), stage.phase);\n",
        "const Stage& stage) {\n",
        "race",
    ),
    "panels as far apart as in a whole tile": ("token = tokens + p * ROWS * 8", "token = tokens + p * BM * 8", "race"),
    "rows turned round before all are there": (
        "        synchronise();\n        const int tokens",
        "        const int tokens",
        "race",
    ),
    "a post before all have stored": (_MEET, _MEET[len("  synchronise();\n") :], "race"),
    "a post before the tile is finished": (
        "if (begins && last.y) ends = await_watched(launch, finished(message), taken / TICKETS & 1);",
        "",
        "unwritten",  # what consumers tell with it
    ),
    "loads that do not wait for posts": (
        "await_rows(launch, item, item.wait_lo, item.wait_mid);",
        "",
        "race",
    ),
    "bulk loads without a fence": (
        'asm volatile("fence.proxy.async.global;" ::: "memory");\n      load',
        "load",
        "proxy",
    ),
    "barriers not known to bulk loads": ("    fence_mbarrier_init();\n", "", "proxy"),
}
_OF_HELD = "wgmma_wait<1>();\n      if (s > 0) release_load(before);\n"
#: The same where weights are taken into registers.
AHEAD = {
    "a slot handed back before all lanes have its weights": (
        "    __syncwarp();\n    release_prefetch(stage, ahead.slot);\n",
        "    release_prefetch(stage, ahead.slot);\n",
        "race",
    ),
    "weights taken before they are there": ("    await(prefetch_full(ahead.slot), ahead.phase);\n", "", "race"),
    "products of held weights that do not wait for tokens": (
        "      await(load_full(stage.slot), stage.phase);\n      const unsigned tokens",
        "      const unsigned tokens",
        "race",
    ),
    "tokens handed back before products of held weights end": (_OF_HELD, _OF_HELD.replace("<1>", "<2>"), "race"),
    "tokens of held weights that are not handed back": (_OF_HELD, "wgmma_wait<1>();\n", "deadlock"),
}
#: Of split tiles: the last part does not look whether the others' sums are there; one of them leaves none.
SPLIT = {
    "right": None,
    "hasty": ("if (!await_words(launch, values, at)) give_up", "if (false) give_up"),
    "lost": ("++i) fill_words", "++i) if (item.number != 4) fill_words"),
}


@cache
def launch_broken() -> dict[str, EmulatedLaunch]:
    same, small = tile(64, 40, 128), tile(8, 64, swap_ab=True)
    plan = il.build(ffn(40, same, same, hidden=256, width=256), il.Schedule(1))
    made = {name: EmulatedLaunch(plan, stages=2, change=(before, after)) for name, (before, after, _) in FAULTS.items()}
    few = tile(40, 64, swap_ab=True)
    ahead = il.build(ffn(40, few, few, hidden=512, width=256), il.Schedule(1))
    made |= {name: EmulatedLaunch(ahead, stages=4, change=fault[:2]) for name, fault in AHEAD.items()}
    # The last item of an op keeps its slots until it is posted, so what comes next needs slots of its own to be hasty.
    hasty = "loads that do not wait for posts"
    made[hasty] = EmulatedLaunch(plan, stages=4, change=FAULTS[hasty][:2])
    split = il.build(ffn(8, small, small, hidden=64, width=192), il.Schedule(1, split={"down": il.SplitK(3)}))
    made |= {name: EmulatedLaunch(split, stages=2, change=change) for name, change in SPLIT.items()}
    wide = tile(128, 104, warps=8)
    greedy = "registers_lower<LOADER_REGISTERS>", "registers_lower<LOADER_REGISTERS + 8>"
    kept = il.build(ffn(40, same, same, hidden=256, width=256), il.Schedule(1, **STATIC))
    lost = "hand_back_kept(((kept & 0xffff) + n) % STAGES);", ";"
    made["kept"] = EmulatedLaunch(kept, stages=3, change=lost)
    made["greedy"] = EmulatedLaunch(il.build(ffn(40, wide, wide), il.Schedule(1)), stages=2, change=greedy)
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", [*FAULTS, *AHEAD])
def test_a_planted_fault_is_reported(name: str) -> None:
    run = launch_broken()[name]
    assert (FAULTS | AHEAD)[name][2] in kinds_of_faults(run, inputs_of(run.plan.graph), SEEDS)


def test_slots_that_are_kept_until_a_post_and_never_handed_back_are_reported() -> None:
    run = launch_broken()["kept"]
    assert kinds_of_faults(run, inputs_of(run.plan.graph), (0,)) == {"deadlock"}


def test_roles_that_take_more_registers_than_the_block_has_are_reported() -> None:
    run = launch_broken()["greedy"]
    assert kinds_of_faults(run, inputs_of(run.plan.graph), (0,)) == {"deadlock"}


def test_a_part_that_never_comes_ends_in_an_error_that_names_its_tile() -> None:
    run = launch_broken()["lost"]
    with pytest.raises(HangError, match=r"^op 'down', tile \(0, 0\).*waited for the sums of 2 other parts of its"):
        run_once(run, 0)


def test_a_part_that_adds_before_the_others_are_there_is_caught() -> None:
    """The first of three parts adds: it waits for ever, or else adds what is not there."""
    for name in ("right", "hasty"):
        run = launch_broken()[name]
        at = [row * ITEM.columns + ITEM.get_column("code") for row in (3, 5)]
        run._items[at] = run._items[at[::-1]]
    with pytest.raises(HangError, match=r"waited for the sums of 2 other parts of its tile"):
        run_once(launch_broken()["right"], 0)
    assert run_once(launch_broken()["hasty"], 0).isnan().any()


# ---------------------------------------------------------------- several waits of an item

ROWS = [(1, False), (3, False), (16, False), (40, False), (3, True), (16, True), (40, True)]
_TILES = 40  # of 24 columns, which the second product reads in chunks of 64


def in_rows(plan: il.Plan, rows: int, late: bool) -> il.Plan:
    """The only wait, for all tiles, as so many; ``late``: those for the second half where it is read, not before."""
    assert plan.waits.count.tolist() == [_TILES]
    first = np.arange(rows) * _TILES // rows
    half = -(-rows // 2)
    k = np.where(late & (np.arange(rows) >= half), first[half % rows] * 24 // 64 * 64, 0)
    one = np.ones_like(first)
    waits = Waits(plan.waits.ptr * rows, first, np.diff(np.r_[first, _TILES]), one, one, k)
    return replace(plan, waits=waits)


@cache
def of_rows() -> dict[tuple[int, bool], EmulatedLaunch]:
    """One text, and plans that wait for the same tiles in more and fewer rows."""
    plan = il.build(ffn(3, tile(64, 24), tile(64, 64), width=24 * _TILES, hidden=64), il.Schedule(1))
    made = {(rows, late): EmulatedLaunch(in_rows(plan, rows, late), stages=3) for rows, late in ROWS}
    some = next(iter(made.values()))
    assert {run.walk.cuda_source for run in made.values()} == {some.walk.cuda_source}
    library = prepare([some])
    for run in made.values():
        run.library = library, 0
    return made


@pytest.mark.parametrize(("rows", "late"), ROWS)
def test_all_waits_of_an_item_are_awaited_however_many_there_are(rows: int, late: bool) -> None:
    run = of_rows()[rows, late]
    assert run._table.is_chunked == late
    check(run, 0)


@pytest.mark.parametrize("late", [False, True])
def test_of_many_waits_the_one_that_fails_is_named(late: bool) -> None:
    run = of_rows()[40, late]
    run._reset()
    struck = 37
    strike_posts(run, [struck])
    with pytest.raises(HangError, match=rf"op 'down', tile \(0, 0\).*op 'up', tile \(0, {struck}\).*never posted"):
        run_once(run, 0)
    check(run, 1)
