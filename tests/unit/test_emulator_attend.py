"""Attention whose cache comes through the ring of the megakernel: right, and planted faults are found."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.dtypes import int32  # noqa: E402
from interlace.core.errors import PlanError, ShapeError  # noqa: E402
from interlace.kernels.append import append  # noqa: E402
from interlace.kernels.attend import BLOCK, attend  # noqa: E402
from interlace.kernels.cuda_body import CudaBody  # noqa: E402
from interlace.workloads.decode import build_rope_table  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402
from ..thorough import some  # noqa: E402

emulated = pytest.mark.skipif(bool(MISSING), reason=MISSING)

CAPACITY, POSITIONS, HEADS = 200, (0, 1, 63, 64, 150, 199), 2
TOLERANCE = {"bf16": 1e-2, "fp16": 1.3e-3}
#: dtype, elements of a head, queries of its group, splits, normalised, positions of a page. A stage has 32 positions,
#: or 64 of heads of 64 elements, unless a page has fewer.
CASES = (
    (il.bf16, 16, 4, 1, False),  # lanes keep scores of several heads
    (il.bf16, 64, 4, 2, False),  # and all that follow on tensor cores
    (il.bf16, 72, 8, 1, True),  # warps share the heads; not this one
    (il.fp16, 128, 1, 3, False),
    (il.bf16, 64, 13, 1, True),  # two sets of heads
    (il.fp16, 128, 8, 2, True),
    (il.fp16, 24, 2, 2, True, 16),  # two pages to a stage; a lane is left over
    (il.bf16, 64, 4, 2, False, 64),
    (il.bf16, 80, 3, 1, True, 64),  # and all that follow end inside a panel
    (il.fp16, 96, 5, 2, False),
    (il.bf16, 112, 7, 2, True),
    (il.fp16, 160, 12, 1, True),  # and all that follow keep their queries in the scratch
    (il.bf16, 208, 1, 2, False, 32),
    (il.bf16, 256, 3, 1, False, 64),
    (il.fp16, 192, 32, 2, False),
    (il.bf16, 64, 2, 1, True, 32),
    (il.bf16, 128, 3, 1, True, 64),  # all panels in one load
)
#: Cases of every run: all kinds above, and those with faults. They are compiled without the others.
OFTEN = tuple(CASES[n] for n in (0, 1, 2, 5, 6, 8, 11, 13))
#: In launches with an op whose dependent operands take a large slot, values lie there.
BESIDE = CASES[1], CASES[5]
FAULTS = {
    "rows are read before they have come": (
        "const bool independent = mbarrier_try_wait(prefetch_full(stage.slot), stage.phase);",
        "const bool independent = dependent;",
    ),
    "a stage is handed back before it is read": (
        "if (which < WARPS_PER_SET) softmax.add(keys, keys + rows * D, count, which);\n    stream.done();",
        "stream.done();\n    if (which < WARPS_PER_SET) softmax.add(keys, keys + rows * D, count, which);",
    ),
    "a stage is handed back before its matrices are loaded": (
        "    turn -= STAGE_ROWS / AT_ONCE;\n    stream.done();",
        "    turn -= STAGE_ROWS / AT_ONCE;\n    release(stream.stage, stream.stage.slot), stream.stage.advance();",
    ),
    "what an item begins with is noted before the header is free": (
        "      await(prefetch_empty(stage.slot), stage.phase ^ 1);\n"
        "      await(load_empty(stage.slot), stage.phase ^ 1);\n      unsigned early_bytes = 0;\n",
        "      unsigned early_bytes = 0;\n",
    ),
    "rows of q, k and v are read before they have come": (
        "const bool dependent = mbarrier_try_wait(load_full(stage.slot), stage.phase);",
        "const bool dependent = true;",
    ),
    "a position is read before its lane has kept it": (
        "      __syncwarp();\n      stage.resident = true;",
        "      stage.resident = true;",
    ),
    "queries are read before other lanes have stored them": (
        "  if constexpr (WIDE) __syncwarp();  // other lanes read queries\n",
        "",
    ),
    "warps do not wait for each other's sums": (
        "softmax.store(partials + warp_of() * WARP_FLOATS);\n  synchronise_block();",
        "softmax.store(partials + warp_of() * WARP_FLOATS);",
    ),
}
FAULTY = dict.fromkeys(FAULTS, CASES[1]) | {
    "a stage is handed back before it is read": CASES[0],
    "queries are read before other lanes have stored them": CASES[13],
}


def graph(
    dtype: il.DType, d: int, group: int, splits: int, norms: bool, page: int = 0, *, late: bool = False
) -> il.Graph:
    """Build a graph of one op; with ``late``, after another op that writes its cache."""
    batch, wide = len(POSITIONS), HEADS * d
    each = -(-CAPACITY // page) if page else 0
    shapes = {name: (batch, n) for name, n in (("q", wide * group), ("k", wide), ("v", wide))}
    cache = (batch * each, HEADS, page, d) if page else (batch, HEADS, CAPACITY, d)
    shapes |= dict.fromkeys(("k_cache", "v_cache"), cache)
    shapes |= dict.fromkeys(("q_norm", "k_norm") if norms else (), (d,))
    given = {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}
    given |= {
        "position": il.Tensor("position", (batch,), int32),
        "rope": il.Tensor("rope", (CAPACITY, d), il.fp32),
    }
    if page:
        given["table"] = il.Tensor("table", (batch, each), int32)
    out = {"out": il.Tensor("out", (batch, wide * group), dtype)}
    if splits > 1:
        parts = (batch, HEADS, splits, group)
        shapes = {"out": (*parts, d), "peak": parts, "total": parts}
        out = {name: il.Tensor(name, shape, il.fp32) for name, shape in shapes.items()}
    taken = ("k", "v", "position", "rope", "k_cache", "v_cache")
    before = [append("append", *(given[name] for name in taken))] if late else []
    ops = (*before, attend("attend", **given, **out, eps=1e-5, block=min(page or BLOCK, BLOCK)))
    return il.Graph("attend", (*given.values(), *out.values()), ops, tuple(given), tuple(out))


def emulated_launch(case: tuple, change: tuple[str, str] | None = None, *, static: bool = False) -> EmulatedLaunch:
    """``static``: an item for each block."""
    of = graph(*case)
    schedule = il.Schedule(of.ops[0].tiles, dispatch=il.Dispatch.STATIC) if static else il.Schedule(1)
    return EmulatedLaunch(il.build(of, schedule), stages=3, change=change, dependent_launch=static)


def launch_beside(case: tuple) -> EmulatedLaunch:
    tile = CudaBody._build_tile
    bytes_ = 128 * case[1] * case[0].itemsize  # two boxes
    with mock.patch.object(CudaBody, "_build_tile", lambda *args: replace(tile(*args), dependent_bytes=bytes_)):
        return emulated_launch(case)


@cache
def rare_launches() -> dict[object, EmulatedLaunch]:
    made: dict[object, EmulatedLaunch] = {
        case: emulated_launch(case, static=n % 2 == 1) for n, case in enumerate(CASES) if case not in OFTEN
    }
    made["beside", *BESIDE[1]] = launch_beside(BESIDE[1])
    prepare([*made.values()])
    return made


@cache
def launches() -> dict[object, EmulatedLaunch]:
    made: dict[object, EmulatedLaunch] = {
        case: emulated_launch(case, static=n % 2 == 1) for n, case in enumerate(CASES) if case in OFTEN
    }
    made["beside", *BESIDE[0]] = launch_beside(BESIDE[0])
    made |= {name: emulated_launch(FAULTY[name], change) for name, change in FAULTS.items()}
    prepare([*made.values()])
    return made


def tensors(run: EmulatedLaunch) -> dict[str, torch.Tensor]:
    """Inputs, with NaN in the caches from each position on, and poisoned outputs. Scores of a sequence grow."""
    of, random = run.plan.graph, np.random.default_rng(0)
    t = {"position": torch.tensor(POSITIONS, dtype=torch.int32)}
    if "table" in of.inputs:
        shape = of.tensor("table").shape
        t["table"] = torch.from_numpy(random.permutation(shape[0] * shape[1]).reshape(shape)).to(torch.int32)
    for name in (name for name in of.inputs if name not in t):
        shape = of.tensor(name).shape
        values = build_rope_table(*shape) if name == "rope" else random.standard_normal(shape, np.float32)
        t[name] = torch.from_numpy(values).to(TORCH[of.tensor(name).dtype.name])
    if "table" not in t:
        t["k_cache"][4] *= torch.linspace(0, 4, CAPACITY).to(t["k_cache"].dtype)[:, None]
    for b, at in enumerate(POSITIONS):
        for name in ("k_cache", "v_cache"):
            if "table" not in t:
                t[name][b, :, at:] = float("nan")
                continue
            page = t[name].shape[2]
            t[name][t["table"][b, at // page], :, at % page :] = float("nan")
            t[name][t["table"][b, at // page + 1 :]] = float("nan")
    return t | {name: torch.full_like(run.allocate_tensor(name), float("nan")) for name in of.outputs}


@emulated
@pytest.mark.parametrize(
    "case",
    some([*CASES, *(("beside", *case) for case in BESIDE)], (*OFTEN, ("beside", *BESIDE[0])).__contains__),
    ids=str,
)
def test_attention_of_a_ragged_batch_is_that_of_the_reference(case: tuple) -> None:
    made = launches()
    run = (made if case in made else rare_launches())[case]
    case = case[case[0] == "beside" :]
    t = tensors(run)
    run.run(t)
    assert [str(fault) for fault in run.faults] == []
    assert run._counters[0] == run._table.workers + (0 if run.is_resident else len(run.plan.items))
    given = {name: t[name].double().numpy() for name in run.plan.graph.inputs}
    right = il.ReferenceExecutor(run.plan).run(given)
    for name in run.plan.graph.outputs:
        found = t[name].double().numpy()
        same = found == right[name]  # peaks of nothing are infinite
        error = abs(np.subtract(found, right[name], out=np.zeros_like(found), where=~same))
        # What a split leaves was not divided by the total of its weights yet, each of which was rounded; values are
        # below 4.
        total = right["total"][..., None] if case[3] > 1 and name == "out" else np.ones(1)
        assert (error <= TOLERANCE[case[0].name] * np.maximum(total, 1)).all()
        if case[3] > 1:  # this share has no key of its own that is rounded, and queries are not
            weights = case[0].epsilon / 2 * 4 * total[:, :, 0] if name == "out" else 0
            assert (error[:, :, 0] <= 3e-4 + weights).all()


@emulated
@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_hand_over_of_rows_is_found(name: str) -> None:
    run = launches()[name]
    run.run(tensors(run))
    assert "race" in {fault.kind for fault in run.faults}


@emulated
@pytest.mark.parametrize(("sequences", "d", "norm"), [(3, 64, False), (17, 128, True), (140, 24, True)])
def test_rows_of_any_number_of_sequences_are_appended_to_their_pages(sequences: int, d: int, norm: bool) -> None:
    """140 sequences exceed a warp's lanes; some have no page, and some write where others of its rows do not."""
    page, each, random = 8, 3, np.random.default_rng(sequences)
    shapes = dict.fromkeys("kv", (sequences, HEADS * d)) | ({"k_norm": (d,)} if norm else {})
    shapes |= dict.fromkeys(("k_cache", "v_cache"), (sequences * each + 2, HEADS, page, d))
    made = {name: il.Tensor(name, shape, il.fp16) for name, shape in shapes.items()}
    made["position"] = il.Tensor("position", (sequences,), int32)
    made["table"] = il.Tensor("table", (sequences, each), int32)
    made["rope"] = il.Tensor("rope", (page * each, d), il.fp32)
    caches = "k_cache", "v_cache"
    of = il.Graph("append", (*made.values(),), (append("append", **made, eps=1e-5),), tuple(made), caches)
    run = EmulatedLaunch(il.build(of, il.Schedule(1)), stages=3)
    prepare([run])
    table = random.permutation(sequences * each + 2)[: sequences * each].reshape(sequences, each)
    table[::4] = -1
    given = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    given |= {"position": random.integers(0, page * each, sequences).astype(np.int32), "table": table.astype(np.int32)}
    given["rope"] = build_rope_table(page * each, d)
    t = {name: torch.from_numpy(value).clone() for name, value in given.items()}
    run.run(t)
    assert [str(fault) for fault in run.faults] == []
    double = {n: v.astype(np.float64) if v.dtype == np.float16 else v for n, v in given.items()}
    right = il.ReferenceExecutor(run.plan).run(double)
    np.testing.assert_array_equal(t["v_cache"].numpy(), right["v_cache"])
    np.testing.assert_allclose(t["k_cache"].double().numpy(), right["k_cache"], rtol=2e-3, atol=2e-3)
    written = (t["v_cache"].numpy() != given["v_cache"]).any(axis=(1, 3)).sum()
    assert written == (table[:, 0] >= 0).sum() > 0


def products_between() -> il.Graph:
    """Two products that take all of a ring of three stages into registers, then attention, a product, attention."""
    tile = il.MatmulTile(8, 48, 256, num_warps=4, swap_ab=True)
    tensors, ops = {}, []

    def tensor(name: str, *shape: int, dtype: il.DType = il.bf16) -> il.Tensor:
        tensors[name] = il.Tensor(name, shape, dtype)
        return tensors[name]

    shared = tensor("position", 1, dtype=int32), tensor("rope", CAPACITY, 64, dtype=il.fp32)
    for n, k in enumerate((768, 768, None, 512, None)):
        if k is None:
            rows = (tensor(f"{name}{n}", 1, width) for name, width in (("q", 256), ("k", 64), ("v", 64)))
            caches = (tensor(f"{name}_cache{n}", 1, 1, CAPACITY, 64) for name in "kv")
            ops.append(attend(f"attend{n}", *rows, *shared, *caches, tensor(f"out{n}", 1, 256)))
        else:
            given = tensor(f"x{n}", 1, k), tensor(f"w{n}", 48, k), tensor(f"out{n}", 1, 48)
            ops.append(il.matmul(f"matmul{n}", *given, tile=tile))
    outs = tuple(name for name in tensors if name.startswith("out"))
    return il.Graph("between", (*tensors.values(),), (*ops,), tuple(n for n in tensors if n not in outs), outs)


@emulated
def test_a_header_is_not_overwritten_where_weights_are_turns_ahead_of_tokens() -> None:
    """Products that hold a ring of weights hand back slots for these alone, and their tokens come late here."""
    first = "      open_load(stage, CONSUMERS_POLL ? 0 : (LINES + NORMALISES * PANELS) * 128);"
    late = "      if (k == k_lo) for (int n = 0; n < 3000; ++n) __nanosleep(1000);\n" + first
    plan = il.build(products_between(), il.Schedule(1, dispatch=il.Dispatch.STATIC))
    run = EmulatedLaunch(plan, stages=3, timeout_s=5.0, change=(first, late))
    prepare([run])
    random = np.random.default_rng(0)
    for seed in range(3):
        t = {
            "position": torch.tensor([20], dtype=torch.int32),
            "rope": torch.from_numpy(build_rope_table(CAPACITY, 64)),
        }
        for name in (name for name in plan.graph.inputs if name not in t):
            values = random.standard_normal(plan.graph.tensor(name).shape, np.float32)
            t[name] = torch.from_numpy(values).to(torch.bfloat16)
        t |= {name: torch.full_like(run.allocate_tensor(name), float("nan")) for name in plan.graph.outputs}
        run.seed = seed
        run.run(t)
        assert [str(fault) for fault in run.faults] == []


def test_a_cache_that_an_earlier_op_writes_is_refused() -> None:
    """It is loaded ahead of the waits, so it would be read too early."""
    with pytest.raises(PlanError, match="'attend' loads k_cache 'k_cache' ahead of every wait, but op 'append'"):
        il.MegakernelExecutor(il.build(graph(*CASES[1], late=True), il.Schedule(1)), il.RunOptions("meta"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("k_cache", r"k_cache begins at address .*, and bulk copies want a multiple of 16 bytes; copy it"),
        ("q", r"q begins at address .*, and bulk copies want a multiple of 16 bytes; copy it"),
        ("out", r"out begins at address .*, and it is taken by pairs, at a multiple of 4 bytes; copy it"),
    ],
)
def test_what_cannot_be_addressed_is_refused(name: str, message: str) -> None:
    run = emulated_launch(CASES[1])
    t = tensors(run)
    t[name] = torch.zeros(t[name].numel() + 1, dtype=torch.bfloat16)[1:].view(t[name].shape)
    with pytest.raises(ShapeError, match=message):
        run._build_launches(((run.plan.graph.ops[0], t),))


@pytest.mark.parametrize("splits", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("d", "group", "norms", "page", "registers"),
    [
        (64, 4, False, 0, 168),
        (128, 8, True, 0, 255),
        (64, 4, False, 64, 168),
        (80, 5, True, 64, 168),
        (112, 7, True, 0, 216),
        (160, 12, True, 64, 216),
        (192, 32, False, 0, 224),
        (256, 24, True, 64, 224),
    ],
)
def test_products_of_attention_fit_the_registers(
    d: int, group: int, norms: bool, page: int, registers: int, splits: int
) -> None:
    """Without two warpgroups a thread has 255, with them 168. Where nothing is split two blocks go side by side."""
    plan = il.build(graph(il.bf16, d, group, splits, norms, page), il.Schedule(1))
    binary = il.MegakernelExecutor(plan, il.RunOptions("meta")).binary
    assert (binary.resources.spill_bytes, binary.warnings) == (0, ())
    assert binary.resources.registers <= registers
    assert binary.ptx.count("mma.sync.aligned.m16n8k16") == (d // 16 * 3) * (2 if splits == 1 and d <= 128 else 1)
