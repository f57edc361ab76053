"""Decode steps on a GPU: ragged batches step after step, executors alike, and captured in a CUDA graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import interlace as il
from interlace.core.errors import HangError
from interlace.executors.device import DeviceExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.workloads import LLAMAS, Decode, LlamaShape, build_decode_graph

from ..cases import TORCH, relative_error
from ..paged import in_pages, in_rows
from ..sampling import WAYS, sampling_graph, sampling_inputs

SHAPES = {
    "llama": LlamaShape(2, 512, 1024, 8, 2, 64, 3001, tied=True),
    "qwen2": LlamaShape(2, 448, 608, 14, 2, 96, 3000, qkv_bias=True),
    "qwen3": LlamaShape(2, 256, 768, 16, 2, 128, 3000, qk_norm=True),
}
#: Heads that end inside a panel of 64 elements, and heads whose queries lie in shared memory.
WIDTHS = {
    "heads of 80": LlamaShape(2, 320, 608, 12, 4, 80, 3000, qk_norm=True),
    "heads of 96, one of keys": LlamaShape(2, 384, 608, 5, 1, 96, 3000, tied=True),
    "heads of 112": LlamaShape(2, 448, 704, 14, 2, 112, 3000, qkv_bias=True),
    "heads of 160": LlamaShape(2, 320, 640, 8, 2, 160, 3000, qk_norm=True),
    "heads of 256": LlamaShape(2, 512, 1024, 8, 1, 256, 3000, tied=True),
    "heads of 192, group of 32": LlamaShape(1, 512, 1024, 32, 1, 192, 3000, qk_norm=True),
}
CAPACITY = 1088
RAGGED = (0, 1, 63, 64, 700, 1080)
EXECUTORS: tuple[type[DeviceExecutor], ...] = (
    il.SerialExecutor,
    il.CudaGraphExecutor,
    il.PdlExecutor,
    il.StreamsExecutor,
    il.SemaphoreStreamsExecutor,
)


def problem(shape: LlamaShape, batch: int, dtype: il.DType = il.bf16) -> Decode:
    return Decode(**{**vars(shape), "batch": batch, "capacity": CAPACITY, "context": 0, "dtype": dtype})


def tensors(work: Decode, graph: il.Graph, positions: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Inputs with NaN in caches beyond the positions, and poisoned outputs."""
    out: dict[str, torch.Tensor] = {}
    for name, value in work.make_inputs(0).items():
        out[name] = torch.from_numpy(value).to("cuda", TORCH[graph.tensor(name).dtype.name])
        if name.endswith("_cache"):
            for b, at in enumerate(positions):
                out[name][b, :, at:] = float("nan")
    out["position"] = torch.tensor(positions, dtype=torch.int32, device="cuda")
    for name in graph.outputs:
        t = graph.tensor(name)
        out[name] = torch.zeros(t.shape, dtype=TORCH[t.dtype.name], device="cuda")
        if t.dtype.is_floating_point:
            out[name].fill_(float("nan"))
    return out


def compute_logits(work: Decode, t: dict[str, Any], double: bool) -> torch.Tensor:
    """Logits of PyTorch, in float64 or as it computes them, without touching the caches."""
    clean = {n: v.nan_to_num() if n.endswith("_cache") else v for n, v in t.items()}
    clean = {n: v.double() if double and v.is_floating_point() else v.clone() for n, v in clean.items()}
    return work.run_dense(torch, clean)["logits"]


def check(run: DeviceExecutor, work: Decode, t: dict[str, torch.Tensor]) -> None:
    """Runs a step, which must be about as right as PyTorch's."""
    gold, plain = compute_logits(work, t, True), compute_logits(work, t, False)
    run.run(t)
    run.synchronize()
    assert relative_error(t["logits"], gold) <= 1.5 * relative_error(plain, gold)


def go_on(t: dict[str, torch.Tensor]) -> None:
    """Checks the token after a step and takes it to the next position."""
    assert t["next"].tolist() == t["logits"].argmax(1).tolist()
    t["tokens"].copy_(t["next"])
    t["position"] += 1


@pytest.mark.parametrize("dtype", [il.bf16, il.fp16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_steps_of_a_ragged_batch_are_right_on_every_executor(name: str, dtype: il.DType) -> None:
    work = problem(SHAPES[name], len(RAGGED), dtype)
    graph = work.build_graph(il.H200)
    plan = il.build(graph, il.Schedule(132, policy=il.RowSync()))
    first: dict[str, torch.Tensor] = {}
    for cls in EXECUTORS:
        run, t = cls(plan, il.RunOptions(timeout_s=10.0)), tensors(work, graph, RAGGED)
        for step in range(3):
            check(run, work, t)
            go_on(t)
            written = t["layers.1.v_cache"][:, 0, :, 0].isnan().sum(1).tolist()
            assert written == [CAPACITY - at - step - 1 for at in RAGGED]
        first = first or t
        assert torch.equal(t["logits"], first["logits"])


def test_more_splits_than_one_and_few_tokens_change_nothing_but_rounding() -> None:
    work = problem(SHAPES["llama"], 1)
    graph = work.build_graph(il.H200)
    assert graph.op("layers.0.attend").grid == (1, 2, 6)
    for at in (0, 40, 1087):
        t = tensors(work, graph, (at,))
        check(il.PdlExecutor(il.build(graph, il.Schedule(132))), work, t)


def test_a_sequence_of_a_batch_gives_bit_for_bit_what_it_gives_alone() -> None:
    """With one split both times: shares of another number of splits would round otherwise."""
    shape, positions, which = SHAPES["llama"], (64, 700, 0), 1
    one_split = replace(il.H200, sms=2)
    graph = build_decode_graph(shape, len(positions), CAPACITY, one_split)
    batch = tensors(problem(shape, len(positions)), graph, positions)
    own = [n for n in batch if n in ("tokens", "position", *graph.outputs) or n.endswith("_cache")]
    alone = batch | {name: batch[name][which : which + 1].clone() for name in own}
    for each, t in ((graph, batch), (build_decode_graph(shape, 1, CAPACITY, one_split), alone)):
        run = il.SerialExecutor(il.build(each, il.Schedule(132)))
        run.run(t)
        run.synchronize()
    assert torch.equal(batch["logits"][which], alone["logits"][0])


@pytest.mark.parametrize("name", SHAPES | WIDTHS)
@pytest.mark.parametrize("executor", [il.PdlExecutor, il.MegakernelExecutor])
def test_steps_over_pages_are_bit_for_bit_those_over_a_cache_for_each_sequence(
    executor: type[DeviceExecutor], name: str
) -> None:
    shape, positions, pages = (SHAPES | WIDTHS)[name], (*RAGGED[:-1], 1020), 40
    work = problem(shape, len(positions))
    graphs = work.build_graph(il.H200), build_decode_graph(shape, len(positions), CAPACITY, il.H200, pages=pages)
    rows = tensors(work, graphs[0], positions)
    both = rows, {n: v.clone() for n, v in in_pages(rows, pages).items()}
    runs = [executor(il.autoplan(graph, executor=executor), il.RunOptions(timeout_s=10.0)) for graph in graphs]
    for _ in range(3):
        for run, t in zip(runs, both, strict=True):
            run.run(t)
            run.synchronize()
            go_on(t)
        assert torch.equal(*(t["logits"] for t in both))
        found = in_rows(both[1])
        for n in (n for n in rows if n.endswith("_cache")):
            assert torch.equal(found[n].nan_to_num(), rows[n].nan_to_num()), n


def test_the_step_of_a_published_model_is_as_right_as_pytorch() -> None:
    work = problem(LLAMAS["smollm2-135m"], 1)
    graph = work.build_graph(il.H200)
    t = tensors(work, graph, (1000,))
    run = il.CudaGraphExecutor(il.build(graph, il.Schedule(132)))
    for _ in range(3):
        check(run, work, t)


# ---------------------------------------------------------------- the whole step in one launch


def one_launch(graph: il.Graph, **options: Any) -> il.MegakernelExecutor:
    plan = il.autoplan(graph, executor=il.MegakernelExecutor)
    return il.MegakernelExecutor(plan, il.RunOptions(timeout_s=10.0, **options))


#: Of one launch too: groups of queries that warps share, with a norm.
GROUPS = {"groups of 13": LlamaShape(1, 256, 512, 26, 2, 64, 3000, qk_norm=True)}


@pytest.mark.parametrize("dtype", [il.bf16, il.fp16], ids=str)
@pytest.mark.parametrize("name", SHAPES | WIDTHS | GROUPS)
def test_a_step_in_one_launch_is_right_for_a_ragged_batch(name: str, dtype: il.DType) -> None:
    work = problem((SHAPES | WIDTHS | GROUPS)[name], len(RAGGED), dtype)
    graph = work.build_graph(il.H200)
    run, t = one_launch(graph), tensors(work, graph, RAGGED)
    for step in range(3):
        for inner in graph.intermediates:
            value = run.get_intermediate(inner)
            value.fill_(float("nan") if value.is_floating_point() else -1)
        check(run, work, t)
        go_on(t)
        written = t[f"layers.{work.layers - 1}.k_cache"][:, 0, :, 0].isnan().sum(1).tolist()
        assert written == [CAPACITY - at - step - 1 for at in RAGGED]


@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("name", WIDTHS)
def test_a_step_of_one_sequence_and_of_many_is_right_for_heads_of_any_width(name: str, batch: int) -> None:
    work = problem(WIDTHS[name], batch)
    graph = work.build_graph(il.H200)
    run, t = one_launch(graph), tensors(work, graph, tuple(1080 - 30 * b for b in range(batch)))
    for _ in range(3):
        check(run, work, t)
        go_on(t)


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("dependent", [False, True])
def test_steps_in_one_launch_each_are_the_same_under_any_delays(dependent: bool, batch: int) -> None:
    """Back to back without a synchronisation of the host, each writing the same rows again.

    With 64 sequences products are split, and their sums lie where those of ops before them lay.
    """
    work = problem(SHAPES["llama"], batch)
    graph = work.build_graph(il.H200)
    t = tensors(work, graph, (700,) * batch)
    first = one_launch(graph)
    first.run(t)
    first.synchronize()
    logits = t["logits"].clone()
    run = one_launch(graph, dependent_launch=dependent, jitter_s=2e-6)
    results = [torch.empty_like(logits) for _ in range(100)]
    for out in results:
        run.run({**t, "logits": out})
    run.synchronize()
    assert all(torch.equal(out, logits) for out in results)


#: Its products of few weight rows have stages in several turns, one of them fewer than registers are for.
TURNS = {"turns": LlamaShape(2, 576, 1536, 9, 3, 64, 3000, tied=True)}


@pytest.mark.parametrize(("name", "batch"), [("turns", 1), ("llama", 1), ("llama", 4), ("llama", 64)])
def test_a_step_is_bit_for_bit_what_one_block_computes_tile_after_tile(name: str, batch: int) -> None:
    """The same bodies in series, but that nothing is words: all tiles, whole or in parts, in the order of the plan.

    As a step is deployed, parts share the work of adding their sums, each in an order of its own.
    """
    work = problem((SHAPES | TURNS)[name], batch)
    graph = work.build_graph(il.H200)
    t = tensors(work, graph, (700,) * batch)
    schedule = il.MegakernelExecutor.select_default(graph, il.H200)
    series, many = (
        il.build(graph, replace(schedule, workers=workers, dispatch=dispatch))
        for workers, dispatch in ((1, il.Dispatch.STATIC), (il.H200.sms, il.Dispatch.TICKET))
    )
    found = []
    whole = all(own.parts == 1 for own in schedule.op_tilings.values())
    for plan in (series, many, *([il.build(graph, schedule)] if whole else [])):
        run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=10.0))
        mine = {name: value.clone() for name, value in t.items()}
        for _ in range(3):
            run.run(mine)
            run.synchronize()
            mine["tokens"].copy_(mine["next"])
            mine["position"] += 1
        found.append(mine)
    assert not found[0]["logits"].isnan().any()
    for other in found[1:]:
        assert all(torch.equal(other[n].nan_to_num(), value.nan_to_num()) for n, value in found[0].items())


@pytest.mark.parametrize(("name", "batch"), [("llama3.2-1b", 1), ("llama3.2-1b", 16), ("smollm2-135m", 1)])
def test_the_step_of_a_published_model_in_one_launch_is_as_right_as_pytorch(name: str, batch: int) -> None:
    work = problem(LLAMAS[name], batch)
    graph = work.build_graph(il.H200)
    t = tensors(work, graph, tuple(1000 - 50 * b for b in range(batch)))
    run = one_launch(graph)
    gold, plain = compute_logits(work, t, True), compute_logits(work, t, False)
    for _ in range(3):
        t["logits"].fill_(float("nan"))
        run.run(t)
        run.synchronize()
        assert relative_error(t["logits"], gold) <= 1.5 * relative_error(plain, gold)


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("dtype", [il.bf16, il.fp16], ids=str)
def test_every_executor_draws_what_numpy_draws(dtype: il.DType) -> None:
    columns = 151_936
    graph = sampling_graph(len(WAYS), columns, dtype, 16384 if dtype is il.bf16 else 2048)
    given = {n: torch.from_numpy(v).to(TORCH[graph.tensor(n).dtype.name]) for n, v in sampling_inputs(columns).items()}
    plan = il.build(graph, il.Schedule(132))
    right = ReferenceExecutor(plan).run({name: value.double().numpy() for name, value in given.items()})
    for run in (one_launch(graph), *(cls(plan, il.RunOptions(timeout_s=10.0)) for cls in EXECUTORS)):
        t = {name: value.cuda() for name, value in given.items()}
        t |= {
            name: torch.zeros(graph.tensor(name).shape, dtype=TORCH[graph.tensor(name).dtype.name], device="cuda")
            for name in graph.outputs
        }
        run.run(t)
        run.synchronize()
        # Sums in float32 may end a share one number of the dtype sooner or later.
        assert t["least"].tolist() == pytest.approx(right["least"].tolist(), rel=0.01)
        assert t["next"].tolist() == right["next"].tolist()


#: What the splits of attention leave, and what tiles of few rows take of each other.
PARTS = ("parts", "peak", "total")
TOKENS = ("inner", *(f"{x}_{of}" for x in ("x_attended", "x") for of in ("scaled", "squares")))


def make_ll_step(batch: int = 1, name: str = "llama") -> tuple[Decode, il.Plan, dict[str, torch.Tensor]]:
    """A step with attention in splits, its plan and its tensors."""
    work = problem((SHAPES | WIDTHS)[name], batch)
    graph = build_decode_graph(work.model, batch, CAPACITY, il.H200)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    return work, plan, tensors(work, graph, (700,) * batch)


@pytest.mark.parametrize("name", ["llama", "heads of 80", "heads of 160"])
def test_steps_by_words_are_bit_for_bit_those_by_semaphores(name: str) -> None:
    _, plan, t = make_ll_step(name=name)
    layers = range(len([op for op in plan.graph.ops if op.name.endswith(".attend")]))
    attention = (*PARTS, "q_heads", *(f"layers.{n}.{of}_heads" for n in layers for of in "kv"))
    found = []
    for words in ((), PARTS, attention, (*attention, "heads"), None):
        run = il.MegakernelExecutor(plan, il.RunOptions(ll_tensors=words, dependent_launch=True))
        assert run.lowered.ll_edges.sizes.keys() >= {*(TOKENS if words is None else words)}
        mine = {name: value.clone() for name, value in t.items()}
        for _ in range(20):
            run.run(mine)
            mine["tokens"].copy_(mine["next"])
            mine["position"] += 1
        run.synchronize()
        found.append(mine)
    for other in found[1:]:
        assert all(torch.equal(other[n].nan_to_num(), value.nan_to_num()) for n, value in found[0].items())


def test_a_thousand_steps_by_words_with_delays_are_identical() -> None:
    _, plan, t = make_ll_step()
    run = il.MegakernelExecutor(plan, il.RunOptions(jitter_s=3e-6))
    run.run(t)
    first = t["logits"].clone()
    same = torch.ones((), dtype=torch.bool, device="cuda")
    for _ in range(1000):
        t["logits"].fill_(float("nan"))
        run.run(t)
        same &= (t["logits"] == first).all()
    run.synchronize()
    assert bool(same)


@pytest.mark.parametrize("batch", [2, 4])
def test_steps_of_several_sequences_by_words_are_bit_for_bit_those_by_semaphores(batch: int) -> None:
    _, plan, t = make_ll_step(batch)
    found = []
    for words in ((), None):
        run = il.MegakernelExecutor(plan, il.RunOptions(ll_tensors=words))
        assert bool(run.lowered.ll_edges.sizes) == (words is None)
        mine = {name: value.clone() for name, value in t.items()}
        for _ in range(20):
            run.run(mine)
            mine["position"] += 1
        run.synchronize()
        found.append(mine)
    assert all(torch.equal(found[1][n].nan_to_num(), value.nan_to_num()) for n, value in found[0].items())


def test_tokens_that_never_come_end_in_an_error_that_names_who_did_not_leave_them() -> None:
    """Its words are no publication's then, and others' runs are right."""
    _, plan, t = make_ll_step()
    good = il.MegakernelExecutor(plan)
    good.run(t)
    good.synchronize()
    right = t["logits"].clone()
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=0.2))
    finish = "    store(op, item, accumulators, inputs, feature);\n    note_words(launch, item);\n"
    text = run.composition.expanded_text
    assert text.count(finish) == 1
    late = f"    if (GATES < 2 || item.j != 1) {{\n{finish}    }}\n"
    run.__dict__["composition"] = replace(run.composition, source=text.replace(finish, late))
    run.run(t)
    # Whoever began to wait first tells, for words or, an op further on, for posts.
    with pytest.raises(HangError, match=r"inner', tile \(0, 1\) never posted"):
        run.synchronize()
    assert not any(bool(words.any()) for words in run._words.values())
    good.run(t)
    good.synchronize()
    assert torch.equal(t["logits"], right)


def test_words_that_never_come_end_in_an_error_that_names_who_did_not_leave_them() -> None:
    _, plan, t = make_ll_step()
    part = "  const long long part = (((long long)tile.i"
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=0.2))
    text = run.composition.expanded_text
    assert text.count(part) == 1
    broken = text.replace(part, f"  if (!tile.j && tile.l == 1) return;\n{part}")
    run.__dict__["composition"] = replace(run.composition, source=broken)
    run.run(t)
    with pytest.raises(HangError, match=r"attend', tile \(0, 0, 1\) never posted"):
        run.synchronize()
