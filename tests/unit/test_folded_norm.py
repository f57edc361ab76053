"""RMS normalisation in the matmuls around it: right on NumPy and in the megakernel, and what is none says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import interlace as il  # noqa: E402
from interlace.core.errors import DTypeError, ShapeError  # noqa: E402
from interlace.executors.reference import ReferenceExecutor  # noqa: E402
from interlace.kernels.embedding import embedding  # noqa: E402
from interlace.kernels.matmul.megakernel_candidates import is_fused_norm_faster  # noqa: E402
from interlace.kernels.matmul.megakernel_operands import pack  # noqa: E402
from interlace.kernels.rms_norm import rms_norm  # noqa: E402

from ..cases import TORCH, Case, by_default, ffn_answer, ffn_shape, relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..folded_norm import build_folded, compute_exact  # noqa: E402
from ..thorough import some  # noqa: E402


def tile(m: int, n: int, k: int = 64, warps: int = 4, swap_ab: bool = False) -> il.MatmulTile:
    return il.MatmulTile(m, n, k, num_warps=warps, swap_ab=swap_ab)


def inputs_of(graph: il.Graph) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = [graph.tensor(name) for name in graph.inputs]
    values = {t.name: torch.randn(t.shape) * (t.shape[-1] ** -0.5 if t.name[0] == "w" else 1.0) for t in tensors}
    return {t.name: values[t.name].to(TORCH[t.dtype.name]) for t in tensors}


@pytest.mark.parametrize("gated", [False, True])
def test_the_meaning_is_a_norm_between_two_products(gated: bool) -> None:
    """Rows of two whole sums of squares and a part of one, in tiles that end in it."""
    graph = build_folded(5, tile(16, 128), tile(16, 32), dtype=il.fp32, gated=gated)
    given = inputs_of(graph)
    right = compute_exact(given)
    plan = il.build(graph, il.Schedule(4, split={"second": il.SplitK(2)}))
    found = ReferenceExecutor(plan, seed=2).run({name: value.numpy() for name, value in given.items()})
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], right[name].numpy(), rtol=1e-5, atol=1e-6)


def test_rows_of_a_table_come_scaled_too() -> None:
    table, scale = np.arange(200.0).reshape(2, 100), np.linspace(0, 1, 100)
    t = {"tokens": il.Tensor("tokens", (1,), il.int32), "table": il.Tensor("table", (2, 100), il.fp32)}
    t |= {name: il.Tensor(name, (1, 100), il.fp32) for name in ("out", "scaled")}
    left = {"scale": il.Tensor("scale", (100,), il.fp32), "squares": il.Tensor("squares", (1, 2), il.fp32)}
    op = embedding("e", **t, **left, columns=64)
    graph = il.Graph("e", (*t.values(), *left.values()), (op,), ("tokens", "table", "scale"), ("scaled", "squares"))
    found = ReferenceExecutor(il.build(graph, il.Schedule(2))).run(
        {"tokens": np.array([1]), "table": table, "scale": scale}
    )
    np.testing.assert_allclose(found["scaled"][0], table[1] * scale)
    np.testing.assert_allclose(found["squares"][0], [(table[1, :64] ** 2).sum(), (table[1, 64:] ** 2).sum()])


def products(**other: Any) -> il.Op:
    shapes = {"x": (4, 64), "weight": (96, 64), "out": (4, 96), "scale": (96,), "scaled": (4, 96)}
    made: dict[str, Any] = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    made |= {"squares": il.Tensor("squares", (4, 2), il.fp32), "x_squares": il.Tensor("x_squares", (4, 1), il.fp32)}
    return il.matmul("m", **made | {"eps": 1e-5} | other)


SCALE = il.Tensor("x_scale", (64,), il.bf16)
HALVES = [il.Tensor(n, s, il.fp16) for n, s in (("x", (4, 64)), ("w", (96, 64)), ("out", (4, 96)), ("g", (64,)))]


def itself(**other: Any) -> il.Op:
    """One that normalises its rows itself."""
    return products(**{"x_squares": None, "scale": None, "scaled": None, "squares": None, "x_scale": SCALE} | other)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: products(scale=None), ShapeError, "op 'm': give scale, scaled and squares, or none of them"),
        (lambda: products(eps=None), ShapeError, "op 'm': give eps and one of x_squares and x_scale, or none of them"),
        (lambda: products(x_scale=SCALE), ShapeError, "op 'm': give eps and one of x_squares and x_scale, or none"),
        (lambda: products(x_squares=None, x_scale=SCALE), ShapeError, "op 'm' has both x_scale and scale; let the op"),
        (
            lambda: itself(x_scale=il.Tensor("s", (96,), il.bf16)),
            ShapeError,
            r"op 'm': x_scale s\[96\] bf16 must have shape \(64,\)",
        ),
        (lambda: itself(x_scale=il.Tensor("s", (64,), il.fp16)), DTypeError, "op 'm'"),
        (
            lambda: il.matmul("m", *HALVES[:3], x_scale=HALVES[3], eps=1e-5),
            DTypeError,
            "op 'm' scales x.* before it divides .*, which may overflow in fp16; use rms_norm before it",
        ),
        (lambda: products(squares=il.Tensor("s", (4, 1), il.fp32)), ShapeError, r"squares .* must have shape \(4, 2\)"),
        (lambda: products(squares=il.Tensor("s", (4, 2), il.bf16)), DTypeError, "squares .* must be fp32; convert it"),
        (
            lambda: products(tile=tile(16, 32)),
            ShapeError,
            "op 'm': tiles of 32 columns cut sums of squares, which are of 64 columns; use a multiple of 64",
        ),
    ],
)
def test_what_is_no_folded_norm_says_so(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("op", "name"), [(0, "scale"), (0, "residual"), (1, "x_squares"), (1, "bias"), (0, "x"), (1, "weight")]
)
def test_what_is_taken_by_16_bytes_begins_at_a_multiple_of_them(op: int, name: str) -> None:
    graph = build_folded(13, tile(64, 64), tile(64, 64))
    access = next(a for a in graph.ops[op].accesses if a.arg == name)
    tensor = graph.tensor(access.tensor)
    kind = TORCH[tensor.dtype.name]
    aside = torch.zeros(int(np.prod(tensor.shape)) + 1, dtype=kind)[1:].view(tensor.shape)
    with pytest.raises(ShapeError, match=f"op '.*': {name} begins at address .*, and .* wants? a multiple of 16 bytes"):
        pack(graph.ops[op], {name: aside}, il.bf16)


GRAPHS = {
    "few tokens": build_folded(13, tile(16, 64, swap_ab=True), tile(16, 64, 128, swap_ab=True), gated=True, depth=256),
    "two warpgroups": build_folded(70, tile(64, 128, warps=8, swap_ab=True), tile(128, 72, warps=8)),
    "three warpgroups": build_folded(135, tile(72, 192, warps=12, swap_ab=True), tile(192, 64, warps=12)),
    "tokens are rows": build_folded(70, tile(64, 128), tile(64, 72), depth=128, kept=False),
    # Of many sums, loaded in pieces: one by one and four at a time, in pieces of 16 and 8, in fewer stages than pieces;
    # of one warpgroup's rows and of further ones', in one block of 64 rows and in two, with weights held ahead.
    "two pieces a row": build_folded(70, tile(64, 48), tile(64, 72), width=2072, columns=16),
    "fewer stages than pieces": build_folded(
        70, tile(128, 112, warps=8), tile(72, 128, warps=8, swap_ab=True), width=488, columns=16
    ),
    "four at a time": build_folded(70, tile(64, 64), tile(64, 72), width=640, columns=16),
    "rows of a second warpgroup": build_folded(
        135, tile(128, 64, warps=8), tile(128, 72, warps=8), width=1216, gated=True, columns=16
    ),
    "rows of a third": build_folded(200, tile(192, 64, warps=12), tile(192, 72, warps=12), width=1152, columns=16),
    "two blocks of rows": build_folded(135, tile(128, 64), tile(128, 72), width=640, columns=16),
    "two blocks each": build_folded(260, tile(256, 48, warps=8), tile(256, 40, warps=8), width=640, columns=16),
    "weights ahead": build_folded(40, tile(40, 64, swap_ab=True), tile(40, 64, swap_ab=True), width=1152, columns=16),
}
#: Parts of a tile that share its rows, and their number: equal shares and unequal ones, of one warpgroup and of two, of
#: one block of rows and of two, of 64 columns, of fewer and of more.
SHARED = {
    "two shares": (build_folded(70, tile(64, 64), tile(64, 72), width=64, depth=128), 2),
    "three shares of two warpgroups": (
        build_folded(120, tile(128, 64, warps=8), tile(128, 72, warps=8), width=64, depth=192),
        3,
    ),
    "five shares, of which four have rows": (build_folded(40, tile(64, 64), tile(64, 72), width=64, depth=320), 5),
    "four shares of 48 columns": (build_folded(40, tile(64, 48), tile(64, 72), width=72, columns=16, depth=256), 4),
    "eight shares of two blocks of rows and 128 columns": (
        build_folded(100, tile(128, 128), tile(128, 72), width=120, depth=512, kept=False),
        8,
    ),
}
GRAPHS |= {name: graph for name, (graph, _) in SHARED.items()}
IN_PARTS = (
    "few tokens",
    "tokens are rows",
    "two pieces a row",
    "fewer stages than pieces",
    "rows of a second warpgroup",
)


ROWS = [il.Tensor("x", (3, 200), il.bf16), il.Tensor("weight", (200,), il.bf16), il.Tensor("out", (3, 200), il.bf16)]
#: The same as an op of its own.
GRAPHS["alone"] = il.Graph("norm", tuple(ROWS), (rms_norm("norm", *ROWS, eps=1e-5),), ("x", "weight"), ("out",))


#: Launches of every run. They are compiled without the others, which differ from them in extents and stages.
OFTEN = (
    "few tokens",
    "two warpgroups",
    "tokens are rows",
    "two pieces a row",
    "rows of a second warpgroup",
    "two blocks of rows",
    "weights ahead",
    "alone",
)


@cache
def launches(often: bool = True) -> dict[str, Any]:
    from ..emulator.programs import EmulatedLaunch, prepare

    made = {}
    for name, graph in GRAPHS.items():
        if (name in OFTEN) != often:
            continue
        split = {op.name: il.SplitK(2) if name in IN_PARTS else il.WholeTiles() for op in graph.ops}
        schedule = il.Schedule(2, split=split)
        if name in SHARED:
            parts = SHARED[name][1]
            schedule = il.Schedule(2 * parts, il.Dispatch.STATIC, split={"first": il.SplitK(parts)})
        made[name] = EmulatedLaunch(il.build(graph, schedule), stages=3, at_once=name in SHARED)
        assert (made[name].lowered.ops[0].tile.shared_elements > 0) == (name in SHARED)
    prepare([*made.values()])
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", some([name for name in GRAPHS if name != "alone"], OFTEN.__contains__))
def test_the_one_launch_is_right_and_touches_nothing_else(name: str) -> None:
    pytest.importorskip("triton")
    run, graph = launches(name in OFTEN)[name], GRAPHS[name]
    t = inputs_of(graph) | {output: run.allocate_tensor(output) for output in graph.outputs}
    for seed in range(2):
        for output in (*graph.outputs, "scaled"):
            (t[output] if output in t else run.get_intermediate(output)).fill_(float("nan"))
        run.seed = seed
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        right = compute_exact(t, int(graph.ops[0].param("SQUARED")))
        # Of rows as they are stored, which are not always left.
        assert relative_error(t["squares"], right["squares"]) < (1e-6 if "middle" in t else 2e-3)
        assert "middle" not in t or relative_error(t["middle"], right["middle"]) < 2e-3
        assert relative_error(t["out"], right["out"]) < 5e-3  # scaled is rounded too


def layer(m: int, kind: str, hidden: int, ffn: int, up: il.MatmulTile, down: il.MatmulTile, bias: bool = False) -> Case:
    """The half of a layer whose up-projection normalises its rows."""
    shape = ffn_shape(kind, hidden, ffn, norm=1e-2)
    return Case(il.workloads.ffn(m, shape, il.bf16, up, down, bias, device=il.H200), ffn_answer(shape))


def narrow(m: int, n: int, k: int = 64, warps: int = 4) -> il.MatmulTile:
    return tile(m, n, k, warps, swap_ab=True)


#: Of one panel and more, of stages the last of which has fewer, in turns of two warpgroups; and of more tokens, which
#: are the 64-row operand, out of registers.
LAYERS = {
    "one token": layer(1, "gated", 128, 64, narrow(8, 16, 128), narrow(8, 8)),
    "three tokens, odd panels": layer(3, "gated", 192, 128, narrow(8, 24, 192), narrow(8, 16, 128)),
    "a short last stage": layer(13, "gelu-tanh", 320, 192, narrow(16, 56, 192), narrow(16, 32), bias=True),
    "four stages": layer(16, "gated", 576, 128, narrow(16, 40, 192), narrow(16, 24, 128)),
    "two warpgroups": layer(8, "relu", 448, 64, narrow(8, 8, 192, warps=8), narrow(8, 8, warps=8)),
    "parts behind it": layer(13, "gated", 192, 256, narrow(16, 24, 192), narrow(16, 64)),
    "24 tokens": layer(24, "gated", 192, 128, tile(64, 32), tile(64, 32)),
    "two rows of tiles, the last stage of one panel": layer(70, "relu", 320, 72, tile(64, 40, 128), tile(64, 32)),
    "rows of 64 panels": layer(20, "relu", 4096, 64, tile(64, 32, 128), tile(64, 64)),
    "eight stages": layer(24, "gated", 512, 64, tile(64, 32), tile(64, 32)),
    "a row of tiles for each worker": layer(70, "relu", 320, 40, tile(64, 40, 128), tile(64, 32)),
    "stages of four panels": layer(33, "gated", 576, 64, tile(64, 24, 256), tile(64, 32)),
    "stages of three panels": layer(20, "relu", 576, 64, tile(64, 32, 192), tile(64, 32)),
    "three parts of one stage and two": layer(40, "gated", 320, 64, tile(64, 24), tile(64, 32)),
    "two blocks of rows of two warpgroups, parts": layer(
        128, "gelu-tanh", 192, 80, tile(256, 24, 64, 8), tile(128, 24, 64, 8), bias=True
    ),
    "parts that share sums": layer(90, "gelu-tanh", 320, 64, tile(128, 40, 64, 8), tile(128, 24, 64, 8), bias=True),
    "three such parts, two blocks of rows": layer(120, "gated", 192, 48, tile(128, 24), tile(64, 24)),
    "such parts of rows that are not there": layer(70, "relu", 320, 40, tile(64, 40), tile(64, 32)),
    "parts of rows that are not there": layer(70, "gated", 320, 40, tile(64, 24), tile(64, 32)),
}
#: How some of them run.
RUN = {
    "a row of tiles for each worker": il.Schedule(2, il.Dispatch.STATIC),
    "parts behind it": il.Schedule(2, split={"down": il.SplitK(2)}),
    "three parts of one stage and two": il.Schedule(3, split={"up": il.SplitK(3)}),
    "two blocks of rows of two warpgroups, parts": il.Schedule(2, split={"up": il.SplitK(2)}),
    "parts of rows that are not there": il.Schedule(3, split={"up": il.SplitK(2)}),
    "parts that share sums": il.Schedule(4, il.Dispatch.STATIC, split={"up": il.SplitK(2)}),
    "three such parts, two blocks of rows": il.Schedule(6, il.Dispatch.STATIC, split={"up": il.SplitK(3)}),
    "such parts of rows that are not there": il.Schedule(4, il.Dispatch.STATIC, split={"up": il.SplitK(2)}),
}


#: Layers that differ from the others in extents and stages: not in every run.
RARE = (
    "three tokens, odd panels",
    "four stages",
    "24 tokens",
    "eight stages",
    "stages of three panels",
    "three parts of one stage and two",
    "three such parts, two blocks of rows",
    "parts of rows that are not there",
)


@cache
def layers(rare: bool) -> dict[str, Any]:
    from ..emulator.programs import EmulatedLaunch, prepare

    chosen = {name: case for name, case in LAYERS.items() if (name in RARE) == rare}
    plans = {name: il.build(case.graph, RUN.get(name, il.Schedule(2))) for name, case in chosen.items()}
    made = {
        name: EmulatedLaunch(plan, stages=3, short_inputs=("x",), at_once=plan.dispatch is il.Dispatch.STATIC)
        for name, plan in plans.items()
    }
    assert [name for name, run in made.items() if run.lowered.ops[0].tile.shared_elements] == [
        name for name in [*RUN][-3:] if name in made
    ]
    prepare([*made.values()])
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", some(LAYERS, lambda name: name not in RARE))
def test_products_that_normalise_their_rows_are_right_and_touch_nothing_else(name: str) -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import run_poisoned

    case, run = LAYERS[name], layers(name in RARE)[name]
    assert [op.name for op in case.graph.ops] == ["up", "down"]
    m = case.graph.tensor("x").shape[0]
    for seed, rows in enumerate((m, m // 2 + 1)):  # all, and as many as there are for a module
        given = case.inputs(seed)
        x = given["x"][:rows] * torch.linspace(0.1, 3, rows)[:, None].bfloat16()  # rows whose factors differ
        out = run_poisoned(run, {**given, "x": x}, seed)[:rows]
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(out - x, case.compute_exact({**given, "x": x}) - x.double()) < 1e-2


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("magnitude", "off"), [("1.65", 1), ("1.18", 1), ("1.82", 1), ("every eighth 17 times as large", 2)]
)
def test_squares_are_about_as_right_as_results_of_rows_whose_errors_add_up(magnitude: str, off: int) -> None:
    """They are added in bf16 at first, four at a time; the factor is off by half of what their sum is."""
    pytest.importorskip("triton")
    from ..emulator.programs import run_poisoned

    case, run = LAYERS["rows of 64 panels"], layers(rare=False)["rows of 64 panels"]
    given = case.inputs(0)
    shape = given["x"].shape
    sign = torch.randn(shape, generator=torch.Generator().manual_seed(1)).sign()
    outer = torch.where(torch.arange(shape[1]) % 64 < 8, 17.0, 1.0)
    x = (sign * (outer if magnitude.startswith("every") else float(magnitude))).bfloat16()
    given |= {"x": x, "w_down": (given["w_down"] * 64).bfloat16()}  # beside which x counts little
    out, want = run_poisoned(run, given, 0) - x, case.compute_exact(given) - x.double()
    scale = float((out.double() * want).sum() / want.square().sum())
    assert abs(scale - 1) < off / 256
    assert relative_error(out, want) < 1e-2


@pytest.mark.parametrize("gated", [False, True])
def test_a_product_that_normalises_its_rows_means_a_norm_before_it(gated: bool) -> None:
    """Its parts, too, which scale but do not divide; and what each tile reads is declared."""
    shape = ffn_shape("gated" if gated else "relu", 128, 192, norm=1e-2)
    case = Case(il.workloads.ffn(5, shape, il.fp32, tile(16, 32), tile(16, 32)), ffn_answer(shape))
    given = case.inputs()
    plan = il.build(case.graph, il.Schedule(4, split={"up": il.SplitK(2)}))
    found = ReferenceExecutor(plan, seed=2).run({name: value.numpy() for name, value in given.items()})["out"]
    np.testing.assert_allclose(found, case.compute_exact(given).numpy(), rtol=1e-5, atol=1e-6)
    assert il.check_footprint(case.graph, "up", device="reference").is_complete


@pytest.mark.parametrize(
    ("m", "hidden", "ffn", "gated", "own"),
    [
        (64, 12288, 6144, False, "both"),
        (86, 3072, 8192, True, "both"),  # on an H200 2 to 6 % faster than with an op, as all that say so
        (90, 4096, 14336, True, "H200"),
        (128, 2048, 8192, True, "both"),
        (128, 4096, 14336, False, "both"),
        (256, 12288, 6144, False, "both"),
        (256, 8192, 3584, True, "both"),
        (128, 12288, 6144, False, "H100"),  # whose memory takes longer for weights, while rows are scaled
        (200, 4096, 14336, False, "H100"),
        (128, 4096, 14336, True, ""),
        (68, 5120, 27648, True, ""),
        (136, 2560, 10240, False, ""),
        (512, 4096, 14336, False, ""),
        (512, 12288, 6144, False, ""),
        (1024, 4096, 14336, True, ""),
    ],
)
def test_beyond_64_tokens_a_norm_is_an_op_where_that_is_predicted_to_be_sooner(
    m: int, hidden: int, ffn: int, gated: bool, own: str
) -> None:
    shape = ffn_shape("gated" if gated else "relu", hidden, ffn, norm=1e-5)
    for name, device in (("H100", il.H100), ("H200", il.H200)):
        alone = [] if own in (name, "both") else ["norm"]
        graph = il.workloads.ffn(m, shape, device=device)
        work = il.workloads.FeedForward(hidden, ffn, m, gated, shape.activation, norm=shape.norm)
        assert [op.name for op in work.build_graph(device).ops] == [op.name for op in graph.ops]
        assert [op.name for op in graph.ops] == [*alone, "up", "down"]
        il.MegakernelExecutor.check_tiles(graph, device)


def test_a_norm_is_an_op_where_nobody_measured_otherwise() -> None:
    """Beyond 64 tokens on other devices than those of the megakernel, and beyond 4096."""
    shape = ffn_shape("relu", 768, 3072, norm=1e-5)
    for m, device, alone in (
        (4096, il.H200, []),
        (4097, il.H200, ["norm"]),
        (64, il.CPU, []),
        (65, il.CPU, ["norm"]),
        (65, replace(il.H200, capability=(8, 0)), ["norm"]),
        (65, None, ["norm"]),
    ):
        assert [op.name for op in il.workloads.ffn(m, shape, device=device).ops] == [*alone, "up", "down"]


def test_up_to_64_tokens_rows_are_normalised_by_the_product_whatever_is_predicted() -> None:
    shape = ffn_shape("gated", 4096, 65536, norm=1e-5)
    assert not is_fused_norm_faster(17, 4096, 65536, 2, il.H200)
    assert next(op.name for op in il.workloads.ffn(17, shape).ops) == "up"


@pytest.mark.parametrize(
    ("m", "gated", "up"),
    [
        (1024, False, tile(256, 128, warps=8)),
        (1024, False, tile(192, 128, warps=12)),
        (64, True, tile(64, 136)),
        (100, True, tile(128, 80, 128, warps=8)),
        (300, False, tile(128, 128, warps=16)),
    ],
)
def test_a_tile_that_leaves_no_registers_to_normalise_has_the_norm_as_an_op(
    m: int, gated: bool, up: il.MatmulTile
) -> None:
    shape = ffn_shape("gated" if gated else "relu", 768, 3072, norm=1e-5)
    assert [op.name for op in il.workloads.ffn(m, shape, device=il.H200).ops] == ["up", "down"]
    graph = il.workloads.ffn(m, shape, up=up, down=il.MatmulTile(128, 64, 64, num_warps=8), device=il.H200)
    assert [op.name for op in graph.ops] == ["norm", "up", "down"]


def test_few_tokens_are_normalised_by_who_multiplies_them_where_tiles_can() -> None:
    def names(m: int, hidden: int, ffn: int, dtype: il.DType = il.bf16) -> list[str]:
        shape = ffn_shape("gated", hidden, ffn, norm=1e-5)
        return [op.name for op in il.workloads.ffn(m, shape, dtype, device=il.H200).ops]

    for m, hidden in ((1, 128), (16, 8192), (17, 8192), (64, 8192), (65, 2112)):
        assert names(m, hidden, 192) == ["up", "down"]
    for m, hidden in ((16, 136), (17, 136)):
        assert names(m, hidden, 192) == ["norm", "up", "down"]
    assert names(16, 128, 200) == ["norm", "up", "down"]  # the down-projection would be in other tiles
    assert names(17, 128, 200) == ["up", "down"]
    assert names(16, 128, 192, il.fp32) == ["up", "down"]
    assert names(17, 128, 192, il.fp32) == names(16, 128, 192, il.fp16) == names(17, 128, 192, il.fp16)
    assert names(17, 128, 192, il.fp16) == ["norm", "up", "down"]
    for m, n, ops in ((40, 64, ["norm", "up", "down"]), (16, 64, ["norm", "up", "down"]), (16, 56, ["up", "down"])):
        graph = il.workloads.ffn(m, ffn_shape("relu", 128, 192, norm=1e-5), up=tile(m // 8 * 8, n, swap_ab=True))
        assert [op.name for op in graph.ops] == ops
        il.MegakernelExecutor.check_tiles(graph, il.H200)
    for m, hidden in ((1, 1600), (16, 64), (16, 4096)):  # the last are not lean, or of several waves
        graph = il.workloads.ffn(m, ffn_shape("relu", hidden, 4 * hidden, norm=1e-5))
        first, second = il.MegakernelExecutor.iter_likely(graph, il.H200)
        assert first == il.MegakernelExecutor.select_default(graph, il.H200)
        assert all(first.tiles[name]["BN"] < 64 for name in ("up", "down"))
        assert second.get_op_tiling("up") == first.get_op_tiling("up")
        assert second.tiles["down"]["BN"] == 64
        assert second.get_op_tiling("down").parts > 1 or hidden != 1600


_ABSENT = layer(70, "relu", 512, 40, tile(64, 40), tile(64, 32))
_PASSED = "      await_stage(stage);\n      __syncwarp();\n      release(stage, stage.slot);\n"
_LATE = "      if (threadIdx.x % 32 == 5) for (int late = 0; late < 200; ++late) __nanosleep(100);\n"


@cache
def launch_late() -> list[Any]:
    from ..emulator.programs import EmulatedLaunch, prepare

    plan = il.build(_ABSENT.graph, il.Schedule(1))
    texts = _LATE + _PASSED, _LATE + _PASSED.replace("      __syncwarp();\n", "")
    made = [
        EmulatedLaunch(plan, stages=3, short_inputs=("x",), timeout_s=2.0, change=(_PASSED, text)) for text in texts
    ]
    prepare(made)
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_slots_of_rows_that_are_not_there_are_handed_back_when_all_lanes_have_seen_them() -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import kinds_of_faults, run_poisoned

    good, bad = launch_late()
    given = _ABSENT.inputs(0)
    few = {**given, "x": given["x"][:10]}
    for seed in range(3):
        out = run_poisoned(good, few, seed)[:10]
        assert relative_error(out - few["x"], _ABSENT.compute_exact(few) - few["x"].double()) < 1e-2
    assert [str(fault) for fault in good.faults] == []
    assert "deadlock" in kinds_of_faults(bad, few, [0])


def behind_an_op(m: int, k: int, n: int, out: int) -> il.Graph:
    """Rows that another op of the graph wrote, normalised by who multiplies them."""
    shapes = {"x": (m, k), "w_x": (k, k), "w_norm": (k,), "w_up": (n, k), "w_down": (out, n)}
    made = {"y": (m, k), "inner": (m, n), "out": (m, out)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in (shapes | made).items()}
    norm: dict[str, Any] = {"x_scale": t["w_norm"], "eps": 1e-2}
    ops = (
        il.matmul("first", t["x"], t["w_x"], t["y"]),
        il.matmul("up", t["y"], t["w_up"], t["inner"], activation=il.Activation.RELU, **norm),
        il.matmul("down", t["inner"], t["w_down"], t["out"]),
    )
    return il.Graph("behind", tuple(t.values()), ops, tuple(shapes), ("out",))


@cache
def launches_behind() -> dict[tuple[int, ...], Any]:
    from ..emulator.programs import EmulatedLaunch, prepare

    # More tokens than tiles of few weight rows have, and an op that cannot be in these beside one that must be.
    shapes = (24, 128, 64, 64), (4, 128, 72, 64)
    made = {shape: EmulatedLaunch(by_default(behind_an_op(*shape), 2), stages=3) for shape in shapes}
    prepare([*made.values()])
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("shape", [(24, 128, 64, 64), (4, 128, 72, 64)])
def test_rows_that_another_op_wrote_are_normalised_as_the_rules_tile_it(shape: tuple[int, ...]) -> None:
    pytest.importorskip("triton")
    from ..emulator.programs import run_poisoned

    run = launches_behind()[shape]
    given = inputs_of(run.plan.graph)
    out = run_poisoned(run, given, 0)
    assert [str(fault) for fault in run.faults] == []
    d = {name: value.double() for name, value in given.items()}
    y = (d["x"] @ d["w_x"].T).bfloat16().double()
    inner = torch.relu(y / (y.square().mean(1, keepdim=True) + 1e-2).sqrt() * d["w_norm"] @ d["w_up"].T)
    assert relative_error(out, inner @ d["w_down"].T) < 6e-3


@pytest.mark.parametrize(("m", "warps"), [(20, 4), (64, 4), (100, 8), (300, 8)])
def test_from_17_tokens_on_rows_that_are_normalised_are_the_64_row_operand(m: int, warps: int) -> None:
    graph = behind_an_op(m, 128, 192, 128)
    for schedule in il.MegakernelExecutor.iter_likely(graph, il.H200):
        tiles = schedule.tiles
        assert not tiles["up"]["SWAP"]
        assert {of["num_warps"] for of in tiles.values()} == {warps} or m > 128
    up = il.MegakernelExecutor.select_default(graph, il.H200).tiles["up"]
    assert up["BM"] == 16 * warps


@pytest.mark.parametrize(
    ("own", "k", "warpgroups", "told"),
    [
        (tile(16, 64, swap_ab=True), 64, 1, "normalise their rows only without swap_ab; leave it out, or use rms_nor"),
        (tile(64, 64), 72, 1, "tiles normalise rows of a multiple of 64 elements; use rms_norm before the op"),
        (tile(64, 160, 128), 128, 1, "208 registers a thread for sums and for tokens that are normalised, and at "),
        (tile(192, 128, 64, 12), 64, 3, "128 registers a thread for sums and for tokens that are normalised, and at "),
    ],
)
def test_a_tile_that_cannot_normalise_its_rows_says_so(own: il.MatmulTile, k: int, warpgroups: int, told: str) -> None:
    from interlace.kernels.matmul.megakernel_body import MEGAKERNEL_BODY

    shapes = {"x": (24, k), "weight": (192, k), "out": (24, 192), "x_scale": (k,)}
    op = il.matmul("m", **{arg: il.Tensor(arg, shape, il.bf16) for arg, shape in shapes.items()}, eps=1e-5, tile=own)
    with pytest.raises(ShapeError, match=f"op 'm': tile of .*{told}"):
        MEGAKERNEL_BODY.tiling.build_tile(op, 1, warpgroups)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_norm_of_its_own_is_right_in_the_one_launch() -> None:
    pytest.importorskip("triton")
    run, t = launches()["alone"], inputs_of(GRAPHS["alone"])
    t["out"] = run.allocate_tensor("out")
    run.run(t)
    assert [str(fault) for fault in run.faults] == []
    right = torch.nn.functional.rms_norm(t["x"].double(), (200,), t["weight"].double(), 1e-5)
    assert relative_error(t["out"], right) < 2e-3
