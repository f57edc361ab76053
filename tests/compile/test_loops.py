"""CUDA source of every golden kernel compiles for sm_90a without spills and with the intended instructions.

``pytest tests/compile/test_loops.py --update-golden`` writes the files; review the difference before you commit it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import fp16, fp32
from interlace.core.errors import PipelineError
from interlace.loops.cuda.compiled import compile_kernel
from interlace.loops.cuda.emit import EmittedKernel, emit_kernel
from interlace.loops.frontend.build import Builder
from interlace.loops.frontend.library import build_examples, copy_3d, matmul, reduce_inner
from interlace.loops.ir.index import ceil_div
from interlace.loops.ir.statements import LoopKernel, ReduceOp
from interlace.loops.rewrite.circular import circular_buffer, lower

from ..loops_graphs import beside_a_product

GOLDEN = Path(__file__).parents[1] / "golden/loops"
SPECIALISED = {name for name, example in build_examples().items() if example.warp_specialised}
#: Functions of the preamble that every pipeline uses.
ASYNC = ("mbarrier_init", "mbarrier_wait", "mbarrier_inval", "fence_mbarrier_init")


def emit_example(name: str) -> EmittedKernel:
    return emit_kernel(build_examples()[name].rewrite(), H200)


@pytest.mark.parametrize("name", build_examples())
def test_the_cuda_text_is_the_golden_one(name: str, update_golden: bool) -> None:
    text = emit_example(name).cuda_source
    file = GOLDEN / f"{name}.cu"
    if update_golden:
        file.write_text(text)
    assert file.read_text() == text


def test_every_golden_text_has_its_kernel() -> None:
    assert {file.stem for file in GOLDEN.glob("*.cu")} == set(build_examples())


@pytest.mark.parametrize("name", build_examples())
def test_every_golden_kernel_compiles_without_spills_or_warnings(name: str) -> None:
    example = build_examples()[name]
    binary = compile_kernel(example.kernel, warp_specialised=example.warp_specialised).binary
    assert (binary.resources.spill_bytes, binary.resources.stack_bytes) == (0, 0)
    assert binary.warnings == ()
    if name not in SPECIALISED:  # there ptxas reports the registers before setmaxnreg
        assert binary.resources.registers <= (128 if "matmul" in name or name == "layer_norm" else 64)


@pytest.mark.parametrize("name", build_examples())
def test_kernels_use_the_instructions_that_their_copies_name(name: str) -> None:
    text = emit_example(name).cuda_source
    uses = set(re.findall(r"\b(\w+)(?:<\d+>)?\(", text))
    by_tma, by_threads = name != "copy_1d_plain", name in ("pointwise_mixed", "pointwise_mixed_specialised")
    assert set(ASYNC) <= uses
    assert (bool({f"tma_load_{d}d" for d in (1, 2, 3)} & uses), "mbarrier_arrive_expect_tx" in uses) == (by_tma, by_tma)
    assert ("copy_async_16" in uses, "copy_async_arrive" in uses) == ((by_threads or "synchronous" in name,) * 2)
    assert ({"registers_lower"} <= uses) == (name in SPECIALISED)
    assert ("wgmma_m64n128k16" in uses) == ("matmul" in name)
    assert ("tma_store_3d" in uses) == (name == "copy_3d")


def test_one_thread_alone_issues_bulk_copies() -> None:
    depths: list[str] = []
    issued = 0
    for line in emit_example("pointwise").cuda_source.splitlines():
        depths = depths[: (len(line) - len(line.lstrip())) // 2]
        if "tma_load" in line or "arrive_expect" in line:
            assert any("if (thread == 0)" in outer for outer in depths)
            issued += 1
        depths += [line] * (1 + (len(line) - len(line.lstrip())) // 2 - len(depths))
    assert issued >= 2  # a load, and the arrival that expects its bytes


def test_a_specialised_matmul_keeps_two_products_in_flight_where_it_has_two_stages() -> None:
    def waits(stages: int) -> list[str]:
        kernel = circular_buffer(circular_buffer(matmul(), "a_s", stages), "b_s", stages)
        return re.findall(r"wgmma_wait<\d>", emit_kernel(lower(kernel, warp_specialised=True), H200).cuda_source)

    assert waits(2) == ["wgmma_wait<1>", "wgmma_wait<0>"]
    assert waits(1) == ["wgmma_wait<0>"]


def test_a_ring_beside_a_product_is_released_at_once_and_the_operands_a_step_later() -> None:
    text = emit_kernel(lower(beside_a_product(), warp_specialised=True), H200).cuda_source
    loop = text[text.index("wgmma_wait<1>") : text.index("wgmma_wait<0>")]
    arrives = re.findall(r"mbarrier_arrive\((\w+)", loop)
    assert sorted(arrives) == ["a_s_empty_before", "b_s_empty_before", "d_s_empty_"]
    assert len(re.findall(r"(a|b)_s_empty_before = (?:a|b)_s_empty_ \+", loop)) == 2


def test_a_store_out_of_a_ring_is_awaited_before_the_load_that_overwrites_it() -> None:
    def waits(stages: int, prefetch: int) -> str | None:
        text = emit_kernel(lower(circular_buffer(copy_3d(), "s", stages, prefetch)), H200).cuda_source
        found = re.search(r"bulk_wait_read<(\d)>\(\);\n\s*tma_load", text)
        return None if found is None else found[1]

    assert [waits(4, 3), waits(4, 2), waits(4, 0), waits(1, 0)] == ["0", "1", "3", "0"]


def test_a_matmul_of_fp16_and_of_other_widths_compiles() -> None:
    for kernel in (matmul(dtype=fp16), matmul(n=192), matmul(m=256, n=64)):
        marked = circular_buffer(circular_buffer(kernel, "a_s", 3), "b_s", 3)
        binary = compile_kernel(marked, warp_specialised=True).binary
        assert (binary.resources.spill_bytes, binary.warnings) == (0, ())


def test_unmarked_kernels_compile_with_synchronous_loads() -> None:
    for example in build_examples().values():
        source = example.kernel
        assert compile_kernel(replace(source, rings=())).binary.resources.spill_bytes == 0


def test_odd_tiles_compile_and_clip_the_threads_without_elements() -> None:
    kernel = circular_buffer(reduce_inner(tile=(3, 20), op=ReduceOp.MAX), "s", 2)
    text = emit_kernel(lower(kernel), H200).cuda_source
    assert "row < 3" in text
    assert "c1 < 20" in text
    assert compile_kernel(kernel).binary.resources.stack_bytes == 0


@pytest.mark.parametrize("name", ["exp", "pow", "main", "printf", "float", "k", "item", "n", "x"])
def test_a_kernel_may_be_called_like_a_function_or_a_variable(name: str) -> None:
    for items in (False, True):
        binary = compile_kernel(replace(build_examples()["copy_1d"].kernel, name=name), items=items).binary
        assert (binary.name, binary.function) == (name, f"{name}_")


def test_whatever_is_called_like_something_of_cuda_compiles() -> None:
    k = Builder("template")
    n = k.symbol("int")
    x, y = k.input("NULL", (n, 64), fp32), k.output("thread", (n,), fp32)
    s, acc = k.shared("shared", (8, 64), fp32), k.register("INFINITE", (8, 1), fp32)
    with k.block("min", 2), k.serial("for", n) as i:
        k.load(s, x.at(i * 8, 0))
        k.assign(acc, 0)
        k.reduce(acc, ReduceOp.MAX, s, axes=(1,), shape=(8, 64))
        with k.thread("blockIdx", 8) as t:
            k.store(y.at(i * 8 + t), s.at(t, 0, shape=(1, 1)))
    for items in (False, True):
        assert compile_kernel(circular_buffer(k.build_kernel(), "shared", 2), items=items).binary.warnings == ()


def test_a_matmul_tile_that_wgmma_cannot_read_is_refused() -> None:
    kernel = circular_buffer(circular_buffer(matmul(k=32), "a_s", 2), "b_s", 2)
    with pytest.raises(PipelineError, match="64 elements along k"):
        emit_kernel(lower(kernel), H200)


def test_sums_over_too_few_rows_for_the_warpgroups_are_refused() -> None:
    with pytest.raises(PipelineError, match="64 rows over 256 threads"):
        emit_kernel(lower(matmul(m=64)), H200)


def over_threads(columns: int, shift: int = 0) -> LoopKernel:
    """Build ``y = 2 * x``: a thread has four adjacent elements of a tile of ``columns``, read from ``shift`` on."""
    k = Builder("twice")
    n = k.symbol("n")
    x, y, s = k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.shared("s", (columns,), fp32)
    with k.serial("i", ceil_div(n, columns)) as i:
        k.load(s, x.at(i * columns))
        with k.thread("t", n % (columns // 4)) as t:
            k.assign(y.at(i * columns + t * 4), 2 * s.at(t * 4 + shift, shape=(4,)))
    return circular_buffer(k.build_kernel(), "s", 2)


def test_threads_share_out_a_loop_and_each_moves_vectors_where_they_are_aligned() -> None:
    for specialised in (False, True):
        text = emit_kernel(lower(over_threads(256), warp_specialised=specialised), H200).cuda_source
        assert "for (int t_ = thread; t_ < rest(n_, 64); t_ += 128) {" in text
        assert set(re.findall(r"\w+<fp32, \d>", text)) == {"read_tile<fp32, 4>", "write_clipped<fp32, 4>"}
    for shift, vector in ((1, 1), (2, 2), (8, 4)):
        compiled = compile_kernel(over_threads(256, shift))
        assert set(re.findall(r"read_tile<fp32, (\d)>", compiled.emitted_kernel.cuda_source)) == {str(vector)}
        assert compiled.binary.resources.stack_bytes == 0
