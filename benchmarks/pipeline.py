"""Kernels that the circular-buffer pass makes of plain loops, timed beside libraries and kernels written by hand.

    PYTHONPATH=src python benchmarks/pipeline.py benchmarks/results/pipeline-h200.json

Needs a Hopper GPU. Copies, the pointwise chain and reductions work on 4 GiB. Every variant is checked against float64
or the input first. Rivals of the same kernel, and every depth, are replayed interleaved; TB/s count reads and writes.
The rivals by hand are in ``rivals/``: no shared memory, 16 bytes to a load, many loads in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from script import format_command, parse_arguments

from interlace.bench.compile import open_pool
from interlace.bench.record import write_record
from interlace.bench.timing import time_medians
from interlace.core.errors import InterlaceError
from interlace.kernels.cuda.compiler import compile_source
from interlace.kernels.cuda.launcher import Argument, LoadedKernel
from interlace.kernels.cuda.ptx import PTX
from interlace.loops import library
from interlace.loops.cuda.compiled import CompiledKernel, compile_kernel
from interlace.loops.ir.statements import LoopKernel
from interlace.loops.rewrite.circular import circular_buffer

MEASURES = ("csrc/loops", "csrc/ptx.cuh", "kernels/cuda", "loops/cuda", "loops/frontend", "loops/ir", "loops/rewrite")
RIVALS = Path(__file__).parent / "rivals"
SIDE = 32768  # squared, in fp32: 4 GiB
STAGES = (1, 2, 3, 4, 5, 6, 7, 8)
Run = Callable[[], None]


def stream() -> int:
    """The current one."""
    return int(torch.cuda.current_stream().cuda_stream)


def by_hand(name: str, unroll: int, threads: int, blocks: int, *arguments: Argument) -> Run:
    """A kernel of ``rivals/``."""
    text = f"constexpr int UNROLL = {unroll};\n{(RIVALS / f'{name}.cu').read_text()}"
    loaded = LoadedKernel(compile_source(text, name, preamble=PTX))
    return lambda: loaded.launch((blocks, 1, 1), threads, arguments, stream())


def streaming(name: str, vectors: int, *arguments: Argument) -> dict[str, Run]:
    """A kernel of ``rivals/`` with a thread to every few vectors."""
    blocks = {u: -(-vectors // (256 * u)) for u in (1, 2, 4)}
    return {f"by hand, unroll {u}": by_hand(name, u, 256, blocks[u], *arguments, vectors) for u in blocks}


def reads(x: Any) -> dict[str, Run]:
    """Kernels that only read: the ceiling of a reduction."""
    sink, sms = torch.zeros(512, device="cuda", dtype=torch.int32), torch.cuda.get_device_properties(0)
    shapes = [(unroll, blocks) for unroll in (4, 8) for blocks in (2, 4, 64)]
    return {
        f"plain read, unroll {u}, {b} blocks/SM": by_hand(
            "plain_read", u, 512, sms.multi_processor_count * b, x, sink, x.numel() // 4
        )
        for u, b in shapes
    }


@dataclass(frozen=True)
class Family:
    """One kernel in several shapes, and what it is measured against.

    Attributes:
        kernels: loops by name of the shape; every tile in ``tiles`` is buffered.
        check: the error of what the last run left in the output.
        work: bytes or FLOPs of a run.
    """

    title: str
    kernels: Mapping[str, LoopKernel]
    tiles: tuple[str, ...]
    tensors: Mapping[str, Any]
    sizes: Mapping[str, int]
    rivals: Mapping[str, Run]
    check: Callable[[], float]
    work: float
    unit: str = "TB/s"
    warp_specialised: bool = False

    def runs(self, pool: Executor) -> dict[str, Run]:
        """Every shape at every depth, by name, checked; compiled in a pool of processes."""
        cases = [(shape, stages) for shape in self.kernels for stages in STAGES]
        kernels = (self.kernels[shape] for shape, _ in cases)
        depths = (stages for _, stages in cases)
        made = pool.map(
            partial(compile_at_depth, tiles=self.tiles, warp_specialised=self.warp_specialised), kernels, depths
        )
        right: dict[str, Run] = {}
        for (shape, stages), found in zip(cases, made, strict=True):
            name = f"{shape}, {stages} stages"
            if isinstance(found, str):
                print(f"    {name}: {found}")
                continue
            launch = found.bind(self.tensors, self.sizes)
            launch(stream())
            error = self.check()
            if error < 5e-3:
                right[name] = lambda launch=launch: launch(stream())
            else:
                print(f"    WRONG {name}: {error:.1e}")
        return right

    def measure(self, pool: Executor) -> dict[str, Any]:
        """Time and print."""
        right = self.runs(pool)
        times = {name: t.median_us for name, t in time_medians({**self.rivals, **right}, 9).items()}
        rival, best = min(times[n] for n in self.rivals), min(times[n] for n in right)
        print(f"{self.title}: best rival {rival:.1f} us, best pipeline {best:.1f} us, {rival / best:.3f}x")
        for name in sorted(times, key=lambda n: times[n]):
            rate = self.work / times[name] / 1e6
            print(f"    {times[name]:9.1f} us {rate:8.3f} {self.unit} {rival / times[name]:6.3f}x  {name}", flush=True)
        return {
            "kernel": self.title,
            "unit": self.unit,
            "ratio": rival / best,
            "us": times,
            "per_s": {name: self.work / us / 1e6 for name, us in times.items()},
        }


def compile_at_depth(
    loops: LoopKernel, stages: int, tiles: tuple[str, ...], warp_specialised: bool
) -> CompiledKernel | str:
    """A kernel at a depth, or why there is none."""
    try:
        for tile in tiles:
            loops = circular_buffer(loops, tile, stages)
        return compile_kernel(loops, warp_specialised=warp_specialised)
    except InterlaceError as error:
        return f"{type(error).__name__}: {str(error)[:90]}"


def relative(got: Any, right: Any) -> float:
    """Frobenius error."""
    return float((got.double() - right).norm() / right.norm())


def copies() -> Iterator[Family]:
    """Yield copies of 4 GiB, in one, two and three dimensions."""
    x = torch.randn(SIDE, SIDE, device="cuda")
    y, nbytes = torch.empty_like(x), 4 * SIDE * SIDE
    rivals = {"cudaMemcpyAsync": lambda: y.copy_(x), **streaming("plain_copy", SIDE * SIDE // 4, x, y)}

    def check() -> float:
        same = float((y != x).any())
        y.fill_(float("nan"))
        return same

    def family(title: str, kernels: dict[str, LoopKernel], shape: tuple[int, ...], names: str) -> Family:
        sizes = dict(zip(names, shape, strict=True))
        tensors = {"x": x.view(shape), "y": y.view(shape)}
        return Family(title, kernels, ("s",), tensors, sizes, rivals, check, 2 * nbytes)

    lines = {f"walks of {w}": library.copy_1d(walk=w) for w in (8, 16, 32)}
    yield family("copy, 1 dimension", lines, (SIDE * SIDE,), "n")
    tiles = {
        f"{r}x256 tiles, walks of {w}": library.copy_2d(tile=(r, 256), walk=w)
        for r, w in ((8, 2), (8, 4), (16, 2), (16, 4), (8, 8))
    }
    yield family("copy, 2 dimensions", tiles, (SIDE, SIDE), "mn")
    boxes = ((2, 8, 64), (1, 8, 256), (1, 16, 256))
    cubes = {f"{d}x{m}x{n} tiles": library.copy_3d(tile=(d, m, n)) for d, m, n in boxes}
    yield family("copy, 3 dimensions", cubes, (512, 2048, 1024), "dmn")


def chains() -> Iterator[Family]:
    """The pointwise chain of 4 GiB."""
    x, z = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(2))
    y, n = torch.empty_like(x), SIDE * SIDE
    right = torch.relu(x[:2048] * z[:2048] + 1).double()
    kernels = {
        f"{r}x256 tiles, walks of {w}": library.pointwise(tile=(r, 256), walk=w)
        for r, w in ((4, 2), (4, 8), (8, 2), (8, 4), (16, 2))
    }
    rivals = streaming("plain_chain", n // 4, x, z, y)
    tensors, sizes = {"x": x, "z": z, "y": y}, {"m": SIDE, "n": SIDE}
    yield Family("pointwise", kernels, ("x_s",), tensors, sizes, rivals, lambda: relative(y[:2048], right), 12 * n)


def sums() -> Iterator[Family]:
    """Yield sums of rows and columns of 4 GiB."""
    x = torch.randn(SIDE, SIDE, device="cuda")
    y, sizes = torch.empty(SIDE, device="cuda"), {"m": SIDE, "n": SIDE}
    for title, axis, kernels in (
        ("row sums", 1, {f"walks of {w}": library.reduce_inner(walk=w) for w in (1, 4, 16)}),
        ("column sums", 0, {f"tiles of {r}x128": library.reduce_outer(tile=(r, 128)) for r in (16, 32)}),
    ):
        right = (
            sum(part.double().sum(0) for part in x.split(4096))
            if axis == 0
            else torch.cat([part.double().sum(1) for part in x.split(4096)])
        )
        check = lambda right=right: relative(y, right)  # noqa: E731
        yield Family(title, kernels, ("s",), {"x": x, "y": y}, sizes, reads(x), check, 4 * SIDE * SIDE)


def norms() -> Iterator[Family]:
    """Layer normalisation of 1 GiB."""
    norm = torch.nn.functional.layer_norm
    for columns in (4096, 16384):
        m = (1 << 28) // columns
        x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((m, columns), (columns,), (columns,)))
        y = torch.empty_like(x)
        right = norm(x[:512].double(), (columns,), weight.double(), bias.double())
        tensors = {"x": x.view(m, -1, 256), "y": y.view(m, -1, 256)}
        tensors |= {"weight": weight.view(-1, 256), "bias": bias.view(-1, 256)}
        kernels = {f"walks of {w}": library.layer_norm(columns=columns, walk=w) for w in (1, 2, 4, 8, 32)}
        rivals = {"PyTorch": lambda x=x, w=weight, b=bias, c=columns: norm(x, (c,), w, b)}
        check = lambda y=y, right=right: relative(y[:512], right)  # noqa: E731
        yield Family(f"layer norm of {columns}", kernels, ("row",), tensors, {"m": m}, rivals, check, 8.0 * x.numel())


def products() -> Iterator[Family]:
    """Matmuls in bf16, warp-specialised."""
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
        c = torch.empty_like(a)
        right = a[:256].double() @ b.double().T
        kernels = {f"128x{w} tiles": library.matmul(n=w) for w in (128, 256)}
        rivals = {"cuBLAS": lambda a=a, b=b, c=c: torch.matmul(a, b.T, out=c)}
        check = lambda c=c, right=right: relative(c[:256], right)  # noqa: E731
        tensors, sizes = {"a": a, "b": b, "c": c}, {"rows": n, "columns": n, "depth": n}
        title, work = f"matmul {n} cubed", 2.0 * n**3
        yield Family(
            title, kernels, ("a_s", "b_s"), tensors, sizes, rivals, check, work, "TFLOP/s", warp_specialised=True
        )


def main(path: str) -> None:
    """Measure, print and record."""
    parts = (copies, chains, sums, norms, products)
    with open_pool() as pool:
        rows = [family.measure(pool) for part in parts for family in part()]
    protocol = "CUDA graphs, variants of a kernel interleaved, median of 9 rounds; checked first"
    write_record(Path(path), format_command(Path(path)), protocol, MEASURES, {"rows": rows})


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record"))
