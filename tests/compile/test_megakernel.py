"""The megakernel compiles without a GPU, keeps the memory order, and rejects what it cannot run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import interlace as il
from interlace import csrc
from interlace.core.errors import (
    DTypeError,
    GraphError,
    NoDeviceError,
    PlanError,
    ShapeError,
    TooManyWorkersError,
)
from interlace.kernels.cuda.compiler import CudaBinary, KernelResources
from interlace.kernels.lint import lint
from interlace.megakernel import registers
from interlace.megakernel.constants import KEEPS
from interlace.megakernel.options import Termination
from interlace.workloads import quadrature

from ..benchmarks import load_script
from ..cases import by_default
from ..thorough import some
from .limits import assert_within
from .policies import count_hinted_loads

META = il.RunOptions("meta")
A = il.Activation
SHAPES = {
    "relu": il.workloads.FFNShape(4096, 14336, A.RELU, False),
    "gated": il.workloads.FFNShape(4096, 14336, A.SILU, True),
    "gelu": il.workloads.FFNShape(12288, 6144, A.GELU_TANH, False),
    "narrow": il.workloads.FFNShape(896, 4864, A.SILU, True),
}
#: Limits of default launches by tokens: registers of a thread (None if all are used), then KiB of code by shape.
LIMITS = {
    1: (232, {"relu": 47, "gated": 49}),
    16: (232, {"relu": 51, "gated": 54, "gelu": 56, "narrow": 79}),
    64: (None, {"relu": 70, "gated": 78, "gelu": 82, "narrow": 69}),
    128: (None, {"relu": 71, "gated": 75, "gelu": 80, "narrow": 65}),
    256: (None, {"relu": 101, "gated": 104, "gelu": 100, "narrow": 74}),
    1024: (None, {"relu": 60, "gated": 62, "gelu": 75, "narrow": 79}),
}
#: Bytes that a fix-up of wide tiles may spill, once per item; nothing else may spill.
FIX_UP_SPILLS = 256


def launch(graph: il.Graph, options: il.RunOptions = META, **schedule: object) -> il.MegakernelExecutor:
    return il.MegakernelExecutor(il.build(graph, il.Schedule(132, **schedule)), options)


#: 1 and 16 tokens differ in ``narrow`` and ``gelu`` no more than in ``relu``; each shape occurs, up to 256 tokens.
VARIANTS = [
    pytest.param(shape, m, il.bf16, marks=() if shape in often else pytest.mark.thorough)
    for m, often in {
        1: ("relu", "gated"),
        16: ("narrow",),
        64: ("gelu",),
        128: ("relu",),
        256: ("gated",),
        1024: (),
    }.items()
    for shape in SHAPES
    if m > 1 or shape in often
]


@pytest.mark.parametrize(("m", "tried"), [(1, [172, 160, 142, 100]), (64, [172])])
def test_a_launch_that_spills_holds_fewer_weights_in_registers(
    m: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All numbers are compiled in parallel, and the compilation with the fewest spills is used."""
    seen: list[int] = []

    def compile_fake(text: str, name: str, architecture: str, *, preamble: str) -> CudaBinary:
        seen.append(int((re.findall(r"define REGISTERS_TO_HOLD (\d+)", preamble + text))[0] if m == 1 else 172))
        return CudaBinary(name, name, b"", "", KernelResources(255, 8 if seen[-1] > 150 else 4, 0, 0), (str(seen[-1]),))

    monkeypatch.setattr(registers, "compile_source", compile_fake)
    graph = il.workloads.ffn(m, SHAPES["gated"])
    binary = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), META).binary
    assert (sorted(seen, reverse=True), binary.warnings) == (tried, ("142" if m == 1 else "172",))


FP16 = [("relu", 16, il.fp16), pytest.param("gated", 256, il.fp16, marks=pytest.mark.thorough)]


@pytest.mark.parametrize(("shape", "m", "dtype"), [*VARIANTS, *FP16])
def test_default_launches_compile_and_keep_the_memory_order(shape: str, m: int, dtype: il.DType) -> None:
    graph = il.workloads.ffn(m, SHAPES[shape], dtype, bias=shape == "gelu")
    run = il.MegakernelExecutor(by_default(graph), il.RunOptions("meta", dependent_launch=True))
    resources, split = run.binary.resources, run._table.parts.max() > 1
    assert resources.spill_bytes <= (FIX_UP_SPILLS if split else 0)
    registers, code_kib = LIMITS[m]
    assert_within(resources, code_kib[shape], registers)
    assert run.binary.warnings == ()  # serialised wgmma, or setmaxnreg that ptxas ignores
    assert run.composition.shared_bytes <= il.H200.smem_bytes
    assert run.composition.stages >= 3
    ptx = run.binary.ptx
    assert lint(ptx, posts=True, waits=True, posting_warp=True) == []
    widths = {int(n) for n in re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", ptx)}
    tiles = [op.parameters for op in run.plan.graph.ops]
    narrow = [tile["SWAP"] and tile["BN"] < 64 for tile in tiles]
    assert any(narrow) == ("mma.sync.aligned.m16n8k16" in ptx) == (m == 1 or (m == 16 and shape != "narrow"))
    wide = [tile for tile, few in zip(tiles, narrow, strict=True) if not few]
    assert widths == {tile["BM"] if tile["SWAP"] else tile["BN"] for tile in wide}


#: KiB of code of layers by shape and tokens. All except the first try fewer registers for waiting operands.
LAYERS = {
    ("gated", 64): 92,
    ("relu", 64): 93,
    ("gated", 24): 97,
    ("narrow", 100): 93,
    ("gelu", 64): 107,
    ("medium", 24): 97,
}
#: Largest tiles with normalised tokens: (tile, warpgroups, True if there is a gate).
LARGEST = [
    ((64, 64, 128), 1, True),
    ((128, 256, 64), 2, False),
    ((192, 96, 64), 3, False),
    *(
        pytest.param(*case, marks=pytest.mark.thorough)
        for case in (
            ((64, 256, 64), 1, False),
            ((64, 128, 128), 1, False),
            ((128, 64, 64), 1, False),
            ((128, 128, 128), 2, False),
            ((256, 64, 64), 2, False),
        )
    ),
]


@pytest.mark.parametrize("case", some([*LAYERS], lambda case: case == ("narrow", 100)), ids=str)
def test_products_are_under_way_while_rows_are_normalised(case: tuple[str, int]) -> None:
    shape, m = case
    of = (SHAPES | {"medium": il.workloads.FFNShape(1600, 6400, A.GELU_TANH, False)})[shape]
    graph = il.workloads.ffn(m, replace(of, norm=1e-5), device=il.H200)
    assert [op.name for op in graph.ops] == ["up", "down"]
    run = il.MegakernelExecutor(by_default(graph), il.RunOptions("meta", dependent_launch=True))
    assert (run.binary.warnings, run.binary.resources.spill_bytes) == ((), 0)
    assert_within(run.binary.resources, LAYERS[shape, m])
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []


@pytest.mark.parametrize("m", some([1, 16, 24, 64, 100], lambda m: m in (16, 100)))
def test_a_layer_as_a_plan_file_has_it_is_a_launch(m: int) -> None:
    """Its tiles were not chosen for the megakernel."""
    graph = il.workloads.FeedForward(1600, 6400, m, norm=1e-5).build_graph(il.H200)
    assert [op.name for op in graph.ops] == ["up", "down"]
    run = launch(graph)
    assert run.composition.stages >= 2
    assert (run.binary.warnings, run.binary.resources.spill_bytes) == ((), 0)


@pytest.mark.parametrize("parts", some([1, 2, 3], lambda parts: parts == 2))
@pytest.mark.parametrize(("tile", "warpgroups", "gated"), LARGEST)
def test_the_largest_tiles_that_normalise_rows_fit_the_registers(
    tile: tuple[int, int, int], warpgroups: int, gated: bool, parts: int
) -> None:
    shapes = {"x": (300, 4096), "weight": (4096, 4096), "out": (300, 4096), "x_scale": (4096,)}
    shapes |= {"gate": (4096, 4096)} if gated else {}
    t = {arg: il.Tensor(arg, shape, il.bf16) for arg, shape in shapes.items()}
    own = il.MatmulTile(*tile, num_warps=4 * warpgroups)
    op = il.matmul("m", **t, activation=A.SILU if gated else A.NONE, eps=1e-5, tile=own)
    graph = il.Graph("m", (*t.values(),), (op,), tuple(arg for arg in t if arg != "out"), ("out",))
    run = launch(graph, split={"m": il.SplitK(parts)})
    assert (run.binary.warnings, run.binary.resources.spill_bytes) == ((), 0)


def test_for_racecheck_all_lanes_arrive_at_what_hands_messages_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csrc, "read_header", csrc.read_header)
    before = launch(il.workloads.one_matmul(8, 64, 64)).binary.ptx.count("mbarrier.arrive")
    load_script("memcheck")["all_lanes_arrive"]()
    text = csrc.read_header("ring/ring.cuh") + csrc.read_header("roles.cuh")
    for barrier, arrivals in (("sent", "32"), ("received", "32 * (WARPGROUPS * 4 + 2)")):
        arrive = re.findall(rf".*mbarrier_arrive\({barrier}\(.*", text)
        assert {"if" in line for line in arrive} == {False}
        assert f"mbarrier_init({barrier}(t), {arrivals})" in text
    assert launch(il.workloads.one_matmul(8, 64, 64)).binary.ptx.count("mbarrier.arrive") == before


@pytest.mark.parametrize("m", some([64, 128, 160], lambda m: m == 160))
def test_sums_of_squares_come_while_products_are_under_way(m: int) -> None:
    """Loads and sums of squares do not serialise products, with tokens as rows (1 or 2 warpgroups) or columns."""
    run = il.MegakernelExecutor(by_default(il.workloads.normed_matmuls(m, 4096, 14336, 4096)), META)
    assert (run.binary.warnings, run.binary.resources.spill_bytes) == ((), 0)


#: Cases of one matmul (tokens, tile, parts): tokens as rows or columns; equal shares, or a narrower last one.
SHARES = {
    "three of 64 columns": (256, il.MatmulTile(128, 192, 64, num_warps=8), 3),
    "five of 8 tokens": (33, il.MatmulTile(40, 64, 128, swap_ab=True), 5),
    "two of 32 and 24 columns": (64, il.MatmulTile(64, 56, 128), 2),
}


def sharing(name: str) -> il.MegakernelExecutor:
    m, tile, parts = SHARES[name]
    extents = {"x": (m, 2048), "w": (1024, 2048), "residual": (m, 1024), "out": (m, 1024)}
    t = {n: il.Tensor(n, extent, il.bf16) for n, extent in extents.items()}
    op = il.matmul("op", t["x"], t["w"], t["out"], residual=t["residual"], tile=tile)
    graph = il.Graph("one", tuple(t.values()), (op,), ("x", "w", "residual"), ("out",))
    return launch(graph, dispatch=il.Dispatch.STATIC, split=il.SplitK(parts))


@pytest.mark.parametrize("name", SHARES)
def test_parts_that_share_sums_keep_the_memory_order(name: str) -> None:
    run, (_, tile, parts) = sharing(name), SHARES[name]
    (part,) = run.lowered.ops
    wide = tile.m if tile.swap_ab else tile.n
    assert part.tile.shared_elements == tile.m * tile.n // wide * -(-wide // (8 * parts)) * 8
    assert run.binary.resources.spill_bytes == 0
    assert run.binary.warnings == ()
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert len(places(run.binary.ptx.splitlines(), r"red\.release\.gpu")) == 1, "of the warp that posts"


@pytest.mark.parametrize("tiles", some([(112, 32), (128, 256), (88, 120)], lambda tiles: tiles == (88, 120)), ids=str)
def test_the_last_part_of_a_tile_adds_the_sums_of_others_without_spills(tiles: tuple[int, int]) -> None:
    """The other registers determine in how many round trips the partials of other parts are loaded."""
    up, down = (il.MatmulTile(64, width, 64) for width in tiles)
    graph = il.workloads.ffn(300, il.workloads.FFNShape(1024, 2816, A.SILU, True), up=up, down=down)
    assert launch(graph, split=il.SplitK(4)).binary.resources.spill_bytes == 0


def test_the_lint_finds_words_that_are_stored_between_a_barrier_and_a_post() -> None:
    lines = sharing("five of 8 tokens").binary.ptx.splitlines()
    (post,) = places(lines, r"red\.release\.gpu")
    late = "\n".join([*lines[:post], "st.relaxed.gpu.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};", *lines[post:]])
    assert {fault.rule for fault in lint(late, posts=True, waits=True, posting_warp=True)} == {"release"}


def places(lines: list[str], pattern: str) -> list[int]:
    return [i for i, line in enumerate(lines) if re.search(pattern, line)]


@pytest.mark.parametrize(("shape", "m"), [("relu", 16), ("gated", 256)])
def test_the_lint_finds_each_missing_fence_and_a_load_ahead_of_the_launch_before(shape: str, m: int) -> None:
    graph = il.workloads.ffn(m, SHAPES[shape], il.bf16)
    run = il.MegakernelExecutor(by_default(graph), il.RunOptions("meta", dependent_launch=True))
    lines = run.binary.ptx.splitlines()

    def find_rules(changed: list[str]) -> set[str]:
        return {f.rule for f in lint("\n".join(changed), posts=True, waits=True, posting_warp=True)}

    fences = places(lines, r"fence\.proxy\.async\.global")
    assert fences
    for fence in fences:
        assert find_rules([*lines[:fence], *lines[fence + 1 :]]) == {"tma-load"}
    polls = ["" if "bar.warp.sync" in line else line for line in lines]
    assert find_rules(polls) >= {"hand-off"}
    wait = places(lines, r"griddepcontrol\.wait")[0]
    four = "v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];"
    for early in (f"ld.global.{four}", f"ld.relaxed.gpu.global.{four}", "st.relaxed.gpu.global.b32 [%rd1], %r1;"):
        assert "dependent" in find_rules([*lines[:wait], early, *lines[wait:]])


@pytest.mark.parametrize("m", [16, 64, 300])
def test_weights_leave_the_l2_before_tokens_do(m: int) -> None:
    weights, tokens = count_hinted_loads(launch(il.workloads.ffn(m, SHAPES["gated"], il.bf16)).binary.ptx)
    assert (weights, tokens) == (3, 2)  # weights: gate and up, down; tokens: one operand each


def test_ops_of_equal_tiles_share_their_code() -> None:
    tensors = [il.Tensor(f"x{i}", (64, 128), il.bf16) for i in range(9)]
    weights = [il.Tensor(f"w{i}", (128, 128), il.bf16) for i in range(8)]
    tile = il.MatmulTile(64, 128, 64)
    ops = tuple(il.matmul(f"op{i}", tensors[i], weights[i], tensors[i + 1], tile=tile) for i in range(8))
    chain = il.Graph("chain", (*tensors, *weights), ops, ("x0", *(w.name for w in weights)), ("x8",))
    run = launch(chain)
    assert run.composition.source.count("::compute(launch, item") == 1
    assert not (run._table.items["code"] % KEEPS).any()


@pytest.mark.parametrize("rows", [6144, 8192, 12288, 14336])
@pytest.mark.parametrize("m", [1, 8])
def test_tiles_of_few_tokens_leave_the_busiest_sm_an_equal_share(m: int, rows: int) -> None:
    extents = {"x": (m, 4096), "w": (rows, 4096), "out": (m, rows)}
    x, w, out = (il.Tensor(name, shape, il.bf16) for name, shape in extents.items())
    graph = il.Graph("one", (x, w, out), (il.matmul("op", x, w, out),), ("x", "w"), ("out",))
    tiling = il.MegakernelExecutor.select_default(graph, il.H200).get_op_tiling("op")
    tile = dict(tiling.params)
    assert tiling.parts == 1
    assert tile["SWAP"]
    assert tile["BN"] < 64
    items = -(-rows // tile["BN"])
    assert -(-items // 132) * tile["BN"] * 132 < 1.05 * rows


#: Parts of both ops if tokens take more than a third of a stage with few weight rows.
@pytest.mark.parametrize(("gated", "m", "parts"), [(False, 16, (1, 4)), (True, 16, (1, 4))])
def test_tokens_that_weigh_as_much_as_weights_are_cut_into_waves(gated: bool, m: int, parts: tuple[int, int]) -> None:
    shape = il.workloads.FFNShape(2048, 8192, A.SILU if gated else A.RELU, gated)
    graph = il.workloads.ffn(m, shape, il.bf16)
    schedule = il.MegakernelExecutor.select_default(graph, il.H200)
    assert tuple(schedule.get_op_tiling(op.name).parts for op in graph.ops) == parts
    tiles = [schedule.tiles[op.name] for op in graph.ops]
    assert {(tile["BM"], tile["BN"]) for tile in tiles} == {(-(-m // 8) * 8, 64)}
    assert len({tile["BK"] * (1 + (i == 0 and gated)) for i, tile in enumerate(tiles)}) == 1  # equal stages


def test_many_tokens_take_widths_that_fill_waves() -> None:
    graph = il.workloads.ffn(512, SHAPES["relu"], il.bf16)
    up = il.MegakernelExecutor.select_default(graph, il.H200).tiles["up"]
    tiles = -(-512 // up["BM"]) * -(-14336 // up["BN"])
    assert (up["BM"], up["BN"], tiles) == (128, 224, 256)  # two waves of 132, as many as with a width of 256


#: KiB of code of the same two products under each dispatch.
DISPATCHES = {
    il.Dispatch.STATIC: 46,
    il.Dispatch.HYBRID: 50,
    il.Dispatch.QUEUE: 61,
    il.Dispatch.SPAWN: 62,
    il.Dispatch.STEALING: 67,
    il.Dispatch.DISPATCHER: 105,
}


@pytest.mark.parametrize(
    ("dispatch", "dependent"),
    [
        (il.Dispatch.STATIC, False),
        *((d, d is not il.Dispatch.SPAWN) for d in il.Dispatch if d is not il.Dispatch.TICKET),
    ],
)
def test_every_dispatch_is_taken_beside_dependent_launch(dispatch: il.Dispatch, dependent: bool) -> None:
    graph = il.workloads.ffn(16, SHAPES["relu"], il.bf16, il.MatmulTile(64, 112, 64), il.MatmulTile(64, 32, 128))
    run = launch(graph, il.RunOptions("meta", dependent_launch=dependent), dispatch=dispatch)
    assert (run.binary.resources.spill_bytes, run.binary.warnings) == (0, ())
    assert_within(run.binary.resources, DISPATCHES[dispatch], 122)
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert ("griddepcontrol.wait" in run.binary.ptx) is dependent


def test_what_it_cannot_run_is_refused_before_anything_is_compiled() -> None:
    shape = il.workloads.FFNShape(1024, 2048, A.RELU, False)
    tile = il.MatmulTile(64, 64, 64)
    with pytest.raises(DTypeError, match=r"op 'up' has .*fp32.*persistent executor"):
        launch(il.workloads.ffn(16, shape, il.fp32, tile, tile))
    odd = il.workloads.FFNShape(1024, 2044, A.RELU, False)
    with pytest.raises(ShapeError, match=r"op 'down' has x hidden.*multiple of 8 elements"):
        launch(il.workloads.ffn(16, odd, il.bf16, tile, tile))
    x, w, b, y = (il.Tensor(n, s, il.bf16) for n, s in (("x", (4, 64)), ("w", (97, 64)), ("b", (97,)), ("y", (4, 97))))
    biased = il.matmul("head", x, w, y, bias=b, tile=tile)
    with pytest.raises(ShapeError, match=r"op 'head' has out .*multiple of 8 elements. Pad it"):
        launch(il.Graph("biased", (x, w, b, y), (biased,), ("x", "w", "b"), ("y",)))
    with pytest.raises(ShapeError, match="a stage is a multiple of 64 deep"):
        launch(il.workloads.ffn(16, shape, il.bf16, il.MatmulTile(64, 64, 32), tile))
    with pytest.raises(ShapeError, match="sums of 256 registers a thread"):
        launch(il.workloads.ffn(16, shape, il.bf16, il.MatmulTile(128, 256, 64), tile))
    with pytest.raises(PlanError, match="do not hold two of them"):
        launch(il.workloads.ffn(256, shape, il.bf16, il.MatmulTile(128, 128, 1024), tile))
    x, y = (il.Tensor(name, (64,), il.fp32) for name in "xy")
    meant = il.Kernel("meant", il.Reference(lambda _, regions, params: {"y": regions["x"]}))
    op = meant.make_op("copy", (1,), {"x": (x, (il.ALL,))}, {"y": (y, (il.ALL,))})
    with pytest.raises(GraphError, match=r"op 'copy': kernel 'meant' has no megakernel CUDA C\+\+ body"):
        launch(il.Graph("meant", (x, y), (op,), ("x",), ("y",)))
    with pytest.raises(NoDeviceError):
        launch(il.workloads.ffn(16, shape, il.bf16, tile, tile), il.RunOptions("cpu"))


@pytest.mark.parametrize("other", ["x", "weight", "out", "gate", "residual"])
def test_operands_of_bf16_and_fp16_do_not_meet_in_one_product(other: str) -> None:
    extents = {"x": (16, 64), "weight": (128, 64), "out": (16, 128), "gate": (128, 64), "residual": (16, 128)}
    tensors = {name: il.Tensor(name, extent, il.bf16) for name, extent in extents.items()}
    odd = il.Tensor(other, extents[other], il.fp16)
    mixed = r"op 'up' mixes dtypes \['bf16', 'fp16'\]; convert"
    with pytest.raises(DTypeError, match=mixed):
        il.matmul("up", **tensors | {other: odd}, activation=A.SILU)
    op = il.matmul("up", **tensors, activation=A.SILU)
    graph = il.Graph("one", tuple(tensors.values()), (op,), ("x", "weight", "gate", "residual"), ("out",))
    with pytest.raises(DTypeError, match=mixed):
        replace(graph, tensors=tuple((tensors | {other: odd}).values()))
    run = launch(graph)
    given = {name: run.allocate_tensor(name) for name in tensors}
    with pytest.raises(DTypeError, match=rf"tensor '{other}' is torch.float16; .* built for torch.bfloat16"):
        run.build_launches(given | {other: given[other].half()})


VOTES = {"termination": Termination.VOTES}


@pytest.mark.parametrize(
    ("dispatch", "options"),
    [*((dispatch, {}) for dispatch in il.Dispatch if dispatch.has_resident_workers), (il.Dispatch.SPAWN, VOTES)],
)
def test_more_workers_than_sms_where_all_must_be_resident_are_refused_without_a_device_too(
    dispatch: il.Dispatch, options: dict[str, Termination]
) -> None:
    spawning = dispatch is il.Dispatch.SPAWN
    graph = quadrature(8, 2, 8, 1e-4) if spawning else il.workloads.ffn(16, SHAPES["relu"], il.bf16)
    full, many, drawn = (
        il.build(graph, il.Schedule(workers, by))
        for workers, by in ((132, dispatch), (133, dispatch), (133, dispatch if spawning else il.Dispatch.TICKET))
    )
    assert il.MegakernelExecutor(full, il.RunOptions("meta", **options))._table.workers == 132
    with pytest.raises(TooManyWorkersError, match=rf"133 workers, but .*H200 keeps 132 .* {dispatch.value} dispatch"):
        il.MegakernelExecutor(many, il.RunOptions("meta", **options))
    assert il.MegakernelExecutor(drawn, META)._table.workers == 133


def test_triton_bodies_refuse_widths_that_are_no_powers_of_two() -> None:
    graph = il.workloads.ffn(16, SHAPES["relu"], il.bf16, il.MatmulTile(64, 112, 64), il.MatmulTile(64, 32, 64))
    plan = il.build(graph, il.Schedule(132))
    for executor in (il.SerialExecutor, il.PersistentExecutor):
        with pytest.raises(ShapeError, match=r"op 'up': tile of 64 x 112 x 64.*powers of two.*one_launch executor"):
            executor(plan, META).build_launches()


def test_the_text_of_a_launch_is_the_same_for_any_number_of_equal_ops() -> None:
    def chain(n: int) -> il.Graph:
        tensors = [il.Tensor(f"x{i}", (64, 64), il.bf16) for i in range(n + 1)]
        weights = [il.Tensor(f"w{i}", (64, 64), il.bf16) for i in range(n)]
        ops = tuple(il.matmul(f"op{i}", tensors[i], weights[i], tensors[i + 1]) for i in range(n))
        return il.Graph("chain", (*tensors, *weights), ops, ("x0", *(w.name for w in weights)), (f"x{n}",))

    assert launch(chain(300)).composition.source == launch(chain(9)).composition.source


@pytest.mark.parametrize("m", some([1, 16], lambda m: m == 16))
def test_sixteen_ffn_layers_are_one_launch_whose_text_six_have_too(m: int) -> None:
    few, many = (
        il.MegakernelExecutor(il.autoplan(work.build_graph(il.H200), il.H200, il.MegakernelExecutor), META)
        for work in (il.workloads.FFNLayers(layers, 4096, 14336, m) for layers in (6, 16))
    )
    assert few.composition.source == many.composition.source
    resources = many.binary.resources
    assert (len(many.plan.graph.ops), resources.spill_bytes) == (33, 0)
    assert_within(resources, {1: 79, 16: 91}[m])
    assert lint(many.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert 4 * many._table.slots * many._slot_size < 1 << 20


@pytest.mark.parametrize("dispatch", il.Dispatch)
def test_one_warp_posts_once_for_all_warpgroups_that_share_a_tile(dispatch: il.Dispatch) -> None:
    graph = il.workloads.ffn(300, SHAPES["relu"], il.bf16, *[il.MatmulTile(128, 128, 64, num_warps=8)] * 2)
    plan = il.build(graph, il.Schedule(132, dispatch))
    assert (il.MegakernelExecutor(plan, META)._table.waits["threshold"] == plan.waits.threshold).all()
