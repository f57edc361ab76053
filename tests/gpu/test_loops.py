"""Emitted pipelines against float64 on the device: the library's kernels, every depth, both forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from interlace.core.dtypes import bf16
from interlace.core.errors import PipelineError
from interlace.loops import library
from interlace.loops.cuda.compiled import compile_kernel
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import Copy, Load, LoopKernel, MemorySpace, ReduceOp
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.circular import circular_buffer

from ..loops_graphs import beside_a_product

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Check:
    """A kernel, extents to run it with, and what it should give."""

    kernel: LoopKernel
    sizes: tuple[dict[str, int], ...]
    expected: Callable[[Arrays], np.ndarray]
    tolerance: float


def _layer_norm(t: Arrays) -> np.ndarray:
    x = t["x"]
    mean = x.mean(axis=(1, 2), keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=(1, 2), keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * t["weight"] + t["bias"]


def _copy(t: Arrays) -> np.ndarray:
    return t["x"]


def _pointwise(t: Arrays) -> np.ndarray:
    return np.maximum(t["x"] * t["z"] + 1, 0)


LINES = tuple({"n": n} for n in (0, 1, 255, 256, 100_001, 1_000_000))
PLANES = tuple({"m": m, "n": n} for m, n in ((1, 4), (7, 252), (16, 256), (333, 1020), (2200, 516), (0, 64)))
#: Shapes of the products: whole tiles, tails in every direction, one step, none.
PRODUCTS = ((128, 256, 64), (200, 328, 136), (512, 512, 1024), (8, 8, 8))


def _planes(kernel: LoopKernel, expected: Callable[[Arrays], np.ndarray], tolerance: float) -> Check:
    return Check(kernel, PLANES, expected, tolerance)


def _products(kernel: LoopKernel, expected: Callable[[Arrays], np.ndarray], **more: int) -> Check:
    sizes = tuple({**more, "rows": m, "columns": n, "depth": k} for m, n, k in PRODUCTS)
    return Check(kernel, sizes, expected, bf16.epsilon)


CHECKS = {
    "copy_1d": Check(library.copy_1d(), LINES, _copy, 0),
    "copy_1d_cp_async": Check(library.copy_1d(by=Copy.CP_ASYNC), LINES, _copy, 0),
    "copy_1d_plain": Check(library.copy_1d(by=Copy.PLAIN), LINES, _copy, 0),
    "copy_1d_bf16": Check(library.copy_1d(dtype=bf16), LINES, _copy, 0),
    "copy_2d": _planes(library.copy_2d(), _copy, 0),
    "copy_3d": Check(
        library.copy_3d(),
        tuple({"d": d, "m": m, "n": n} for d, m, n in ((1, 1, 4), (2, 8, 64), (5, 17, 1000), (3, 40, 0))),
        _copy,
        0,
    ),
    "transpose": _planes(library.transpose(), lambda t: t["x"].T, 0),
    "pointwise": _planes(library.pointwise(), _pointwise, 1e-6),
    "pointwise_cp_async": _planes(library.pointwise(plain=Copy.CP_ASYNC), _pointwise, 1e-6),
    "row_sum": _planes(library.reduce_inner(), lambda t: t["x"].sum(axis=1), 1e-5),
    "row_max": Check(
        library.reduce_inner(op=ReduceOp.MAX), PLANES[:-1], lambda t: t["x"].max(axis=1, initial=-np.inf), 0
    ),
    "column_sum": _planes(library.reduce_outer(), lambda t: t["x"].sum(axis=0), 1e-5),
    "layer_norm": Check(library.layer_norm(columns=1024), ({"m": 1}, {"m": 131}, {"m": 1000}), _layer_norm, 1e-5),
    "layer_norm_wide": Check(library.layer_norm(columns=4096), ({"m": 300},), _layer_norm, 1e-5),
    "matmul": _products(library.matmul(), lambda t: t["a"] @ t["b"].T),
    "matmul_256": _products(library.matmul(n=256), lambda t: t["a"] @ t["b"].T),
    "matmul_bias": _products(library.matmul_bias(), lambda t: t["a"] @ t["b"].T + t["bias"]),
    "matmul_batched": _products(library.matmul_batched(), lambda t: t["a"] @ t["b"].swapaxes(1, 2), batch=3),
}


def mark_rings(kernel: LoopKernel, stages: int, prefetch: int | None = None) -> LoopKernel:
    """Every shared tensor that is loaded, as a ring."""
    loads = [s.dst.tensor for s in walk(kernel.body) if isinstance(s, Load)]
    for tensor in dict.fromkeys(loads):
        if kernel.find_tensor(tensor).memory is MemorySpace.SHARED:
            kernel = circular_buffer(kernel, tensor, stages, prefetch)
    return kernel


def verify(check: Check, kernel: LoopKernel, *, warp_specialised: bool = False) -> None:
    """Run for all extents, twice into the same memory, and compare with float64."""
    import torch

    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    compiled = compile_kernel(kernel, warp_specialised=warp_specialised)
    for sizes in check.sizes:
        tensors = {}
        generator = torch.Generator(device="cuda").manual_seed(7)
        for t in kernel.tensors:
            if t.memory is MemorySpace.GLOBAL:
                shape = [evaluate(n, sizes) for n in t.shape]
                tensors[t.name] = torch.randn(shape, device="cuda", generator=generator).to(types[t.dtype.name])
                if t.is_written:
                    tensors[t.name].fill_(float("nan"))
        exact = {n: t.double().cpu().numpy() for n, t in tensors.items() if not kernel.find_tensor(n).is_written}
        (output,) = (t.name for t in kernel.tensors if t.is_written)
        want = check.expected(exact)
        for _ in range(2):
            compiled.run(tensors, sizes, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        got = tensors[output].double().cpu().numpy()
        assert got.shape == want.shape
        scale = np.abs(want).max(initial=1.0)
        error = np.abs(got - want).max(initial=0.0) / scale
        assert error <= check.tolerance, f"{sizes}: off by {error:.3g} of {scale:.3g}"


def deepest(name: str, stages: int) -> int:
    """``stages``, or as many as fit: a stage of a matmul has 32 KiB, of ``matmul_256`` 48, a block 227."""
    return min(stages, 4) if name == "matmul_256" else min(stages, 7) if name.startswith("matmul") else stages


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", CHECKS)
def test_a_pipeline_is_right_at_every_depth(name: str, stages: int) -> None:
    verify(CHECKS[name], mark_rings(CHECKS[name].kernel, deepest(name, stages)))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", CHECKS)
def test_a_warp_specialised_pipeline_is_right_at_every_depth(name: str, stages: int) -> None:
    verify(CHECKS[name], mark_rings(CHECKS[name].kernel, deepest(name, stages)), warp_specialised=True)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("name", ["copy_1d", "copy_3d", "pointwise", "pointwise_cp_async", "row_sum", "column_sum"])
def test_a_shorter_prefetch_is_right(name: str, prefetch: int) -> None:
    verify(CHECKS[name], mark_rings(CHECKS[name].kernel, 4, prefetch))


@pytest.mark.parametrize("name", CHECKS)
def test_synchronous_loads_are_right(name: str) -> None:
    verify(CHECKS[name], CHECKS[name].kernel)


def test_tensors_that_do_not_fit_are_refused_before_the_launch() -> None:
    import torch

    compiled = compile_kernel(mark_rings(library.copy_2d(), 2))
    x, y = torch.zeros(8, 64, device="cuda"), torch.zeros(8, 64, device="cuda")
    with pytest.raises(PipelineError, match="'y' is missing"):
        compiled.run({"x": x}, {"m": 8, "n": 64})
    with pytest.raises(PipelineError, match=r"'x' is \(8, 64\) fp32.*pass \(8, 32\)"):
        compiled.run({"x": x, "y": y}, {"m": 8, "n": 32})
    with pytest.raises(PipelineError, match="stride of dimension 0 is 244 bytes"):
        compiled.run({"x": x, "y": y}, {"m": 8, "n": 61})


def test_an_output_in_the_memory_of_an_input_is_refused_before_the_launch() -> None:
    import torch

    compiled = compile_kernel(mark_rings(library.copy_2d(), 2))
    both = torch.zeros(12, 64, device="cuda")
    sizes = {"m": 8, "n": 64}
    with pytest.raises(PipelineError, match="tensors 'x' and 'y' share memory, and one is an output"):
        compiled.run({"x": both[:8], "y": both[4:]}, sizes)
    apart = torch.ones(16, 64, device="cuda")
    compiled.run({"x": apart[:8], "y": apart[8:]}, sizes, torch.cuda.current_stream().cuda_stream)


@pytest.mark.parametrize("specialised", [False, True])
def test_a_third_ring_beside_a_product_is_right(specialised: bool) -> None:
    import torch

    m, n, depth = 1000, 128, 8192
    generator = torch.Generator(device="cuda").manual_seed(3)
    tensors = {
        name: torch.randn(rows, depth, device="cuda", generator=generator).bfloat16()
        for name, rows in (("a", m), ("b", n), ("d", m))
    }
    for name, shape in (("c", (m, n)), ("y", (m,))):
        tensors[name] = torch.full(shape, float("nan"), device="cuda")
    compiled = compile_kernel(beside_a_product(), warp_specialised=specialised)
    compiled.run(tensors, {"m": m, "n": n, "depth": depth}, torch.cuda.current_stream().cuda_stream)
    product, sums = tensors["a"].double() @ tensors["b"].double().T, tensors["d"].double().sum(1)
    assert float((tensors["c"] - product).norm() / product.norm()) < 1e-5
    assert float((tensors["y"] - sums).norm() / sums.norm()) < 1e-5
