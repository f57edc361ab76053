"""The Hopper executor is right for every count of tokens, every setting, and run after run."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

import interlace as il
from interlace.core.errors import HangError

from ..cases import Case, Tensors, relative_error, strike_posts
from ..ring import Ring
from .cases import FFNS, ffn_answer, ffn_shape, hopper

TOKENS = [*range(1, 21), 31, 33, 64, 100, 128, 129, 255, 300, 511, 1000, 4097]
GUARD = 4096  # elements on either side of a tensor that nobody may write
NAN = float("nan")


def guarded(c: Case, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned tensor of the graph, and the larger one that it lies in."""
    shape = c.graph.tensor(name).shape
    around = torch.full((shape[0] * shape[1] + 2 * GUARD,), NAN, device="cuda", dtype=c.poisoned().dtype)
    return around[GUARD:-GUARD].view(shape), around


def check(run: il.HopperExecutor, c: Case, seed: int) -> None:
    """Three runs on poisoned tensors match float64 as well as unfused PyTorch and write nowhere else."""
    inputs = c.inputs(seed)
    gold = c.exact(inputs)
    unfused = relative_error(c.answer(inputs), gold)
    (out, around_out), (hidden, around_hidden) = guarded(c, "out"), guarded(c, "hidden")
    for _ in range(3):  # later runs count on from earlier ones
        out.fill_(NAN)
        hidden.fill_(NAN)
        run.run({**inputs, "hidden": hidden, "out": out})
        run.synchronize()
        error = relative_error(out, gold)
        assert error <= 1.5 * unfused, f"{error:.2e}, unfused {unfused:.2e}"
    for around in (around_out, around_hidden):
        assert around[:GUARD].isnan().all()
        assert around[-GUARD:].isnan().all()


@pytest.mark.parametrize("kind", FFNS)
@pytest.mark.parametrize("m", TOKENS)
def test_default_settings_match_float64_as_well_as_unfused_pytorch(m: int, kind: str) -> None:
    check(*hopper(m, ffn_shape(kind)), seed=m)


@pytest.mark.parametrize("kind", FFNS)
@pytest.mark.parametrize("m", [5, 64, 300])
def test_fp16_matches_float64_as_well_as_unfused_pytorch(m: int, kind: str) -> None:
    check(*hopper(m, ffn_shape(kind), dtype="fp16"), seed=m)


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [1, 17, 64, 100, 129, 300, 1000])
def test_widths_that_are_no_multiples_of_the_tile_are_right(m: int, kind: str) -> None:
    check(*hopper(m, ffn_shape(kind, 1040, 2832)), seed=m)


@pytest.mark.parametrize("m", [1, 33, 128, 300])
def test_biases_are_added_before_and_after_the_activation(m: int) -> None:
    run, c = hopper(m, ffn_shape("gelu-tanh"), bias=True)
    assert {"b_up", "b_down"} <= set(c.graph.inputs)
    check(run, c, seed=m)


#: Stages hold 128 elements of k or more, so that both weights of a gated op have whole panels.
SETTINGS = {
    "swapped, 1 warpgroup": Ring(32, 64, 256, True),
    "swapped, 2 warpgroups": Ring(64, 128, 128, True, 2),
    "not swapped, 1 warpgroup": Ring(64, 128, 128, False),
    "not swapped, 2 warpgroups": Ring(128, 64, 128, False, 2, group=4),
    "swapped, 1 warpgroup, both split": Ring(64, 64, 128, True, parts=(2, 3)),
    "swapped, 2 warpgroups, both split": Ring(32, 128, 128, True, 2, parts=(3, 2)),
    "not swapped, 1 warpgroup, both split": Ring(64, 64, 128, False, parts=(2, 5)),
    "not swapped, 2 warpgroups, both split": Ring(128, 128, 128, False, 2, parts=(2, 3)),
    "more parts than one trip sums": Ring(64, 128, 128, True, parts=(8, 11)),
    "last waves split": Ring(64, 64, 128, False, split_tail=True),
    "one stage in flight": Ring(16, 64, 256, True, in_flight=1),
}


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [17, 300])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_right(name: str, m: int, kind: str) -> None:
    check(*hopper(m, ffn_shape(kind), SETTINGS[name]), seed=m)


SWAPPED = il.MatmulTile(32, 64, 128, num_warps=4, swap_ab=True)
LARGE = il.MatmulTile(128, 128, 128, num_warps=8)
CHOICES = {
    "chunk waits": il.Choices(132, chunk_waits=True),
    "chunk waits, rows, split": il.Choices(132, policy=il.RowSync(), chunk_waits=True, split=il.SplitK(3)),
    "chunk waits, strided": il.Choices(132, policy=il.StridedSync(3), chunk_waits=True),
    "chunk waits, stream-k": il.Choices(132, chunk_waits=True, split=il.StreamK(100)),
    "stream-k": il.Choices(132, split=il.StreamK(132)),
    "stream-k, down only": il.Choices(132, split={"down": il.StreamK(77)}),
    "rows": il.Choices(132, policy=il.RowSync()),
    "tiles": il.Choices(132, policy=il.TileSync()),
    "panels": il.Choices(132, policy=il.RowSync(), interleaving=il.Panels(1), order=il.GroupedPanels(2)),
    "panels, chunk waits": il.Choices(132, interleaving=il.Panels(2), chunk_waits=True),
    "half rows": il.Choices(132, policy=il.RowSync(), interleaving=il.HalfRows()),
}


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("tile", [SWAPPED, LARGE], ids=["swapped", "large"])
@pytest.mark.parametrize("name", CHOICES)
def test_every_kind_of_plan_is_right(name: str, tile: il.MatmulTile, kind: str) -> None:
    shape = ffn_shape(kind)
    graph = il.workloads.ffn(300, shape, il.bf16, tile, tile)
    plan = il.build(graph, CHOICES[name])
    if CHOICES[name].chunk_waits and CHOICES[name].policy != il.RowSync():
        item = np.repeat(np.arange(len(plan.items)), np.diff(plan.waits.ptr))
        assert (plan.waits.k > plan.items.k_lo[item]).any()  # some wait does stand inside a reduction
    check(il.HopperExecutor(plan), Case(graph, ffn_answer(shape), "cuda"), seed=0)


def first_result(run: il.HopperExecutor, c: Case, inputs: Tensors) -> torch.Tensor:
    """The output of one run, which later runs are compared with bit by bit, once it is known to be right."""
    out = c.poisoned()
    run.run({**inputs, "out": out})
    run.synchronize()
    assert relative_error(out, c.exact(inputs)) < 1e-2
    return out


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
@pytest.mark.parametrize("m", [16, 300])
def test_10000_runs_back_to_back_give_the_same_bits(m: int, dependent: bool, kind: str) -> None:
    run, c = hopper(m, ffn_shape(kind), dependent_launch=dependent)
    inputs = c.inputs(seed=m)
    expected = first_result(run, c, inputs)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    out, hidden = c.poisoned(), run.intermediate("hidden")
    for i in range(1, 10_001):
        compared = i % 500 == 0
        if compared:
            out.fill_(NAN)
            hidden.fill_(NAN)
        run.run({**inputs, "out": out})
        if compared:
            wrong += (out != expected).sum()
    run.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [16, 300])
def test_300_runs_with_random_delays_never_differ(m: int, kind: str, dependent: bool) -> None:
    """Delays of up to 20 us around every wait and post."""
    run, c = hopper(m, ffn_shape(kind), dependent_launch=dependent)
    delayed, _ = hopper(m, ffn_shape(kind), dependent_launch=dependent, jitter_s=20e-6)
    inputs = c.inputs(seed=m)
    expected = first_result(run, c, inputs)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    out, hidden = c.poisoned(), delayed.intermediate("hidden")
    for _ in range(300):
        out.fill_(NAN)
        hidden.fill_(NAN)
        delayed.run({**inputs, "out": out})
        wrong += (out != expected).sum()
    delayed.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
@pytest.mark.parametrize("m", [16, 300])
def test_a_graph_captured_once_replays_200_times_on_changing_inputs(m: int, dependent: bool) -> None:
    run, c = hopper(m, ffn_shape("gated"), dependent_launch=dependent)
    inputs = c.inputs(seed=0)
    xs = [c.inputs(seed)["x"] for seed in range(4)]
    expected = [first_result(run, c, {**inputs, "x": x}) for x in xs]
    x, out, hidden = torch.empty_like(xs[0]), c.poisoned(), run.intermediate("hidden")
    tensors = {**inputs, "x": x, "out": out}
    x.copy_(xs[0])
    run.run(tensors)
    run.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.run(tensors)
        run.run(tensors)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(200):
        x.copy_(xs[i % 4])
        out.fill_(NAN)
        hidden.fill_(NAN)
        graph.replay()
        wrong += (out != expected[i % 4]).sum()
    run.synchronize()
    assert int(wrong) == 0


def test_two_plans_on_two_streams_at_once_do_not_disturb_each_other() -> None:
    made = [hopper(16, ffn_shape("gated")), hopper(300, ffn_shape("relu"))]
    sides = []
    for run, c in made:
        inputs, out, hidden = c.inputs(seed=0), c.poisoned(), run.intermediate("hidden")
        expected = first_result(run, c, inputs)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        sides.append((run, {**inputs, "out": out}, out, hidden, expected, wrong, torch.cuda.Stream()))
    torch.cuda.synchronize()
    for _ in range(200):
        for run, tensors, out, hidden, expected, wrong, stream in sides:
            with torch.cuda.stream(stream):
                out.fill_(NAN)
                hidden.fill_(NAN)
                run.run(tensors)
                wrong += (out != expected).sum()
    for run, *_, wrong, _ in sides:
        run.synchronize()
        assert int(wrong) == 0


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [16, 300])
def test_a_dependent_launch_sees_inputs_that_the_kernel_before_it_wrote(m: int, kind: str) -> None:
    """Free loads run ahead of that kernel, activations may not."""
    run, c = hopper(m, ffn_shape(kind), dependent_launch=True)
    inputs = c.inputs(seed=0)
    xs = [c.inputs(seed)["x"] for seed in range(4)]
    expected = [first_result(run, c, {**inputs, "x": x}) for x in xs]
    x, out, hidden = torch.empty_like(xs[0]), c.poisoned(), run.intermediate("hidden")
    tensors = {**inputs, "x": x, "out": out}
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(200):
        out.fill_(NAN)
        hidden.fill_(NAN)
        x.fill_(NAN)
        torch.mul(xs[i % 4], 1.0, out=x)
        run.run(tensors)
        wrong += (out != expected[i % 4]).sum()
    run.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("m", [16, 300])
def test_a_dependent_launch_sees_what_the_launch_before_it_wrote(m: int) -> None:
    """Each run's input is the output of the one before, with nothing between them."""
    shape = ffn_shape("relu")
    results = []
    for dependent in (False, True):
        run, c = hopper(m, shape, dependent_launch=dependent)
        inputs = c.inputs(seed=0)
        # ReLU halves the square of what it passes; 1.19 to the fourth makes up for that.
        weights = {name: 1.19 * value for name, value in inputs.items() if name != "x"}
        chain = [inputs["x"].clone(), c.poisoned()]
        for i in range(40):
            source, target = chain[i % 2], chain[(i + 1) % 2]
            run.run({**weights, "x": source, "out": target})
            if not dependent:
                run.synchronize()
        run.synchronize()
        for value in chain:
            assert 0.1 < float(value.float().std()) < 10
        results.append(chain)
    for after, dependent in zip(*results, strict=True):
        assert torch.equal(after, dependent)


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
@pytest.mark.parametrize("workers", [1, 7, 131, 300])
@pytest.mark.parametrize("m", [16, 300])
def test_any_number_of_workers_makes_progress(m: int, workers: int, dependent: bool) -> None:
    """Fewer than there are SMs, and more than fit at once."""
    run, c = hopper(m, ffn_shape("relu"), workers=workers, dependent_launch=dependent)
    assert run.plan.workers == workers
    inputs = c.inputs(seed=0)
    gold = c.exact(inputs)
    outs = [c.poisoned() for _ in range(5)]
    for out in outs:
        run.run({**inputs, "out": out})
    run.synchronize()
    for out in outs:
        assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize(
    "setting", [None, SETTINGS["not swapped, 2 warpgroups"], SETTINGS["last waves split"]],
    ids=["default", "2 warpgroups", "last waves split"],
)
@pytest.mark.parametrize("m", [16, 300])
def test_a_missing_post_raises_hang_error_within_3_seconds_and_the_next_run_is_right(
    m: int, setting: Ring | None
) -> None:
    run, c = hopper(m, ffn_shape("relu"), setting)
    inputs = c.inputs(seed=0)
    gold = c.exact(inputs)
    out = c.poisoned()
    tensors = {**inputs, "out": out}
    run.run(tensors)
    run.synchronize()

    victim = 7  # an item of the first op
    items = run.plan.items
    parts = np.flatnonzero((items.op == items.op[victim]) & (items.tile == items.tile[victim]))
    semaphore = int(items.post[victim])
    assert run.plan.items.op[victim] == 0
    assert semaphore >= 0
    strike_posts(run, parts)  # whichever part arrives last
    begin = time.perf_counter()
    run.run(tensors)
    with pytest.raises(HangError) as caught:
        run.synchronize()
    assert time.perf_counter() - begin >= run.options.timeout_s  # no earlier; a busy machine may take longer
    shares = run.pipeline.warpgroups
    posts = shares * len(np.unique(items.tile[items.post == semaphore]))  # by the last part of each tile
    assert caught.value.semaphore == semaphore
    assert caught.value.expected == posts
    assert caught.value.seen == posts - shares
    name = run.plan.graph.ops[0].tile_name(int(items.tile[victim]))
    assert caught.value.producer == name
    assert run.plan.graph.ops[int(run.plan.items.op[caught.value.item])].name == "down"
    assert name in str(caught.value)

    for _ in range(2):
        out.fill_(NAN)
        run.run(tensors)
        run.synchronize()
        assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize(
    "setting",
    [None, SETTINGS["swapped, 2 warpgroups, both split"], SETTINGS["not swapped, 2 warpgroups, both split"]],
    ids=["default", "both split", "interleaved"],
)
@pytest.mark.parametrize("m", [16, 300])
def test_semaphores_survive_2_to_the_32_posts(m: int, setting: Ring | None) -> None:
    """Counters are set as after runs r with (r + 1) * threshold just below, at and above a wrap of 32 bits."""
    run, c = hopper(m, ffn_shape("relu"), setting)
    inputs = c.inputs(seed=0)
    gold = c.exact(inputs)
    out = c.poisoned()
    run.run({**inputs, "out": out})
    run.synchronize()
    posts = run._semaphores.clone().long()  # one run's worth
    starts = run._counters.clone()
    assert int(starts.max()) == len(run.plan.items) + run._table.workers  # every worker draws one ticket too many
    for limit in (2**31, 2**32):
        first = int(limit // int(posts.max())) - 2
        run._semaphores.copy_(((posts * first + 2**31) % 2**32 - 2**31).int())
        run._counters.copy_(starts * first)
        for _ in range(4):
            out.fill_(NAN)
            run.run({**inputs, "out": out})
            run.synchronize()
            assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize("m", [16, 1000])
def test_a_trace_has_every_item_on_the_gpu_clock(m: int) -> None:
    run, c = hopper(m, ffn_shape("relu"), trace=True)
    run.run({**c.inputs(0), "out": c.poisoned()})
    trace = run.trace()
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns < trace.end_ns).all()
    assert 0 < trace.span_ns < 100_000_000
    assert int(trace.worker.max()) < run.plan.workers
    assert len(set(trace.sm.tolist())) > 30
    # No item starts before all items that it waits for have ended.
    plan = run.plan
    for i in np.flatnonzero(np.diff(plan.waits.ptr))[:200]:
        for w in range(plan.waits.ptr[i], plan.waits.ptr[i + 1]):
            first, count, stride = (int(x[w]) for x in (plan.waits.first, plan.waits.count, plan.waits.stride))
            posters = np.isin(plan.items.post, first + stride * np.arange(count))
            assert trace.end_ns[posters].max() <= trace.start_ns[i] + 2000  # posts precede the end stamp
