"""One launch or PyTorch's own ops: what was measured decides, between measurements a corrected prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import interlace as il
from interlace.core.devices import H100, H200
from interlace.deploy import Choice, choose, choose_launch_rows, predict_library_us, table
from interlace.deploy.choose import EXTRAPOLATED_RATIO, MEASURED_RATIO, SCALED_RATIO, Judgement, judge, predict_us
from interlace.deploy.launch_rows import _estimate_seconds as priced
from interlace.deploy.store import CacheEntry, store_cached
from interlace.deploy.table import FFNTimes
from interlace.executors.megakernel import MegakernelExecutor
from interlace.planner import predict as predicting
from interlace.workloads import FFNShape, ffn, two_copies

from ..benchmarks import BENCHMARKS, load_script
from ..thorough import some
from .gpus import A100

ROWS = table.load_table(H200).rows
CHIPS = {"h100": H100, "h200": H200}  # whose launches were measured
SILU, RELU = il.Activation.SILU, il.Activation.RELU
SOME = FFNShape(2048, 8192, SILU, True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    return tmp_path


def row(model: str, tokens: int) -> FFNTimes:
    return next(row for row in ROWS if (row.model, row.tokens, row.norm) == (model, tokens, None))


def choose_shape(shape: FFNShape, tokens: int, device: il.DeviceSpec = H200, bias: bool = False) -> Choice:
    own, launched = (ffn(rows, shape, bias=bias) for rows in (tokens, choose_launch_rows(tokens, shape, device)))
    return choose(own, device, launched)


def shape_of(row: FFNTimes) -> FFNShape:
    return FFNShape(row.hidden, row.ffn, il.Activation(row.activation), row.gated)


# ---------------------------------------------------------------- numbers of rows


def built_for(shape: FFNShape, most: int) -> list[int]:
    """For each number of tokens up to that, the rows that its launch is built for."""
    return [choose_launch_rows(rows, shape, H200) for rows in range(1, most + 1)]


@pytest.mark.parametrize("shape", [SOME, FFNShape(4096, 16384, RELU, False), FFNShape(64, 128, SILU, True)])
def test_a_launch_has_rows_to_spare_where_they_cost_hardly_anything(shape: FFNShape) -> None:
    built = built_for(shape, 256)
    assert built == sorted(built)
    assert built[:16] == [8] * 8 + [16] * 8
    assert all(rows <= launched < max(17, 2 * rows) for rows, launched in enumerate(built, 1))
    assert all(choose_launch_rows(rows, shape, H200) == rows for rows in {*built})
    assert {32, 64, 128, 256} <= {*built}
    assert all(rows % 8 == 0 for rows in built)
    for rows in (24, 40, 72, 104, 136, 152, 200, 248):
        assert priced(built[rows - 1], shape, H200) <= 1.02 * priced(rows, shape, H200)


def test_few_launches_serve_all_numbers_of_tokens() -> None:
    some = SOME, FFNShape(1600, 6400, il.Activation.GELU_TANH, False)
    assert all(14 <= len({*built_for(shape, 1024)}) <= 36 for shape in some)
    assert [*dict.fromkeys(built_for(FFNShape(32, 48, SILU, True), 1024))] == [8, 16, 32, 64, 128, 256, 512, 1024]


# ---------------------------------------------------------------- the library


def test_the_librarys_time_is_a_roofline_for_each_kernel() -> None:
    graph = ffn(16, FFNShape(4096, 14336, SILU, True))
    stream = 14336 * 4096 * 2 / (0.971 * 4.53e12) * 1e6
    pointwise = 3 * 16 * 14336 * 2 / (0.72 * 132 * 84e9) * 1e6 + 2.5
    assert predict_library_us(graph, H200) == pytest.approx(3 * (stream + 4) + pointwise)
    many = ffn(4096, FFNShape(4096, 14336, SILU, True))
    assert predict_library_us(many, H200) > 3 * 2 * 4096 * 4096 * 14336 / (0.873 * 790e12) * 1e6
    plain, biased = (ffn(16, FFNShape(4096, 14336, RELU, False), bias=bias) for bias in (False, True))
    assert predict_library_us(plain, H200) == predict_library_us(biased, H200) < predict_library_us(graph, H200)
    assert predict_library_us(graph, H100) > predict_library_us(graph, H200)  # whose memory is slower
    few, more = (ffn(200, FFNShape(4096, 14336, RELU, False, norm=1e-5), device=device) for device in (H100, H200))
    assert len(few.ops) < len(more.ops)  # PyTorch's norm is a kernel, whoever makes ours
    assert predict_library_us(few, H200) == predict_library_us(more, H200)
    assert predict_library_us(two_copies(64, 64), H200) == pytest.approx(2 * 2.5, rel=0.01)


# ---------------------------------------------------------------- what was measured


@pytest.mark.parametrize("chip", CHIPS)
def test_the_table_is_read_as_it_is_written(chip: str) -> None:
    found = table.load_table(CHIPS[chip])
    assert found.device == CHIPS[chip]
    assert table.format_table(found) == (table.FOLDER / f"{chip}.json").read_text()
    assert len({(row.model, row.norm, row.tokens) for row in found.rows}) == len(found.rows)


@pytest.mark.parametrize("every", some([27, 3], lambda every: every == 27))
@pytest.mark.parametrize("device", CHIPS.values(), ids=CHIPS)
def test_the_table_rests_on_todays_predictions(device: il.DeviceSpec, every: int) -> None:
    """A rule or a model that changed calls for ``benchmarks/choose.py --table``, and perhaps for new measurements."""
    rows = table.load_table(device).rows
    assert all(row.launched == choose_launch_rows(row.tokens, row.shape, device) for row in rows[:: 2 * every])
    few = [row for row in rows if row.launched <= 256][::every]  # what is larger takes longer to predict
    assert {row.launched for row in few} > {8, 16, 64}
    for row in few:
        assert predict_us(row.build_graph(row.launched), device, MegakernelExecutor) == pytest.approx(
            row.predicted_us, abs=1e-3
        )


@pytest.mark.parametrize("every", some([13, 3], lambda every: every == 13))
@pytest.mark.parametrize("device", CHIPS.values(), ids=CHIPS)
def test_no_row_of_the_table_is_chosen_where_the_library_is_faster(device: il.DeviceSpec, every: int) -> None:
    launches, rows = 0, table.load_table(device).rows[::every]
    for row in rows:
        choice = choose(row.problem, device, row.build_graph(row.launched))
        assert (choice.executor is MegakernelExecutor) == (row.ratio >= 1.01), row
        assert choice.launch_us is not None
        assert choice.library_us is not None
        assert choice.library_us / choice.launch_us == pytest.approx(row.ratio)
        assert "measured" in choice.why
        launches += choice.executor is not None
    assert 0.1 * len(rows) < launches < len(rows)


def test_what_was_measured_is_not_predicted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    predict_us.cache_clear()
    monkeypatch.setattr(predicting, "predict", lambda *_: pytest.fail("a prediction"))
    shape = shape_of(row("llama3-8b", 48))
    for tokens in (48, 50, 64):
        assert "measured" in choose_shape(shape, tokens).why


def make_table(*rows: tuple[int, int, float, float]) -> table.MeasurementTable:
    """A table of one FFN: tokens, rows of the launch, microseconds of the launch and of the library in a layer."""
    shape = {"model": "some", "hidden": 2048, "ffn": 8192, "activation": "silu", "gated": True, "norm": None}
    made = tuple(
        FFNTimes(
            **shape, tokens=m, launched=at, launch_us={"layer": us}, library_us={"layer": library}, predicted_us=1.0
        )
        for m, at, us, library in rows
    )
    return replace(table.load_table(H200), rows=made, margins={16: 1.06, 64: 1.02})


def judge_tokens(found: table.MeasurementTable, tokens: int, launched: int) -> Judgement:
    return judge(found, ffn(tokens, SOME), ffn(launched, SOME), H200, lambda: 50.0)


def test_a_launch_is_judged_by_its_time_on_as_many_tokens() -> None:
    """One on little more than half of its rows may take longer than on all of them."""
    found = make_table((65, 128, 44.4, 41.8), (97, 128, 40.9, 43.1), (128, 128, 39.4, 43.0))
    told = {tokens: judge_tokens(found, tokens, 128) for tokens in (65, 97, 128)}
    assert [(j.launch_us, j.library_us, j.least) for j in told.values()] == [
        (44.4, 41.8, MEASURED_RATIO),
        (40.9, 43.1, MEASURED_RATIO),
        (39.4, 43.0, MEASURED_RATIO),
    ]
    assert [j.ratio >= j.least for j in told.values()] == [False, True, True]


def test_between_two_measured_numbers_of_tokens_the_worse_decides() -> None:
    found = make_table((65, 128, 44.4, 41.8), (97, 128, 40.9, 43.1), (128, 128, 39.4, 43.0), (48, 64, 30.0, 40.0))
    assert judge_tokens(found, 80, 128) == judge_tokens(found, 65, 128)
    assert judge_tokens(found, 100, 128).launch_us == 40.9
    assert "measured in a layer" in judge_tokens(found, 100, 128).why


def test_over_fewer_rows_than_a_launch_was_measured_for_the_library_is_taken_to_be_faster() -> None:
    found = make_table((384, 384, 100.0, 130.0))
    assert judge_tokens(found, 384, 384).ratio == 1.3
    less = judge_tokens(found, 257, 384)
    assert less.launch_us == 100.0
    assert 0.6 * 130.0 < less.library_us < 0.8 * 130.0
    assert less.least == SCALED_RATIO
    assert less.why.startswith("measured over 384 rows in a layer (NVIDIA H200, ")
    assert less.why.endswith("scaled")


def test_what_is_only_predicted_must_win_by_the_margin_of_the_table() -> None:
    found = make_table((16, 16, 30.0, 40.0))
    other = FFNShape(2048, 8064, SILU, True)
    told = judge(found, ffn(16, other), ffn(16, other), H200, lambda: 50.0)
    assert (told.launch_us, told.least) == (50.0, 1.06)
    assert judge_tokens(found, 128, 128).least == EXTRAPOLATED_RATIO
    assert judge_tokens(replace(found, margins={128: 1.5}), 104, 104).least == 1.5
    assert judge_tokens(replace(found, rows=()), 16, 16).library_us == predict_library_us(ffn(16, SOME), H200)


def swept(tokens: int, runs: str = "launch", fused: bool = True, whole: bool = False) -> dict[str, Any]:
    """A row of ``benchmarks/nn.py``, with ``--launches`` where something is fused."""
    alone = {"eager": 30.0, "compile": 28.0, "module": 20.0 + tokens}
    layer = {"eager": 35.0, "compile": 33.0, "module": 31.0, "module, compiled": 30.0001}
    if fused:
        alone["fused"], layer["fused"] = 29.0, 34.0
    if whole:
        layer |= {"whole": 27.0, "whole, compiled": 26.0}
    timed = ({name: {"median_us": us} for name, us in each.items()} for each in (alone, layer))
    shape = {"model": "some", "hidden": 2048, "ffn": 8192, "activation": "relu", "gated": False, "eps": 1e-5}
    executor = MegakernelExecutor.name if runs == "launch" else None
    by = dict(zip(("alone", "layer"), timed, strict=True))
    return {**shape, "tokens": tokens, "runs": runs, "executor": executor, **by}


def test_a_sweep_makes_a_table() -> None:
    study = load_script("choose")
    rows = [swept(20), swept(3, whole=True), swept(16), swept(17, "library"), swept(18, fused=False)]
    versions = {"python": "3.12", "torch": "2.11.0", "triton": "3.6.0"}
    head = {"gpu": H200.name, "versions": versions, "date": "2026-11-22", "protocol": "some"}
    path, found = study["table_of"]({**head, "rows": rows})
    assert path == table.FOLDER / "h200.json"
    *plain, whole = found.rows
    assert [(row.tokens, row.launched) for row in plain] == [(3, 8), (16, 16), (20, 32)]
    for row in plain:  # each of its own launch, on its own tokens
        assert row.launch_us == {"alone": 20.0 + row.tokens, "layer": 31.0, "compiled": 30.0}
        assert row.library_us == {"alone": 28.0, "layer": 34.0, "compiled": 33.0}
        assert row.norm is None
        assert row.predicted_us == pytest.approx(
            predict_us(row.build_graph(row.launched), H200, MegakernelExecutor), abs=1e-3
        )
    assert (whole.tokens, whole.launched, whole.norm, whole.worst_context) == (3, 8, 1e-5, "layer")
    assert whole.launch_us == {"layer": 27.0, "compiled": 26.0}
    assert whole.library_us == {"layer": 34.0, "compiled": 33.0}
    assert whole.predicted_us == pytest.approx(predict_us(whole.build_graph(8), H200, MegakernelExecutor), abs=1e-3)
    assert [row.worst_context for row in plain] == ["layer", "alone", "alone"]
    assert found.executor == MegakernelExecutor.name
    lines = [table.format_table(some).splitlines() for some in (found, found.exclude_rows(found.rows[:1]))]
    assert set(lines[0]) - set(lines[1]) == {
        f"   [3, 8, {found.rows[0].predicted_us}, 23.0, 31.0, 30.0, 28.0, 34.0, 33.0],"
    }


def test_a_launch_with_a_norm_is_judged_by_those_with_one_whatever_that_adds() -> None:
    found = make_table((16, 16, 30.0, 40.0))
    row = replace(found.rows[0], norm=1e-5, launch_us={"layer": 32.0}, library_us={"layer": 44.0})
    both = replace(found, rows=(*found.rows, row))
    for eps in (1e-5, 1e-6):
        some = replace(SOME, norm=eps)
        told = judge(both, ffn(16, some), ffn(16, some), H200, lambda: 50.0)
        assert (told.launch_us, told.library_us, told.least) == (32.0, 44.0, MEASURED_RATIO)
        beside = judge(found, ffn(16, some), ffn(16, some), H200, lambda: 50.0)
        assert "predicted" in beside.why
    assert judge_tokens(both, 16, 16).launch_us == 30.0


def test_a_sweep_starts_with_all_models_and_goes_on_where_it_stopped() -> None:
    sweep = load_script("nn")
    jobs, models = sweep["jobs"], sweep["MODELS"]
    first = jobs([])
    assert [(job.model, job.tokens) for job in first[: len(models)]] == [(model, 1) for model in models]
    assert len(models) >= 10
    measured = {(row.hidden, row.ffn, row.gated) for row in ROWS}
    beside = [shape for shape in models.values() if (shape.hidden, shape.ffn, shape.gated) not in measured]
    assert len(beside) >= 6
    forced = jobs([], launches=True)
    assert {job.model for job in forced} == {row.model for row in ROWS} == sweep["TABLED"].keys()
    assert {(job.shape.hidden, job.shape.ffn, job.shape.gated) for job in forced} == measured
    assert all(job.forced for job in forced)
    assert not any(job.forced for job in first)
    done = [{"model": job.model, "tokens": job.tokens, "share": 1, "alone": {}} for job in first[:5]]
    assert jobs(done) == first[5:]
    done[0]["alone"] = {"fused": {}}
    again = jobs(done, launches=True)
    assert len(again) == len(forced) - 1  # the launches of the others need not have been timed
    timed = {"eager": {"median_us": 12.0}, "compile": {"median_us": 11.0}, "exact": {"median_us": 10.0}}
    row = {"model": "a", "runs": "launch", "alone_ratio": 1.21, "alone": timed}
    told = [{**row, "tokens": 1, "layer_ratio": 1.0}, {**row, "tokens": 2, "layer_ratio": 0.9}]
    found = sweep["summary"](told)
    assert found["below"] == [["a", 2, 0.9]]
    assert (found["models"], found["launches"], found["worst"]) == (1, 2, 0.9)
    assert found["mean_layer"] == pytest.approx(0.9**0.5)
    assert found["launch_means"] == {"up to 64": pytest.approx(1.1)}
    timed["max-autotune"] = {"median_us": 10.5}
    assert sweep["summary"](told)["launch_means"] == {"up to 64": pytest.approx(1.05)}


def test_a_sweep_of_launches_runs_them_where_the_library_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load_script("nn")
    monkeypatch.setitem(sweep["force"].__globals__, "current_device", lambda: H200)
    forced = sweep["jobs"]([], launches=True)
    (job,) = [job for job in forced if (job.model, job.tokens) == ("falcon-7b", 200)]
    assert sweep["choose_module"](job).executor is None
    sweep["force"](job)
    assert sweep["choose_module"](job).executor is MegakernelExecutor


def test_drawn_rows_are_the_same_for_a_seed() -> None:
    jobs = load_script("nn")["jobs"]
    rows = jobs([], seed=3, rows=40)
    assert rows == jobs([], seed=3, rows=40) != jobs([], seed=4, rows=40)
    assert {job.share for job in rows} == {1, 2, 4, 8}
    assert all(job.drawn and 1 <= job.tokens <= 1000 for job in rows)
    assert {job.modes for job in rows} == {("compile", "max-autotune")}
    assert {job.modes for job in jobs([])} == {("compile",)}
    done = [{"model": job.model, "tokens": job.tokens, "share": job.share, "alone": {}} for job in rows[:7]]
    known = {job.row for job in rows[:7]}
    assert jobs(done, seed=3, rows=40) == [job for job in rows if job.row not in known]


# ---------------------------------------------------------------- beside the table


@pytest.mark.parametrize("chip", some(CHIPS, lambda chip: chip == "h200"))
def test_on_ffns_that_were_left_out_the_choice_is_as_good_as_the_record_says(chip: str) -> None:
    study = load_script("choose")
    record = json.loads((BENCHMARKS / "results" / f"choose-{chip}.json").read_text())
    known = table.load_table(CHIPS[chip])
    found = study["figures"](known)
    assert {name: record[name] for name in found} == json.loads(json.dumps(found))
    assert found["below"] == 0
    assert found["mean"] - 1 >= 0.7 * (found["oracle"] - 1)
    assert study["margins"](known) == found["margins"]["predicted"]


def test_an_ffn_beside_the_table_is_predicted_and_corrected() -> None:
    near = choose_shape(FFNShape(4096, 14000, SILU, True), 32)
    assert near.executor is MegakernelExecutor
    graph = ffn(32, FFNShape(4096, 14000, SILU, True))
    assert near.schedule == MegakernelExecutor.select_default(graph, H200)
    assert near.why.startswith("predicted, corrected by what was measured of FFNs alike (NVIDIA H200, torch 2.11.0")
    assert str(near).startswith(f"one launch ({MegakernelExecutor.name}): the launch takes ")
    assert near.launch_us == predict_us(graph, H200, MegakernelExecutor)
    far = choose_shape(FFNShape(64, 128, SILU, True), 16)
    assert "that are all unlike it" in far.why
    close = choose_shape(FFNShape(256, 1024, SILU, True), 64)
    assert close.executor is None
    assert close.launch_us is not None
    assert close.library_us is not None
    assert table.load_table(H200).find_margin(64) < close.library_us / close.launch_us < EXTRAPOLATED_RATIO
    biased = choose_shape(shape_of(row("opt-6.7b", 16)), 16, bias=True)
    assert "predicted" in biased.why
    slower = choose_shape(FFNShape(4096, 14000, SILU, True), 200)
    assert slower.executor is None
    assert str(slower).startswith("PyTorch's own ops: the launch takes ")


def test_beyond_what_was_measured_the_library_runs() -> None:
    shape = FFNShape(4096, 14336, SILU, True)
    most = table.load_table(H200).max_tokens
    choice = choose_shape(shape, most + 1)
    assert (choice.executor, choice.schedule, choice.launch_us) == (None, None, None)
    assert f"{most + 1} rows are more than the {most} up to which launches were measured" in choice.why
    assert "interlace tune" in str(choice)
    wide = choose_shape(FFNShape(1 << 16, 1 << 22, RELU, False), 128)
    assert wide.executor is None
    assert "items, too many to predict" in wide.why


def test_another_chip_goes_by_the_nearest_that_was_measured_and_says_so() -> None:
    shape = shape_of(row("llama3-8b", 16))
    part = replace(H200, sms=66, like=H200.name)
    for device, measured_on in ((replace(H100, name="an H800", like=H100.name), H100), (part, H200)):
        choice = choose_shape(shape, 16, device)
        assert f"corrected by what was measured of FFNs alike ({measured_on.name}" in choice.why
        assert choice.launch_us != choose_shape(shape, 16).launch_us
    older = choose_shape(shape, 16, A100)
    assert older.executor is None
    assert "nobody measured the persistent-ticket executor" in older.why
    unable = choose(ffn(16, FFNShape(64, 128, RELU, False)), replace(il.CPU, capability=(0, 0)))
    assert unable.executor is None


def test_a_table_of_another_executor_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = replace(table.load_table(H200), executor="another")
    monkeypatch.setattr(import_module("interlace.deploy.choose"), "load_table", lambda device: known)
    choice = choose_shape(shape_of(row("llama3-8b", 16)), 16)
    assert (choice.executor, choice.launch_us) == (None, None)
    assert choice.why.startswith(f"nobody measured the {MegakernelExecutor.name} executor against a library here")


# ---------------------------------------------------------------- what was tuned


def test_what_was_tuned_decides_alone() -> None:
    shape = FFNShape(4096, 14336, RELU, False)
    graph = ffn(512, shape)
    schedule = MegakernelExecutor.select_default(graph, H200)

    def cache(us: float, library_us: float | None = None) -> None:
        store_cached(graph, H200, MegakernelExecutor, CacheEntry(schedule, us, library_us))

    cache(100.0, 102.0)
    for tokens in (500, 512):
        choice = choose_shape(shape, tokens)
        assert (choice.executor, choice.launch_us, choice.library_us) == (MegakernelExecutor, 100.0, 102.0)
        assert choice.why == "both timed by `interlace tune`"
    cache(100.0, 99.0)
    assert choose_shape(shape, 512).executor is None
    cache(10.0)
    choice = choose_shape(shape, 512)
    assert (choice.executor, choice.launch_us) == (MegakernelExecutor, 10.0)
    assert choice.library_us == predict_library_us(ffn(512, shape), H200)
    cache(400.0)
    assert choose_shape(shape, 512).executor is None


def test_a_launch_is_predicted_once_for_all_numbers_of_tokens_that_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[il.Plan] = []
    real = predicting.predict

    def record_plan(plan: il.Plan, *rest: Any) -> Any:
        plans.append(plan)
        return real(plan, *rest)

    monkeypatch.setattr(predicting, "predict", record_plan)
    for tokens in range(49, 65):
        choose_shape(FFNShape(1024, 3072, SILU, True), tokens)
    assert len(plans) == 1
