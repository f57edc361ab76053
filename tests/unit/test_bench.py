"""Benchmarks without a GPU: what is measured, what is asked for, what is recorded and drawn from records."""

from __future__ import annotations

import ast
import importlib
import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import pytest

import interlace as il
from interlace.bench import clocks, sources, timing
from interlace.bench import record as records
from interlace.bench.row import iter_means
from interlace.bench.sources import combine_hashes, hash_sources, list_launch_sources
from interlace.core.devices import H200
from interlace.core.errors import ArgumentError
from interlace.core.files import write_atomic
from interlace.workloads import WORKLOADS, Decode, FeedForward
from tests.unit.records import ffn_record, result

from ..benchmarks import BENCHMARKS
from .commands import run_command


def test_the_record_of_ffns_has_a_target_for_each_preset_and_number_of_tokens() -> None:
    wanted = {name: {m: kept.find_target(m) for m in kept.sizes} for name, kept in FeedForward.record.items()}
    many = {512: 1.0, 1024: 1.0, 2048: 1.0, 4096: 1.0, 8192: 1.0}
    assert wanted == {
        "relu": {1: 1.17, 16: 1.17, 64: 1.17, 128: 1.18, 256: 1.12, **many},
        "swiglu": {1: 1.13, 16: 1.13, 128: 1.17, 1024: 1.03, 4096: 1.03},
        "gelu": {1: 1.15, 16: 1.15, 64: 1.15, 256: None, 512: None, 1024: None, 2048: None},
        "swiglu-tp8": {1: 1.15, 16: 1.15, 128: 1.15},
    }
    assert {name: [t.ratio for t in kept.targets if t.mean] for name, kept in FeedForward.record.items()} == {
        "relu": [1.04],
        "swiglu": [],
        "gelu": [1.03],
        "swiglu-tp8": [],
    }


def test_a_mean_is_geometric_and_taken_only_when_all_of_it_is_measured() -> None:
    ratios: dict[tuple[str | None, int], float] = {("gelu", m): 1.0 for m in (512, 1024, 2048)}
    ratios["gelu", 256] = 1.21
    ((name, target, mean),) = iter_means(FeedForward, ratios)
    assert (name, target.ratio, mean) == ("gelu", 1.03, pytest.approx(1.21**0.25))
    del ratios["gelu", 512]
    assert list(iter_means(FeedForward, ratios)) == []


def test_the_fastest_executor_stands_against_the_fastest_library() -> None:
    data = result("relu", 16, 80.0).to_data()
    assert (data["library"], data["executor"], data["ratio"], data["target"]) == ("compile", "one_launch", 1.25, 1.17)
    assert (data["layer"]["library"], data["layer"]["ratio"]) == ("compile", pytest.approx(108 / 86))
    assert data["executors"]["one_launch"]["setting"]["ops"].keys() == {"up", "down"}
    assert data["executors"]["cuda_graph"]["policy"] == "TileSync()"
    slow = result("relu", 16, 140.0).to_data()
    assert (slow["executor"], slow["ratio"]) == ("cuda_graph", pytest.approx(100 / 130))
    assert json.loads(json.dumps(data)) == data


def test_only_rows_of_the_same_gpu_and_versions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin: dict[str, Any] = {"gpu": "a", "versions": {"torch": "1"}}
    monkeypatch.setattr(
        records, "_describe_origin", lambda measures: {**origin, "sources": dict.fromkeys(measures, "1")}
    )
    path = tmp_path / "r.json"
    records.write_record(path, "command", "protocol", ("kernels",), {"options": [1], "rows": [{"m": 1}]})
    assert records.read_matching_rows(path, ("kernels",), options=[1]) == [{"m": 1}]
    assert records.read_matching_rows(path, ("kernels",), options=[2]) == []
    assert records.read_matching_rows(path, ("kernels",)) == [{"m": 1}]
    assert records.read_matching_rows(path, ("kernels", "policies")) == []
    assert records.read_matching_rows(tmp_path / "none.json", ("kernels",)) == []
    origin = {"gpu": "a", "versions": {"torch": "2"}}
    assert records.read_matching_rows(path, ("kernels",)) == []
    write_atomic(path, "[1]")
    assert records.read_matching_rows(path, ("kernels",)) == []


def test_sources_are_told_apart_by_what_git_would_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "a.py").write_bytes(b"")
    (tmp_path / "b.py").write_bytes(b"x = 1\n")
    empty, one = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "7d4290a117a4ddcc11daae7ea675841033830c8f"
    found = hash_sources(["room", "b.py"])
    assert found["room"] == combine_hashes({"room/a.py": empty})
    assert found["b.py"] == combine_hashes({"b.py": one})
    (tmp_path / "room" / "note.txt").write_bytes(b"no source\n")
    assert hash_sources(["room"])["room"] == found["room"]
    for name in ("a.py", "chip.toml", "table.json"):
        before = hash_sources(["room"])["room"]
        (tmp_path / "room" / name).write_bytes(b"# a comment\n")
        assert hash_sources(["room"])["room"] != before


@pytest.mark.parametrize("room", ["rooms", "room/a.py", "empty"])
def test_the_hash_of_nothing_is_refused(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=f"the package has no room or module '{room}'; name one"):
        hash_sources([room])


def test_what_benchmarks_say_that_they_measure_exists() -> None:
    """Else a long run would end without its record."""
    named: set[str] = set()
    for script in (*BENCHMARKS.glob("*.py"), *sources.PACKAGE.glob("bench/*.py")):
        for node in ast.parse(script.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MEASURES":
                named.update(ast.literal_eval(node.value))
    assert {"graph", "loops/cuda", "sim/l2.py"} <= named
    for kind in WORKLOADS:
        named.update(list_launch_sources(kind.from_fields({}, True).build_graph(H200)))
    assert hash_sources(named).keys() == named


def test_a_workload_measures_the_kernels_that_it_has() -> None:
    of_ffn, of_decode = (
        set(list_launch_sources(kind.from_fields({}, True).build_graph(H200))) for kind in (FeedForward, Decode)
    )
    assert {"executors", "kernels/matmul", "megakernel", "policies"} <= of_ffn
    assert of_decode - of_ffn == {f"kernels/{name}" for name in ("append", "argmax", "attend", "combine", "embedding")}
    graph = il.Graph("mine", (), (il.Kernel("mine").make_op("mine", (1,), {}, {}),), (), ())
    assert "loops" in list_launch_sources(graph)
    assert not any(room.startswith("kernels/matmul") for room in list_launch_sources(graph))


def test_every_record_names_its_commit_and_the_sources_that_it_measures() -> None:
    for path in (BENCHMARKS / "results").glob("*.json"):
        record = json.loads(path.read_text())
        assert isinstance(record["sources"], dict), path.name
        assert len(record["commit"]) == 40, path.name


def test_the_fastest_is_picked_on_other_rounds_than_those_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(
        functions: Iterable[str], least: int, most: int, calls: int, watched: bool
    ) -> tuple[dict[str, list[float]], None]:
        assert (least, most, calls, watched) == (6, 50, 3, False)
        return {"a": [2.0, 5.0] * 3, "b": [1.0, 7.0] * 3}, None

    monkeypatch.setattr(timing, "_collect_samples_us", samples)
    rounds = timing.time_rounds({"a": print, "b": print}, 3, calls=3)
    assert rounds.find_fastest(["a", "b"]) == "b"
    assert rounds.find_fastest(["a"]) == "a"
    assert {name: time.median_us for name, time in rounds.times.items()} == {"a": 5.0, "b": 7.0}


def test_clock_and_power_count_for_whoever_ran_when_they_were_read() -> None:
    class Meter:
        """The same each time, until it fails."""

        reads, lost = 0, False

        def read(self) -> tuple[int, float]:
            self.reads += 1
            if self.lost:
                raise OSError("the GPU is gone")
            return 1980, 700.0

    meter = Meter()
    with clocks.watch_clocks(meter) as watch:
        for name in (None, "a", None, "b", "lost"):
            meter.lost = name == "lost"
            watch.running = name
            seen = meter.reads
            while meter.reads < seen + 2 and not meter.lost:
                time.sleep(1e-3)
    assert watch.compute_medians() == clocks.Clocks({"a": 1980, "b": 1980}, 700.0)
    with clocks.watch_clocks(None) as watch:
        watch.running = "a"
    assert watch.compute_medians() is None


def test_a_driver_that_does_not_tell_clocks_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bytes]] = []

    class Library:
        def nvmlInit_v2(self) -> int:
            return 0

        def nvmlDeviceGetHandleByUUID(self, uuid: bytes, gpu: object) -> int:
            asked.append(("uuid", uuid))
            return 0

        def nvmlDeviceGetClockInfo(self, gpu: object, which: int, mhz: object) -> int:
            return 3  # NVML_ERROR_NOT_SUPPORTED

    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(uuid="12-ab")))
    monkeypatch.setattr(clocks.ctypes, "CDLL", lambda name: Library())
    assert clocks.open_meter(torch, "cuda") is None
    assert asked == [("uuid", b"GPU-12-ab")]
    with pytest.raises(OSError, match="nvmlDeviceGetClockInfo failed with error 3"):
        clocks.Nvml("12-ab")


def test_variants_are_compared_round_by_round() -> None:
    """At two clocks that change from round to round medians say 1.5, and most rounds 1."""
    slow, fast = 12.0, 8.0
    reported = {"a": [slow, slow, slow, fast, fast], "b": [fast, slow, fast, fast, fast]}
    assert timing.Rounds({}, reported).compute_ratio("a", "b") == 1.0
    assert timing.Rounds({}, {"a": [8.0, 9.0, 13.0], "b": [10.0, 10.0, 10.0]}).compute_ratio("a", "b") == 0.9


class Replays:
    """Stands for captured graphs and for the clock between two events: each replay of a graph takes its time.

    Attributes:
        order: names, as they were replayed.
    """

    def __init__(self, ms: Mapping[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        event = SimpleNamespace(
            record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: ms[self.order[-1]]
        )
        torch = SimpleNamespace(cuda=SimpleNamespace(Event=lambda enable_timing: event))
        graphs = {name: SimpleNamespace(replay=partial(self.order.append, name)) for name in ms}
        monkeypatch.setattr(timing, "open_device", lambda name: (torch, name))
        monkeypatch.setattr(timing, "_capture", lambda functions: graphs)


@pytest.mark.parametrize(("ms", "repeats"), [(0.5, 25), (4.0, 9), (100.0, 5)])
def test_rounds_come_until_those_reported_last_long_enough(
    ms: float, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three variants of 4 ms, 9 rounds last 108 ms."""
    Replays({"a": ms, "b": ms, "c": ms}, monkeypatch)
    rounds = timing.time_rounds({}, 5, calls=2)
    assert {len(samples) for half in (rounds.picking, rounds.reported) for samples in half.values()} == {repeats}
    assert rounds.times["a"].median_us == ms * 1e3 / 2


def test_each_round_has_every_variant_in_an_order_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for _ in range(2):
        replays = Replays(dict.fromkeys("abc", 1.0), monkeypatch)
        timing.time_medians({}, 20)
        orders.append(["".join(replays.order[n : n + 3]) for n in range(0, 60, 3)])
    assert orders[0] == orders[1]
    assert {"".join(sorted(order)) for order in orders[0]} == {"abc"}
    assert len(set(orders[0])) == 6


def test_a_record_of_the_host_names_its_cpu_and_no_gpu(tmp_path: Path) -> None:
    records.write_cpu_record(tmp_path / "r.json", "command", "protocol", ("trace",), {"rows": []}, ("numpy",))
    record = json.loads((tmp_path / "r.json").read_text())
    assert list(record) == ["cpu", "versions", "sources", "date", "command", "protocol", "rows"]
    assert record["sources"] == hash_sources(["trace"])
    assert record["cpu"] == records.read_cpu_name() != ""
    assert list(record["versions"]) == ["python", "numpy"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--executor", "serial"], 2, "error: serial cannot be captured; use cuda_graph, pdl, "),
        (["--executor", "reference"], 2, "error: reference cannot be captured; use cuda_graph"),
        (["--update"], 2, "error: --update keeps rows of a record; name it with --out"),
        (["--preset", "relu", "--activation", "silu", "--gated", "--m", "16"], 1, "torch sees no CUDA GPU"),
        (["--preset", "relu", "--m", "16"], 1, "torch sees no CUDA GPU"),
    ],
)
def test_bench_fails_in_one_line(arguments: list[str], code: int, message: str) -> None:
    if code == 1 and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    result = run_command("bench", "ffn", *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_plot_has_a_bar_for_every_measurement_and_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    plot = importlib.import_module("plot")
    record, path = ffn_record(), tmp_path / "plot.svg"
    plot.plot_speedup(record, path)
    drawn = path.read_text()
    assert drawn.count(f"fill: {plot.FASTER}") == len(record["rows"]) - 1
    assert drawn.count(f"fill: {plot.SLOWER}") == 1
    plot.plot_speedup(record, path)
    assert path.read_text() == drawn
    assert [p.name for p in tmp_path.iterdir()] == ["plot.svg"]


def test_the_plot_of_steps_has_a_bar_for_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    plot = importlib.import_module("plot")
    records = [json.loads((BENCHMARKS / "results" / name).read_text()) for name in plot.STEP_RECORDS]
    path = tmp_path / "steps.svg"
    plot.plot_decode(records, path)
    legend = 1
    assert path.read_text().count(f"fill: {plot.FASTER}") == sum(len(r["rows"]) for r in records) + legend


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("report")


def test_the_report_fills_the_block_of_a_table_and_nothing_else(report: Any) -> None:
    table = report.ffn.speedups_table(ffn_record())
    assert "| relu | 8192 | 100.0 | compile | 125.0 | 0.80 | 108.0 | 131.0 | 0.82 | 80.0 |" in table
    text = "a\n<!-- speedups -->\nold\n<!-- /speedups -->\nb\n"
    filled = report.fill(text, "speedups", table)
    assert filled == text.replace("old", table)
    assert report.fill(filled, "models", "other") == filled


def test_the_readme_shows_what_gains_and_what_does_not(report: Any) -> None:
    record = ffn_record()
    template = record["rows"][0]
    record["rows"] = [template | {"layer": template["layer"] | {"ratio": ratio}} for ratio in (0.5, 1.0, 2.0)]
    plain = json.loads((BENCHMARKS / "results" / "ffn-models-h200.json").read_text())
    steps = json.loads((BENCHMARKS / "results" / "decode-h200.json").read_text())
    step = steps["rows"][0]
    step["executors"]["one_launch"]["median_us"] = 7.0
    step["libraries"] = {"eager": {"median_us": 9.0}, "tuned": {"median_us": 8.0}}
    gains, nothing = report.ffn.readme(record, plain, steps).splitlines()
    assert "takes 7 us on an NVIDIA H200; the best of PyTorch (tuned) takes 8." in gains
    assert "1.00 times the speed of the best of PyTorch, the geometric mean of 3 rows (0.50 to 2.00)." in gains
    assert "run at 0.99 of the speed of a launch per op (0.96 to" in nothing


def test_a_table_of_uneven_work_has_the_faster_of_compiled_and_eager_and_the_gain_of_the_chosen_dispatch(
    report: Any,
) -> None:
    def row(size: int, name: str = "ragged-attention", **us: float) -> dict[str, Any]:
        ways = {way.replace("_", ", "): {"median_us": value} for way, value in us.items()}
        return {
            "tokens": size,
            "workload": {"name": name},
            "bytes_us": 3.0,
            "flops_us": 1.0,
            "ways": ways,
            "left_out": {},
        }

    rows = [row(1, PyTorch=9.0, PyTorch_compiled=8.0, static=5.0, ticket=4.0), row(16, PyTorch=9.0, static=4.0)]
    assert report.launches.uneven_table({"rows": rows}).splitlines() == [
        "| tokens | floor | PyTorch | static | ticket | speedup of ticket |",
        "|---|---|---|---|---|---|",
        "| 1 | 3.0 | 8.0 | 5.0 | 4.0 | 2.00x |",
        "| 16 | 3.0 | 9.0 | 4.0 | - | - |",
    ]
    told = report.launches.uneven_range({"rows": [*rows, row(64, PyTorch=9.0, static=1.0, ticket=6.0)]})
    assert "at 1.50 to 2.00 times the speed of the faster of these in 2 rows" in told
    experts = {"rows": [row(1, "moe", PyTorch=9.0, ticket=4.0, hybrid=3.0)]}
    assert report.launches.uneven_table(experts).endswith(
        "| ticket | hybrid | speedup of hybrid |\n|---|---|---|---|---|---|\n| 1 | 3.0 | 9.0 | 4.0 | 3.0 | 3.00x |"
    )
    assert "with hybrid dispatch runs at 3.00" in report.launches.uneven_range(experts)


def test_a_launch_for_each_expert_does_what_one_for_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the reference executor, over weights and logits at random; expert 4 is hit by no token."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    moe = importlib.import_module("moe")

    class Each:
        def __init__(self, plan: il.Plan) -> None:
            self.run_of = il.ReferenceExecutor(plan)

        def run(self, tensors: dict[str, Any]) -> None:
            given = {name: tensors[name].numpy() for name in self.run_of.plan.graph.inputs}
            tensors["y"].copy_(torch.from_numpy(self.run_of.run(given)["y"]))

    monkeypatch.setattr(moe, "current_device", lambda: il.H200)
    monkeypatch.setattr(moe, "autoplan", lambda graph, *_: il.build(graph, il.Schedule(2)))
    monkeypatch.setattr(moe, "MegakernelExecutor", Each)
    work = moe.MoE(64, 128, 5, 2, 40, dtype=il.fp32)
    tensors = {name: torch.from_numpy(value) for name, value in work.make_inputs(0).items()}
    tensors["logits"][:, 4] = -9.0
    out = moe.per_expert(SimpleNamespace(workload=work, rest=tensors))(tensors)["out"]
    torch.testing.assert_close(out, work.run_dense(torch, tensors)["out"], rtol=1e-4, atol=1e-5)


def test_the_pipelines_page_shows_its_record(report: Any) -> None:
    record = json.loads((BENCHMARKS / "results" / "pipeline-h200.json").read_text())
    page = (BENCHMARKS.parent / "docs" / "loops.md").read_text()
    best = report.loops.pipeline_table(record)
    assert best.count("\n") == 1 + len(record["rows"])
    assert report.fill(page, "pipeline-best", best) == page
    reads = next(row for row in record["rows"] if row["kernel"] == "row sums")
    depths = {f"walks of 16, {stages} stages": rate for stages, rate in ((1, 2.826), (2, 3.934), (4, 4.277))}
    reads["per_s"], reads["ratio"] = {"plain read": 5.126, **depths}, 0.875
    line = "| row sums, 4 GiB | walks of 16, 4 stages | a kernel that only reads, 5.13 TB/s | 0.88 | 0.90 |"
    assert line in report.loops.pipeline_table(record)
    assert "| row sums, 128 rows to a block | 2.83 | 3.93 | - | 4.28 | - |" in report.loops.depth_table(record)


def test_the_page_of_losses_quotes_the_records(report: Any) -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((BENCHMARKS / "results" / name).read_text())["rows"]
        return found

    large = [row["layer"]["ratio"] for row in rows("ffn-h200.json") if row["size"] >= 512]
    (norm,) = (row["ratio"] for row in rows("normed-matmuls-h200.json") if row["size"] == 1024)
    lowest = min(row["ratio"] for row in rows("one-matmul-h200.json"))
    prompts = []
    for row in rows("prefill-h200.json"):
        us = {name: timing["median_us"] for name, timing in row["times"].items()}
        prompts.append(us["one_launch"] / us["cuDNN + cuBLAS"])
    slower = [round(ratio, 2) for ratio in prompts if round(ratio, 2) > 1]
    steps = []
    for row in (row for name in report.STEP_RECORDS for row in rows(name)):
        best = min(variant["median_us"] for variant in row["libraries"].values())
        steps.append(best / row["executors"]["one_launch"]["median_us"])
    tiled = report.ffn.tiled_ratios(json.loads((BENCHMARKS / "results" / "ffn-models-h200.json").read_text()))
    page = (BENCHMARKS.parent / "docs" / "when-not.md").read_text()
    for quoted in (
        f"{geometric_mean(tiled):.2f} of the speed of a launch per op",
        f"{geometric_mean(large):.2f} times the speed of PyTorch in the mean, between {min(large):.2f} and "
        f"{max(large):.2f}",
        f"within {1 - lowest:.0%} of cuBLAS".replace("%", " %"),
        f"{norm:.2f} of the speed of PyTorch",
        f"slower than cuDNN in {len(slower)} of {len(prompts)} rows, by up to {max(slower) - 1:.0%}".replace("%", " %"),
        f"{min(steps):.1f} to {max(steps):.1f} times the speed of PyTorch's best",
    ):
        assert quoted in page, quoted


def test_every_page_shows_its_records(report: Any) -> None:
    for page, text in report.pages().items():
        assert page.read_text() == text, f"{page.name}: run python benchmarks/report.py"


def test_each_block_has_a_place(report: Any) -> None:
    for name, (page, *_) in report.BLOCKS.items():
        text = (BENCHMARKS.parent / page).read_text()
        assert text.count(f"<!-- {name} -->\n") == text.count(f"<!-- /{name} -->") == 1, name
