"""Parts of a tile that share its sums, on the emulator: blocks at once, under delays, and planted faults."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError  # noqa: E402

from ..cases import relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402
from .test_emulator_megakernel import check, ffn, inputs_of, run_once, tile  # noqa: E402
from .test_partials import chain, overwritten  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

A = il.Activation
SEEDS = range(3)


def launch(
    graph: il.Graph, parts: int, workers: int, change: tuple[str, str] | None = None, timeout_s: float = 2.0
) -> EmulatedLaunch:
    """The second product split."""
    plan = il.build(graph, il.Schedule(workers, il.Dispatch.STATIC, split={"down": il.SplitK(parts)}))
    return EmulatedLaunch(plan, stages=3, change=change, at_once=True, timeout_s=timeout_s, jitter_s=1e-6)


SMALL = ffn(8, tile(8, 64, swap_ab=True), tile(16, 64, swap_ab=True), hidden=64)
#: By what is split: of weights as rows and of tokens as rows, shares of equal and of unequal width.
LAUNCHES = {
    "transposed, three parts of 40 tokens, few of them there": lambda: launch(
        ffn(35, tile(40, 64, swap_ab=True), tile(40, 64, swap_ab=True), extras=("bias", "residual")), 3, 6
    ),
    "transposed, two parts of 24 tokens, two blocks of rows": lambda: launch(
        ffn(22, tile(24, 64, swap_ab=True), tile(24, 128, swap_ab=True), extras=("residual",)), 2, 4
    ),
    "transposed, seven parts of 40 tokens, of which five have a share": lambda: launch(
        ffn(33, tile(40, 64, swap_ab=True), tile(40, 64, swap_ab=True), width=448, extras=("bias", "residual")), 7, 14
    ),
    "three parts of 16 columns, of which two have a share": lambda: launch(
        ffn(20, tile(64, 64), tile(64, 16), A.GELU_TANH, hidden=32, extras=("bias",)), 3, 6
    ),
    "three parts of 56 columns": lambda: launch(
        ffn(20, tile(64, 64), tile(64, 56), A.GELU_TANH, extras=("bias", "residual")), 3, 12
    ),
    "two parts of 16 and 8 columns, three warpgroups": lambda: launch(
        ffn(150, tile(192, 24, warps=12), tile(192, 24, warps=12), extras=("residual",), hidden=40), 2, 4
    ),
    "two parts of 48 and 40 columns, an odd row, two warpgroups": lambda: launch(
        ffn(40, tile(128, 96, warps=8), tile(128, 88, warps=8), A.SILU, extras=("gate",), hidden=144, less=1), 2, 4
    ),
}
_LEAVES = "          fill_words(to + n * 128"
_FIRST = "for (int n = 0; n < N; ++n) while (__float_as_uint(values[n].x) == EMPTY_WORD) values[n] = load_words(at(n)),"
#: Changes of the text: a part does not look whether sums are there, or at the first word of four alone, or leaves no
#: empty words behind it; one part does not leave its sums.
BROKEN = {
    "first": ("if (!await_words(launch, values, at)) give_up", f"{_FIRST} __nanosleep(32); if (false) give_up"),
    "hasty": ("if (!await_words(launch, values, at)) give_up", "if (false) give_up"),
    "full": ("      if (at.has(n)) empty_words(at(n));\n", "      ;\n"),
    "lost": (_LEAVES, f"          if (item.number != 4) {_LEAVES.strip()}"),
}


def with_residual_of_the_launch() -> il.Graph:
    """A product that is added to another, which is split, in tiles of 80 and 72 columns' shares."""
    shapes = {"x": (70, 152), "w_first": (152, 152), "w_up": (192, 152), "w_down": (152, 192)}
    shapes |= {"first": (70, 152), "inner": (70, 192), "out": (70, 152)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    ops = (
        il.matmul("first", t["x"], t["w_first"], t["first"], tile=tile(64, 24)),
        il.matmul("up", t["x"], t["w_up"], t["inner"], activation=A.RELU, tile=tile(64, 48)),
        il.matmul("down", t["inner"], t["w_down"], t["out"], residual=t["first"], tile=tile(64, 152)),
    )
    return il.Graph("added", (*t.values(),), ops, ("x", "w_first", "w_up", "w_down"), ("out",))


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: make() for name, make in LAUNCHES.items()}
    made |= {name: launch(SMALL, 2, 3, BROKEN[name]) for name in ("first", "hasty", "full")}
    rows = il.Schedule(4, il.Dispatch.STATIC, split=il.SplitK(2), policy=il.RowSync())
    made["rows"] = EmulatedLaunch(il.build(chain(4), rows), stages=3, at_once=True, timeout_s=2.0, jitter_s=1e-6)
    made["added"] = launch(with_residual_of_the_launch(), 2, 4)
    made["lost"] = launch(SMALL, 2, 3, BROKEN["lost"], timeout_s=0.004)
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", LAUNCHES)
def test_shares_are_right_run_after_run(name: str) -> None:
    run = launches()[name]
    assert all(part.tile.shared_elements for part in run.lowered.ops[1:])
    results = []
    for seed in SEEDS:
        check(run, seed)
        results.append(run_once(run, seed))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_share_adds_a_residual_that_the_launch_writes_when_it_is_there(seed: int) -> None:
    run = launches()["added"]
    assert run.lowered.ops[2].tile.shared_elements
    given = inputs_of(run.plan.graph)
    d = {name: value.double() for name, value in given.items()}
    first, inner = (value.bfloat16().double() for value in (d["x"] @ d["w_first"].T, torch.relu(d["x"] @ d["w_up"].T)))
    assert relative_error(run_once(run, seed), inner @ d["w_down"].T + first) < 1e-2
    assert ([str(fault) for fault in run.faults], run.sums_left) == ([], 0)


def test_ops_that_share_rows_of_the_workspace_take_their_own_sums_alone_in_runs_of_unlike_inputs() -> None:
    run = launches()["rows"]
    assert overwritten(run) == (6, 0), "each op with each other"
    weights = {name: torch.eye(128, dtype=torch.bfloat16) for name in run.plan.graph.inputs if name != "y0"}
    for seed in SEEDS:
        run.seed, x, out = seed, torch.full((24, 128), 1.0 + seed).bfloat16(), run.allocate_tensor("y4")
        run.run({"y0": x, **weights, "y4": out})
        assert torch.equal(out, x)
    assert (run.faults, run.sums_left) == ([], 0)


def test_a_part_that_leaves_no_sums_ends_in_an_error_and_the_next_run_too() -> None:
    run = launches()["lost"]
    for seed in (0, 1):
        with pytest.raises(HangError, match=r"^op 'down', tile \(0, \d\).* waited for the sums of 1 other part"):
            run_once(run, seed)


def test_a_part_that_leaves_words_as_it_found_them_is_caught_in_the_next_run() -> None:
    run = launches()["full"]
    for expected in (set(), {"race"}):
        run_once(run, 0)
        assert (run.sums_left > 0, {fault.kind for fault in run.faults}) == (True, expected)
    assert "stores a word over one that nobody has emptied" in run.faults[0].text


@pytest.mark.parametrize("name", ["hasty", "first"])
def test_a_part_that_adds_before_the_others_are_there_is_caught(name: str) -> None:
    run = launches()[name]

    def is_caught(seed: int) -> bool:
        run._reset()
        return bool(run_once(run, seed).isnan().any())

    assert any(map(is_caught, range(32)))
