"""The proof finds extents that tell, few of them, and sees faults that show at some number of steps alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from interlace.core.dtypes import fp32
from interlace.core.errors import (
    CountHazard,
    EarlyReadHazard,
    HazardError,
    PipelineError,
    StepHazard,
    StuckHazard,
    UnknownHazard,
)
from interlace.loops import library
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import BinaryIndex, Const, Index, IndexLike, IndexOp, Less, Var, minimum
from interlace.loops.ir.nest import iterate_blocks
from interlace.loops.ir.statements import Copy, For, If, Load, LoopKernel, Ring, Section, Stmt, Store, WaitParity
from interlace.loops.ir.traverse import walk
from interlace.loops.meaning.interpret import interpret
from interlace.loops.meaning.steps import follow
from interlace.loops.proof import prove as proof
from interlace.loops.proof.extents import find_small_extents
from interlace.loops.proof.general import covering_step_counts, generalise, sample_indices
from interlace.loops.proof.hazards import check_hazards
from interlace.loops.proof.prove import prove
from interlace.loops.rewrite import circular, specialise
from interlace.loops.rewrite.circular import circular_buffer, lower

from .loops import edit


def sums(
    blocks: IndexLike | None, steps: object, *, outer: IndexLike | None = None, by: Copy = Copy.TMA, stages: int = 4
) -> LoopKernel:
    """A block sums ``steps(b, o, n, m)`` tiles, for each ``o`` of a loop around if there is one."""
    k = Builder("sums")
    n, m = k.symbol("n"), k.symbol("m")
    x, y = k.input("x", (n, 16), fp32), k.output("y", (n, 16), fp32)
    s, total = k.shared("s", (1, 16), fp32), k.register("total", (1, 16), fp32)

    def body(b: Index, o: Index) -> None:
        k.assign(total, 0)
        with k.serial("j", steps(b, o, n, m)) as j:  # type: ignore[operator]
            k.load(s, x.at(j, 0), by)
            k.assign(total, total + s)
        k.assign(y.at(b + o, 0), total)

    with k.block("b", n if blocks is None else blocks) as b:
        if outer is None:
            body(b, Const(0))
        else:
            with k.serial("o", outer) as o:
                body(b, o)
    return circular_buffer(k.build_kernel(), "s", stages)


KERNELS = {
    "causal over blocks": sums(None, lambda b, o, n, m: b),
    "causal in a block": sums(1, lambda b, o, n, m: o + 1, outer=Var("n")),
    "nested": sums(2, lambda b, o, n, m: m, outer=Var("n")),
    "the smaller of two": sums(2, lambda b, o, n, m: minimum(n, m)),
    "persistent, in large strides": sums(8448, lambda b, o, n, m: (n - b * 256 + 8448 * 256 - 1) // (8448 * 256)),
    "constant": sums(1, lambda b, o, n, m: 2800),
    "constants in constants": sums(3, lambda b, o, n, m: 40, outer=50),
    "a large grid": sums(20000, lambda b, o, n, m: b + 1),
}


Bug = Callable[[Stmt], tuple[Stmt, ...] | None]


def plant_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """From now on the rewrite has a bug, which some kernels show."""
    real = circular.lower
    proof.prove.cache_clear()

    def lower_wrongly(source: LoopKernel, *, warp_specialised: bool = False) -> LoopKernel:
        return edit(real(source, warp_specialised=warp_specialised), bug)

    monkeypatch.setattr(proof, "lower", lower_wrongly)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing that another test planted is remembered."""
    proof.prove.cache_clear()


def fix_parity(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """Every wait for the same parity."""
    if isinstance(stmt, WaitParity) and stmt.barrier.name == "s_full":
        return (replace(stmt, parity=Const(0)),)
    return None


def forms(name: str) -> list[bool]:
    """A loader cannot number steps that depend on a loop around."""
    return [False] if name == "causal in a block" else [False, True]


@pytest.mark.parametrize("name", KERNELS)
def test_a_parity_that_never_flips_is_seen_whatever_the_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for warp_specialised in forms(name):
        assert 500 < prove(KERNELS[name], warp_specialised=warp_specialised).events < 10_000
    plant_bug(monkeypatch, fix_parity)
    for warp_specialised in forms(name):
        # In the nest later rounds load what earlier ones did: only their number goes wrong.
        error = CountHazard if name == "nested" and warp_specialised else EarlyReadHazard
        with pytest.raises(error, match="more than its 4 arrivals" if error is CountHazard else "before it is full"):
            prove(KERNELS[name], warp_specialised=warp_specialised)


def steps_of(kernel: LoopKernel) -> list[int]:
    """How many steps a kernel's ring has in each block of all extents that a proof looks at."""
    general = generalise(kernel)
    every = (
        sizes | values for sizes in find_small_extents(general) for values in iterate_blocks(general.kernel, sizes)
    )
    return [len(follow(general.kernel, at).loads.get(("s", True), ())) for at in every]


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "causal in a block"])
def test_every_number_of_steps_is_looked_at_and_few_more(name: str) -> None:
    """With four stages, three of them loaded ahead: 0 to 12 steps. A constant loop has one at least."""
    steps = steps_of(KERNELS[name])
    least = 1 if name in ("a large grid", "constant", "constants in constants") else 0
    assert set(range(least, 13)) <= set(steps)
    assert max(steps) <= 40
    assert sum(steps) < 1500


def test_long_constant_loops_become_extents_and_others_stay() -> None:
    general = generalise(KERNELS["constants in constants"])
    assert general.constants == {"extent of o": 50, "extent of j": 40}
    loops = {s.var: s.stop for s in walk(general.kernel.body) if isinstance(s, For)}
    assert loops == {"b": Const(3), "o": Var("extent of o"), "j": Var("extent of j")}
    for sizes in find_small_extents(general):
        assert 1 <= sizes["extent of o"] <= 50
        assert 1 <= sizes["extent of j"] <= 40
    assert generalise(library.matmul()).kernel == library.matmul()
    short = sums(1, lambda b, o, n, m: 12)
    assert generalise(short).kernel == short


def test_extents_of_the_worked_example() -> None:
    matmul = circular_buffer(circular_buffer(library.matmul(), "a_s", 4), "b_s", 4)
    extents = find_small_extents(generalise(matmul))
    depths = [sizes["depth"] for sizes in extents if (sizes["rows"], sizes["columns"]) == (1, 1)]
    assert sorted(depths) == sorted({0, 1, *range(64, 705, 64), *range(65, 706, 64)})
    assert {129, 257} <= {sizes["rows"] for sizes in extents} & {sizes["columns"] for sizes in extents}
    assert prove(matmul).extents == len(extents)


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
@pytest.mark.parametrize("by", Copy)
@pytest.mark.parametrize("stages", range(1, 9))
def test_every_depth_and_copy_is_proved_in_few_events(stages: int, by: Copy, warp_specialised: bool) -> None:
    """Also where threads copy: every step of every extent, and no more than 60 events to each."""
    proved = prove(sums(1, lambda b, o, n, m: m, by=by, stages=stages), warp_specialised=warp_specialised)
    most = 3 * stages
    steps = most * (most + 1) // 2
    assert 4 * steps < proved.events < 60 * (steps + 2 * most)


def test_very_deep_rings_are_looked_at_around_what_changes() -> None:
    few = prove(sums(1, lambda b, o, n, m: m, stages=64))
    assert few.extents < 30
    assert few.events < 20_000


def test_few_numbers_of_steps_and_blocks_tell_all() -> None:
    """Worked examples of the module: of a ring of 4 stages 0 to 12 steps, of a deep one those where it changes."""
    assert covering_step_counts(Ring("s", 4, 3)) == list(range(13))
    assert covering_step_counts(Ring("s", 16, 0)) == list(range(34))
    assert covering_step_counts(Ring("s", 17, 5)) == [0, 1, 5, 6, 17, 18, 40]
    assert covering_step_counts(Ring("s", 100, 99)) == [0, 1, 99, 100, 101, 300]
    found = [sample_indices(extent) for extent in (-1, 0, 1, 2, 3, 4, 9, 10)]
    assert found == [[], [], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4, 7, 8], [0, 1, 5, 8, 9]]


def without_min(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """A prologue that issues as many steps as the distance, however few there are."""
    if isinstance(stmt, For) and stmt.var.endswith("_first") and isinstance(stmt.stop, BinaryIndex):
        return (replace(stmt, stop=stmt.stop.left),)
    return None


def without_max(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """An epilogue that begins before step 0 where there are fewer steps than the distance."""
    if isinstance(stmt, For) and isinstance(stmt.start, BinaryIndex) and stmt.start.op is IndexOp.MAX:
        return (replace(stmt, start=stmt.start.left),)
    return None


def in_section(name: str, change: Callable[[For], For]) -> Bug:
    def bug(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Section) and stmt.name == name:
            (loop,) = stmt.body
            assert isinstance(loop, For)
            return (replace(stmt, body=(change(loop),)),)
        return None

    return bug


def parity_of_late_rounds(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """Right for two rounds of the slots, in which the remainder by 3 is that by 2."""
    if isinstance(stmt, WaitParity) and isinstance(stmt.parity, BinaryIndex):
        return (replace(stmt, parity=BinaryIndex(IndexOp.MOD, stmt.parity.left, Const(3))),)
    return None


@pytest.mark.parametrize(
    ("bug", "error"),
    [
        (without_min, CountHazard),
        (without_max, StepHazard),
        (in_section("main", lambda loop: replace(loop, stop=loop.stop - 1)), StuckHazard),
        (in_section("epilogue", lambda loop: replace(loop, start=loop.start - 1)), HazardError),
        (in_section("epilogue", lambda loop: replace(loop, start=loop.start + 1)), CountHazard),
        (in_section("epilogue", lambda loop: replace(loop, stop=loop.stop - 1)), CountHazard),
        (parity_of_late_rounds, UnknownHazard),
    ],
)
def test_a_fault_at_few_steps_or_at_many_is_seen(
    bug: Bug, error: type[HazardError], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = sums(1, lambda b, o, n, m: m, stages=3)
    prove(kernel)
    plant_bug(monkeypatch, bug)
    with pytest.raises(error):
        prove(kernel)


def test_main_and_epilogue_that_move_together_leave_out_what_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ring in it, nothing but the steps themselves tells that a loop is one short."""
    k = Builder("squares")
    n = k.symbol("n")
    x, y = k.input("x", (n, 16), fp32), k.output("y", (n, 16), fp32)
    with k.serial("i", n) as i:
        k.assign(y.at(i, 0), x.at(i, 0, shape=(1, 16)) * 2)
    kernel = k.build_kernel()

    def one_short(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return (replace(stmt, stop=stmt.stop - 1),) if isinstance(stmt, For) else None

    prove(kernel)
    plant_bug(monkeypatch, one_short)
    text = "block, first thread does nothing more where the loops say pointwise to 'y' at i = 0, as step 1"
    with pytest.raises(StepHazard, match=text):
        prove(kernel)


def under_conditions() -> LoopKernel:
    """A ring in a loop that runs where ``100 < m``, of 40 steps from the 31st on with a second load."""
    k = Builder("conditions")
    m = k.symbol("m")
    x, y, z = (f("xyz"[i], (m, 64), fp32) for i, f in enumerate((k.input, k.output, k.output)))
    s, u = k.shared("s", (1, 64), fp32), k.shared("u", (1, 64), fp32)
    with k.when(Less(Const(100), m)), k.serial("i", 40) as i:
        k.load(s, x.at(i, 0))
        k.assign(y.at(i, 0), s * 2)
        with k.when(Less(Const(30), i)):
            k.load(u, x.at(i, 0))
            k.store(z.at(i, 0), u)
    return circular_buffer(k.build_kernel(), "s", 3)


@pytest.mark.parametrize(
    ("tile", "error", "text"),
    [
        ("s", EarlyReadHazard, r"'s': .* reads slot 0 for 'x' at \(0, 0\) before it is full"),
        ("u", CountHazard, r"u_full\{0\} ends while arrivals or bytes are pending"),
    ],
)
def test_what_stands_under_conditions_is_entered(
    tile: str, error: type[HazardError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    general = generalise(under_conditions())
    assert {(sizes["m"], sizes["extent of i"]) for sizes in find_small_extents(general)} >= {(101, 8), (101, 32)}
    prove(under_conditions())

    def not_awaited(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return () if isinstance(stmt, WaitParity) and stmt.barrier.name == f"{tile}_full" else None

    plant_bug(monkeypatch, not_awaited)
    with pytest.raises(error, match=text):
        prove(under_conditions())


@pytest.mark.parametrize(
    "condition",
    [Less(Var("m"), Var("m")), Less(Const(100), Var("i")), Less(Const(1 << 40), Var("m"))],
    ids=["never", "beyond its loop", "far away"],
)
def test_what_is_never_entered_is_refused(condition: Less) -> None:
    k = Builder("vacuous")
    m = k.symbol("m")
    x, y = k.input("x", (m, 64), fp32), k.output("y", (m, 64), fp32)
    s = k.shared("s", (1, 64), fp32)
    with k.serial("i", 40) as i, k.when(condition), k.serial("j", m):
        k.load(s, x.at(i, 0))
        k.store(y.at(i, 0), s)
    text = "kernel 'vacuous': a load to 's' is reached at none of .* extents, so nothing is proved of it; drop"
    with pytest.raises(PipelineError, match=text):
        prove(circular_buffer(k.build_kernel(), "s", 2))


@pytest.mark.parametrize("extent", [Const(0), minimum(Var("o"), 0)])
def test_loops_that_never_run_need_no_proof(extent: Index) -> None:
    k = Builder("none")
    x, y, s = k.input("x", (64,), fp32), k.output("y", (64,), fp32), k.shared("s", (4,), fp32)
    with k.serial("o", 3), k.serial("i", extent) as i:
        k.load(s, x.at(i * 4))
        k.store(y.at(i * 4), s)
    assert prove(circular_buffer(k.build_kernel(), "s", 3)).extents == 1


@pytest.mark.parametrize("condition", [Less(Var("o"), Const(0)), Less(Var("m") // 3, minimum(Var("o"), -1))])
def test_what_stands_under_conditions_that_never_hold_needs_no_proof(condition: Less) -> None:
    k = Builder("dead")
    m = k.symbol("m")
    x, y, s = k.input("x", (m,), fp32), k.output("y", (m,), fp32), k.shared("s", (4,), fp32)
    with k.serial("o", 3), k.when(condition), k.serial("i", m) as i:
        k.load(s, x.at(i * 4))
        k.store(y.at(i * 4), s)
    marked = circular_buffer(k.build_kernel(), "s", 3)
    assert prove(marked).extents == 1
    meant = interpret(marked, {"x": np.ones(8, np.float32)}, {"m": 8})["y"]
    assert np.array_equal(interpret(lower(marked), {"x": np.ones(8, np.float32)}, {"m": 8})["y"], meant, equal_nan=True)


def test_extents_that_leave_no_divisor_are_passed_over() -> None:
    k = Builder("divides")
    m = k.symbol("m")
    x, y, s = k.input("x", (m, 4), fp32), k.output("y", (m, 4), fp32), k.shared("s", (1, 4), fp32)
    with k.serial("i", m // (m - 4)) as i:
        k.load(s, x.at(i, 0))
        k.store(y.at(i, 0), s)
    marked = circular_buffer(k.build_kernel(), "s", 3)
    assert min(sizes["m"] for sizes in find_small_extents(generalise(marked))) == 5
    assert prove(marked).events > 50


def test_blocks_that_loops_do_not_depend_on_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block loads what block 0 loads, once the first step of a block is behind."""

    def of_block_0(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Load) and stmt.barrier is not None and "_first" not in str(stmt.src.origin):
            return (replace(stmt, src=replace(stmt.src, origin=(Const(0), stmt.src.origin[1]))),)
        return None

    kernel = circular_buffer(library.copy_2d(tile=(4, 64), walk=16), "s", 2)
    prove(kernel)
    plant_bug(monkeypatch, of_block_0)
    with pytest.raises(StepHazard, match=r"never 'x' at \(\d+, \d+\)"):
        prove(kernel)


def selective() -> LoopKernel:
    """In steps before the last one of three, one more thing is done, which consumers do under a condition."""
    k = Builder("selective")
    n = k.symbol("n")
    x, y, z = (f("xyz"[i], (n, 64), fp32) for i, f in enumerate((k.input, k.output, k.output)))
    s = k.shared("s", (1, 64), fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(i, 0))
        k.assign(y.at(i, 0), s * 2)
        with k.when(Less(i, Const(2))):
            k.assign(z.at(i, 0), s * 3)
    return circular_buffer(k.build_kernel(), "s", 2)


def test_consumers_keep_their_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(5 * 64, dtype=np.float32).reshape(5, 64)
    expected = np.where(np.arange(5)[:, None] < 2, 3 * x, np.nan)
    rewritten = lower(selective(), warp_specialised=True)
    np.testing.assert_array_equal(interpret(rewritten, {"x": x})["z"], expected)
    np.testing.assert_array_equal(interpret(rewritten, {"x": x})["y"], 2 * x)
    prove(selective(), warp_specialised=True)
    real = specialise._extract_uses

    def dropping(rings: object, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return real(rings, tuple(s for s in body if not isinstance(s, If)))  # type: ignore[arg-type]

    monkeypatch.setattr(specialise, "_extract_uses", dropping)
    proof.prove.cache_clear()
    with pytest.raises(StepHazard, match=r"consumer, .* does .* where the loops say pointwise to 'z' at i = 0"):
        prove(selective(), warp_specialised=True)
    specialised = lower(selective(), warp_specialised=True)
    with pytest.raises(StepHazard):
        check_hazards(selective(), specialised, {"n": 1})
    assert not [s for s in walk(specialised.body) if isinstance(s, Store | If)]
