"""The example kernels against NumPy, plain, synchronous, as block pipelines and warp-specialised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from interlace.core.dtypes import bf16, fp16
from interlace.core.rounding import round_to
from interlace.loops import library
from interlace.loops.ir.statements import Copy, LoopKernel, ReduceOp
from interlace.loops.ir.text import print_kernel
from interlace.loops.meaning.arithmetic import Floats
from interlace.loops.meaning.interpret import interpret
from interlace.loops.proof.prove import prove
from interlace.loops.rewrite.circular import circular_buffer, lower

from ..thorough import some

Marks = dict[str, tuple[int, int | None]]
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Floats:
    return RNG.standard_normal(shape).astype(np.float32)


def result(kernel: LoopKernel, marks: Marks, inputs: Mapping[str, Floats]) -> Floats:
    """The one output, which every form of the kernel gives bit by bit."""
    (plain,) = interpret(kernel, inputs).values()
    marked = kernel
    for tensor, (stages, prefetch) in marks.items():
        marked = circular_buffer(marked, tensor, stages, prefetch)
    for form in (lower(kernel), lower(marked), lower(marked, warp_specialised=True)):
        (got,) = interpret(form, inputs, seed=1).values()
        np.testing.assert_array_equal(got, plain)
    return plain


@pytest.mark.parametrize("n", [0, 1, 64, 500, 1003])
@pytest.mark.parametrize("by", Copy)
def test_copy_1d(n: int, by: Copy) -> None:
    x = normal(n)
    np.testing.assert_array_equal(result(library.copy_1d(tile=64, walk=3, by=by), {"s": (4, None)}, {"x": x}), x)


@pytest.mark.parametrize("shape", [(0, 16), (37, 52), (8, 16), (5, 4)])
def test_copy_2d(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    np.testing.assert_array_equal(result(library.copy_2d(tile=(8, 16), walk=3), {"s": (5, 2)}, {"x": x}), x)


def test_copy_3d_back_by_tma() -> None:
    x = normal(5, 19, 36)
    np.testing.assert_array_equal(result(library.copy_3d(tile=(2, 8, 16)), {"s": (3, 1)}, {"x": x}), x)


@pytest.mark.parametrize("shape", [(0, 16), (37, 52), (8, 16), (5, 4)])
def test_transpose_element_by_element(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    np.testing.assert_array_equal(result(library.transpose(tile=(8, 16), walk=3), {"s": (4, 2)}, {"x": x}), x.T)


@pytest.mark.parametrize("plain", Copy)
def test_pointwise_with_a_tma_and_another_input(plain: Copy) -> None:
    x, z = normal(21, 40), normal(21, 40)
    marks: Marks = {"x_s": (3, None)} | ({} if plain is Copy.PLAIN else {"z_s": (4, 1)})
    y = result(library.pointwise(tile=(8, 16), walk=3, plain=plain), marks, {"x": x, "z": z})
    np.testing.assert_array_equal(y, np.maximum(x * z + 1, 0))


@pytest.mark.parametrize("shape", [(1, 4), (19, 52)])
def test_inner_reductions(shape: tuple[int, int]) -> None:
    x = normal(*shape) - 5  # the zeros past the end must not win the maximum
    row_sum = result(library.reduce_inner(tile=(8, 16), walk=3), {"s": (3, None)}, {"x": x})
    np.testing.assert_allclose(row_sum, x.astype(float).sum(1), rtol=1e-5)
    row_max = result(library.reduce_inner(tile=(8, 16), op=ReduceOp.MAX, walk=3), {"s": (3, None)}, {"x": x})
    np.testing.assert_array_equal(row_max, x.max(1))


def test_outer_reduction() -> None:
    x = normal(37, 52)
    y = result(library.reduce_outer(tile=(8, 16)), {"s": (4, None)}, {"x": x})
    np.testing.assert_allclose(y, x.astype(float).sum(0), rtol=1e-4, atol=1e-5)


def test_layer_norm_reads_its_row_from_shared_memory() -> None:
    x, weight, bias = normal(11, 4, 16), normal(4, 16), normal(4, 16)
    kernel = library.layer_norm(columns=64, chunk=16, walk=3)
    y = result(kernel, {"row": (2, None)}, {"x": x, "weight": weight, "bias": bias}).reshape(11, 64)
    rows = x.reshape(11, 64).astype(float)
    unit = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, unit * weight.ravel() + bias.ravel(), atol=2e-5)
    assert print_kernel(kernel).count("load x") == 1


@pytest.mark.parametrize("dtype", [bf16, fp16], ids=str)
@pytest.mark.parametrize("depth", [0, 8, 72])
def test_matmul_with_a_broadcast_bias(dtype: object, depth: int) -> None:
    a, b, bias = normal(100, depth), normal(40, depth), normal(40)
    kernel = library.matmul_bias(m=64, n=16, k=16, threads=128, dtype=bf16 if dtype == bf16 else fp16)
    c = result(kernel, {"a_s": (3, None), "b_s": (4, 1)}, {"a": a, "b": b, "bias": bias})
    kind = kernel.find_tensor("a").dtype
    expected = round_to(a, kind).astype(float) @ round_to(b, kind).astype(float).T + bias
    np.testing.assert_allclose(c, expected, rtol=kind.epsilon, atol=1e-4)


def test_matmul_with_an_operand_broadcast_over_the_batch() -> None:
    a, b = normal(70, 40), normal(3, 24, 40)
    kernel = library.matmul_batched(m=64, n=16, k=16, threads=128)
    c = result(kernel, {"a_s": (3, None), "b_s": (3, None)}, {"a": a, "b": b})
    expected = np.einsum("mk,gnk->gmn", round_to(a, bf16).astype(float), round_to(b, bf16).astype(float))
    np.testing.assert_allclose(c, expected, rtol=bf16.epsilon, atol=1e-4)


@pytest.mark.parametrize("name", library.build_examples())
@pytest.mark.parametrize("stages", some([1, 2, 3, 8], lambda stages: stages in (1, 3)))
def test_every_example_is_proved(name: str, stages: int) -> None:
    """In both forms, in few events."""
    rings = library.build_examples()[name].kernel.rings
    kernel = replace(library.build_examples()[name].kernel, rings=())
    for ring in rings:
        kernel = circular_buffer(kernel, ring.tensor, stages)
    for warp_specialised in (False, True):
        assert 0 < prove(kernel, warp_specialised=warp_specialised).events < 5000 * stages


def test_printing_is_the_same_for_equal_kernels() -> None:
    assert print_kernel(library.matmul()) == print_kernel(library.matmul())
    assert library.matmul() == library.matmul()
