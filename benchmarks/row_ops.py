"""Row ops by hand and of plain loops, in turns: an RMS norm, and the product of a SiLU and a matrix.

    PYTHONPATH=src python benchmarks/row_ops.py benchmarks/results/row-ops-h200.json

Needs a Hopper GPU. By hand is the package's kernel: CUDA C++ in the megakernel, Triton in its own launch; with the
default tile, and with small ones. Loops are written below, or converted by ``loops.convert_triton`` from the Triton
functions below. Each variant is checked against float64 and timed as a megakernel of one op, between two matmuls of a
megakernel, and as its own launch. Variants of a case are replayed in turns; inputs of small cases stay in the L2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from script import parse_arguments

import interlace as il
from interlace import loops
from interlace.bench.compile import compile_launches, open_pool
from interlace.bench.record import write_record
from interlace.bench.sources import hash_sources
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.core.errors import InterlaceError, ResultError
from interlace.executors.device import DeviceExecutor
from interlace.kernels.elementwise import elementwise
from interlace.kernels.matmul.tile import select_matmul_tile
from interlace.kernels.rms_norm import rms_norm
from interlace.kernels.row_tiles import select_tile_rows

MEASURES = ("csrc/loops", "csrc/ops", "kernels/cuda", "kernels/elementwise", "kernels/rms_norm", "loops", "megakernel")
SHAPES = (
    (1, 2048),
    (1, 8200),
    (16, 576),
    (16, 4096),
    (128, 2048),
    (128, 8200),
    (2048, 4096),
    (4099, 576),
    (4099, 8200),
)
SOME_SHAPES = ((1, 8200), (16, 4096), (128, 2048), (2048, 4096), (4099, 8200))  # between matmuls, and own launches
OPS = ("rms_norm", "silu_times")
BY_HAND = "by hand", "by hand, small tiles"
OWN, ALONE, BETWEEN = "own launch", "megakernel, alone", "megakernel, between matmuls"
EPS, REPEATS = 1e-5, 8
MOST_ERROR = 6e-3  # relative, of bf16 results, inputs and intermediates


@triton.jit
def norm_rows(tile, x, weight, out, M, N, EPS, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    value = tl.load(x + row * N + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / N + EPS)
    gain = tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32)
    tl.store(out + row * N + column, (value * scale[:, None] * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_times(tile, x, times, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    value = tl.load(x + row * N + column, mask=inside).to(tl.float32)
    factor = tl.load(times + row * N + column, mask=inside).to(tl.float32)
    tl.store(out + row * N + column, value * tl.sigmoid(value) * factor, mask=inside)


def norm_in_ring(columns: int, rows: int) -> loops.LoopKernel:
    """Build a norm of rows from the ring, one per stage; all threads share a row."""
    chunk = next(n for n in range(256, 0, -8) if columns % n == 0)
    k, pieces = loops.Builder("norm_in_ring", threads=256), columns // chunk
    m = k.symbol("m")
    x, out = k.input("x", (m, pieces, chunk), il.bf16), k.output("out", (m, pieces, chunk), il.bf16)
    weight, row = k.input("weight", (pieces, chunk), il.bf16), k.shared("row", (1, pieces, chunk), il.bf16)
    squares = k.register("squares", (1, 1, 1), il.fp32)
    with k.block("b", loops.ceil_div(m, rows)) as b, k.serial("r", loops.minimum(rows, m - b * rows)) as r:
        k.load(row, x.at(b * rows + r, 0, 0))
        k.assign(squares, 0)
        k.reduce(squares, loops.ReduceOp.SUM, row * row, axes=(1, 2), shape=(1, pieces, chunk))
        scaled = row * loops.rsqrt(squares / columns + EPS)
        k.assign(out.at(b * rows + r, 0, 0), scaled * weight.at(0, 0, shape=(pieces, chunk)))
    return loops.circular_buffer(k.build_kernel(), "row", 2)


def norm_in_registers(columns: int, rows: int) -> loops.LoopKernel:
    """Build a norm of ``rows`` rows at a time, held in registers."""
    k = loops.Builder("norm_in_registers", threads=256)
    m = k.symbol("m")
    x, out = k.input("x", (m, columns), il.bf16), k.output("out", (m, columns), il.bf16)
    weight, row = k.input("weight", (columns,), il.bf16), k.register("row", (rows, columns), il.fp32)
    squares = k.register("squares", (rows, 1), il.fp32)
    with k.block("b", loops.ceil_div(m, rows)) as b:
        k.load(row, x.at(b * rows, 0), loops.Copy.PLAIN)
        k.assign(squares, 0)
        k.reduce(squares, loops.ReduceOp.SUM, row * row, axes=(1,), shape=(rows, columns))
        scaled = row * loops.rsqrt(squares / columns + EPS)
        k.assign(out.at(b * rows, 0), scaled * weight.at(0, shape=(columns,)))
    return k.build_kernel()


def silu_in_ring(tile: tuple[int, int]) -> loops.LoopKernel:
    """Build the product with both matrices from the ring, up to 256 columns per stage."""
    k, (rows, columns) = loops.Builder("silu_in_ring", threads=256), tile
    step = min(columns, 256)
    m, n = k.symbol("m"), k.symbol("n")
    x, times, out = (k.input("x", (m, n), il.bf16), k.input("times", (m, n), il.bf16), k.output("out", (m, n), il.bf16))
    x_s, times_s = (k.shared(name, (rows, step), il.bf16) for name in ("x_s", "times_s"))
    with k.block("i", loops.ceil_div(m, rows)) as i, k.block("j", loops.ceil_div(n, columns)) as j:  # noqa: SIM117
        with k.serial("c", loops.minimum(columns // step, loops.ceil_div(n - j * columns, step))) as c:
            at = i * rows, j * columns + c * step
            k.load(x_s, x.at(*at))
            k.load(times_s, times.at(*at))
            k.assign(out.at(*at), x_s / (1 + loops.exp(-x_s)) * times_s)
    return loops.circular_buffer(loops.circular_buffer(k.build_kernel(), "x_s", 2), "times_s", 2)


def silu_plain(tile: tuple[int, int]) -> loops.LoopKernel:
    """Build the product with plain loads."""
    k = loops.Builder("silu_plain", threads=256)
    m, n = k.symbol("m"), k.symbol("n")
    x, times, out = (k.input("x", (m, n), il.bf16), k.input("times", (m, n), il.bf16), k.output("out", (m, n), il.bf16))
    with k.block("i", loops.ceil_div(m, tile[0])) as i, k.block("j", loops.ceil_div(n, tile[1])) as j:
        at = i * tile[0], j * tile[1]
        value = x.at(*at, shape=tile)
        k.assign(out.at(*at, shape=tile), value / (1 + loops.exp(-value)) * times.at(*at, shape=tile))
    return k.build_kernel()


def make_op(name: str, variant: str, tensors: Mapping[str, il.Tensor], sms: int) -> il.Op:
    """Return the op of one variant; ``tensors`` are x, weight or times, and out."""
    m, n = tensors["x"].shape
    if name == "rms_norm":
        rows = select_tile_rows(m, sms)
        if variant in BY_HAND:
            count = rows if variant == BY_HAND[0] else 1
            return rms_norm("op", tensors["x"], tensors["weight"], tensors["out"], EPS, rows=count)
        rows = rows if variant != "loops, registers" or n * rows <= 16384 else max(1, 16384 // n)
        kernel = {
            "loops, ring": lambda: norm_in_ring(n, rows),
            "loops, ring, a row": lambda: norm_in_ring(n, 1),
            "loops, registers": lambda: norm_in_registers(n, rows),
            "loops of Triton": lambda: convert_norm(tensors),
        }[variant]()
    else:
        by_hand = elementwise(
            "op",
            tensors["x"],
            tensors["out"],
            times=tensors["times"],
            activation=il.Activation.SILU,
            tile=(8, 256) if variant == BY_HAND[1] else None,
        )
        if variant in BY_HAND:
            return by_hand
        tile = int(by_hand.param("BM")), int(by_hand.param("BN"))
        kernel = {
            "loops, ring": lambda: silu_in_ring(tile),
            "loops, plain": lambda: silu_plain(tile),
            "loops of Triton": lambda: convert_silu(tensors),
        }[variant]()
    return loops.as_op("op", kernel, tensors)


VARIANTS = {
    "rms_norm": (*BY_HAND, "loops, ring", "loops, ring, a row", "loops, registers", "loops of Triton"),
    "silu_times": (*BY_HAND, "loops, ring", "loops, plain", "loops of Triton"),
}


def convert_norm(tensors: Mapping[str, il.Tensor]) -> loops.LoopKernel:
    m, n = tensors["x"].shape
    params = {"M": m, "N": n, "EPS": EPS, "BM": 1, "BN": triton.next_power_of_2(n)}
    return loops.convert_triton(norm_rows, (m,), tensors, params, threads=256)


def convert_silu(tensors: Mapping[str, il.Tensor]) -> loops.LoopKernel:
    (m, n), bm, bn = tensors["x"].shape, 8, 256
    params = {"M": m, "N": n, "BM": bm, "BN": bn}
    return loops.convert_triton(silu_times, (-(-m // bm), -(-n // bn)), tensors, params, threads=256)


@dataclass(frozen=True)
class Case:
    """One op at one shape in one place."""

    op: str
    rows: int
    columns: int
    place: str
    sms: int

    def build_graph(self, variant: str) -> il.Graph:
        m, n = self.rows, self.columns
        second = {"rms_norm": ("weight", (n,)), "silu_times": ("times", (m, n))}[self.op]
        tensors = {name: il.Tensor(name, shape, il.bf16) for name, shape in (("x", (m, n)), second, ("out", (m, n)))}
        if self.place != BETWEEN:
            op = make_op(self.op, variant, tensors, self.sms)
            return il.Graph(self.op, tuple(tensors.values()), (op,), ("x", second[0]), ("out",))
        op = make_op(self.op, variant, tensors, self.sms)
        first, last = (il.Tensor(name, (n, n), il.bf16) for name in ("w_first", "w_last"))
        start, end = (il.Tensor(name, (m, n), il.bf16) for name in ("start", "end"))
        tile = select_matmul_tile(m, il.H200, None)
        ops = (
            il.matmul("first", start, first, tensors["x"], tile=tile),
            op,
            il.matmul("last", tensors["out"], last, end, tile=tile),
        )
        inputs = ("start", "w_first", second[0], "w_last")
        return il.Graph(self.op, (start, first, *tensors.values(), last, end), ops, inputs, ("end",))

    def make_executor(self, variant: str, device: str = "cuda") -> DeviceExecutor:
        kind = il.SerialExecutor if self.place == OWN else il.MegakernelExecutor
        plan = il.build(self.build_graph(variant), il.Schedule(self.sms))
        return kind(plan, il.RunOptions(device))

    def draw_inputs(self) -> dict[str, torch.Tensor]:
        graph, random = self.build_graph(BY_HAND[0]), torch.Generator("cuda").manual_seed(0)
        shapes = {name: graph.tensor(name).shape for name in graph.inputs}
        drawn = {n: torch.randn(s, device="cuda", generator=random).bfloat16() for n, s in shapes.items()}
        return {n: t / self.columns**0.5 if n.startswith("w_") else t for n, t in drawn.items()}

    def compute_gold(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the result in float64, of the first and the last 64 rows."""
        t = {
            n: v.double() if n in ("weight", "w_first", "w_last") else pick_rows(v).double() for n, v in tensors.items()
        }
        x = t["start"] @ t["w_first"].T if self.place == BETWEEN else t["x"]
        if self.op == "rms_norm":
            x = x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * t["weight"]
        else:
            x = torch.nn.functional.silu(x) * t["times"]
        return x @ t["w_last"].T if self.place == BETWEEN else x

    def measure(self) -> dict[str, Any]:
        """Check and time every variant."""
        tensors, errors, runs = self.draw_inputs(), {}, {}
        gold, calls = self.compute_gold(tensors), 4 if self.rows * self.columns > 1 << 22 else 16
        for variant in VARIANTS[self.op]:
            out = torch.full((self.rows, self.columns), torch.nan, dtype=torch.bfloat16, device="cuda")
            name = "end" if self.place == BETWEEN else "out"
            try:
                executor = self.make_executor(variant)
                executor.run({**tensors, name: out})
                torch.cuda.synchronize()
            except InterlaceError as error:
                print(f"    {variant}: {type(error).__name__}: {error}", flush=True)
                continue
            errors[variant] = ((pick_rows(out).double() - gold).norm() / gold.norm()).item()
            if not errors[variant] <= MOST_ERROR:
                raise ResultError(f"{self}, {variant}: relative error {errors[variant]:.1e}; at most {MOST_ERROR}")
            runs[variant] = partial(repeat, executor, {**tensors, name: out}, calls)
        rounds = time_rounds(runs, REPEATS, calls)
        by_hand = rounds.find_fastest(v for v in runs if v in BY_HAND)
        best = rounds.find_fastest(v for v in runs if v not in BY_HAND)
        return {
            **{key: value for key, value in asdict(self).items() if key != "sms"},
            "relative_errors": errors,
            "us": {name: asdict(timing) for name, timing in rounds.times.items()},
            "fastest_by_hand": by_hand,
            "fastest_of_loops": best,
            "times_as_fast": rounds.compute_ratio(by_hand, best),
        }


def pick_rows(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if len(matrix) <= 128 else torch.cat((matrix[:64], matrix[-64:]))


def repeat(executor: DeviceExecutor, tensors: Mapping[str, torch.Tensor], calls: int) -> None:
    for _ in range(calls):
        executor.run(tensors)


def list_cases(sms: int) -> Iterator[Case]:
    for place, shapes in ((ALONE, SHAPES), (BETWEEN, SOME_SHAPES), (OWN, SOME_SHAPES)):
        for rows, columns in shapes:
            for op in OPS:
                yield Case(op, rows, columns, place, sms)


def main(path: str, device: str = "cuda") -> None:
    """Compile, check, time and record; with ``meta`` as the device compile only."""
    hash_sources(MEASURES)
    if device == "meta":
        for case in list_cases(132):
            for variant in VARIANTS[case.op]:
                try:
                    executor = case.make_executor(variant, "meta")
                    print(case, variant, getattr(executor, "binary", None) and executor.binary.resources, flush=True)
                except InterlaceError as error:
                    print(case, variant, type(error).__name__, error, flush=True)
        return
    began = time.monotonic()
    cases = list(list_cases(torch.cuda.get_device_properties(0).multi_processor_count))
    with open_pool() as pool:
        makers: list[Callable[[], DeviceExecutor]] = [
            partial(case.make_executor, variant) for case in cases for variant in VARIANTS[case.op]
        ]
        for _ in compile_launches(makers, pool):
            pass
    print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
    rows = []
    for case in cases:
        try:
            rows.append(case.measure())
        except (InterlaceError, RuntimeError) as error:
            print(f"    {case}: {type(error).__name__}: {error}", flush=True)
            continue
        us = {name: round(timing["median_us"], 2) for name, timing in rows[-1]["us"].items()}
        print(f"{case.op} {case.rows} x {case.columns}, {case.place}: {rows[-1]['times_as_fast']:.2f} {us}", flush=True)
        command = "python benchmarks/row_ops.py benchmarks/results/row-ops-h200.json"
        write_record(Path(path), command, f"CUDA graphs, {describe_protocol(REPEATS)}", MEASURES, {"rows": rows})


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record", optional=("device",)))
