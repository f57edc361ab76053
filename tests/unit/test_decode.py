"""The ops of a decode step against attention written another way, and whole steps against NumPy without a graph."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import ArgumentError, DTypeError, ShapeError
from interlace.deploy import avoid_resident_workers
from interlace.executors.reference import ReferenceExecutor
from interlace.graph.graph import Graph
from interlace.kernels.append import append
from interlace.kernels.argmax import block_argmax, reduce_argmax
from interlace.kernels.attend import attend, compute_max_splits, compute_split_range, select_splits
from interlace.kernels.combine import combine
from interlace.kernels.embedding import embedding
from interlace.kernels.rms_norm import rms_norm
from interlace.planner.predict import predict
from interlace.planner.search import search
from interlace.workloads import LLAMAS, Decode, LlamaShape, build_decode_graph
from interlace.workloads.decode import build_rope_table

from ..benchmarks import load_script

D, CAPACITY = 16, 200
POSITIONS = (0, 1, 63, 64, 150, 199)
NAN = float("nan")


def tensor(name: str, *shape: int, dtype: il.DType = il.fp32) -> il.Tensor:
    return il.Tensor(name, shape, dtype)


def run(ops: list[il.Op], tensors: list[il.Tensor], given: Mapping[str, Any], *wanted: str) -> dict[str, Any]:
    """The wanted outputs of ops, by the reference executor with steps drawn at random."""
    graph = Graph("ops", tuple(tensors), tuple(ops), tuple(given), wanted)
    return ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=1).run(given)


def rotate(x: np.ndarray, position: int, norm: np.ndarray | None, eps: float = 1e-5) -> np.ndarray:
    """A head at a position: pairs (d, d + D / 2) as complex numbers, turned."""
    if norm is not None:
        x = x / (np.mean(x * x) + eps) ** 0.5 * norm
    half = len(x) // 2
    angles = position * 10000.0 ** (-2 * np.arange(half) / len(x))
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag])


@pytest.mark.parametrize(
    ("group", "of", "normalised"), [(1, 1, False), (3, 0, True), (1, 4, True), (7, 3, False), (8, 2, True)]
)
def test_attention_in_splits_is_a_softmax_over_what_each_sequence_has(group: int, of: int, normalised: bool) -> None:
    """In no splits: the finished heads."""
    random, batch, heads = np.random.default_rng(group), len(POSITIONS), 2
    shapes = {"q": (batch, heads * group * D), "k": (batch, heads * D), "v": (batch, heads * D)}
    shapes |= dict.fromkeys(("k_cache", "v_cache"), (batch, heads, CAPACITY, D))
    shapes |= dict.fromkeys(("q_norm", "k_norm") if normalised else (), (D,))
    given = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    for b, at in enumerate(POSITIONS):
        given["k_cache"][b, :, at:] = given["v_cache"][b, :, at:] = NAN
    made = {name: tensor(name, *shape) for name, shape in shapes.items()}
    made["position"] = tensor("position", batch, dtype=il.int32)
    made["rope"] = tensor("rope", CAPACITY, D)
    given |= {"position": np.array(POSITIONS), "rope": build_rope_table(CAPACITY, D)}
    part = (batch, heads, max(of, 1), group)
    left = {"out": tensor("out", *part, D), "peak": tensor("peak", *part), "total": tensor("total", *part)}
    joined = tensor("joined", batch, heads * group * D)
    ops = [attend("attend", **made, **left, eps=1e-5), combine("combine", *left.values(), joined)] if of else []
    if not of:
        ops, left = [attend("attend", **made, out=joined, eps=1e-5)], {}
    found = run(ops, [*made.values(), *left.values(), joined], given, "joined")["joined"]
    for b, at in enumerate(POSITIONS):
        for h in range(heads):
            own = rotate(given["k"][b, h * D : h * D + D], at, given.get("k_norm"))
            keys = np.vstack([given["k_cache"][b, h, :at], own])
            values = np.vstack([given["v_cache"][b, h, :at], given["v"][b, h * D : h * D + D]])
            for n in range(h * group, (h + 1) * group):
                query = rotate(given["q"][b, n * D : n * D + D], at, given.get("q_norm"))
                weights = np.exp(keys @ query / D**0.5)
                expected = weights @ values / weights.sum()
                np.testing.assert_allclose(found[b, n * D : n * D + D], expected, rtol=1e-5, atol=1e-6)


def page_caches(given: dict[str, Any], page: int, random: np.random.Generator) -> dict[str, Any]:
    """The same caches (batch, heads, capacity, D) in pages of a pool that has one more, full of NaN, in any order."""
    batch, heads, capacity, d = given["k_cache"].shape
    each = -(-capacity // page)
    table = random.permutation(batch * each + 1)[:-1].reshape(batch, each)
    pools = {}
    for name in ("k_cache", "v_cache"):
        pool = np.full((batch * each + 1, heads, page, d), NAN)
        for b, n in np.ndindex(batch, each):
            rows = given[name][b, :, n * page : (n + 1) * page]
            pool[table[b, n], :, : rows.shape[1]] = rows
        pools[name] = pool
    # Pages behind the last that a sequence has are nobody's, and its own next one is.
    for b, at in enumerate(given["position"]):
        table[b, int(at) // page + 1 :] = -1
    return {**given, **pools, "table": table}


@pytest.mark.parametrize(("page", "of"), [(64, 3), (128, 1)])
def test_caches_in_pages_are_read_and_written_where_the_table_says(page: int, of: int) -> None:
    random, batch, heads, group = np.random.default_rng(page), len(POSITIONS), 2, 2
    shapes = {"q": (batch, heads * group * D), "k": (batch, heads * D), "v": (batch, heads * D)}
    shapes |= dict.fromkeys(("k_cache", "v_cache"), (batch, heads, CAPACITY, D))
    shapes |= dict.fromkeys(("q_norm", "k_norm"), (D,))
    given = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    given |= {"position": np.array(POSITIONS), "rope": build_rope_table(CAPACITY, D)}
    both = []
    for tensors in (given, page_caches(given, page, random)):
        made = {name: tensor(name, *value.shape) for name, value in tensors.items()}
        made |= {n: tensor(n, *tensors[n].shape, dtype=il.int32) for n in ("position", "table") if n in tensors}
        part = (batch, heads, of, group)
        left = {"out": tensor("out", *part, D), "peak": tensor("peak", *part), "total": tensor("total", *part)}
        own = {name: each for name, each in made.items() if name not in ("q", "q_norm")}
        ops = [attend("attend", **made, **left, eps=1e-5), append("append", **own, eps=1e-5)]
        both.append(run(ops, [*made.values(), *left.values()], tensors, *left, "k_cache", "v_cache"))
    plain, found = both
    for name in left:
        np.testing.assert_array_equal(found[name], plain[name])
    assert sum(np.isnan(found["k_cache"]).all(axis=(1, 2, 3))) == 1
    for b, at in enumerate(POSITIONS):
        for name in ("k_cache", "v_cache"):
            of_page = tensors["table"][b, at // page]
            np.testing.assert_array_equal(found[name][of_page, :, at % page], plain[name][b, :, at])


def test_a_sequence_without_a_page_writes_nothing() -> None:
    made = {name: tensor(name, 2, D) for name in ("k", "v")} | {"rope": tensor("rope", 100, D)}
    made |= {"position": tensor("position", 2, dtype=il.int32), "table": tensor("table", 2, 2, dtype=il.int32)}
    made |= {name: tensor(name, 3, 1, 64, D) for name in ("k_cache", "v_cache")}
    given: dict[str, Any] = {name: np.ones(made[name].shape) for name in ("k", "v", "rope")}
    given |= {name: np.zeros((3, 1, 64, D)) for name in ("k_cache", "v_cache")}
    given |= {"position": np.array([0, 70]), "table": np.array([[-1, 0], [0, 2]])}
    found = run([append("append", **made)], [*made.values()], given, "v_cache")["v_cache"]
    assert np.argwhere(found[..., 0]).tolist() == [[2, 0, 6]]


@pytest.mark.parametrize(("position", "of"), [(0, 3), (1, 1), (64, 2), (700, 4), (1023, 16), (5, 16)])
def test_splits_share_the_cached_positions_in_order_and_almost_evenly(position: int, of: int) -> None:
    shares = [compute_split_range(position, split, of) for split in range(of)]
    assert [at for low, high in shares for at in range(low, high)] == list(range(position))
    blocks = [-(-(high - low) // 64) for low, high in shares]
    assert max(blocks, default=0) <= -(-(-(-position // 64)) // of)  # noqa: B002
    assert shares[:2] == [(0, 192), (192, 384)] or (position, of) != (700, 4)


def test_splits_fill_the_device_once_at_most_and_leave_none_without_a_block() -> None:
    sms = il.H200.sms
    assert [compute_max_splits(sms, batch, 8, 1088) for batch in (1, 2, 16, 64)] == [16, 8, 1, 1]
    assert compute_max_splits(sms, 1, 2, 8192) == 66
    assert compute_max_splits(sms, 1, 8, 128) == 2
    for batch, heads, capacity in itertools.product((1, 3, 16), (1, 8, 32), (64, 1088, 131072)):
        of = select_splits(il.H200, batch, heads, capacity, 256)
        assert 1 <= of <= compute_max_splits(sms, batch, heads, capacity)


def test_a_short_cache_is_left_whole_and_longer_ones_are_split_further() -> None:
    assert [select_splits(il.H200, 1, 8, 64 * blocks, 256) for blocks in (1, 5, 17, 33, 65, 2048)] == [
        1,
        1,
        6,
        8,
        12,
        12,
    ]
    assert select_splits(il.H200, 1, 8, 64 * 17, 512) == select_splits(il.H200, 1, 8, 64 * 34, 256)  # as many bytes


def test_append_writes_one_row_of_each_cache() -> None:
    random, batch = np.random.default_rng(0), len(POSITIONS)
    k, v = (random.standard_normal((batch, D)) for _ in range(2))
    old = random.standard_normal((batch, 1, CAPACITY, D))
    made = {"k": tensor("k", batch, D), "v": tensor("v", batch, D), "rope": tensor("rope", CAPACITY, D)}
    made["position"] = tensor("position", batch, dtype=il.int32)
    made |= {name: tensor(name, batch, 1, CAPACITY, D) for name in ("k_cache", "v_cache")}
    given = {"k": k, "v": v, "rope": build_rope_table(CAPACITY, D), "position": np.array(POSITIONS)}
    found = run(
        [append("append", **made)], [*made.values()], {**given, "k_cache": old, "v_cache": old}, "k_cache", "v_cache"
    )
    for b, at in enumerate(POSITIONS):
        np.testing.assert_allclose(found["k_cache"][b, 0, at], rotate(k[b], at, None), atol=1e-5)
        np.testing.assert_array_equal(found["v_cache"][b, 0, at], v[b])
        for name in ("k_cache", "v_cache"):
            np.testing.assert_array_equal(np.delete(found[name][b, 0], at, 0), np.delete(old[b, 0], at, 0))


def test_embedding_takes_rows_and_clamps_ids_to_the_table() -> None:
    table = np.arange(20.0).reshape(5, 4)
    made = [tensor("tokens", 4, dtype=il.int32), tensor("table", 5, 4), tensor("out", 4, 4)]
    found = run([embedding("e", *made, columns=2)], made, {"tokens": np.array([3, 0, 9, -1]), "table": table}, "out")
    np.testing.assert_array_equal(found["out"], table[[3, 0, 4, 0]])


def test_rms_norm_gives_rows_of_the_weight_s_size() -> None:
    x = np.array([[3.0, 4.0, 0.0], [1e-3, 0.0, 0.0]])
    made = [tensor("x", 2, 3), tensor("weight", 3), tensor("out", 2, 3)]
    found = run([rms_norm("n", *made, eps=1e-6)], made, {"x": x, "weight": np.array([1.0, 2.0, 4.0])}, "out")
    assert found["out"][0] == pytest.approx([3 * (3 / 25) ** 0.5, 8 * (3 / 25) ** 0.5, 0], rel=1e-6)
    assert found["out"][1] == pytest.approx([1e-3 / (1e-6 / 3 + 1e-6) ** 0.5, 0, 0])


@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
def test_argmax_is_the_first_of_the_largest(n: int) -> None:
    x = np.random.default_rng(n).integers(0, 5, (6, n)).astype(float)
    tiles = -(-n // 8)
    made = [tensor("x", 6, n), tensor("best", 6, tiles), tensor("at", 6, tiles, dtype=il.int32)]
    out = tensor("out", 6, dtype=il.int32)
    ops = [block_argmax("most", *made, columns=8), reduce_argmax("first", *made[1:], out)]
    assert run(ops, [*made, out], {"x": x}, "out")["out"].tolist() == x.argmax(axis=1).tolist()


def test_predictions_take_a_row_of_a_table_and_a_cache_once() -> None:
    """The table is larger than a side of the L2, as that of any large model, and nobody reads the rest of it."""
    model = replace(LLAMAS["llama3.2-1b"], layers=2, vocabulary=16384)
    graph = build_decode_graph(replace(model, tied=False), 2, 1088, il.H200)
    assert graph.tensor("embed").nbytes > il.H200.l2.side_bytes
    traffic = predict(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.H200).traffic
    assert traffic.read_bytes["embed"] == 2 * model.hidden * 2
    assert traffic.read_bytes["layers.1.k_cache"] == 2 * model.kv_heads * 1088 * model.head_dim * 2
    assert traffic.read_bytes["rope"] <= 2 * model.head_dim * 4  # on each side of the L2


def test_a_step_of_many_narrow_tiles_is_predicted_where_few_touches_are_told_apart() -> None:
    model = replace(LLAMAS["llama3.2-1b"], layers=2, vocabulary=65536)
    plan = il.autoplan(build_decode_graph(model, 1, 1088, il.H200), il.H200, il.MegakernelExecutor)
    mode = il.MegakernelExecutor.build_mode(plan.graph, il.H200)
    coarse, fine = (predict(plan, il.H200, mode, limit=limit) for limit in (1000, 1 << 22))
    assert coarse.traffic.dram_read == pytest.approx(fine.traffic.dram_read, rel=0.1)


@pytest.mark.parametrize(
    ("record", "error"),
    [("decode-h200.json", 0.03), pytest.param("decode-8b-h200.json", 0.05, marks=pytest.mark.thorough)],
)
def test_a_step_takes_what_is_predicted_where_hand_overs_are_words(record: str, error: float) -> None:
    """One sequence on an H200, with one constant fitted; by semaphores a step would take a quarter more."""
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    of = {f.name for f in fields(Decode)} - {"dtype"}
    for row in json.loads((results / record).read_text())["rows"]:
        if row["batch"] > 1:
            continue
        work = Decode(**{name: value for name, value in row["workload"].items() if name in of})
        graph, kind = work.build_graph(il.H200), il.MegakernelExecutor
        plan = il.build(graph, avoid_resident_workers(kind.select_default(graph, il.H200), kind))
        mode = kind.build_mode(plan.graph, il.H200)
        predicted = predict(plan, il.H200, mode).us
        assert predicted == pytest.approx(row["executors"]["one_launch"]["median_us"], rel=error)
        assert predicted < 0.99 * predict(plan, il.H200, replace(mode, ll_hand_offs=None)).us


def test_a_search_of_layers_predicts_about_as_many_plans_as_one_of_a_single_layer() -> None:
    tried = []
    for layers in (2, 3):
        graph = build_decode_graph(replace(LLAMAS["tiny"], layers=layers), 1, 64, il.H200)
        tried.append(search(graph, il.H200).tried_candidates)
    assert tried[0] == tried[1] <= 40
    graph = build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=6, vocabulary=4096), 1, 64, il.H200)
    assert 2 <= len([*il.MegakernelExecutor.iter_schedules(graph, il.H200)]) <= 8


# ---------------------------------------------------------------- what is no op


def caches(**other: Any) -> dict[str, il.Tensor]:
    made = {"q": tensor("q", 2, 64), "k": tensor("k", 2, 32), "v": tensor("v", 2, 32), "rope": tensor("rope", 50, 16)}
    made |= {"position": tensor("position", 2, dtype=il.int32)}
    made |= {"k_cache": tensor("k_cache", 2, 2, 50, 16), "v_cache": tensor("v_cache", 2, 2, 50, 16)}
    made |= {"out": tensor("out", 2, 2, 3, 2, 16), "peak": tensor("peak", 2, 2, 3, 2), "total": tensor("t", 2, 2, 3, 2)}
    return made | other


ODD = il.Tensor("k_cache", (2, 2, 50, 20), il.fp32)
SHAPE = LLAMAS["tiny"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: attend("a", **caches(q=tensor("q", 2, 48))), ShapeError, r"op 'a': q .* must have shape \(2, 64\)"),
        (lambda: attend("a", **caches(k_cache=ODD)), ShapeError, "heads of 20 elements; they must be a multiple of 8"),
        (lambda: attend("a", **caches(), q_norm=tensor("n", 16)), ShapeError, "give q_norm and k_norm, or neither"),
        (lambda: attend("a", **caches(), block=48), ShapeError, "takes 48 positions at a time; use a power of two"),
        (lambda: attend("a", **caches(position=tensor("p", 2))), DTypeError, "position .* must be int32; convert it"),
        (lambda: attend("a", **caches(out="out")), ArgumentError, "out"),
        (lambda: attend("a", **caches(), eps=-1.0), ArgumentError, "op 'a': eps is -1.0; use a small number"),
        (lambda: build_decode_graph(replace(SHAPE, eps=1e39), 1, 64, il.CPU), ArgumentError, "eps is 1e[+]39"),
        (lambda: build_decode_graph(replace(SHAPE, eps=float("nan")), 1, 64, il.CPU), ArgumentError, "eps is nan"),
        (
            lambda: build_decode_graph(SHAPE, 1, 1 << 31, il.CPU),
            ShapeError,
            "2147483648 positions, which are counted in",
        ),
        (
            lambda: attend("a", **caches(q=tensor("q", 2, 64, dtype=il.bf16))),
            DTypeError,
            r"op 'a' mixes dtypes \['bf16', 'fp32'\]",
        ),
        (
            lambda: combine("c", tensor("parts", 1, 1, 1, 1, 25), *[tensor(n, 1, 1, 1, 1) for n in "mto"]),
            ShapeError,
            "heads of 25 elements",
        ),
        (
            lambda: block_argmax("m", tensor("x", 2, 9), tensor("b", 2, 1), tensor("a", 2, 1, dtype=il.int32), 12),
            ShapeError,
            "12 columns; use a power of two",
        ),
        (lambda: replace(SHAPE, kv_heads=3), ShapeError, "4 heads and 3 of keys, .* use a .* multiple of"),
        (lambda: replace(SHAPE, layers=0), ShapeError, "layers 0; use a positive number"),
        (lambda: build_decode_graph("tiny", 1, 64, il.CPU), ArgumentError, "LLAMAS"),  # type: ignore[arg-type]
        (lambda: build_decode_graph(SHAPE, 1, 0, il.CPU), ShapeError, "capacity 0; use a positive number"),
        (lambda: build_decode_graph(replace(SHAPE, head_dim=20), 1, 64, il.CPU), ShapeError, "heads of 20 elements"),
        (
            lambda: Decode.from_fields({"context": 64, "capacity": 64}, gpu=False),
            ArgumentError,
            "a step at position 64 needs a capacity of 65 and has 64",
        ),
        (
            lambda: Decode.from_fields({"context": 64, "batch": 3, "pages": 5}, gpu=False),
            ArgumentError,
            "3 sequences at position 64 need 6 pages of 64 positions and have 5; give more pages",
        ),
    ],
)
def test_what_is_no_step_says_so(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# ---------------------------------------------------------------- whole steps


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.1-8b", 8_030_261_248),
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3-0.6b", 596_049_920),
    ],
)
def test_presets_have_as_many_weights_as_the_published_models(name: str, weights: int) -> None:
    problem = Decode.from_fields({}, True, name)
    graph = problem.build_graph(il.H200)
    assert sum(prod(graph.tensor(weight).shape) for weight in problem.weights) == weights
    assert set(graph.inputs) - set(problem.weights) == {"tokens", "position", "rope"} | {
        f"layers.{layer}.{which}_cache" for layer in range(problem.layers) for which in "kv"
    }


@pytest.mark.parametrize("flags", [{"qk_norm": True}, {"qkv_bias": True, "tied": True}], ids=lambda f: "-".join(f))
def test_three_steps_in_a_row_are_right_for_every_sequence_of_a_ragged_batch(flags: dict[str, bool]) -> None:
    """Caches are kept from step to step, and hold NaN where nothing was appended yet."""
    positions = np.array([0, 5, 90])
    shape = LlamaShape(2, 32, 48, 4, 2, 16, 40, **flags)
    problem = Decode(**{**vars(shape), "batch": 3, "capacity": 100, "context": 0, "dtype": il.fp32})
    kept = [name for name in problem.build_graph(il.CPU).inputs if name.endswith("_cache")]
    graph = build_decode_graph(shape, 3, 100, replace(il.CPU, sms=12, sm_dram_bytes_per_s=1e6), dtype=il.fp32)
    graph = replace(graph, outputs=(*graph.outputs, *kept))
    assert graph.op("layers.1.attend").grid == (3, 2, 2)
    run = ReferenceExecutor(il.build(graph, il.Schedule(4)), seed=3)
    inputs = dict(problem.make_inputs(0))
    for name in kept:
        for b, at in enumerate(positions):
            inputs[name][b, :, at:] = NAN
    for step in range(3):
        inputs["position"] = (positions + step).astype(np.float32)
        right = problem.run_dense(np, {name: np.asarray(value, np.float64) for name, value in inputs.items()})
        found = run.run(inputs)
        assert np.linalg.norm(found["logits"] - right["logits"]) < 1e-12 * np.linalg.norm(right["logits"])
        assert found["next"].tolist() == right["next"].tolist()
        inputs |= {name: found[name] for name in kept} | {"tokens": found["next"]}
    assert [int(np.isnan(inputs[kept[0]][b, 0, :, 0]).sum()) for b in range(3)] == [97, 92, 7]


def test_a_step_over_pages_is_one_over_plain_caches_and_the_same_in_torch() -> None:
    torch = pytest.importorskip("torch")
    paged = Decode.from_fields({"context": 70, "batch": 2, "pages": 7, "capacity": 200}, gpu=False)
    inputs = {name: np.asarray(value, np.float64) for name, value in paged.make_inputs(0).items()}
    assert (inputs["table"] < 0).tolist() == [[False, False, True, True]] * 2
    assert len(np.unique(inputs["table"][:, :2])) == 4
    assert "7 pages" in paged.title
    assert "table" not in paged.weights
    plain = dict(inputs)
    for name in (name for name in inputs if name.endswith("_cache")):
        rows = [np.concatenate([inputs[name][int(page)] for page in row], axis=1) for row in inputs["table"]]
        plain[name] = np.stack(rows)[:, :, :200]
    del plain["table"]
    right = replace(paged, pages=None).run_dense(np, plain)["logits"]
    found = ReferenceExecutor(il.build(paged.build_graph(il.CPU), il.Schedule(2))).run(paged.make_inputs(0))["logits"]
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    for logits in (found, paged.run_dense(np, inputs)["logits"], paged.run_dense(torch, tensors)["logits"].numpy()):
        assert np.linalg.norm(logits - right) < 1e-12 * np.linalg.norm(right)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("way", ["FlexAttention", "joined weights"])
def test_pytorch_computes_the_same_however_its_step_is_written(way: str) -> None:
    torch = pytest.importorskip("torch")
    shape = LlamaShape(2, 64, 96, 4, 2, 16, 61, qkv_bias=True)
    work = Decode(**{**vars(shape), "batch": 3, "capacity": 128, "context": 70})
    tensors = {name: torch.from_numpy(value) for name, value in work.make_inputs(0).items()}
    weights = {name: value for name, value in tensors.items() if name in work.weights}
    rest = {name: value for name, value in tensors.items() if name not in weights}
    problem = SimpleNamespace(rest=rest, weights=[weights], run_pytorch=lambda given: work.run_dense(torch, given))
    benchmark = load_script("decode")
    step, sets = benchmark["WAYS"][way](work, problem)
    assert (sets is not None) == (way == "joined weights")
    right = work.run_dense(torch, {name: value.clone() for name, value in tensors.items()})["logits"]
    given = {**rest, **(sets or [weights])[0]}
    if sets:  # and nothing else is read
        apart = [name for name in given if name.rpartition(".")[2] in ("q", "k", "v", "gate", "up", "q_bias")]
        assert len(apart) == 2 * 6
        given |= {name: torch.full_like(given[name], NAN) for name in apart}
    found = step(given)["logits"]
    assert torch.linalg.norm(found - right) < 1e-5 * torch.linalg.norm(right)


def test_pytorch_runs_each_op_of_a_layer_once() -> None:
    """Timings compare with this step, so one op more would slow the rival."""
    torch = pytest.importorskip("torch")
    from torch.overrides import TorchFunctionMode

    work = Decode(**{**vars(LlamaShape(3, 64, 96, 4, 2, 16, 61)), "batch": 2, "capacity": 64, "context": 9})
    tensors = {name: torch.from_numpy(value) for name, value in work.make_inputs(0).items()}
    ops: Counter[str] = Counter()

    class CountOps(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops[func.__name__.strip("_")] += 1
            return func(*args, **(kwargs or {}))

    with CountOps():
        work.run_dense(torch, tensors)
    layer = {"linear": 7, "rms_norm": 2, "cat": 2, "scaled_dot_product_attention": 1, "setitem": 2}
    layer |= {"mul": 9, "add": 4, "sub": 2, "silu": 1}
    once = {"linear": 1, "rms_norm": 1, "embedding": 1, "argmax": 1, "arange": 2}
    assert {name: ops[name] for name in {*layer, *once}} == {
        name: 3 * layer.get(name, 0) + once.get(name, 0) for name in {*layer, *once}
    }


def test_a_step_is_proved_with_six_hand_overs_a_layer() -> None:
    graph = build_decode_graph(replace(LLAMAS["llama3.1-8b"], layers=6), 1, 1088, il.H200)
    proof = il.verify(il.build(graph, il.Schedule(il.H200.sms)))
    assert len(graph.ops) == 6 * 9 + 4
    # Of the last layer nobody reads x itself, only what the norm before the head takes of it.
    assert {access.arg for access in graph.op("layers.5.x").writes} == {"scaled", "squares"}
    # Per layer: q, attend, combine, o, gate and up, down; once: embedding, head, two of argmax. Norms are in these.
    assert proof.longest_chain == 6 * 6 + 4
    assert {ordering.name for ordering, _ in proof.rests_on} == {"WAIT"}


def test_a_plan_does_not_know_lengths_and_a_plan_file_knows_the_ops() -> None:
    shape = LLAMAS["tiny"]
    plan = il.build(build_decode_graph(shape, 2, 64, il.CPU), il.Schedule(4))
    again = il.read_plan(plan.to_json())
    assert again == plan
    il.verify(again)
    graphs = [
        Decode.from_fields({"context": context, "capacity": 64}, gpu=False).build_graph(il.CPU) for context in (0, 63)
    ]
    assert graphs[0] == graphs[1]


def test_as_many_settings_are_tried_for_many_layers_as_for_one() -> None:
    def count_candidates(layers: int) -> int:
        graph = build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=layers), 1, 1088, il.H200)
        return sum(1 for _ in il.PdlExecutor.iter_likely(graph, il.H200))

    assert count_candidates(3) == count_candidates(1) < 10


@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("name", [name for name in LLAMAS if name != "tiny"])
def test_products_of_the_same_tokens_are_whole_waves_of_the_one_launch_together(name: str, batch: int) -> None:
    """One of them, or for few tokens as many as leave the busiest SM hardly more rows than any width would."""
    model = replace(LLAMAS[name], layers=1)
    graph = build_decode_graph(model, batch, 1088, il.H200)
    schedule = il.MegakernelExecutor.select_default(graph, il.H200)
    heads = [graph.op(f"layers.0.{each}_heads") for each in "qkv"]
    rows = sum(int(op.param("N")) for op in heads)
    width = {op.name: int(schedule.tiles[op.name]["BN"]) for op in heads}
    items = sum(-(-int(op.param("N")) // width[op.name]) * schedule.get_op_tiling(op.name).parts for op in heads)
    if batch > 16:
        waves = 1
        assert max(width.values()) <= 64
    else:
        waves = -(-items // il.H200.sms)
        (each,) = set(width.values())
        share = min(math.ceil(math.ceil(rows / w) / il.H200.sms) * w for w in range(8, 64, 8))
        assert each < 64
        assert waves * each <= share + waves * 8
    least = 0.5 if model.hidden >= 2048 else 0.3  # short reductions have few parts
    assert least * il.H200.sms < items <= waves * il.H200.sms


@pytest.mark.parametrize(("name", "width", "items"), [("llama3.2-1b", 32, 256), ("llama3.1-8b", 56, 256)])
def test_tiles_for_few_tokens_leave_the_busiest_worker_few_rows(name: str, width: int, items: int) -> None:
    """A worker has 112 of 14336 rows in two tiles of 56; it had 128 in four of 32."""
    graph = build_decode_graph(replace(LLAMAS[name], layers=1), 1, 1088, il.H200)
    inner = graph.op("layers.0.inner")
    tile = il.MegakernelExecutor.select_default(graph, il.H200).tiles[inner.name]
    assert tile["BN"] == width
    assert -(-int(inner.param("N")) // width) == items


@pytest.mark.parametrize(
    ("ffn", "batch", "width", "swapped"),
    [
        (8192, 64, 64, True),
        (14336, 64, 56, False),
        (18944, 64, 48, False),
        (18944, 24, 48, False),
        (16896, 64, 64, True),
    ],
)
def test_an_uneven_last_wave_makes_tiles_narrower(ffn: int, batch: int, width: int, swapped: bool) -> None:
    """For 18944 weight rows the busiest SM had three tiles of 64; it has three of 48, where the mean is 144 rows."""
    graph = build_decode_graph(replace(LLAMAS["llama3.1-8b"], layers=1, ffn=ffn), batch, 1088, il.H200)
    tiling = il.MegakernelExecutor.select_default(graph, il.H200).get_op_tiling("layers.0.inner")
    found = dict(tiling.params)
    assert (found["BN"], found["SWAP"], tiling.parts) == (width, swapped, 1)
    waves = math.ceil(math.ceil(ffn / width) / il.H200.sms)
    assert waves * width * il.H200.sms < 1.15 * ffn


@pytest.mark.parametrize(("name", "batch", "stages"), [("llama3.2-1b", 1, 6), ("llama3.2-1b", 16, 4)])
def test_tokens_leave_the_ring_its_stages(name: str, batch: int, stages: int) -> None:
    graph = build_decode_graph(replace(LLAMAS[name], layers=1), batch, 1088, il.H200)
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions(device="meta"))
    assert run.composition.stages == stages
