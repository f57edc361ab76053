"""Kernels that the circular-buffer pass makes of plain loops, timed beside libraries and kernels written by hand.

    PYTHONPATH=src python benchmarks/pipeline_emitted.py benchmarks/results/pipeline-emitted-h200.json

Needs a Hopper GPU. Copies, the pointwise chain and reductions work on 4 GiB. Every variant is checked against float64
or the input first. Rivals of the same kernel, and every depth, are replayed interleaved; TB/s count reads and writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from pipeline import plain, plain_reads

from interlace.bench.record import write_record
from interlace.bench.timing import median_us
from interlace.pipeline import library
from interlace.pipeline.circular import circular_buffer, lower
from interlace.pipeline.compiled import compile_kernel
from interlace.pipeline.ir import Kernel

SIDE = 32768  # squared, in fp32: 4 GiB
STAGES = (1, 2, 3, 4, 6, 8)
Run = Callable[[], None]


def variants(
    kernels: dict[str, tuple[Kernel, tuple[str, ...]]], tensors: dict[str, Any], sizes: dict[str, int], special: bool
) -> Iterator[tuple[str, Run]]:
    """Each kernel at each depth that fits, by name."""
    for name, (kernel, tiles) in kernels.items():
        for stages in STAGES:
            marked = kernel
            try:
                for tile in tiles:
                    marked = circular_buffer(marked, tile, stages)
                launch = compile_kernel(lower(marked, warp_specialised=special)).bind(tensors, sizes)
                launch(torch.cuda.current_stream().cuda_stream)
            except Exception as error:  # noqa: BLE001  (a depth that does not fit is a line of the table)
                print(f"    {name}, {stages} stages: {type(error).__name__}: {str(error)[:90]}")
                continue
            yield f"{name}, {stages} stages", lambda launch=launch: launch(torch.cuda.current_stream().cuda_stream)


def compare(
    title: str,
    mine: Iterator[tuple[str, Run]],
    rivals: dict[str, Run],
    check: Callable[[], float],
    work: float,
    unit: str,
) -> dict[str, Any]:
    """Check, time and print one kernel; ``work`` in bytes or FLOPs."""
    runs = dict(mine)
    errors = {}
    for name, run in runs.items():
        run()
        torch.cuda.synchronize()
        errors[name] = check()
    right = {name: run for name, run in runs.items() if errors[name] < 5e-3}
    for name in runs.keys() - right.keys():
        print(f"    WRONG {name}: {errors[name]:.1e}")
    times = median_us({**rivals, **right}, 9)
    rival = min(times[name].median_us for name in rivals)
    best = min(times[name].median_us for name in right)
    print(f"{title}: best rival {rival:.1f} us, best pipeline {best:.1f} us, {rival / best:.3f}x")
    for name in sorted(times, key=lambda name: times[name].median_us):
        us = times[name].median_us
        print(f"    {us:9.1f} us {work / us / 1e6:8.3f} {unit} {rival / us:6.3f}x  {name}")
    return {"kernel": title, "unit": unit, "ratio": rival / best, "us": {n: t.median_us for n, t in times.items()}}


def relative(got: Any, right: Any) -> float:
    return float((got.double() - right).norm() / right.norm())


def moving() -> Iterator[dict[str, Any]]:
    """Copies, the pointwise chain, reductions: 4 GiB."""
    x, z = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(2))
    y, n, nbytes = torch.empty_like(x), SIDE * SIDE // 4, 4 * SIDE * SIDE
    sizes = {"m": SIDE, "n": SIDE}
    copies = {f"{b} blocks of 16x256": (library.copy_2d(blocks=b), ("s",)) for b in (264, 528)}
    by_hand = {f"by hand, unroll {u}": plain("plain_copy", u, n, (x, y, n)) for u in (1, 4)}
    same = lambda: float((y != x).any())  # noqa: E731
    mine = variants(copies, {"x": x, "y": y}, sizes, False)
    yield compare("copy", mine, {"cudaMemcpyAsync": lambda: y.copy_(x), **by_hand}, same, 2 * nbytes, "TB/s")
    chain = {f"{b} blocks": (library.pointwise(blocks=b), ("x_s",)) for b in (528, 1056)}
    by_hand = {f"another chain by hand, unroll {u}": plain("plain_gate", u, n, (x, z, y, n)) for u in (2, 4)}
    right = torch.relu(x[:2048] * z[:2048] + 1).double()
    mine = variants(chain, {"x": x, "z": z, "y": y}, sizes, False)
    yield compare("pointwise", mine, by_hand, lambda: relative(y[:2048], right), 3 * nbytes, "TB/s")
    sums, reads = torch.empty(SIDE, device="cuda"), plain_reads(x)
    rows = {f"{b} blocks": (library.reduce_inner(blocks=b), ("s",)) for b in (264, 528, 1056)}
    right = torch.stack([part.double().sum(1) for part in x.split(4096)]).flatten()
    mine = variants(rows, {"x": x, "y": sums}, sizes, False)
    yield compare("row sums", mine, reads, lambda: relative(sums, right), nbytes, "TB/s")
    columns = {"tiles of 32x128": (library.reduce_outer(tile=(32, 128)), ("s",))}
    total = sum(part.double().sum(0) for part in x.split(4096))
    mine = variants(columns, {"x": x, "y": sums}, sizes, False)
    yield compare("column sums", mine, reads, lambda: relative(sums, total), nbytes, "TB/s")


def norms() -> Iterator[dict[str, Any]]:
    """Layer normalisation of 1 GiB."""
    norm = torch.nn.functional.layer_norm
    for columns in (4096, 16384):
        m = (1 << 28) // columns
        x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((m, columns), (columns,), (columns,)))
        y = torch.empty_like(x)
        right = norm(x[:512].double(), (columns,), weight.double(), bias.double())
        pieces = {"x": x.view(m, -1, 256), "y": y.view(m, -1, 256)}
        pieces |= {"weight": weight.view(-1, 256), "bias": bias.view(-1, 256)}
        kernels = {f"{b} blocks": (library.layer_norm(columns=columns, blocks=b), ("row",)) for b in (132, 264, 528)}
        mine = variants(kernels, pieces, {"m": m}, False)
        rival = {"PyTorch": lambda x=x, w=weight, b=bias, c=columns: norm(x, (c,), w, b)}
        check = lambda y=y, right=right: relative(y[:512], right)  # noqa: E731
        yield compare(f"layer norm of {columns}", mine, rival, check, 8.0 * x.numel(), "TB/s")


def products() -> Iterator[dict[str, Any]]:
    """Matmuls in bf16, warp-specialised."""
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
        c = torch.empty_like(a)
        right = a[:256].double() @ b.double().T
        kernels = {f"128x{w} tiles": (library.matmul(n=w), ("a_s", "b_s")) for w in (128, 256)}
        mine = variants(kernels, {"a": a, "b": b, "c": c}, {"rows": n, "columns": n, "depth": n}, True)
        rival = {"cuBLAS": lambda a=a, b=b, c=c: torch.matmul(a, b.T, out=c)}
        check = lambda c=c, right=right: relative(c[:256], right)  # noqa: E731
        yield compare(f"matmul {n} cubed", mine, rival, check, 2.0 * n**3, "TFLOP/s")


def main(path: str) -> None:
    """Measure, print and record."""
    rows = [row for part in (moving, norms, products) for row in part()]
    protocol = "CUDA graphs, variants of a kernel interleaved, median of 9 rounds; checked first"
    command = "python benchmarks/pipeline_emitted.py benchmarks/results/pipeline-emitted-h200.json"
    write_record(Path(path), command, protocol, {"rows": rows})


if __name__ == "__main__":
    main(sys.argv[1])
