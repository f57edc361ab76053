"""Words that are polled in place of semaphores: which tensors they are, what is left of waits, and on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError, PlanError  # noqa: E402
from interlace.executors.megakernel import MegakernelExecutor  # noqa: E402
from interlace.executors.reference import ReferenceExecutor  # noqa: E402
from interlace.kernels.bodies import Cluster  # noqa: E402
from interlace.megakernel.constants import AGAIN, AWAITED  # noqa: E402
from interlace.megakernel.ll_search import select_ll_tensors  # noqa: E402
from interlace.megakernel.parts import build_bodies  # noqa: E402
from interlace.megakernel.watchdog import make_hang_error  # noqa: E402
from interlace.plan.plan import Dispatch, Plan  # noqa: E402
from interlace.workloads import Decode, LlamaShape, build_decode_graph  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned  # noqa: E402
from ..emulator.random_chains import search  # noqa: E402
from ..thorough import some  # noqa: E402

SHAPE, CAPACITY, POSITIONS = LlamaShape(2, 128, 192, 2, 1, 64, 97, tied=True), 192, (0, 5, 130)
PARTS = ("parts", "peak", "total")
HEADS = ("q_heads", *(f"layers.{n}.{of}_heads" for n in range(2) for of in "kv"))
ATTENTION = (*PARTS, *HEADS)
#: What tiles of few rows take as words: results of others, with the squares of a norm where there is one.
TOKENS = ("heads", "inner", *(f"{x}_{of}" for x in ("x_attended", "x") for of in ("scaled", "squares")))
EMBEDDED = ("embedded_scaled", "embedded_squares")
ALL = (*ATTENTION, *TOKENS, *EMBEDDED)
NO_TAG = "return item.run * numbers + number", "return 0 * numbers + number"
NO_LOOK = "    if (sums.came() && own_peak.came() && own_total.came()) break;\n", "    break;\n"
_PART = "  const long long part = (((long long)tile.i"
#: Of the emulator's clock, until a wait for what never comes ends.
HASTE_S = 1e-4
NO_STORE = _PART, f"  if (!tile.i && tile.l) return;\n{_PART}"


@cache
def graph(splits: int = 2) -> il.Graph:
    """Build a step with this number of splits a sequence, and two tiles a row of embeddings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interlace.models.llama.select_splits", lambda *_: splits)
        patch.setattr("interlace.kernels.embedding._COLUMNS", 64)
        return build_decode_graph(SHAPE, len(POSITIONS), CAPACITY, il.H200)


@cache
def plan(splits: int = 2, workers: int = 4) -> Plan:
    """A step dealt to four workers."""
    return il.autoplan(graph(splits), il.H200, MegakernelExecutor, workers=workers)


def executor(words: tuple[str, ...] | None = None, of: Plan | None = None) -> MegakernelExecutor:
    return MegakernelExecutor(of or plan(), il.RunOptions("meta", ll_tensors=words))


def products(m: int, deep: int, deeper: int, rows: int = 8, n: int = 320, warps: int = 4) -> il.Graph:
    """A product of n columns and what a norm takes of it; one of these, gated; and one of that; stages are so deep."""
    shapes = {"x": (m, 128), "w": (n, 128), "scale": (n,), "gate": (192, n), "up": (192, n), "down": (64, 192)}
    shapes |= {"scaled": (m, n), "inner": (m, 192), "out": (m, 64)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    t["squares"] = il.Tensor("squares", (m, n // 16), il.fp32)

    def tile(columns: int, deep: int) -> il.MatmulTile:
        return il.MatmulTile(rows, columns, deep, num_warps=warps, swap_ab=True)

    left = {name: t[name] for name in ("scale", "scaled", "squares")}
    gated = {"gate": t["gate"], "activation": il.Activation.SILU, "x_squares": t["squares"], "eps": 1e-2}
    ops = (
        il.matmul("first", t["x"], t["w"], **left, tile=tile(16, 128)),
        il.matmul("second", t["scaled"], t["up"], t["inner"], **gated, tile=tile(24, deep)),
        il.matmul("third", t["inner"], t["down"], t["out"], tile=tile(16, deeper)),
    )
    return il.Graph("products", (*t.values(),), ops, ("x", "w", "scale", "gate", "up", "down"), ("out",))


def waits_of(run: MegakernelExecutor, op: str) -> int:
    """Rows of waits of the items of an op, together."""
    mine = run._table.items["op"] == run.plan.graph.op_index(op)
    return int((run._table.items["wait_hi"] - run._table.items["wait_lo"])[mine].sum())


def posts_of(run: MegakernelExecutor, op: str) -> int:
    """Items of an op that post."""
    mine = run._table.items["op"] == run.plan.graph.op_index(op)
    return int((run._table.items["post"][mine] >= 0).sum())


def test_who_polls_words_does_not_wait_and_who_leaves_them_does_not_post() -> None:
    semaphores, parts, every = executor(()), executor(PARTS), executor(ATTENTION)
    assert [{*run.lowered.ll_edges.sizes} for run in (semaphores, parts, every)] == [set(), {*PARTS}, {*ATTENTION}]
    assert [waits_of(run, "layers.1.combine") > 0 for run in (semaphores, parts, every)] == [True, False, False]
    assert [waits_of(run, "layers.1.attend") > 0 for run in (semaphores, parts, every)] == [True, True, False]
    assert [posts_of(run, "layers.1.attend") for run in (semaphores, parts, every)] == [6, 0, 0]
    assert [posts_of(run, "layers.1.q_heads") > 0 for run in (semaphores, parts, every)] == [True, True, False]
    # What appends to the cache awaits those who have what attention made of it.
    assert waits_of(every, "layers.1.append") == len(POSITIONS)
    assert posts_of(every, "layers.1.combine") == posts_of(semaphores, "layers.1.combine")


def test_the_simulated_machine_is_told_which_waits_are_for_words_and_who_posts_nothing() -> None:
    of, step = MegakernelExecutor.build_mode(graph(), il.H200).ll_hand_offs, plan(workers=40)
    assert of is not None
    found, left = of(step), executor(of=step).lowered.ll_edges.drop_polled_waits(step.waits, step)
    assert 0 < found.waits.sum() == len(step.waits) - len(left)
    names = np.array([op.name for op in graph().ops])[step.items.op]
    assert {"layers.0.combine", "layers.1.attend"} <= {*names[step.waits.item[found.waits]]}
    assert {"layers.0.q_heads", "layers.0.attend"} <= {*names[found.silent]}
    assert step.items.post[found.silent].min() >= 0
    for nobody in of(replace(step, dispatch=Dispatch.QUEUE)):
        assert not nobody.any()


def test_the_end_of_who_stores_tensors_too_is_seen_by_no_words() -> None:
    """Only what leaves nothing but words, such as attention, is over for who has polled those who polled it."""
    found, bodies = executor(ALL).lowered.ll_edges, build_bodies(graph())
    left = {o for o, op in enumerate(graph().ops) if {a.arg for a in op.writes} <= found.get_ll(o).epochs.keys()}
    assert any(bodies[o].ll.has_tensor_copy for o in left)
    assert {graph().ops[o].name for o in found.end_pollers} >= {"layers.0.attend", "layers.1.attend"}
    assert not any(bodies[o].ll.has_tensor_copy for o in found.end_pollers)


def test_of_tokens_that_are_words_waits_are_left_for_what_is_added_alone() -> None:
    every, semaphores = executor(ALL), executor(())
    ops = [f"layers.1.{op}" for op in ("q_heads", "inner", "x_attended", "x")]
    assert [waits_of(semaphores, op) for op in ops] == [16, 24, 16, 16]
    assert [waits_of(every, op) for op in ops] == [0, 0, 8, 8]
    # What is added is awaited as a tensor, and so posted.
    assert [posts_of(every, f"layers.0.{op}") for op in ("q_heads", "inner", "x_attended", "x")] == [0, 0, 8, 8]


def test_of_whole_attention_heads_are_words_that_it_leaves_itself() -> None:
    whole = executor((*HEADS, "heads"), plan(1))
    assert waits_of(whole, "layers.1.x_attended") == 8
    assert [waits_of(whole, "layers.1.attend"), posts_of(whole, "layers.1.q_heads")] == [0, 0]


def test_by_default_they_are_of_ops_whose_tiles_all_run_at_once_or_that_load_ahead() -> None:
    """And take few trips: ``inner`` has 24 tiles, and polls what it reads where a worker has four of them."""
    of_append, trips = {name for name in HEADS if name != "q_heads"}, {"x_attended_scaled", "x_attended_squares"}
    for workers, found in ((4, {*TOKENS, *of_append} - trips), (6, {*ALL}), (132, {*ALL})):
        assert {*executor(of=plan(workers=workers)).lowered.ll_edges.sizes} == found


@pytest.mark.parametrize(("m", "rows", "deep"), [(16, 8, 64), (8, 8, 320)])
def test_tokens_of_several_tiles_or_of_too_deep_a_stage_are_no_words(m: int, rows: int, deep: int) -> None:
    chain = il.build(products(m, deep, 64, rows), il.Schedule(2, Dispatch.STATIC))
    with pytest.raises(PlanError, match=r"tensors \['scaled', 'squares'\] cannot be words"):
        executor(("scaled", "squares"), chain)
    assert executor(("inner",), il.build(products(8, 64, 64), il.Schedule(2))).lowered.ll_edges.sizes == {
        "inner": 8 * 96
    }


def test_a_tensor_that_some_read_as_such_is_no_words_of_a_writer_whose_stores_nobody_awaits() -> None:
    """Stores over it would follow from LL words alone, which order no other stores."""
    shapes = {"x": (8, 128), "w": (320, 128), "scale": (320,), "up": (192, 320), "down": (320, 192), "last": (64, 320)}
    shapes |= {"scaled": (8, 320), "inner": (8, 192), "out": (8, 64)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    t["squares"] = il.Tensor("squares", (8, 20), il.fp32)
    left = {name: t[name] for name in ("scale", "scaled", "squares")}
    normed = {"x_squares": t["squares"], "eps": 1e-2}

    def sizes(deep: int) -> set[str]:
        def tile(columns: int, k: int) -> il.MatmulTile:
            return il.MatmulTile(8, columns, k, swap_ab=True)

        ops = (
            il.matmul("first", t["x"], t["w"], **left, tile=tile(16, 128)),
            il.matmul("second", t["scaled"], t["up"], t["inner"], **normed, tile=tile(24, 64)),
            il.matmul("third", t["inner"], t["down"], **left, tile=tile(16, 64)),
            il.matmul("fourth", t["scaled"], t["last"], t["out"], **normed, tile=tile(16, deep)),
        )
        graph = il.Graph("twice", (*t.values(),), ops, ("x", "w", "scale", "up", "down", "last"), ("out",))
        plan = il.build(graph, il.Schedule(132, Dispatch.STATIC))
        return {*executor(("scaled", "squares"), plan).lowered.ll_edges.sizes}

    assert sizes(64) == {"scaled", "squares"}
    with pytest.raises(PlanError, match=r"tensors \['scaled', 'squares'\] cannot be words"):
        sizes(320)


def overwritten(dead: bool) -> Plan:
    """A product that stores beside words what another overwrites: what nobody reads, or what is read behind that."""
    shapes = {"x": (8, 128), "w": (320, 128), "scale": (320,), "up": (192, 320), "down": (320, 192), "last": (64, 320)}
    shapes |= {"h": (8, 320), "other": (8, 320), "scaled": (8, 320), "inner": (8, 192), "out": (8, 64)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items() if name != "other" or not dead}
    t["squares"] = il.Tensor("squares", (8, 20), il.fp32)
    left = {name: t[name] for name in ("scale", "scaled", "squares")}
    normed = {"x_squares": t["squares"], "eps": 1e-2}

    def tile(columns: int, deep: int) -> il.MatmulTile:
        return il.MatmulTile(8, columns, deep, swap_ab=True)

    third, fourth, rest = (t["h"], t["h"], {}) if dead else (t["other"], t["scaled"], left)
    ops = (
        il.matmul("first", t["x"], t["w"], t["h"], **left, tile=tile(16, 128)),
        il.matmul("second", t["scaled"], t["up"], t["inner"], **normed, tile=tile(24, 64)),
        il.matmul("third", t["inner"], t["down"], third, **rest, tile=tile(16, 64)),
        il.matmul("fourth", fourth, t["last"], t["out"], **({} if dead else normed), tile=tile(16, 320)),
    )
    outputs = ("out",) if dead else ("out", "other")
    inputs = ("x", "w", "scale", "up", "down", "last")
    return il.build(il.Graph("overwritten", (*t.values(),), ops, inputs, outputs), il.Schedule(132, Dispatch.STATIC))


@pytest.mark.parametrize(("dead", "left"), [(True, {"inner"}), (False, set())])
def test_stores_beside_words_that_nobody_awaits_before_they_are_overwritten_leave_none(
    dead: bool, left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = overwritten(dead)
    assert {*executor(of=of).lowered.ll_edges.sizes} == left
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(of.graph.tensor(name).shape) for name in of.graph.inputs}
    right = ReferenceExecutor(of).run(given)
    write, item = ReferenceExecutor._write, ReferenceExecutor._run_item

    def write_late(self: ReferenceExecutor, op: int, *more: Any) -> Any:
        for step in write(self, op, *more):
            yield step
            if step == "posted" and self.plan.graph.ops[op].name == "first":
                yield from ["wrote"] * 3000

    def run_last(self: ReferenceExecutor, i: int) -> Any:
        if self.plan.graph.ops[int(self.plan.items.op[i])].name == "fourth":
            for wait in range(int(self._waits.ptr[i]), int(self._waits.ptr[i + 1])):
                yield from self._wait(wait)
            yield from ["wrote"] * 30000
        yield from item(self, i)

    monkeypatch.setattr(ReferenceExecutor, "_write", write_late)
    monkeypatch.setattr(ReferenceExecutor, "_run_item", run_last)
    found = ReferenceExecutor(of, ll_tensors=None).run(given)
    assert all(np.array_equal(found[name], right[name]) for name in right)


def test_layers_number_their_publications_apart() -> None:
    of = executor(ALL).lowered.ll_edges
    first, second = (plan().graph.op_index(f"layers.{n}.combine") for n in range(2))
    assert of.get_ll(first).epochs["parts"] == plan().graph.op_index("layers.0.attend") + 1
    assert of.get_ll(second).epochs["parts"] == plan().graph.op_index("layers.1.attend") + 1
    assert max(max(worded.epochs.values()) for worded in of.ops.values()) <= of.get_ll(first).epochs_per_run


def test_a_wait_for_more_than_is_polled_is_kept() -> None:
    """Under one semaphore for a row of tiles attention would await more of q than it reads."""
    shape = replace(SHAPE, layers=1, hidden=512, heads=8, kv_heads=4)
    graph = il.autoplan(build_decode_graph(shape, 1, 8192, il.H200), il.H200, MegakernelExecutor).graph
    found = [
        executor(of=il.build(graph, il.Schedule(132, Dispatch.STATIC, policy=policy))).lowered.ll_edges.sizes
        for policy in (il.TileSync(), il.RowSync())
    ]
    assert [("q_heads" in sizes, "parts" in sizes) for sizes in found] == [(True, True), (False, False)]


def test_where_items_are_taken_when_they_no_longer_wait_nothing_is_words() -> None:
    queued = il.build(plan().graph, il.Schedule(4, Dispatch.QUEUE, policy=il.RowSync()))
    assert executor(of=queued).lowered.ll_edges.sizes == {}
    with pytest.raises(PlanError, match=r"\['parts', 'peak', 'total'\] .* it has queue dispatch; plan for static"):
        executor(PARTS, queued)


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        (("nothing", "parts"), {}, r"\['nothing'\] cannot be words of this plan: graph '.*' has none of these names"),
        (("logits",), {}, r"\['logits'\] cannot be words of this plan: inputs and outputs are seen from outside"),
        (("tokens",), {}, r"\['tokens'\] cannot be words of this plan: inputs and outputs are seen from outside"),
        (
            PARTS,
            {"cluster": Cluster(2, 1)},
            r"\['parts', 'peak', 'total'\] .* leave out RunOptions.cluster or RunOptions",
        ),
        (("embedded",), {}, r"\['embedded'\] cannot be words of this plan: who writes one and who reads it must"),
    ],
)
def test_what_cannot_be_words_is_told_with_its_reason(words: tuple[str, ...], options: Any, says: str) -> None:
    with pytest.raises(PlanError, match=f"^tensors {says}"):
        select_ll_tensors(plan(), build_bodies(graph()), il.RunOptions("meta", ll_tensors=words, **options))


@cache
def launches(splits: int) -> dict[str, EmulatedLaunch]:
    one, of = plan(workers=1), plan(splits)
    at_once: dict[str, Any] = {"stages": 3, "at_once": True, "timeout_s": 1.0}
    words = ALL if splits > 1 else (*HEADS, *TOKENS, *EMBEDDED)
    runs = {
        "semaphores": EmulatedLaunch(of, ll_tensors=(), **at_once),
        "words": EmulatedLaunch(of, ll_tensors=words, **at_once),
    }
    if splits > 1:
        runs["no look"] = EmulatedLaunch(of, ll_tensors=words, change=NO_LOOK, **at_once)
        runs["no store"] = EmulatedLaunch(one, ll_tensors=words, stages=3, timeout_s=HASTE_S, change=NO_STORE)
    prepare([*runs.values()])
    return runs


def steps(name: str, count: int = 3, seed: int = 0, splits: int = 2) -> list[torch.Tensor]:
    """Logits and caches of steps, of one interleaving of blocks for each seed."""
    run, graph = launches(splits)[name], launches(splits)[name].plan.graph
    work = Decode(**{**vars(SHAPE), "batch": len(POSITIONS), "capacity": CAPACITY, "context": 0})
    given = dict(work.make_inputs(0)) | {"position": np.array(POSITIONS, np.float32)}
    t = {n: torch.from_numpy(value.copy()).to(TORCH[graph.tensor(n).dtype.name]) for n, value in given.items()}
    t |= {n: run.allocate_tensor(n) for n in graph.outputs}
    out = []
    for step in range(count):
        for n in graph.intermediates:
            value = run.get_intermediate(n)
            value.fill_(float("nan") if value.is_floating_point() else -1)
        run.seed = seed + step
        run.run(t)
        out += [t["logits"].clone()]
        t["tokens"].copy_(t["next"])
        t["position"] += 1
    return [*out, t["layers.1.k_cache"], t["layers.1.v_cache"]]


@cache
def run_by_semaphores(splits: int = 2) -> list[torch.Tensor]:
    return steps("semaphores", splits=splits)


def are_equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("splits", some([2, 1], lambda splits: splits == 2))
def test_steps_by_words_are_bit_for_bit_those_by_semaphores(splits: int) -> None:
    assert are_equal(steps("words", splits=splits), run_by_semaphores(splits))
    assert [str(fault) for fault in launches(splits)["words"].faults] == []


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_who_does_not_look_whether_words_are_there_is_wrong() -> None:
    found = (steps("no look", seed=10 * n) for n in range(20))
    assert any(not are_equal(some, run_by_semaphores()) for some in found), "words were there whenever one looked"


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_words_that_never_come_end_in_an_error_that_names_who_did_not_leave_them() -> None:
    with pytest.raises(HangError, match=r"attend', tile \(0, 0, 1\) never posted"):
        steps("no store", 1)


#: Tokens, and how deep a stage of the second product is and of the third: of 320 elements of k and of 192.
DEPTHS = {1: (128, 128), 3: (128, 64), 7: (64, 256), 8: (192, 192), 11: (64, 128)}
#: Of two warpgroups, which take turns at stages of a tile.
TURNS = {2: (64, 64), 5: (128, 64)}
#: Columns of which threads take squares in two rounds, and a lane asks for tokens twice; and of many stages.
COLUMNS = {1: 2304, 2: 576}
#: Where the warp that loads polls tokens, and where the consumers do.
NO_LOOK_AT_TOKENS = (
    "        if (tokens.came() || patience.over(launch, item, wanted, number)) break;\n",
    "        break;\n",
)
_LOOK = "        if (words.came() || over(patience, words.wanted)) break;\n"
NO_LOOK_BY_CONSUMERS = _LOOK, "        break;\n"
_SUM = "      inputs.sum = squares.await(launch, item, op);\n"
NO_MEETING = f"{_SUM}      synchronise_block();\n", _SUM
NOT_AGAIN = "CONSUMERS_POLL && item.code & AGAIN", "CONSUMERS_POLL && item.j > 0"
NO_SQUARES = "if (feature % SQUARED == 0) store_word", "if (feature && feature % SQUARED == 0) store_word"
_SLOT = "        const unsigned slot = load_slot(stage.slot);\n#pragma unroll\n"
_EMPTY = "        await(load_empty(stage.slot), stage.phase ^ 1);\n"
NO_EMPTY = _EMPTY + _SLOT, _SLOT
NO_CHANGE = _EMPTY + _SLOT, _EMPTY + _SLOT
NO_PROXY_FENCE = "        fence_proxy_async();  // the slot's next load may be a bulk load\n", ""
_HANDED_BACK = "          release(stage, stage.slot);\n          stage.advance();\n        } else {\n"
NO_TURN = "          __syncwarp();\n" + _HANDED_BACK, _HANDED_BACK
_FINISH = "    store(op, item, accumulators, inputs, feature);\n    note_words(launch, item);\n"
NO_ITEM = _FINISH, f"    if (GATES < 2 || item.j != 1) {{\n{_FINISH}    }}\n"


_WORDS = "scaled", "squares", "inner"


def chain(m: int, workers: int = 2, here: int = 4096, **given: Any) -> EmulatedLaunch:
    """Three products, of which each takes what the one before has left."""
    depths, rows, warps = {**DEPTHS, **TURNS}[m], 16 if m > 8 else 8, 8 if m in TURNS else 4
    graph = products(m, *depths, rows, COLUMNS.get(m, 320), warps)
    of = il.build(graph, il.Schedule(workers, Dispatch.STATIC))
    with mock.patch("interlace.kernels.matmul.megakernel_body.POLLED_BY_CONSUMERS", here):
        run = EmulatedLaunch(of, stages=3, at_once=workers > 1, **given)
        assert run.composition.stages == 3
    return run


@cache
def sound(m: int) -> dict[str, EmulatedLaunch]:
    """Return launches by words and by semaphores."""
    every = {
        "words": chain(m, ll_tensors=_WORDS, timeout_s=1.0),
        "words, by the loader": chain(m, here=0, ll_tensors=_WORDS, timeout_s=1.0),
        "semaphores": chain(m, ll_tensors=(), timeout_s=1.0),
    }
    prepare([*every.values()])
    return every


@cache
def launch_broken() -> dict[Any, EmulatedLaunch]:
    """Chains of changed text, each wrong in its way, and one that is right all the same."""
    every: dict[Any, EmulatedLaunch] = {}
    for name, change in {"tag": NO_TAG, "tokens": NO_LOOK_AT_TOKENS, "squares": NO_SQUARES, "item": NO_ITEM}.items():
        every[name] = chain(3, 1, 0, ll_tensors=_WORDS, change=change, timeout_s=HASTE_S)
    for name, change in (("squares", NO_SQUARES), ("item", NO_ITEM), ("meeting", NO_MEETING)):
        every[name, "here"] = chain(3, 1, ll_tensors=_WORDS, change=change, timeout_s=HASTE_S)
    # Who polls itself is behind all that its own block left, so what is early is so in another.
    for name, change in (("tokens", NO_LOOK_BY_CONSUMERS), ("again", NOT_AGAIN)):
        every[name, "here"] = chain(3, ll_tensors=_WORDS, change=change, timeout_s=1.0)
    # Tokens of the last product come by bulk loads, into the slots that those of the one before were stored into.
    every["turn"] = chain(2, 1, ll_tensors=(), change=NO_TURN)
    for name, change in (("slot", NO_EMPTY), ("proxy", NO_PROXY_FENCE), ("bulk behind", NO_CHANGE)):
        every[name] = chain(3, 1, 0, ll_tensors=("scaled", "squares"), change=change)
    prepare([*every.values()])
    return every


def run_chain(run: EmulatedLaunch, seed: int = 0) -> torch.Tensor:
    """Return the result of a run; all tensors between its ops are NaN before."""
    return run_poisoned(run, draw_inputs(run, seed), seed)


def draw_inputs(run: EmulatedLaunch, seed: int = 0) -> dict[str, torch.Tensor]:
    random, of = torch.Generator().manual_seed(seed), run.plan.graph
    return {name: torch.randn(of.tensor(name).shape, generator=random).to(torch.bfloat16) for name in of.inputs}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("by", ["words", "words, by the loader"])
@pytest.mark.parametrize("m", some([*DEPTHS, *TURNS], lambda m: m in (2, 3)))
def test_products_of_words_are_bit_for_bit_those_of_tensors_whatever_tokens_there_are(m: int, by: str) -> None:
    words, semaphores = sound(m)[by], sound(m)["semaphores"]
    assert {*words.lowered.ll_edges.sizes} == {"scaled", "squares", "inner"}
    assert [waits_of(words, op) for op in ("first", "second", "third")] == [0, 0, 0]
    for seed in range(2):
        found = run_chain(words, seed)
        assert bool(found.isfinite().all())
        assert torch.equal(found, run_chain(semaphores, seed))
    assert [str(fault) for fault in words.faults] == []


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("numbers", some([range(2), range(2, 8)], lambda numbers: numbers.start == 0), ids=str)
def test_random_chains_by_words_are_bit_for_bit_those_by_semaphores(numbers: range) -> None:
    tried, wrong = search(numbers)
    assert tried >= 0.75 * len(numbers)
    assert wrong == []


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("who", ["tokens", ("tokens", "here"), ("again", "here")], ids=str)
def test_who_does_not_look_whether_tokens_are_there_multiplies_others(who: Any) -> None:
    assert not torch.equal(run_chain(launch_broken()[who]), run_chain(sound(3)["semaphores"]))


def test_an_item_finds_the_tokens_of_the_one_before_in_its_block_where_that_is_of_the_same_op() -> None:
    run = executor()
    table, found = run._table, []
    for first, end in zip(table.worker_rows[:-1], table.worker_rows[1:], strict=True):
        ops = table.items["op"][first:end].tolist()
        found += [n > 0 and op == ops[n - 1] for n, op in enumerate(ops)]
    assert [bool(code & AGAIN) for code in table.items["code"]] == found
    assert 0 < sum(found) < len(found)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_consumers_meet_before_they_read_the_tokens_of_each_other() -> None:
    run = launch_broken()["meeting", "here"]
    run_chain(run)
    assert "race" in {fault.kind for fault in run.faults}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("name", "found"), [("bulk behind", ()), ("slot", ("deadlock", "race")), ("proxy", ("proxy",))], ids=str
)
def test_tokens_are_stored_into_empty_slots_and_ahead_of_bulk_loads(name: str, found: tuple[str, ...]) -> None:
    run = launch_broken()[name]
    for seed in range(4):
        run_chain(run, seed)
    assert {fault.kind for fault in run.faults} == {*found}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_warp_that_leaves_a_stage_to_others_hands_it_back_when_all_its_lanes_have_seen_it() -> None:
    run = launch_broken()["turn"]
    assert any("deadlock" in kinds_of_faults(run, draw_inputs(run), [seed]) for seed in range(32))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_without_the_number_of_the_run_tokens_of_the_run_before_are_taken() -> None:
    first, second = (
        torch.equal(run_chain(launch_broken()["tag"], n), run_chain(sound(3)["semaphores"], n)) for n in range(2)
    )
    assert (first, second) == (True, False)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("squares", r"op 'second', tile \(0, \d\) .* waited for words of 'scaled' and 'squares' before"),
        ("item", r"op 'third', .* words of 'inner' before .*; op 'second', tile \(0, 1\) never posted"),
        (("squares", "here"), r"op 'second', tile \(0, \d\) .* waited for words of 'scaled' and 'squares' before"),
        (("item", "here"), r"op 'third', .* words of 'inner' before .*; op 'second', tile \(0, 1\) never posted"),
    ],
    ids=str,
)
def test_tokens_that_never_come_end_in_an_error_that_names_them(name: Any, says: str) -> None:
    with pytest.raises(HangError, match=says):
        run_chain(launch_broken()[name])


def test_an_error_of_a_wait_for_words_names_their_tensors_and_who_did_not_leave_them() -> None:
    items, graph = plan().items, plan().graph
    combine, attend = (graph.op_index(f"layers.1.{name}") for name in ("combine", "attend"))
    lost, waits = (int(np.flatnonzero(items.op == op)[1]) for op in (attend, combine))
    done = np.ones(len(items), np.int64)
    done[lost] = 0
    waits -= 1
    error = make_hang_error(plan(), waits, AWAITED, attend + 1, 4, done)
    assert str(error).startswith(
        f"op 'layers.1.combine', tile (0, 0) (item {waits}) waited for words of 'parts' and 'peak' and 'total' before "
        "the watchdog fired; op 'layers.1.attend', tile (0, 0, 1) never posted."
    )
    assert (error.semaphore, error.producer) == (-1, "op 'layers.1.attend', tile (0, 0, 1)")
