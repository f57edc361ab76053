"""Ops that go through rows: right on NumPy and in the megakernel on the emulator, and what is none says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import interlace as il  # noqa: E402
from interlace.core.errors import ArgumentError, DTypeError, ShapeError  # noqa: E402
from interlace.kernels.elementwise import elementwise  # noqa: E402
from interlace.kernels.layer_norm import layer_norm  # noqa: E402
from interlace.kernels.read_plan import read_plan  # noqa: E402
from interlace.kernels.row_tiles import select_tile_rows  # noqa: E402
from interlace.kernels.softmax import softmax  # noqa: E402
from interlace.workloads import FFNBlock, FFNLayers, ffn_block  # noqa: E402

from ..cases import relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..rows import CASES, build_layer_norm, build_rms_norm, together  # noqa: E402

each = pytest.mark.parametrize("name", CASES)


@each
def test_the_meaning_is_that_of_pytorch(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    plan = read_plan(il.build(case.graph, il.Schedule(3)).to_json())
    found = il.ReferenceExecutor(plan, seed=1).run({n: v.double().numpy() for n, v in inputs.items()})["out"]
    np.testing.assert_allclose(found, case.compute_exact(inputs).numpy(), rtol=1e-10, atol=1e-13)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_one_launch_of_all_is_right_and_touches_nothing_else() -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, prepare

    graph = together(CASES.items())
    run = EmulatedLaunch(il.build(graph, il.Schedule(1)), stages=2)
    prepare([run])
    inputs = {name: case.inputs() for name, case in CASES.items()}
    tensors = {name + of: value for name, given in inputs.items() for of, value in given.items()}
    tensors |= {name: run.allocate_tensor(name).fill_(float("nan")) for name in graph.outputs}
    run.run(tensors)
    assert [str(fault) for fault in run.faults] == []
    errors = {
        name: relative_error(tensors[name + "out"], case.compute_exact(inputs[name])) for name, case in CASES.items()
    }
    assert {name: error for name, error in errors.items() if not error < CASES[name].tolerance} == {}


#: Changes of the text of rows that come through the ring, each by two warps.
FAULTS = {
    "rows are read before they have come": (
        "const bool dependent = mbarrier_try_wait(load_full(stage.slot), stage.phase);",
        "const bool dependent = true;",
    ),
    "warps do not wait for each other's sums": ("  synchronise_group();\n  float result", "  float result"),
}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_planted_faults_of_rows_through_the_ring_are_races() -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare

    case = build_rms_norm(19, 1104, rows=16)
    runs = {
        name: EmulatedLaunch(il.build(case.graph, il.Schedule(1)), stages=2, change=FAULTS[name]) for name in FAULTS
    }
    prepare([*runs.values()])
    found = {name: kinds_of_faults(run, case.inputs(), range(2)) for name, run in runs.items()}
    assert {name: "race" in kinds for name, kinds in found.items()} == dict.fromkeys(FAULTS, True)


#: Both rows of the first op are for one warpgroup, and the other comes to the next op ahead of it.
_TEAMS = {"of two warps": build_layer_norm(2, 1640, rows=8), "of four": build_rms_norm(8, 1032, il.fp32, rows=8)}
_BARRIER = "2 + WARPGROUPS + warpgroup() * 2 + thread() % 128 / GROUP_THREADS"
_OF_BLOCK = "2 + WARPGROUPS + thread() / GROUP_THREADS"


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(("barrier", "kinds"), [(_BARRIER, set()), (_OF_BLOCK, {"diverged"})])
def test_warpgroups_at_ops_of_unlike_teams_have_barriers_of_their_own(barrier: str, kinds: set[str]) -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, Walk, kinds_of_faults, prepare

    class Changed(EmulatedLaunch):
        @property
        def walk(self) -> Walk:
            walk = super().walk
            assert walk.cuda_source.count(_BARRIER) == len(_TEAMS)
            return replace(walk, cuda_source=walk.cuda_source.replace(_BARRIER, barrier))

    run = Changed(il.build(together(_TEAMS.items()), il.Schedule(1)), stages=4)
    prepare([run])
    inputs = {name + of: value for name, case in _TEAMS.items() for of, value in case.inputs().items()}
    assert kinds_of_faults(run, inputs, range(24)) == kinds


def test_rows_beside_products_are_dealt_in_lists() -> None:
    def dispatch(graph: il.Graph) -> il.Dispatch:
        return il.MegakernelExecutor.select_dispatch(graph, il.H200)

    large = 4096, 14336
    assert dispatch(FFNLayers(2, *large, 16).build_graph(il.H200)) is il.Dispatch.STATIC
    assert dispatch(il.workloads.two_matmuls(16, *large, 4096)) is il.Dispatch.TICKET
    assert dispatch(FFNBlock(*large, 16).build_graph(il.H200)) is il.Dispatch.TICKET  # whose norm waits for nobody
    assert (
        dispatch(FFNBlock(72, 136, 16).build_graph(il.H200)) is il.Dispatch.STATIC
    )  # all of whose weights the rings hold
    assert dispatch(il.workloads.two_matmuls(16, 72, 136, 72)) is il.Dispatch.STATIC
    assert dispatch(CASES["gelu"].graph) is il.Dispatch.TICKET  # which are drawn late where nothing is loaded ahead


def test_tiles_of_pointwise_arithmetic_are_as_large_as_leave_most_sms_one() -> None:
    def grid(m: int, n: int) -> tuple[int, ...]:
        x, out = (il.Tensor(name, (m, n), il.bf16) for name in ("x", "out"))
        return elementwise("o", x, out).grid

    assert [grid(*shape) for shape in ((4096, 4096), (512, 6400), (16, 6400))] == [(128, 4), (16, 7), (2, 25)]


def test_minus_infinity_has_no_share() -> None:
    x, out = il.Tensor("x", (2, 3), il.fp32), il.Tensor("out", (2, 3), il.fp32)
    graph = il.Graph("s", (x, out), (softmax("s", x, out),), ("x",), ("out",))
    given = np.array([[-np.inf, 2.0, -np.inf], [1.0, -np.inf, 1.0]])
    found = il.ReferenceExecutor(il.build(graph, il.Schedule(1))).run({"x": given})["out"]
    assert found.tolist() == [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]


def test_tiles_have_the_rows_with_which_the_busiest_sm_has_least_to_do() -> None:
    assert [select_tile_rows(m, 132) for m in (1, 132, 264, 528, 1024, 1100, 4096, 100_000)] == [
        1,
        1,
        2,
        4,
        8,
        16,
        32,
        32,
    ]


def make_op(op: Callable[..., il.Op], **other: Any) -> il.Op:
    names = {"x": (4, 64), "weight": (64,), "bias": (64,), "out": (4, 64)}
    if op is not layer_norm:
        names = {name: names[name] for name in ("x", "out")}
    given: dict[str, Any] = {name: il.Tensor(name, shape, il.bf16) for name, shape in names.items()}
    return op("o", **given | ({"eps": 1e-5} if op is layer_norm else {}) | other)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: make_op(layer_norm, rows=3),
            ShapeError,
            "op 'o' has tiles of 3 rows; use a power of two of at most 32",
        ),
        (lambda: make_op(softmax, rows="8"), ArgumentError, "op 'o': rows is '8'; write rows=8"),
        (
            lambda: make_op(softmax, scale=0.0),
            ArgumentError,
            "op 'o' has scale 0.0; use a positive number, such as 0.125",
        ),
        (
            lambda: make_op(layer_norm, bias=il.Tensor("bias", (1, 64), il.bf16)),
            ShapeError,
            r"bias bias\[1 x 64\] bf16 must have shape \(64,\)",
        ),
        (lambda: make_op(softmax, out=il.Tensor("out", (4, 64), il.fp32)), DTypeError, "op 'o' mixes dtypes"),
        (lambda: make_op(elementwise, tile=(8, 48)), ShapeError, "op 'o' has tiles of 8 x 48; use powers of two"),
        (lambda: make_op(elementwise, activation="relu"), ArgumentError, "activation=il.Activation.RELU"),
        (
            lambda: make_op(elementwise, plus=il.Tensor("plus", (4,), il.bf16)),
            ShapeError,
            r"plus plus\[4\] bf16 must have shape \(4, 64\)",
        ),
    ],
)
def test_what_is_no_op_of_rows_says_so(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


#: Tokens; rows of a tile of the norm; tile; choices beside one worker.
BLOCKS = {
    "one token, in parts": (1, 1, il.MatmulTile(16, 64, 64, swap_ab=True), {"split": {"down": il.SplitK(2)}}),
    "two warpgroups, a row by two warps, static": (
        70,
        4,
        il.MatmulTile(128, 56, 64, num_warps=8),
        {"dispatch": il.Dispatch.STATIC, "policy": il.RowSync()},
    ),
    "three warpgroups, two rows by six warps each": (
        150,
        2,
        il.MatmulTile(192, 56, 64, num_warps=12),
        {},
    ),
    "three warpgroups, rows of a tile that no warps share evenly": (
        21,
        8,
        il.MatmulTile(24, 192, 64, num_warps=12, swap_ab=True),
        {},
    ),
}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", BLOCKS)
def test_norms_and_products_pass_rows_to_each_other_in_one_launch(name: str) -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned

    m, rows, tile, schedule = BLOCKS[name]
    problem = FFNBlock(72, 136, m)
    graph = ffn_block(m, 72, 136, tile=tile, rows=rows)
    run = EmulatedLaunch(il.build(graph, il.Schedule(1, **schedule)), stages=3)
    prepare([run])
    given = {n: torch.from_numpy(v) for n, v in problem.make_inputs(0).items()}
    right = problem.run_dense(torch, {n: v.double() for n, v in given.items()})["out"]
    for seed in range(2):
        out = run_poisoned(run, {n: v.bfloat16() for n, v in given.items()}, seed)
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(out, right) < 6e-3  # rounded to bf16 three times


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_behind_a_norm_that_comes_in_several_stages_tickets_are_drawn_and_none_waits_for_ever() -> None:
    """A tile keeps the slots for weights of its last stages until its post, for which it needs all of its stages."""
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned

    tile = il.MatmulTile(8, 64, 64, swap_ab=True)
    shape = il.workloads.FFNShape(2056, 64, il.Activation.RELU, False, norm=1e-5)  # of a norm that is an op
    graph = il.workloads.ffn(8, shape, up=tile, down=tile, norm_rows=8)
    plan = il.build(graph, il.Schedule(1, il.Dispatch.TICKET))
    opened = "      open_prefetch(stage, n, STAGES, 0);\n"
    wrong = (
        f"{opened}      stage.advance();\n",
        opened + ("      await(prefetch_empty(stage.slot), stage.phase);\n      stage.advance();\n"),
    )
    run, kept = EmulatedLaunch(plan, stages=4), EmulatedLaunch(plan, stages=4, change=wrong)
    prepare([run, kept])
    torch.manual_seed(0)
    given = {name: torch.randn(graph.tensor(name).shape) / 16 for name in graph.inputs}
    narrow = {name: value.bfloat16() for name, value in given.items()}
    normed = torch.nn.functional.rms_norm(narrow["x"].double(), (2056,), narrow["w_norm"].double(), 1e-5)
    hidden = torch.relu(normed @ narrow["w_up"].double().T)
    right = narrow["x"].double() + hidden @ narrow["w_down"].double().T
    for seed in range(3):
        out = run_poisoned(run, narrow, seed)
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(out, right) < 6e-3
    assert "deadlock" in kinds_of_faults(kept, narrow, range(2))
