"""The one launch is right for every count of tokens, tile, dispatch and epilogue, and run after run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.kernels.matmul.tile import TILING
from interlace.kernels.spin import spin

from ..cases import FFNS, Case, Tensors, check_missing_posts, ffn_shape, relative_error
from .cases import one_launch as made

TOKENS = [*range(1, 21), 31, 33, 64, 100, 128, 129, 255, 300, 511, 1000, 4097]
RUNS = 10_000
GUARD = 4096  # elements on either side of a tensor that nobody may write
NAN = float("nan")


def check(run: il.MegakernelExecutor, c: Case, seed: int) -> None:
    """Three runs on poisoned tensors match float64 as well as unfused PyTorch and write nowhere else."""
    inputs = c.inputs(seed)
    gold = c.compute_exact(inputs)
    unfused = relative_error(c.answer(inputs), gold)
    shape = c.graph.tensor("out").shape
    around = torch.full((shape[0] * shape[1] + 2 * GUARD,), NAN, device="cuda", dtype=c.make_poisoned_output().dtype)
    out = around[GUARD:-GUARD].view(shape)
    for _ in range(3):  # later runs count on from earlier ones
        out.fill_(NAN)
        run.get_intermediate("hidden").fill_(NAN)
        run.run({**inputs, "out": out})
        run.synchronize()
        error = relative_error(out, gold)
        assert error <= 1.5 * unfused, f"{error:.2e}, unfused {unfused:.2e}"
    assert around[:GUARD].isnan().all()
    assert around[-GUARD:].isnan().all()


@pytest.mark.parametrize("kind", FFNS)
@pytest.mark.parametrize("m", TOKENS)
def test_default_settings_match_float64_as_well_as_unfused_pytorch(m: int, kind: str) -> None:
    check(*made(m, ffn_shape(kind)), seed=m)


@pytest.mark.parametrize("kind", FFNS)
@pytest.mark.parametrize("m", [5, 64, 300])
def test_fp16_and_widths_that_are_no_multiples_of_a_tile_are_right(m: int, kind: str) -> None:
    check(*made(m, ffn_shape(kind, 1032, 2840), dtype="fp16"), seed=m)


@pytest.mark.parametrize("m", [1, 33, 128, 300])
def test_biases_are_added_before_and_after_the_activation(m: int) -> None:
    check(*made(m, ffn_shape("gelu-tanh"), bias=True), seed=m)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", FFNS)
@pytest.mark.parametrize("m", [1, 3, 8, 11, 16, 17, 33, 64, 100, 128, 129])
def test_a_norm_before_and_a_sum_behind_are_in_the_launch(m: int, kind: str, dtype: str) -> None:
    """In bf16 the up-projection normalises its rows, over stages of which the last is shorter."""
    run, c = made(m, ffn_shape(kind, 1088, 2816, norm=1e-2), dtype=dtype)
    alone = ["norm"] if dtype == "fp16" else []
    assert [op.name for op in c.graph.ops] == [*alone, "up", "down"]
    check(run, c, seed=m)


@pytest.mark.parametrize("hidden", [1088, 8192])
@pytest.mark.parametrize("kind", ["gelu-tanh", "gated"])
@pytest.mark.parametrize("m", [17, 24, 40, 64])
def test_rows_are_normalised_right_in_every_way_that_is_likely(m: int, kind: str, hidden: int) -> None:
    """In parts too, and over weights that are wider than long."""
    shape = ffn_shape(kind, hidden, 2816, norm=1e-2)
    ways = {}
    for schedule in il.MegakernelExecutor.iter_likely(il.workloads.ffn(m, shape), il.H200):
        up, down = (schedule.get_op_tiling(name) for name in ("up", "down"))
        tiles = [il.MatmulTile(*(dict(of.params)[name] for name in TILING)) for of in (up, down)]
        split = {"up": il.SplitK(up.parts), "down": il.SplitK(down.parts)}
        ways[up, down] = made(m, shape, *tiles, schedule=il.Schedule(132, split=split))
    assert len(ways) > 2
    assert any(up.parts > 1 for up, _ in ways) or hidden < 8192
    for run, c in ways.values():
        check(run, c, seed=m)


def tile(m: int, n: int, k: int, warps: int = 4, swap_ab: bool = False) -> il.MatmulTile:
    return il.MatmulTile(m, n, k, num_warps=warps, swap_ab=swap_ab)


TILES = {
    "narrow": (tile(64, 8, 64), tile(64, 24, 128)),
    "112 and 32 rows": (tile(64, 112, 64), tile(64, 32, 256)),
    "odd widths": (tile(64, 88, 64), tile(64, 120, 64)),
    "two warpgroups": (tile(128, 104, 64, 8), tile(128, 232, 64, 8)),
    "three warpgroups": (tile(192, 96, 64, 12), tile(192, 192, 64, 12)),
    "transposed, three warpgroups": (tile(96, 192, 64, 12, True), tile(72, 192, 64, 12, True)),
    "two blocks of rows each": (tile(256, 56, 64, 8), tile(256, 64, 64, 8)),
    "transposed": (tile(24, 64, 128, swap_ab=True), tile(40, 128, 64, swap_ab=True)),
    "transposed, two warpgroups": (tile(56, 128, 64, 8, True), tile(72, 128, 128, 8, True)),
    "one of each": (tile(64, 96, 64), tile(16, 64, 128, swap_ab=True)),
}
CHOICES = {
    "tickets": il.Schedule(132),
    "static": il.Schedule(132, il.Dispatch.STATIC),
    "static, few workers": il.Schedule(7, il.Dispatch.STATIC, il.Assignment.BALANCED, policy=il.RowSync()),
    "stealing": il.Schedule(132, il.Dispatch.STEALING, policy=il.RowSync()),
    "stealing, few workers": il.Schedule(7, il.Dispatch.STEALING, il.Assignment.BALANCED, split=il.SplitK(3)),
    "hybrid": il.Schedule(132, il.Dispatch.HYBRID, split=il.SplitK(3)),
    "stealing half": il.Schedule(132, il.Dispatch.STEALING, stealing=il.Stealing(None, il.Victim.RANDOM)),
    "dispatcher": il.Schedule(132, il.Dispatch.DISPATCHER, policy=il.RowSync()),
    "dispatcher, few workers": il.Schedule(7, il.Dispatch.DISPATCHER, split=il.SplitK(3), chunk_waits=True),
    "queue": il.Schedule(132, il.Dispatch.QUEUE, policy=il.RowSync()),
    "queue, more workers than SMs, split, chunk waits": il.Schedule(
        400, il.Dispatch.QUEUE, split=il.SplitK(3), chunk_waits=True
    ),
    "more workers than SMs": il.Schedule(400, policy=il.TileSync()),
    "split": il.Schedule(132, split=il.SplitK(3)),
    "more parts than one trip sums": il.Schedule(132, split=il.SplitK(11)),
    "stream-k, chunk waits": il.Schedule(132, chunk_waits=True, split=il.StreamK(100)),
    "panels": il.Schedule(132, policy=il.RowSync(), interleaving=il.RowPanels(1), order=il.GroupedColumnMajor(2)),
}


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [17, 300])
@pytest.mark.parametrize("name", TILES)
def test_tiles_of_any_width_are_right(name: str, m: int, kind: str) -> None:
    up, down = TILES[name]
    check(*made(m, ffn_shape(kind), up, down), seed=m)


@pytest.mark.parametrize("tiles", ["112 and 32 rows", "two warpgroups", "three warpgroups", "transposed"])
@pytest.mark.parametrize("name", CHOICES)
def test_every_kind_of_plan_is_right(name: str, tiles: str) -> None:
    up, down = TILES[tiles]
    check(*made(300, ffn_shape("gated"), up, down, schedule=CHOICES[name]), seed=0)


#: Tiles of the second product and their parts, each on a worker of its own: tokens as rows and as columns, shares as
#: wide as each other and narrower last ones.
SHARED = {
    "two warpgroups": (300, tile(128, 104, 64, 8), 3),
    "transposed": (48, tile(48, 64, 128, swap_ab=True), 3),
    "three of 7 groups of columns": (100, tile(64, 56, 64), 3),
    "three warpgroups": (150, tile(192, 96, 64, 12), 3),
    "transposed, three warpgroups": (150, tile(72, 192, 64, 12, True), 2),
}
#: The same of first products that normalise their rows.
NORMALISED = {"64 tokens": (64, tile(64, 64, 128), 3), "two warpgroups": (100, tile(128, 56, 64, 8), 2)}


@pytest.mark.parametrize("kind", ["gelu-tanh", "gated"])
@pytest.mark.parametrize("name", SHARED)
def test_parts_that_share_sums_are_right_and_give_the_same_bits_under_delays(name: str, kind: str) -> None:
    m, down, parts = SHARED[name]
    schedule = il.Schedule(132, il.Dispatch.STATIC, split={"down": il.SplitK(parts)})
    run, c = made(m, ffn_shape(kind), down, down, schedule=schedule, jitter_s=3e-6, dependent_launch=True)
    assert run.lowered.ops[1].tile.shared_elements
    check(run, c, seed=m)
    inputs = c.inputs(seed=m)
    check_bits(run, inputs, first_result(run, c, inputs), every=1)
    assert (run._workspace.view(torch.int32) == -1).all(), "every sum was taken"


@pytest.mark.parametrize("kind", ["gelu-tanh", "gated"])
@pytest.mark.parametrize("name", NORMALISED)
def test_parts_that_normalise_rows_give_the_same_bits_under_delays(name: str, kind: str) -> None:
    m, up, parts = NORMALISED[name]
    schedule = il.Schedule(132, il.Dispatch.STATIC, split={"up": il.SplitK(parts)})
    shape = ffn_shape(kind, 1088, 2816, norm=1e-2)
    run, c = made(m, shape, up, up, schedule=schedule, jitter_s=3e-6, dependent_launch=True)
    assert run.lowered.ops[0].tile.shared_elements
    check(run, c, seed=m)
    inputs = c.inputs(seed=m)
    check_bits(run, inputs, first_result(run, c, inputs), every=1)
    assert (run._workspace.view(torch.int32) == -1).all(), "every sum was taken"


@pytest.mark.parametrize("residual", [False, True])
def test_a_chain_of_many_ops_with_residuals_is_one_launch(residual: bool) -> None:
    """Twelve products, each adding what two ops before gave."""
    ops, m, n = 12, 48, 512
    x = [il.Tensor(f"x{i}", (m, n), il.bf16) for i in range(ops + 1)]
    w = [il.Tensor(f"w{i}", (n, n), il.bf16) for i in range(ops)]
    made_ops = tuple(
        il.matmul(f"op{i}", x[i], w[i], x[i + 1], tile=tile(64, 40, 128), residual=x[i - 1] if residual and i else None)
        for i in range(ops)
    )
    graph = il.Graph("chain", (*x, *w), made_ops, ("x0", *(t.name for t in w)), (f"x{ops}",))
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(132)), il.RunOptions(dependent_launch=True))
    torch.manual_seed(0)
    tensors = {t.name: torch.randn(t.shape, device="cuda").bfloat16() for t in (x[0], *w)}
    tensors |= {t.name: tensors[t.name] * n**-0.5 for t in w}
    out = torch.full((m, n), NAN, device="cuda", dtype=torch.bfloat16)
    gold, plain = ([t.to(kind) for t in (tensors["x0"],)] for kind in (torch.float64, torch.bfloat16))
    for i in range(ops):
        for some in (gold, plain):
            value = some[i] @ tensors[f"w{i}"].to(some[i].dtype).T
            some.append(value + some[i - 1] if residual and i else value)
    for _ in range(3):
        run.run({**tensors, f"x{ops}": out})
        run.synchronize()
        assert relative_error(out, gold[-1]) <= 1.5 * relative_error(plain[-1], gold[-1])


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
@pytest.mark.parametrize("jitter_s", [0.0, 3e-6])
@pytest.mark.parametrize("m", [16, 300])
def test_runs_back_to_back_give_the_same_bits(m: int, jitter_s: float, dependent: bool) -> None:
    """With delays between every wait and post each result is looked at; else many runs follow each other at once."""
    run, c = made(m, ffn_shape("gated"), dependent_launch=dependent, jitter_s=jitter_s)
    inputs = c.inputs(seed=m)
    check_bits(run, inputs, first_result(run, c, inputs), every=1 if jitter_s else 100)


def check_bits(run: il.MegakernelExecutor, inputs: Tensors, first: torch.Tensor, every: int) -> None:
    """Runs give the bits of the first; the last of each series is looked at, and the tensor poisoned before it."""
    out, wrong = torch.empty_like(first), torch.zeros((), device="cuda", dtype=torch.int64)
    for n in range(RUNS):
        if n % every == 0:
            out.fill_(NAN)
        run.run({**inputs, "out": out})
        if n % every == every - 1:
            wrong += (out != first).sum()
    run.synchronize()
    assert not wrong.item()


def first_result(run: il.MegakernelExecutor, c: Case, inputs: Tensors) -> torch.Tensor:
    """Run with poisoned outputs; return the result, checked against float64."""
    out = c.make_poisoned_output()
    run.run({**inputs, "out": out})
    run.synchronize()
    assert relative_error(out, c.compute_exact(inputs)) < 1e-2
    return out


@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [16, 300])
def test_a_dependent_launch_sees_inputs_that_the_kernel_before_it_wrote(m: int, kind: str) -> None:
    """Loads of weights run ahead of that kernel, those of activations may not."""
    run, c = made(m, ffn_shape(kind), dependent_launch=True)
    inputs = c.inputs(seed=0)
    xs = [c.inputs(seed)["x"] for seed in range(4)]
    expected = [first_result(run, c, {**inputs, "x": x}) for x in xs]
    x, out, hidden = torch.empty_like(xs[0]), c.make_poisoned_output(), run.get_intermediate("hidden")
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
    results = []
    for dependent in (False, True):
        run, c = made(m, ffn_shape("relu"), dependent_launch=dependent)
        inputs = c.inputs(seed=0)
        # ReLU halves the square of what it passes; 1.19 to the fourth makes up for that.
        weights = {name: 1.19 * value for name, value in inputs.items() if name != "x"}
        chain = [inputs["x"].clone(), c.make_poisoned_output()]
        for i in range(40):
            source, target = chain[i % 2], chain[(i + 1) % 2]
            run.run({**weights, "x": source, "out": target})
            if not dependent:
                run.synchronize()
        run.synchronize()
        for value in chain:
            assert 0.1 < float(value.float().std()) < 10
        results.append(chain)
    for after, overlapping in zip(*results, strict=True):
        assert torch.equal(after, overlapping)


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
@pytest.mark.parametrize("workers", [1, 7, 131, 300])
@pytest.mark.parametrize("m", [16, 300])
def test_any_number_of_workers_makes_progress(m: int, workers: int, dependent: bool) -> None:
    """Fewer than there are SMs, and more than fit at once."""
    run, c = made(m, ffn_shape("relu"), workers=workers, dependent_launch=dependent)
    assert run.plan.workers == workers
    inputs = c.inputs(seed=0)
    gold = c.compute_exact(inputs)
    outs = [c.make_poisoned_output() for _ in range(5)]
    for out in outs:
        run.run({**inputs, "out": out})
    run.synchronize()
    for out in outs:
        assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize("m", [16, 300])
def test_semaphores_survive_2_to_the_32_posts(m: int) -> None:
    """Counters are set as after runs r with (r + 1) * threshold just below, at and above a wrap of 32 bits."""
    run, c = made(m, ffn_shape("relu"))
    inputs = c.inputs(seed=0)
    gold = c.compute_exact(inputs)
    out = c.make_poisoned_output()
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


@pytest.mark.parametrize("kind", FFNS)
@pytest.mark.parametrize(("m", "rows"), [(16, 1), (16, 9), (64, 33), (64, 47), (128, 65), (300, 257), (384, 1)])
def test_rows_that_a_short_input_has_are_right_and_the_others_change_none(m: int, rows: int, kind: str) -> None:
    run, c = made(m, ffn_shape(kind), short_inputs=("x",), dependent_launch=True)
    inputs = c.inputs(seed=m)
    gold = c.compute_exact(inputs)[:rows]
    unfused = relative_error(c.answer(inputs)[:rows], gold)
    few = torch.full((rows + 64, inputs["x"].shape[1]), NAN, device="cuda", dtype=inputs["x"].dtype)
    few[:rows] = inputs["x"][:rows]
    for _ in range(3):
        out = c.make_poisoned_output()
        run.get_intermediate("hidden").fill_(NAN)
        run.run({**inputs, "x": few[:rows], "out": out})
        run.synchronize()
        assert relative_error(out[:rows], gold) <= 1.5 * unfused


@pytest.mark.parametrize(("ops", "items"), [(1, 3), (2, 3), (2, 400)])
@pytest.mark.parametrize(
    "dispatch", sorted(il.MegakernelExecutor.overlapping_dispatches, key=lambda dispatch: dispatch.value)
)
def test_runs_that_overlap_run_each_item_once_whoever_hands_it_out(dispatch: il.Dispatch, ops: int, items: int) -> None:
    """Few items, so that workers are told to stop with their first one, and many."""
    x = [il.Tensor(f"x{n}", (items,), il.int32) for n in range(ops + 1)]
    made_ops = tuple(spin(f"op{n}", x[n], x[n + 1]) for n in range(ops))
    graph = il.Graph("chain", tuple(x), made_ops, ("x0",), (x[-1].name,))
    plan = il.build(graph, il.Schedule(132, dispatch, policy=il.TileSync()))
    run = il.MegakernelExecutor(plan, il.RunOptions(jitter_s=1e-6, dependent_launch=True))
    given = torch.arange(items, device="cuda", dtype=torch.int32) * 7 % 2000
    out, rounds, each = torch.empty_like(given), 5, 100
    for _ in range(rounds):
        out.fill_(-1)
        for _ in range(each):
            run.run({"x0": given, x[-1].name: out})
        run.synchronize()
        assert torch.equal(out, given)
    assert (run._semaphores[: plan.semaphores] == rounds * each).all()


def test_replays_of_a_graph_and_two_plans_on_two_streams_do_not_disturb_each_other() -> None:
    """Plans: tickets, and lists with parts that share sums, with delays; each replay finds its tensors poisoned."""
    down, lists = tile(64, 56, 64), il.Schedule(132, il.Dispatch.STATIC, split={"down": il.SplitK(3)})
    pairs = [
        made(64, ffn_shape("relu"), dependent_launch=True, jitter_s=1e-6),
        made(100, ffn_shape("gated"), tile(64, 88, 64), down, schedule=lists, dependent_launch=True, jitter_s=1e-6),
    ]
    streams = []
    for seed, (run, c) in enumerate(pairs):
        inputs, out = c.inputs(seed), c.make_poisoned_output()
        first, graph = first_result(run, c, inputs), torch.cuda.CUDAGraph()
        run.run({**inputs, "out": out})
        run.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(5):
                run.run({**inputs, "out": out})
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        streams.append((torch.cuda.Stream(), graph, inputs, (out, run.get_intermediate("hidden")), first, wrong))
    torch.cuda.synchronize()
    for _ in range(200):
        for stream, graph, _, written, first, wrong in streams:
            with torch.cuda.stream(stream):
                for tensor in written:
                    tensor.fill_(NAN)
                graph.replay()
                wrong += (written[0] != first).sum()
    torch.cuda.synchronize()
    for run, _ in pairs:
        run.synchronize()
    assert [wrong.item() for *_, wrong in streams] == [0, 0]


def test_a_missing_post_ends_in_an_error_that_names_it_and_the_next_run_is_right() -> None:
    run, c = made(64, ffn_shape("relu"), tile(64, 64, 64), tile(64, 64, 64), timeout_s=0.05)
    inputs, out = c.inputs(0), c.make_poisoned_output()
    check_missing_posts(run, {**inputs, "out": out}, [3], r"waited for semaphore.*never posted")
    assert relative_error(out, c.compute_exact(inputs)) < 1e-2


def test_a_trace_has_every_item_in_order() -> None:
    run, c = made(300, ffn_shape("gated"), trace=True)
    for _ in range(2):
        run.run({**c.inputs(0), "out": c.make_poisoned_output()})
    trace = run.read_trace()
    assert len(trace.op) == len(run.plan.items)
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns <= trace.end_ns).all()
    assert len(np.unique(trace.sm)) > 100
    down = trace.op == 1
    assert trace.end_ns[~down].min() < trace.end_ns[down].max()
