"""Broken rules are refused before anything is rewritten, with the rule and the tensor in the message."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import bf16, fp32
from interlace.core.errors import (
    BoxError,
    CarriedError,
    DepthError,
    PipelineError,
    ScopeError,
    SharedMemoryError,
)
from interlace.csrc import expand
from interlace.loops import library
from interlace.loops.cuda.emit import emit_kernel
from interlace.loops.cuda.preamble import PREAMBLE
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import (
    Const,
    Index,
    IndexLike,
    Less,
    Var,
    ceil_div,
    evaluate,
    find_divisor,
    find_names,
    maximum,
    minimum,
    substitute,
)
from interlace.loops.ir.smem import SCRATCH, lay_out
from interlace.loops.ir.statements import AllocBarrier, Copy, For, Let, LoopKernel, Role, Store
from interlace.loops.ir.text import print_index, print_kernel
from interlace.loops.ir.traverse import walk
from interlace.loops.ir.values import Box
from interlace.loops.meaning.interpret import interpret
from interlace.loops.rewrite.circular import circular_buffer, lower
from interlace.loops.rules.check import check_sizes, list_declared_names


def loop(
    shape: tuple[int, ...] = (256,),
    *,
    columns: int | None = None,
    by: Copy = Copy.TMA,
    align_bytes: int = 16,
    body: Callable[[Builder, Var], None] | None = None,
) -> LoopKernel:
    """A loop that loads ``s`` from ``x`` and does ``body``."""
    k = Builder("rule")
    n = k.symbol("n")
    rank = len(shape)
    extents = (n,) * rank if columns is None else (*(n,) * (rank - 1), Const(columns))
    x = k.input("x", extents, fp32, align_bytes=align_bytes)
    k.output("y", (n,), fp32)
    s = k.shared("s", shape, fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(*((0,) * (rank - 1)), i * shape[-1]), by)
        if body:
            body(k, i)
    return k.build_kernel()


#: The tile of ``loop``.
TILE = Box("s", (Const(0),), (256,))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: loop((257 * 4,)), "TMA box of 'x': a side of .* is over 256 elements"),
        (lambda: loop((6,)), "tma box of 'x': inner bytes are 24; use a multiple of 16"),
        (lambda: loop((6,), by=Copy.CP_ASYNC), "cp.async box of 'x': inner bytes are 24"),
        (lambda: loop(align_bytes=8), "base is aligned to 8 bytes; 16 are needed"),
        (lambda: loop((4, 4), columns=61), "stride of dimension 0 is 244 bytes; pad it"),
        (lambda: loop((1, 1, 1, 1, 1, 4)), "has 6 dimensions; use up to 3"),
        (lambda: loop((8, 256, 256)), "2097152 bytes; a barrier counts up to 1048575"),
    ],
)
def test_a_box_that_asynchronous_copies_cannot_take(make: Callable[[], LoopKernel], text: str) -> None:
    with pytest.raises(BoxError, match=text):
        make()


def test_the_same_boxes_may_be_copied_plainly() -> None:
    loop((257 * 4,), by=Copy.PLAIN)
    loop((6,), by=Copy.PLAIN)
    loop((4, 4), columns=61, by=Copy.PLAIN)


def test_run_time_strides_are_checked_before_a_launch() -> None:
    kernel = library.copy_2d(tile=(8, 16))
    check_sizes(kernel, {"m": 3, "n": 60})
    with pytest.raises(BoxError, match="tma box of 'x': stride of dimension 0 is 244 bytes"):
        check_sizes(kernel, {"m": 3, "n": 61})
    with pytest.raises(BoxError, match="244 bytes"):
        interpret(kernel, {"x": np.zeros((3, 61), np.float32)})
    with pytest.raises(PipelineError, match="extent 'm' is None"):
        check_sizes(kernel, {"n": 60})


def test_a_cp_async_origin_must_be_aligned() -> None:
    k = Builder("rule")
    n = k.symbol("n")
    x, s = k.input("x", (n,), fp32), k.shared("s", (4,), fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(i + 4), Copy.CP_ASYNC)
    with pytest.raises(BoxError, match="inner origin is no known multiple of 16 bytes"):
        k.build_kernel()


@pytest.mark.parametrize(("stages", "prefetch"), [(0, None), (-1, None), (3, 3), (3, -1)])
def test_depths_and_distances_that_mean_nothing(stages: int, prefetch: int | None) -> None:
    with pytest.raises(DepthError, match=r"circular buffer 's': (depth is -?\d|prefetch distance is -?\d)"):
        circular_buffer(loop(), "s", stages, prefetch)


@pytest.mark.parametrize(("stages", "fits"), [(226, "225 stages would fit"), (10**9, "225 stages would fit")])
def test_deeper_rings_than_shared_memory_holds_are_refused_when_they_are_marked(stages: int, fits: str) -> None:
    circular_buffer(loop(), "s", 225)  # of 1024 bytes, and 8 for the barrier; 232448 in all
    text = f"buffer 's': {stages} stages of 1024 bytes and their barriers are more than the 232448 bytes.*; {fits}"
    with pytest.raises(SharedMemoryError, match=text):
        circular_buffer(loop(), "s", stages)
    large = loop((65536,), by=Copy.PLAIN)
    with pytest.raises(SharedMemoryError, match=r"'s': 1 stages of 262144 bytes.*; not even one stage would"):
        circular_buffer(large, "s", 1)


@pytest.mark.parametrize("extent", [Var("i") + 1, Var("m") - Var("i")])
def test_extents_of_block_loops_do_not_depend_on_blocks(extent: Index) -> None:
    k = Builder("rule")
    k.symbol("m")
    y = k.output("y", (8,), fp32)
    with k.block("i", 8) as i, k.block("j", extent) as j:
        k.assign(y.at(i + j, shape=(1,)), 0)
    with pytest.raises(PipelineError, match=r"loop 'j' runs to .*i.*, but blocks are numbered before there is a 'i'"):
        k.build_kernel()


def test_marks_on_what_no_loop_loads() -> None:
    with pytest.raises(ScopeError, match="'t': kernel 'rule' has no shared tensor"):
        circular_buffer(loop(), "t", 2)
    k = Builder("rule")
    x, s = k.input("x", (256,), fp32), k.shared("s", (256,), fp32)
    k.shared("t", (4,), fp32)
    k.load(s, x.at(0))
    with pytest.raises(ScopeError, match="'s': its load is not directly in a serial or unrolled loop"):
        circular_buffer(k.build_kernel(), "s", 2)
    with pytest.raises(ScopeError, match="'t': nothing loads it"):
        circular_buffer(k.build_kernel(), "t", 2)


def test_a_load_under_a_condition_cannot_be_numbered() -> None:
    k = Builder("rule")
    n = k.symbol("n")
    x, s = k.input("x", (n,), fp32), k.shared("s", (256,), fp32)
    with k.serial("i", n) as i, k.when(Less(i, Const(3))):
        k.load(s, x.at(i * 256))
    with pytest.raises(ScopeError, match="not directly in a serial"):
        circular_buffer(k.build_kernel(), "s", 2)


def test_a_use_outside_of_the_loop() -> None:
    k = Builder("rule")
    n = k.symbol("n")
    x, y, s = k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.shared("s", (256,), fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(i * 256))
    k.store(y.at(0), s)
    with pytest.raises(ScopeError, match="'s': used outside of loop 'i'"):
        circular_buffer(k.build_kernel(), "s", 2)


def test_dependencies_carried_from_one_iteration_to_the_next() -> None:
    k = Builder("rule")
    n = k.symbol("n")
    x, y, s = k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.shared("s", (256,), fp32)
    with k.serial("i", n) as i:
        k.store(y.at(i * 256), s)
        k.load(s, x.at(i * 256))
    with pytest.raises(CarriedError, match="'s': read before its load"):
        circular_buffer(k.build_kernel(), "s", 2)

    kernel = loop(body=lambda k, i: k.assign(TILE, TILE * 2))
    with pytest.raises(CarriedError, match="'s': written 2 times in an iteration"):
        circular_buffer(kernel, "s", 2)


def _load_what_it_stored(k: Builder, y: Handle, s: Handle) -> None:
    with k.serial("i", 4) as i:
        k.load(s, y.at(i * 64))
        k.store(y.at(i * 64 + 64), s)


def _read_it_in_a_value(k: Builder, y: Handle, s: Handle) -> None:
    k.assign(s, y.at(0, shape=(64,)) + 1)


def _add_to_it_over_threads(k: Builder, y: Handle, s: Handle) -> None:
    with k.thread("t", 64) as t:
        k.assign(y.at(t, shape=(1,)), y.at(t, shape=(1,)) + s.at(t, shape=(1,)))


@pytest.mark.parametrize("body", [_load_what_it_stored, _read_it_in_a_value, _add_to_it_over_threads])
def test_an_output_is_not_read(body: Callable[[Builder, Handle, Handle], None]) -> None:
    k = Builder("rule")
    body(k, k.output("y", (256,), fp32), k.shared("s", (64,), fp32))
    message = "kernel 'rule' reads its output 'y', over which threads do not synchronise; keep"
    with pytest.raises(PipelineError, match=message):
        k.build_kernel()


@pytest.mark.parametrize(
    ("written", "read", "apart"),
    [((0, 128), (64, 128), False), ((0, 128), (128, 128), True), ((0, 256), (0, 1), False), ((0, 4), (4, 4), True)],
)
def test_a_tile_is_not_read_where_the_same_statement_writes_it(
    written: tuple[int, int], read: tuple[int, int], apart: bool
) -> None:
    k = Builder("rule")
    u = k.shared("u", (256,), fp32)
    k.assign(u, 1)
    k.assign(u, u * 2)
    k.assign(u.at(written[0], shape=(written[1],)), u.at(read[0], shape=(read[1],)) * 2)
    if apart:
        k.build_kernel()
        return
    with pytest.raises(PipelineError, match="value of 'u' reads elements of it that other threads write in the same"):
        k.build_kernel()


def _two_spreads(k: Builder, y: Handle, s: Handle) -> None:
    column = k.register("r", (64, 1), fp32)
    k.assign(column, 0)
    k.store(y.at(0), s)
    k.store(y.at(0), column)


def _all_threads_and_one(k: Builder, y: Handle, s: Handle) -> None:
    k.store(y.at(0), s)
    with k.thread("t", 64) as t:
        k.store(y.at(t), s.at(63 - t, shape=(1,)))


def _two_loops_over_threads(k: Builder, y: Handle, s: Handle) -> None:
    for var in "tu":
        with k.thread(var, 64) as t:
            k.store(y.at(t), s.at(63 - t, shape=(1,)))


@pytest.mark.parametrize("body", [_two_spreads, _all_threads_and_one, _two_loops_over_threads])
def test_an_output_is_written_in_one_place(body: Callable[[Builder, Handle, Handle], None]) -> None:
    k = Builder("rule")
    x, y, s = k.input("x", (64,), fp32), k.output("y", (64,), fp32), k.shared("s", (64,), fp32)
    k.load(s, x.at(0))
    body(k, y, s)
    with pytest.raises(PipelineError, match="'rule' writes its output 'y' in two places, between which threads do not"):
        k.build_kernel()


@pytest.mark.parametrize(
    ("origin", "shape", "text"),
    [
        ((0, 1), (8, 64), r"a box of tile 's' covers 1 \.\. 64 of 0 \.\. 63 along axis 1; only global tensors clip"),
        ((-1, 0), (8, 64), r"covers -1 \.\. 6 of 0 \.\. 7 along axis 0"),
        ((8, Var("i")), (1, 1), r"covers 8 \.\. 8 of 0 \.\. 7 along axis 0"),
        ((Var("i"), 0), (9, 64), r"covers 0 \.\. 8 of 0 \.\. 7 along axis 0"),
    ],
)
def test_a_box_does_not_leave_its_tile(origin: tuple[IndexLike, ...], shape: tuple[int, ...], text: str) -> None:
    for make in (Builder.shared, Builder.register):
        k = Builder("rule")
        y, s = k.output("y", (9, 64), fp32), make(k, "s", (8, 64), fp32)
        with k.serial("i", 4):
            k.store(y.at(0, 0), s.at(*origin, shape=shape))
        with pytest.raises(PipelineError, match=text):
            k.build_kernel()


def test_marking_twice_and_rewriting_twice() -> None:
    marked = circular_buffer(loop(), "s", 2)
    with pytest.raises(PipelineError, match="'s': marked twice"):
        circular_buffer(marked, "s", 3)
    with pytest.raises(PipelineError, match="'rule' is rewritten already"):
        lower(lower(marked))
    with pytest.raises(PipelineError, match="'rule' is rewritten already"):
        circular_buffer(lower(marked), "s", 3)


def test_names_that_the_rewrite_needs_are_not_taken() -> None:
    k = Builder("rule")
    n, m = k.symbol("n"), k.symbol("i_steps")
    x, s = k.input("x", (n, m), fp32), k.shared("s", (1, 4), fp32)
    with k.serial("o", n) as o, k.serial("i", m) as i:
        k.load(s, x.at(o, i * 4))
    with pytest.raises(PipelineError, match="the rewrite needs the name 'i_steps'"):
        lower(circular_buffer(k.build_kernel(), "s", 2))


def _build_named(*, tensor: str = "s", extent: str = "n", var: str = "i", kernel: str = "rule") -> LoopKernel:
    """A copy whose names are given."""
    k = Builder(kernel)
    n = k.symbol(extent)
    x, y, s = k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.shared(tensor, (256,), fp32)
    with k.serial(var, ceil_div(n, 256)) as i:
        k.load(s, x.at(i * 256))
        k.store(y.at(i * 256), s)
    return lower(k.build_kernel())


#: Macros and keywords of CUDA, and what its texts call functions, types and variables.
TAKEN = ("NULL", "int", "not", "WATCHDOG", "DEVICE", "rest", "bulk_wait", "TensorMap", "min", "shared", "scratch", "j")


@pytest.mark.parametrize("name", TAKEN)
def test_any_name_is_safe_in_the_cuda_text(name: str) -> None:
    """Whatever things are called, the text is the same but for what they are called."""
    tame = emit_kernel(_build_named(), H200).cuda_source.split()
    for what, word in (("tensor", "s"), ("extent", "n"), ("var", "i"), ("kernel", "rule")):
        text = emit_kernel(_build_named(**{what: name}), H200).cuda_source
        assert re.sub(rf"\b{name}_(full_|given)?(?!\w)", rf"{word}_\1", text).split() == tame


@pytest.mark.parametrize("what", ["tensor", "extent", "var", "kernel"])
def test_names_that_cxx_or_the_text_could_not_have(what: str) -> None:
    for name in ("_n", "n_", "n m", "1st", "größe"):
        with pytest.raises(PipelineError, match=f"'{name}' is no name for CUDA C"):
            emit_kernel(_build_named(**{what: name}), H200)


@pytest.mark.parametrize("name", library.build_examples())
def test_what_ends_in_an_underscore_in_a_text_is_the_kernels_and_nothing_else(name: str) -> None:
    kernel = library.build_examples()[name].rewrite()
    text = re.sub(r"//.*", "", emit_kernel(kernel, H200).cuda_source)
    words = {w for w in re.findall(r"(?<![.\w#])[A-Za-z]\w*", text) if w.endswith("_")}
    named = {kernel.name, *list_declared_names(kernel)}
    named |= {s.var for s in walk(kernel.body) if isinstance(s, Let)}
    named |= {s.name for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
    assert words <= {f"{n}_" for n in named}
    assert not re.search(r"\b[A-Za-z]\w*(_|_part|_given|_before|_map_\w+)\b", expand(PREAMBLE))


def test_warp_specialisation_needs_warpgroups_and_something_to_load() -> None:
    with pytest.raises(PipelineError, match="no circular buffer"):
        lower(loop(), warp_specialised=True)
    marked = circular_buffer(replace(loop(), threads=96), "s", 2)
    with pytest.raises(PipelineError, match="96 threads; warp specialisation takes a multiple of 128"):
        lower(marked, warp_specialised=True)


def test_steps_that_depend_on_an_outer_loop_are_pipelined_one_by_one() -> None:
    """A triangle: row ``o`` has ``o`` steps. The block form drains at each row; a loader could not number them."""
    k = Builder("triangle")
    n = k.symbol("n")
    x, y, s = k.input("x", (n, n), fp32), k.output("y", (n, n), fp32), k.shared("s", (1, 4), fp32)
    with k.serial("o", n) as o, k.serial("i", o) as i:
        k.load(s, x.at(o, i * 4))
        k.store(y.at(o, i * 4), s)
    kernel = circular_buffer(k.build_kernel(), "s", 3)
    x_values = np.arange(64, dtype=np.float32).reshape(8, 8)
    expected = interpret(kernel, {"x": x_values})["y"]
    assert np.isnan(expected[0]).all()
    np.testing.assert_array_equal(expected[2], x_values[2])
    np.testing.assert_array_equal(interpret(lower(kernel), {"x": x_values})["y"], expected)
    with pytest.raises(ScopeError, match="'s': loop 'i' stands under a condition or in a loop"):
        lower(kernel, warp_specialised=True)


@pytest.mark.parametrize(
    ("threads", "registers"), [(128, (40, 240)), (256, (40, 232)), (384, (24, 160)), (896, (24, 64))]
)
def test_registers_of_the_roles_fit_the_sm(threads: int, registers: tuple[int, int]) -> None:
    kernel = circular_buffer(replace(loop(), threads=threads), "s", 2)
    roles = [s for s in walk(lower(kernel, warp_specialised=True).body) if isinstance(s, Role)]
    assert tuple(role.registers for role in roles) == registers
    assert sum(role.registers * role.threads for role in roles) <= 65536
    assert all(role.registers % 8 == 0 for role in roles)


def test_matmul_operands_come_by_tma() -> None:
    k = Builder("rule")
    a, b = (k.input(name, (64, 64), bf16) for name in "ab")
    a_s, b_s = k.shared("a_s", (64, 64), bf16), k.shared("b_s", (64, 64), bf16)
    acc = k.register("acc", (64, 64), fp32)
    k.load(a_s, a.at(0, 0))
    k.load(b_s, b.at(0, 0), Copy.CP_ASYNC)
    k.matmul(acc, a_s, b_s)
    with pytest.raises(PipelineError, match="reads 'b_s' through the async proxy, but not only TMA writes it"):
        k.build_kernel()


def test_other_mistakes_in_a_kernel() -> None:
    with pytest.raises(PipelineError, match="'j' is neither an extent nor a loop variable"):
        loop(body=lambda k, i: k.store(Box("y", (Var("j"),), (256,)), TILE))
    k = Builder("rule")
    for extent in (3, 4):
        with k.serial("i", extent):
            pass
    with pytest.raises(PipelineError, match="the name 'i' is used twice"):
        k.build_kernel()
    with pytest.raises(PipelineError, match="tensor 'x' is global; say which box of it"):
        Builder("rule").input("x", (4,), fp32) * 2
    with pytest.raises(PipelineError, match="100 threads; use a multiple of 32"):
        Builder("rule", threads=100).build_kernel()
    with pytest.raises(PipelineError, match="tensor 'x' has 1 dimensions, but its box begins at 2"):
        Builder("rule").input("x", (4,), fp32).at(0, 0)


def test_index_expressions_fold_and_print_with_the_fewest_brackets() -> None:
    i, n = Var("i"), Var("n")
    assert i * 1 + 0 == i
    assert i + 3 - 3 == i
    assert (i + 3) + 2 == i + 5
    assert (i * 0, i % 1, Const(7) // 2) == (Const(0), Const(0), Const(3))
    assert print_index((i + 1) * 4 - (n - i) % 3) == "(i + 1) * 4 - (n - i) % 3"
    assert print_index(minimum(3, ceil_div(n, 8))) == "min(3, (n + 7) // 8)"
    assert evaluate(maximum(i - 5, 0) // 2, {"i": 12}) == 3
    assert substitute(i * 64 + n, {"i": n + 1}) == (n + 1) * 64 + n
    assert find_names(i * 64 + n) == {"i", "n"}
    assert [find_divisor(e) for e in (i * 64 + 32, i * 64 + n, Const(0))] == [32, 1, 0]


def test_dead_tiles_share_their_bytes_and_live_ones_do_not() -> None:
    k = Builder("two_loops")
    n = k.symbol("n")
    x = k.input("x", (n,), fp32)
    y, z, w = (k.output(name, (n,), fp32) for name in "yzw")
    first, second, kept = (k.shared(name, (size,), fp32) for name, size in (("a", 256), ("b", 128), ("kept", 32)))
    k.load(kept, x.at(0))
    with k.serial("i", 4) as i:
        k.load(first, x.at(i * 256))
        k.store(y.at(i * 256), first)
    with k.serial("j", 4) as j:
        k.load(second, x.at(j * 128))
        k.store(z.at(j * 128), second)
    k.store(w.at(0), kept)
    kernel = lower(circular_buffer(circular_buffer(k.build_kernel(), "a", 4), "b", 2))
    layout = lay_out(kernel, H200)
    assert (layout.find_placement("a").offset_bytes, layout.find_placement("a").size_bytes) == (0, 4096)
    assert (layout.find_placement("b").offset_bytes, layout.find_placement("b").size_bytes) == (0, 1024)
    assert layout.find_placement("kept").offset_bytes == 4096
    assert layout.find_placement("a_full").offset_bytes == layout.find_placement("b_full").offset_bytes == 4224
    assert layout.total_bytes == 4224 + 4 * 8
    assert layout.find_placement("a").last < layout.find_placement("b").first
    x_values = np.arange(4096, dtype=np.float32)
    got, expected = interpret(kernel, {"x": x_values}), interpret(k.build_kernel(), {"x": x_values})
    for name in "yzw":
        np.testing.assert_array_equal(got[name], expected[name])


def test_what_loader_and_consumer_touch_lives_together() -> None:
    kernel = circular_buffer(circular_buffer(library.matmul(), "a_s", 4), "b_s", 2)
    layout = lay_out(lower(kernel, warp_specialised=True), H200)
    spans = sorted((p.offset_bytes, p.offset_bytes + p.size_bytes) for p in layout.placements)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert layout.align_bytes == 1024  # eight swizzled rows
    assert layout.total_bytes == 6 * 16384 + 2 * (4 + 2) * 8


def test_over_the_limit_every_tile_is_listed_with_the_depth_that_fits() -> None:
    kernel = circular_buffer(circular_buffer(library.matmul(), "a_s", 9), "b_s", 8)
    with pytest.raises(SharedMemoryError) as caught:
        lay_out(lower(kernel), H200)
    text = str(caught.value)
    for part in ("a_s 9 x 16384 = 147456 bytes", "b_s 8 x 16384 = 131072 bytes", "a_s_full 9 x 8"):
        assert part in text
    assert text.endswith("7 stages would fit")
    tiny = replace(H200, smem_bytes=20000)
    with pytest.raises(SharedMemoryError, match="not even one stage would fit"):
        lay_out(lower(kernel), tiny)


def test_scratch_lies_behind_everything_else() -> None:
    kernel = lower(circular_buffer(loop(), "s", 2))
    layout = lay_out(kernel, H200, scratch_bytes=512)
    assert layout.find_placement(SCRATCH).offset_bytes == 2048 + 128
    assert layout.total_bytes == 2048 + 128 + 512


def test_a_store_by_tma_prints_as_one() -> None:
    kernel = library.copy_3d()
    assert [s.by for s in walk(kernel.body) if isinstance(s, Store)] == [Copy.TMA]
    assert "= tma store s" in print_kernel(kernel)
    assert [s.var for s in walk(kernel.body) if isinstance(s, For)] == ["bd", "bm", "i"]
