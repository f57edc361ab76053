"""The search without a GPU: what it predicts, what it would measure, what it keeps, and how the command fails."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlace.bench.timing import Rounds, Timing
from interlace.cli import tune as cli_tune
from interlace.cli.machine import HostMachine
from interlace.core.devices import H200
from interlace.core.dtypes import bf16, fp32
from interlace.core.errors import DeviceError, ResultError, StoreError
from interlace.deploy.store import CacheEntry, load_cached
from interlace.kernels.matmul import Activation
from interlace.plan.plan import Plan
from interlace.plan.verify import verify
from interlace.planner import predict as predicting
from interlace.planner.build import build
from interlace.policies.orders import GroupedColumnMajor
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import decode_tilings, encode_tilings
from interlace.sim.traffic import Touches
from interlace.sim.traffic import list_touches as all_touches
from interlace.tune import search as searching
from interlace.tune import tune
from interlace.tune.rank import RankedSchedule, rank, select_best
from interlace.tune.search import TuningCase, measure_schedules, measure_speedup, search
from interlace.workloads import MODELS, FeedForward, FFNShape, TwoMatmuls, Workload

from ..ring import Ring
from .commands import run_command
from .gpus import FakeProblem, ffn_of, on_a100, on_h200

RELU = FeedForward.from_fields({}, True, "relu").shape
CASES = [
    (FeedForward.from_fields({}, True, name).shape, m)
    for name, m in (("relu", 16), ("relu", 128), ("swiglu", 64), ("relu", 1024))
]
SMALL = FFNShape(256, 512, Activation.RELU, False)


def silent(what: str, done: int, total: int) -> None:
    pass


def list_schedules(case: TuningCase) -> list[Schedule]:
    return list(case.executor.iter_schedules(case.graph, case.device))


def rank_case(case: TuningCase, schedules: Sequence[Schedule], *progress: Any) -> list[RankedSchedule]:
    return rank(case.graph, case.device, case.executor, schedules, *progress)


def load_entry(case: TuningCase) -> CacheEntry | None:
    return load_cached(case.graph, case.device, case.executor)


def survives_json(case: TuningCase, schedule: Schedule) -> bool:
    """Return True if a schedule follows from the data of its tilings."""
    tilings = decode_tilings(json.loads(json.dumps(encode_tilings(schedule.op_tilings))))
    return case.executor.make_schedule(case.graph, case.device, tilings) == schedule


# ---------------------------------------------------------------- candidates


@pytest.mark.parametrize("name", FeedForward.record)
def test_candidates_are_a_bounded_set_that_makes_launches_with_the_default_first(name: str) -> None:
    for m in FeedForward.record[name].sizes[::2]:  # neighbours are tiled much alike
        case = on_h200(m, FeedForward.from_fields({}, True, name).shape)
        found = list_schedules(case)
        assert found[0] == case.default_schedule
        assert len(set(found)) == len(found)
        assert 3 <= len(found) <= 250
        assert all(survives_json(case, schedule) for schedule in found)


def test_candidates_differ_in_all_that_may_matter() -> None:
    few, many = (list_schedules(on_h200(m, RELU)) for m in (16, 1024))

    def values(schedules: Sequence[Schedule], name: str, field: str) -> set[object]:
        ops = [schedule.get_op_tiling(name) for schedule in schedules]
        return {dict(op.params)[field] if field.isupper() else getattr(op, field) for op in ops}

    for name in ("up", "down"):
        for field in ("BN", "parts"):
            assert len(values(many, name, field)) > 1, field
    assert len(values(few, "up", "BN")) > 1
    assert len(set(few)) > 1


@pytest.mark.parametrize(
    ("shape", "m"), [*CASES, (MODELS["minilm"], 100), (FFNShape(64, 48, Activation.RELU, False), 5)]
)
def test_every_candidate_has_a_safe_plan_and_a_ring_of_three_stages(shape: FFNShape, m: int) -> None:
    case = on_h200(m, shape)
    for schedule in list_schedules(case):
        plan = build(case.graph, schedule)
        assert verify(plan).in_sequence
        case.executor.check_tiles(plan.graph, H200)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("m", [1, 64, 128, 512, 2048])
@pytest.mark.parametrize("gated", [False, True])
def test_elsewhere_candidates_are_triton_tilings_that_fit_shared_memory(m: int, gated: bool, dtype: str) -> None:
    shape = replace(MODELS["llama3-8b"] if gated else RELU, hidden=1024, ffn=2048)
    case = on_a100(m, shape, fp32 if dtype == "fp32" else bf16)
    found = list_schedules(case)
    assert found[0] == case.default_schedule
    assert len(set(found)) == len(found) >= 2
    assert all(survives_json(case, schedule) for schedule in found)
    plan = build(case.graph, found[-1])
    assert (verify(plan).in_sequence, plan.workers) == (True, 108)


# ---------------------------------------------------------------- ranking


def in_parts(parts: int) -> Schedule:
    """The down-projection in so many."""
    case = on_h200(16, RELU)
    tilings = case.default_schedule.op_tilings
    changed = {**tilings, "down": replace(tilings["down"], parts=parts)}
    return case.executor.make_schedule(case.graph, case.device, changed)


def make_ranked(*plans: tuple[int, float]) -> list[RankedSchedule]:
    """A schedule of each (plan, predicted us), told apart by its parts."""
    return [RankedSchedule(in_parts(i + 1), us, 0, plan) for i, (plan, us) in enumerate(plans)]


def test_the_best_are_all_schedules_of_the_plans_predicted_fastest() -> None:
    a, b, c, d = make_ranked((7, 60.0), (7, 60.0), (3, 61.0), (4, 70.0))
    assert select_best([a, b, c, d], 2, needed=a.schedule) == [a, b, c]
    assert select_best([a, b, c, d], 9, needed=d.schedule) == [a, b, c, d]


def test_the_default_is_among_the_best_in_addition_if_it_is_not_predicted_well() -> None:
    a, b, c, d = make_ranked((1, 60.0), (2, 61.0), (3, 62.0), (4, 99.0))
    assert select_best([a, b, c, d], 2, needed=d.schedule) == [a, b, d]
    assert select_best([a, b, c, d], 1, needed=d.schedule) == [a, d]
    assert select_best([a, b, c, d], 1, needed=a.schedule) == [a]


def test_ranking_is_by_prediction_and_names_equal_plans() -> None:
    case = on_h200(64, SMALL)
    steps: list[int] = []
    schedules = list_schedules(case)
    found = rank_case(case, schedules, steps.append)
    assert [r.predicted_us for r in found] == sorted(r.predicted_us for r in found)
    assert steps == list(range(1, len(schedules) + 1))
    assert {r.schedule for r in found} <= set(schedules)
    assert case.default_schedule in {r.schedule for r in found}
    by_plan: dict[int, set[float]] = {}
    for r in found:
        by_plan.setdefault(r.plan, set()).add(r.predicted_us)
    assert all(len(times) == 1 for times in by_plan.values())
    assert len(by_plan) <= len(found)


def test_schedules_that_make_the_same_launch_are_ranked_once() -> None:
    # The up-projection has one chunk to a tile, which nothing can level, and one row of tiles, which nothing can group.
    case = on_h200(64, FFNShape(64, 512, Activation.RELU, False))
    ring = Ring(64, 64, 64, False)
    plain, grouped = (each.schedule(case.graph) for each in (ring, replace(ring, group=1)))
    tilings = ring.tilings(case.graph)
    levelled = {**tilings, "up": replace(tilings["up"], split_tail=True)}
    same = case.executor.make_schedule(case.graph, case.device, levelled)
    assert (same, grouped.order) == (plain, GroupedColumnMajor(1))
    assert [r.schedule for r in rank_case(case, [plain, same, grouped])] == [plain]


@pytest.mark.parametrize("m", [16, 1024])
def test_ranking_predicts_each_plan_once_and_coarsely(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[tuple[int, int]] = []

    def touches(plan: Plan, limit: int, bound: int) -> Touches:
        touched = all_touches(plan, limit, bound)
        looked_at.append((len(touched), len(plan.items)))
        return touched

    monkeypatch.setattr(predicting, "list_touches", touches)
    case = on_h200(m, RELU)
    found = rank_case(case, list_schedules(case))
    assert len(looked_at) == len({r.plan for r in found})
    assert all(touched <= max(1 << 16, 64 * items) for touched, items in looked_at)


def test_a_large_tile_in_groups_is_predicted_to_beat_small_tiles_in_rows() -> None:
    case = on_h200(2048, RELU)
    rings = (Ring(128, 64, 128, False, 2), Ring(128, 256, 64, False, 2, group=8))
    schedules = [ring.schedule(case.graph) for ring in rings]
    assert [r.schedule for r in rank_case(case, schedules)] == schedules[::-1]


# ---------------------------------------------------------------- measuring


class Gpu:
    """Times that schedules take, by their place among those asked for; None fails."""

    def __init__(self, *times: float | None) -> None:
        self.times = times
        self.asked: list[Schedule] = []

    def __call__(self, case: TuningCase, schedules: Sequence[Schedule], progress: Any) -> Mapping[Schedule, float]:
        self.asked = list(schedules)
        times = [*self.times, *[100.0] * (len(schedules) - len(self.times))]
        return {s: us for s, us in zip(schedules, times, strict=True) if us is not None}


def test_only_the_predicted_best_are_measured_and_the_default_comes_first() -> None:
    case, gpu = on_h200(64, SMALL), Gpu()
    found = search(case, 3, gpu, silent)
    known = rank_case(case, list_schedules(case))
    expected = select_best(known, 3, case.default_schedule)
    assert gpu.asked[0] == case.default_schedule
    assert set(gpu.asked) == {r.schedule for r in expected}
    three = list(dict.fromkeys(r.plan for r in known))[:3]
    assert {r.plan for r in expected} == {*three, *(r.plan for r in known if r.schedule == case.default_schedule)}
    assert found.predicted == len(list_schedules(case)) > 2 * len(gpu.asked)
    assert {c.schedule: c.predicted_us for c in found.candidates} == {r.schedule: r.predicted_us for r in expected}


def test_the_fastest_wins_and_what_failed_comes_last() -> None:
    gpu = Gpu(50.0, None, 40.0, 60.0)
    found = search(on_h200(64, SMALL), 4, gpu, silent)
    assert (found.best_schedule, found.best_us, found.default_us) == (gpu.asked[2], 40.0, 50.0)
    assert [c.us for c in found.candidates][:3] == [40.0, 50.0, 60.0]
    assert found.candidates[-1] == replace(found.candidates[-1], schedule=gpu.asked[1], us=None)
    first, last = found.candidates[0], found.candidates[-1]
    assert first.prediction_error == pytest.approx(first.predicted_us / 40.0 - 1)
    assert last.prediction_error is None
    data = found.to_data()
    assert json.loads(json.dumps(data)) == data
    assert (data["tried"], data["failed"]) == (len(gpu.asked) - 1, 1)
    assert data["best"] == {"setting": encode_tilings(found.best_schedule.op_tilings), "us": 40.0}
    assert data["candidates"][-1]["us"] is None


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeProblem]:
    """A GPU on which a schedule is its own executor, and takes 10 us longer with each part of its last op."""
    pytest.importorskip("triton")

    class Wrong(FakeProblem):
        pass

    def times(functions: Mapping[str, Any], rounds: int, calls: int) -> dict[str, Timing]:
        return {name: Timing(10.0 * s.get_op_tiling("down").parts + 50, 0, 0) for name, s in functions.items()}

    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(searching, "current_device", lambda: H200)
    monkeypatch.setattr(searching, "make_executor", lambda graph, device, executor, schedule: schedule)
    monkeypatch.setattr(searching, "BenchProblem", Wrong)
    monkeypatch.setattr(searching, "time_medians", times)
    monkeypatch.setattr(searching, "compile_launches", lambda makers: iter(range(len(makers) - 1, -1, -1)))
    monkeypatch.setattr(searching, "measure_speedup", lambda workload, device, executor: 1.25)
    return Wrong


def test_a_wrong_candidate_is_left_out_and_a_wrong_default_is_an_error(fake_gpu: type[FakeProblem]) -> None:
    schedules = [in_parts(n) for n in (4, 2, 3)]
    steps: list[tuple[str, int, int]] = []
    fake_gpu.wrong = frozenset(schedules[1:2])
    case = on_h200(16, RELU)
    assert measure_schedules(case, schedules, lambda *step: steps.append(step)) == {
        schedules[0]: 90.0,
        schedules[2]: 80.0,
    }
    assert steps[:3] == [("ffn, m 16: compiling", n, 3) for n in (1, 2, 3)]
    assert steps[-1] == ("ffn, m 16: done", 1, 1)
    fake_gpu.wrong = frozenset(schedules[:1])
    with pytest.raises(ResultError):
        measure_schedules(case, schedules, silent)


def test_a_lack_of_memory_is_a_failed_candidate_or_one_line(fake_gpu: type[FakeProblem]) -> None:
    schedules = [in_parts(n) for n in (4, 2)]
    case = on_h200(16, RELU)
    fake_gpu.too_large = frozenset(schedules[1:])
    assert measure_schedules(case, schedules, silent) == {schedules[0]: 90.0}
    fake_gpu.too_large = frozenset(schedules[:1])
    with pytest.raises(DeviceError, match=r"^ffn of m 16 cannot be run on NVIDIA H200: RuntimeError: CUDA out of"):
        measure_schedules(case, schedules, silent)
    fake_gpu.memory = False
    with pytest.raises(DeviceError, match=r"allocate 9 GiB\.; if memory is short, free some or use a smaller one$"):
        measure_schedules(case, schedules, silent)


def test_only_a_cache_that_cannot_be_written_is_said_to_be_one(
    fake_gpu: type[FakeProblem], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(makers: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "ptxas")

    monkeypatch.setattr(searching, "compile_launches", missing)
    (tmp_path / "tune").write_text("no folder")  # which is found out before anything is compiled
    with pytest.raises(StoreError, match=r"cannot keep settings in '.*tune': .* set INTERLACE_CACHE_DIR"):
        list(tune([ffn_of(16, SMALL)], top=1))
    (tmp_path / "tune").unlink()
    with pytest.raises(DeviceError, match="'ptxas'"):
        list(tune([ffn_of(16, SMALL)], top=1))


def test_the_winner_of_each_number_of_tokens_is_kept_and_found_again(fake_gpu: type[FakeProblem]) -> None:
    found = list(tune([ffn_of(m, SMALL) for m in (16, 64)], top=4))
    assert [row.workload for row in found] == [ffn_of(m, SMALL) for m in (16, 64)]
    for m, row in zip((16, 64), found, strict=True):
        kept = load_entry(on_h200(m, SMALL))
        assert kept is not None
        assert (kept.schedule, kept.us, kept.library_us) == (row.best_schedule, row.best_us, 1.25 * row.best_us)
        assert row.best_us <= row.default_us
        assert row.best_us == min(c.us for c in row.candidates if c.us is not None)
    assert load_entry(on_h200(128, SMALL)) is None


@pytest.mark.parametrize(("workload", "ratio"), [(ffn_of(16, SMALL), 0.8), (TwoMatmuls(256, 512), 1.2)], ids=str)
def test_the_library_counts_where_it_is_ahead_back_to_back_or_in_a_layer(
    workload: Workload, ratio: float, fake_gpu: type[FakeProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    contests = [{"eager": 130.0, "fused": 120.0, "launch": 100.0}, {"eager": 80.0, "fused": 90.0, "launch": 100.0}]

    def rounds(functions: Mapping[str, Any], repeats: int, calls: int) -> Rounds:
        us = contests.pop(0)
        assert functions.keys() == us.keys()
        samples = {name: [each] for name, each in us.items()}
        return Rounds(samples, samples)

    monkeypatch.setattr(searching, "BenchProblem", fake_gpu)
    monkeypatch.setattr(searching, "time_rounds", rounds)
    case = TuningCase.from_workload(workload, H200)
    assert measure_speedup(workload, H200, case.default_schedule) == ratio  # type: ignore[arg-type]
    assert len(contests) == (workload.layer_ports is None)


def test_the_command_shows_prediction_beside_measurement(
    fake_gpu: type[FakeProblem], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli_tune, "find_machine", lambda device: HostMachine(True, H200))
    path = tmp_path / "tuned.json"
    arguments = ["--hidden", "256", "--ffn", "512", "--no-gated", "--activation", "relu", "--m", "64", "--top", "3"]
    result = run_command("tune", "ffn", *arguments, "--json", str(path))
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "ffn, hidden 256, ffn 512, m 64, activation relu, dtype bf16, on NVIDIA H200, one_launch executor" in shown
    assert "prediction off by" in shown
    (row,) = json.loads(path.read_text())["rows"]
    assert f"{row['predicted']} settings predicted, {row['tried']} measured, 0 failed" in shown
    assert row["best"]["us"] == row["candidates"][0]["us"]
    assert f"kept in {tmp_path}" in "".join(result.stdout.split("\n"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--m", "16"], 1, "torch sees no CUDA GPU"),
        (["--preset", "llama3-8b", "--activation", "relu"], 2, "error: a gated FFN uses silu, not relu"),
        (["--m", "0"], 2, "--m"),
        (["--top", "0"], 2, "--top"),
        (["--json", "no/such/folder.json"], 2, "does not exist; make it first"),
    ],
)
def test_tune_fails_clearly(arguments: list[str], code: int, message: str) -> None:
    if code == 1 and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    result = run_command("tune", "ffn", *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())
