"""Circular-buffered kernels for Hopper: right against float64, then as fast as what they are measured against?

    PYTHONPATH=src python benchmarks/pipeline.py --quick            # minutes, 1 GiB
    PYTHONPATH=src python benchmarks/pipeline.py --record benchmarks/results/pipeline-h200.json
    PYTHONPATH=src python benchmarks/pipeline.py --only matmul --checks

Each family runs in a process of its own, so that a trap in one leaves the others alone. It first checks small and
awkward shapes at every depth, with the watchdog in every wait, then times every depth in several settings, interleaved
with the rivals in CUDA graphs. TB/s count what is read plus what is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from interlace.bench.record import write_record
from interlace.bench.timing import median_us
from interlace.core.dtypes import bf16, fp32
from interlace.pipeline.compiler import compile_text
from interlace.pipeline.launcher import Argument, Kernel, TensorMap, tensor_map

TEXTS = Path(__file__).parent / "pipeline_texts"
SHARED_LIMIT = 232_448  # bytes a block may have on Hopper
STAGES = (1, 2, 3, 4, 5, 6, 7, 8)
QUICK_STAGES = (1, 2, 3, 4, 8)
GIB = 1 << 30
LIMIT_S = 300  # of one family
Run = Callable[[], None]
Setting = dict[str, int]


@cache
def kernel(name: str, shared_bytes: int, watchdog: bool, constants: tuple[tuple[str, int], ...]) -> Kernel:
    """A hand-written text with its constants, compiled and loaded."""
    head = "".join(f"constexpr int {key} = {value};\n" for key, value in constants)
    binary = compile_text(head + (TEXTS / f"{name}.cu").read_text(), name, watchdog=watchdog)
    for line in binary.warnings:
        print(f"  {name}: {line}")
    return Kernel(binary, shared_bytes)


def launcher(loaded: Kernel, grid: int, threads: int, arguments: tuple[Argument, ...]) -> Run:
    """One launch on the current stream."""

    def run() -> None:
        loaded.launch((grid, 1, 1), threads, arguments, torch.cuda.current_stream().cuda_stream)

    return run


def multiprocessors() -> int:
    """Of the device."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def boxes_of(tensor: Any, box: tuple[int, int], *, swizzled: bool = False) -> TensorMap:
    """The tensor map of a matrix."""
    dtype = {torch.float32: fp32, torch.bfloat16: bf16}[tensor.dtype]
    return tensor_map(tensor.data_ptr(), tensor.shape, tensor.stride(), box, dtype, swizzled=swizzled)


def relative_error(ours: Any, exact: Any) -> float:
    """Frobenius norm of the difference over that of the exact result; nan if anything was left unwritten."""
    return float((ours.double() - exact).norm() / exact.norm())


def error_of(run: Run, data: dict[str, Any], exact: Any) -> float:
    """The error of one run into a poisoned output."""
    data["y"].fill_(float("nan"))
    run()
    torch.cuda.synchronize()
    return relative_error(data["y"], exact)


class Family:
    """Kernels that do one thing: how to make their data, launch them, judge them, and what they compete with."""

    name: str
    checked: ClassVar[tuple[tuple[int, ...], ...]]
    bound = 1e-5
    settings: ClassVar[tuple[Setting, ...]]

    def data(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Inputs, and ``y`` poisoned with nan."""
        raise NotImplementedError

    def exact(self, data: dict[str, Any]) -> Any:
        """The result in float64."""
        raise NotImplementedError

    def plan(self, setting: Setting, stages: int, data: dict[str, Any]) -> tuple[int, int, tuple[Argument, ...], int]:
        """(shared bytes, threads, arguments, blocks or 0 for as many as the setting keeps on each SM)."""
        raise NotImplementedError

    def shapes(self, quick: bool) -> tuple[tuple[int, ...], ...]:
        """What is timed."""
        raise NotImplementedError

    def work(self, shape: tuple[int, ...]) -> tuple[float, str]:
        """(bytes or FLOPs of a run over 1e6, unit): divided by microseconds it is in that unit."""
        raise NotImplementedError

    def rivals(self, data: dict[str, Any]) -> dict[str, Run]:
        """What the kernels are measured against."""
        raise NotImplementedError

    def calls(self, shape: tuple[int, ...]) -> int:
        """Runs to a timed graph."""
        return 1

    def variant(self, setting: Setting, stages: int, data: dict[str, Any], *, watchdog: bool) -> Run | None:
        """A launch of this depth in this setting, None where shared memory or the setting forbids it."""
        shared, threads, arguments, blocks = self.plan(setting, stages, data)
        if shared > SHARED_LIMIT:
            return None
        constants = {key: value for key, value in setting.items() if key.isupper()}
        constants |= {"STAGES": stages, "PREFETCH": max(stages - 1 - setting.get("slack", 0), 0)}
        loaded = kernel(self.name, shared, watchdog, tuple(constants.items()))
        if not blocks:
            resident = loaded.blocks_per_sm(threads)
            if resident < setting["blocks"] > 1:
                return None
            blocks = setting["blocks"] * multiprocessors()
        return launcher(loaded, blocks, threads, arguments)

    def check(self, quick: bool) -> Iterator[dict[str, Any]]:
        """The error of every depth on every checked shape."""
        for shape in self.checked:
            data = self.data(shape)
            exact = self.exact(data)
            for setting in self.settings:
                for stages in QUICK_STAGES if quick else STAGES:
                    run = self.variant(setting, stages, data, watchdog=True)
                    if run is None:
                        continue
                    yield {"shape": shape, "setting": setting, "stages": stages, "error": error_of(run, data, exact)}

    def time(self, quick: bool, watchdog: bool) -> Iterator[dict[str, Any]]:
        """Medians of every depth in every setting, and of the rivals."""
        for shape in self.shapes(quick):
            data = self.data(shape)
            variants: dict[str, Run] = {}
            about: dict[str, dict[str, Any]] = {}
            for stages in QUICK_STAGES if quick else STAGES:
                for setting in self.settings:
                    run = self.variant(setting, stages, data, watchdog=watchdog)
                    if run is not None:
                        label = f"{stages}: " + ", ".join(f"{key} {value}" for key, value in setting.items())
                        variants[label], about[label] = run, {"stages": stages, "setting": setting}
            exact = self.exact(data)
            for label, run in variants.items():
                about[label]["error"] = error_of(run, data, exact)
                if not about[label]["error"] <= self.bound:
                    print(f"  WRONG at {shape}: {label}, error {about[label]['error']}", flush=True)
            del exact
            rivals = self.rivals(data)
            calls = self.calls(shape)
            functions = {label: repeated(run, calls) for label, run in (variants | rivals).items()}
            work, unit = self.work(shape)
            for label, timing in median_us(functions, repeats=7 if quick else 20, calls=calls).items():
                figures = {"median_us": timing.median_us, "p20_us": timing.p20_us, "p80_us": timing.p80_us}
                rate = {"unit": unit, "rate": work / timing.median_us}
                yield {"shape": shape, "label": label, **about.get(label, {"rival": True}), **figures, **rate}
            del data, variants, rivals, functions
            torch.cuda.empty_cache()


def repeated(run: Run, calls: int) -> Run:
    """``run``, so many times."""

    def all_of_them() -> None:
        for _ in range(calls):
            run()

    return all_of_them


def random(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float32)


def poisoned(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def plain(name: str, unroll: int, vectors: int, arguments: tuple[Argument, ...]) -> Run:
    """A kernel without shared memory, 256 threads, UNROLL vectors to a thread."""
    loaded = kernel(name, 0, False, (("UNROLL", unroll),))
    return launcher(loaded, -(-vectors // (256 * unroll)), 256, arguments)


def plain_reads(x: Any) -> dict[str, Run]:
    """Kernels that only read ``x``: the ceiling of a reduction."""
    found, sink = {}, torch.zeros(512, device="cuda", dtype=torch.int32)
    for unroll in (4, 8):
        loaded = kernel("plain_read", 0, False, (("UNROLL", unroll),))
        for blocks in (2, 4, 64):
            read = launcher(loaded, multiprocessors() * blocks, 512, (x, sink, x.numel() // 4))
            found[f"plain read, unroll {unroll}, {blocks} blocks/SM"] = read
    return found


class Copy1D(Family):
    name = "copy_1d"
    bound = 0.0
    checked = ((1,), (3,), (4096,), (4097,), (1_000_003,), (3_000_000,))
    settings = tuple(
        {"TILE": tile, "blocks": blocks, "slack": slack}
        for tile, blocks in ((2048, 2), (2048, 4), (4096, 1), (4096, 2), (4096, 4), (8192, 1), (8192, 2))
        for slack in (0, 1)
    )

    def data(self, shape):
        return {"x": random(*shape), "y": poisoned(*shape)}

    def exact(self, data):
        return data["x"].double()

    def plan(self, setting, stages, data):
        shared = stages * (setting["TILE"] * 4 + 8)
        return shared, 32, (data["x"], data["y"], data["x"].numel()), 0

    def shapes(self, quick):
        return ((GIB // 4 if quick else GIB,),)

    def work(self, shape):
        return shape[0] * 8 / 1e6, "TB/s"

    def rivals(self, data):
        x, y = data["x"], data["y"]
        n = x.numel() // 4
        by_hand = {f"by hand, unroll {u}": plain("plain_copy", u, n, (x, y, n)) for u in (1, 2, 4, 8)}
        return {"cudaMemcpyAsync": lambda: y.copy_(x), **by_hand}


class Copy2D(Copy1D):
    name = "copy_2d"
    checked = ((1, 4), (16, 256), (17, 260), (1000, 1028), (513, 4096))
    settings = tuple(
        {"ROWS": rows, "COLUMNS": columns, "blocks": blocks, "slack": slack}
        for rows, columns, blocks in ((8, 256, 4), (16, 256, 1), (16, 256, 2), (16, 256, 4), (32, 256, 1), (64, 64, 2))
        for slack in (0, 1)
    )

    def plan(self, setting, stages, data):
        rows, columns = setting["ROWS"], setting["COLUMNS"]
        maps = (boxes_of(data[key], (rows, columns)) for key in "xy")
        return stages * (rows * columns * 4 + 8), 32, (*maps, *data["x"].shape), 0

    def shapes(self, quick):
        return ((16384 if quick else 65536, 16384),)

    def work(self, shape):
        return shape[0] * shape[1] * 8 / 1e6, "TB/s"


class Gate(Family):
    name = "gate"
    checked = ((1,), (3,), (4096,), (4097,), (1_000_003,), (3_000_000,))
    settings = tuple(
        {"TILE": tile, "THREADS": threads, "blocks": blocks}
        for tile, threads, blocks in (
            (1024, 256, 8), (2048, 256, 4), (2048, 256, 8), (4096, 256, 1), (4096, 256, 2), (4096, 256, 4),
            (4096, 512, 2), (4096, 512, 4), (8192, 512, 2),
        )
    )  # fmt: skip

    def data(self, shape):
        return {"a": random(*shape), "b": random(*shape), "y": poisoned(*shape)}

    def exact(self, data):
        return torch.nn.functional.silu(data["a"].double()) * data["b"].double()

    def plan(self, setting, stages, data):
        arguments = (data["a"], data["b"], data["y"], data["a"].numel())
        return stages * (setting["TILE"] * 4 + 8), setting["THREADS"], arguments, 0

    def shapes(self, quick):
        return ((GIB // 4 if quick else GIB,),)

    def work(self, shape):
        return shape[0] * 12 / 1e6, "TB/s"

    def rivals(self, data):
        a, b, y = data["a"], data["b"], data["y"]
        n = a.numel() // 4
        by_hand = {f"by hand, unroll {u}": plain("plain_gate", u, n, (a, b, y, n)) for u in (1, 2, 4)}
        return {"cudaMemcpyAsync (of one input)": lambda: y.copy_(a), **by_hand}


class RowSums(Family):
    name = "row_sums"
    checked = ((1, 4), (16, 256), (17, 260), (1000, 1028), (4000, 12))
    settings = tuple(
        {"ROWS": rows, "COLUMNS": 256, "WARPS": warps, "blocks": blocks}
        for rows, warps, blocks in (
            (8, 4, 2), (8, 8, 2), (8, 8, 4), (16, 4, 1), (16, 8, 1), (16, 8, 2), (16, 8, 4), (32, 8, 1), (32, 8, 2),
        )
    )  # fmt: skip

    def data(self, shape):
        return {"x": random(*shape), "y": poisoned(shape[0])}

    def exact(self, data):
        return data["x"].double().sum(1)

    def plan(self, setting, stages, data):
        rows, columns = setting["ROWS"], setting["COLUMNS"]
        arguments = (boxes_of(data["x"], (rows, columns)), data["y"], *data["x"].shape)
        return stages * (rows * columns * 4 + 8), setting["WARPS"] * 32, arguments, 0

    def shapes(self, quick):
        return ((16384 if quick else 65536, 16384),)

    def work(self, shape):
        return shape[0] * shape[1] * 4 / 1e6, "TB/s"

    def rivals(self, data):
        x = data["x"]
        return {"torch.sum": lambda: torch.sum(x, 1), **plain_reads(x)}


class ColumnSums(RowSums):
    name = "column_sums"
    checked = ((1, 4), (32, 128), (33, 132), (1000, 1028), (4000, 12))
    settings = tuple(
        {"ROWS": rows, "COLUMNS": columns, "THREADS": 256}
        for rows, columns in ((32, 64), (64, 64), (32, 128), (64, 128))
    )

    def data(self, shape):
        return {"x": random(*shape), "y": poisoned(shape[1])}

    def exact(self, data):
        return data["x"].double().sum(0)

    def plan(self, setting, stages, data):
        rows, columns = setting["ROWS"], setting["COLUMNS"]
        x = data["x"]
        arguments = (boxes_of(x, (rows, columns)), data["y"], *x.shape)
        return stages * (rows * columns * 4 + 8), setting["THREADS"], arguments, -(-x.shape[1] // columns)

    def rivals(self, data):
        x = data["x"]
        return {"torch.sum": lambda: torch.sum(x, 0), **plain_reads(x)}


class LayerNorm(Family):
    name = "layer_norm"
    checked = ((1, 4096), (133, 4096), (1000, 4096), (1, 16384), (500, 16384))
    settings = tuple({"blocks": blocks} for blocks in (1, 2, 3, 4, 6))

    def data(self, shape):
        weights = {name: random(shape[1]) for name in ("gamma", "beta")}
        return {"x": random(*shape) + 3, **weights, "y": poisoned(*shape)}

    def exact(self, data):
        x = data["x"].double()
        return torch.nn.functional.layer_norm(x, x.shape[1:], data["gamma"].double(), data["beta"].double(), 1e-5)

    def plan(self, setting, stages, data):
        columns = data["x"].shape[1]
        arguments = (data["x"], data["gamma"], data["beta"], data["y"], data["x"].shape[0], 1e-5)
        return stages * (columns * 4 + 8) + 256, columns // 16, arguments, 0

    def variant(self, setting, stages, data, *, watchdog):
        return super().variant(setting | {"COLUMNS": data["x"].shape[1]}, stages, data, watchdog=watchdog)

    def shapes(self, quick):
        large = () if quick else ((262144, 4096), (65536, 16384))
        return ((65536, 4096), (16384, 16384), *large)

    def work(self, shape):
        return shape[0] * shape[1] * 8 / 1e6, "TB/s"

    def rivals(self, data):
        x, gamma, beta = data["x"], data["gamma"], data["beta"]
        return {"PyTorch": lambda: torch.nn.functional.layer_norm(x, x.shape[1:], gamma, beta, 1e-5)}


class Matmul(Family):
    name = "matmul"
    bound = 4e-3
    checked = ((128, 256, 64), (8, 8, 8), (200, 328, 136), (1024, 1536, 1024), (4096, 4096, 4096))
    settings = tuple(
        {"BN": bn, "GROUP": group, "OUT_BUFFERS": buffers}
        for bn, group, buffers in ((256, 8, 2), (256, 16, 2), (256, 8, 4), (128, 8, 2), (128, 16, 2))
    )

    def data(self, shape):
        m, n, k = shape
        inputs = {"a": random(m, k).bfloat16(), "b": random(n, k).bfloat16()}
        return {**inputs, "y": poisoned(m, n, dtype=torch.bfloat16)}

    def exact(self, data):
        return data["a"].double() @ data["b"].double().T

    def plan(self, setting, stages, data):
        bn = setting["BN"]
        a, b, y = data["a"], data["b"], data["y"]
        (m, k), n = a.shape, b.shape[0]
        shared = stages * (128 * 64 * 2 + bn * 64 * 2 + 16) + 2 * setting["OUT_BUFFERS"] * 64 * 64 * 2
        boxes = [boxes_of(t, box, swizzled=True) for t, box in ((a, (128, 64)), (b, (bn, 64)), (y, (64, 64)))]
        return shared, 384, (*boxes, m, n, k), min(multiprocessors(), -(-m // 128) * -(-n // bn))

    def shapes(self, quick):
        return ((4096, 4096, 4096), (8192, 8192, 8192))

    def work(self, shape):
        m, n, k = shape
        return 2 * m * n * k / 1e6, "TFLOP/s"

    def calls(self, shape):
        return 4 if shape[0] == 4096 else 1

    def rivals(self, data):
        a, b, y = data["a"], data["b"], data["y"]
        return {"cuBLAS": lambda: torch.mm(a, b.T, out=y)}


EVERY = (Copy1D(), Copy2D(), Gate(), RowSums(), ColumnSums(), LayerNorm(), Matmul())
FAMILIES = {family.name: family for family in EVERY}


def run_family(family: Family, arguments: argparse.Namespace) -> dict[str, Any]:
    """Check and time one family, printing as it goes."""
    torch.manual_seed(0)
    print(f"== {family.name}", flush=True)
    checks = list(family.check(arguments.quick))
    wrong = [check for check in checks if not check["error"] <= family.bound]
    worst = max((check["error"] for check in checks), default=float("nan"))
    print(f"  {len(checks) - len(wrong)} of {len(checks)} checks right, largest error {worst:.1e}", flush=True)
    for check in wrong[:8]:
        print(f"  WRONG: {check}", flush=True)
    if arguments.checks or wrong:
        return {"checks": len(checks), "wrong": wrong, "largest_error": worst, "rows": []}
    rows = list(family.time(arguments.quick, arguments.watchdog))
    report(rows)
    return {"checks": len(checks), "wrong": wrong, "largest_error": worst, "rows": rows}


def report(rows: list[dict[str, Any]]) -> None:
    """Per shape: the rivals, the best setting at each depth, and the ratio to the best rival."""
    for shape in dict.fromkeys(row["shape"] for row in rows):
        here = [row for row in rows if row["shape"] == shape]
        rivals = [row for row in here if "rival" in row]
        best_rival = max(rivals, key=lambda row: row["rate"])
        print(f"  {' x '.join(map(str, shape))}")
        for row in rivals:
            print(f"    {row['label']:44s} {row['median_us']:9.1f} us {row['rate']:8.3f} {row['unit']}")
        for stages in sorted({row["stages"] for row in here if "stages" in row}):
            row = min((r for r in here if r.get("stages") == stages), key=lambda row: row["median_us"])
            print(
                f"    {row['label']:44s} {row['median_us']:9.1f} us {row['rate']:8.3f} {row['unit']}"
                f"  {row['rate'] / best_rival['rate']:.3f}x best rival"
            )
    sys.stdout.flush()


def main() -> None:
    """Run the families asked for, each in a child process."""
    parser = argparse.ArgumentParser(description="Circular-buffered kernels: correctness, then speed.")
    parser.add_argument("--quick", action="store_true", help="1 GiB, fewer depths and rounds")
    parser.add_argument("--checks", action="store_true", help="correctness alone")
    parser.add_argument("--watchdog", action="store_true", help="keep the watchdog in timed kernels too")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--record", type=Path, help="write a record")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        arguments.child.write_text(json.dumps(run_family(FAMILIES[arguments.only[0]], arguments)))
        return
    figures: dict[str, Any] = {}
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "figures.json"
            flags = [f"--{flag}" for flag in ("quick", "checks", "watchdog") if getattr(arguments, flag)]
            command = [sys.executable, __file__, "--only", name, "--child", str(out), *flags]
            try:
                subprocess.run(command, timeout=LIMIT_S, check=True)
                figures[name] = json.loads(out.read_text())
            except subprocess.SubprocessError as error:
                print(f"== {name} failed: {error}", flush=True)
    if arguments.record:
        protocol = "CUDA graphs, variants and rivals interleaved, medians; every depth checked against float64 first"
        write_record(arguments.record, "python " + " ".join(sys.argv), protocol, {"families": figures})
    if len(figures) < len(arguments.only) or any(family["wrong"] for family in figures.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
