"""Loops as a part of the megakernel: what each role does, what its stages hold, and what cannot join."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import interlace as il
from interlace import loops
from interlace.core.errors import PipelineError, PlanError, StepHazard
from interlace.kernels.base import build_megakernel_body, get_kernel
from interlace.loops.cuda.roles import emit_roles
from interlace.loops.ir.statements import DoneStage, Section
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.shared import POST_WAIT, PRE_WAIT, check_steps, share_ring
from interlace.megakernel.parts import count_warpgroups

from ..loops_graphs import beside_a_product, mark_rings


def tiles_of(tensors: dict[str, tuple[int, ...]], dtype: il.DType) -> dict[str, il.Tensor]:
    return {name: il.Tensor(name, shape, dtype) for name, shape in tensors.items()}


def build_held_tile(kept: bool) -> loops.LoopKernel:
    """A tile of an outer loop that is used in an inner one, which loads further ones; ``kept``: in registers."""
    k = loops.Builder("held")
    m, n = k.symbol("m"), k.symbol("n")
    w, x, y = k.input("w", (m,), il.fp32), k.input("x", (m, n), il.fp32), k.output("y", (m, n), il.fp32)
    w_s, x_s = k.shared("w_s", (32,), il.fp32), k.shared("x_s", (1, 64), il.fp32)
    w_r = k.register("w_r", (1,), il.fp32)
    with k.serial("r", m) as r:
        k.load(w_s, w.at(r * 32))
        if kept:
            k.assign(w_r, w_s.at(0, shape=(1,)))
        with k.serial("c", loops.ceil_div(n, 64)) as c:
            k.load(x_s, x.at(r, c * 64))
            k.assign(y.at(r, c * 64), x_s * (w_r if kept else w_s.at(0, shape=(1,))))
    return mark_rings(k.build_kernel(), w_s=2, x_s=2)


@pytest.mark.parametrize(("threads", "warpgroups"), [(128, 1), (256, 2), (512, 2)])
def test_loops_written_for_two_warpgroups_run_on_two(threads: int, warpgroups: int) -> None:
    k = loops.Builder("copy", threads=threads)
    x, y = k.input("x", (64, 64), il.fp32), k.output("y", (64, 64), il.fp32)
    with k.block("b", 4) as b:
        k.assign(y.at(b * 16, 0), x.at(b * 16, 0, shape=(16, 64)))
    t = tiles_of({"x": (64, 64), "y": (64, 64)}, il.fp32)
    graph = il.Graph("copy", tuple(t.values()), (loops.as_op("copy", k.build_kernel(), t),), ("x",), ("y",))
    assert count_warpgroups(graph) == warpgroups


def test_each_role_takes_the_same_stages() -> None:
    kernel = share_ring(mark_rings(loops.library.matmul(), a_s=4, b_s=4), pre_wait={"b"})
    printed = loops.print_kernel(kernel)
    assert printed[printed.index("      loads ahead") :] == (
        "      loads ahead of the waits:\n"
        "        for s in (depth + 63) // 64:\n"
        "          next stage: a_s, b_s\n"
        "          b_s = tma load b[j * 128 : +128, s * 64 : +64]\n"
        "          stage done\n"
        "      loads after the waits:\n"
        "        for s in (depth + 63) // 64:\n"
        "          next stage: a_s, b_s\n"
        "          a_s = tma load a[i * 128 : +128, s * 64 : +64]\n"
        "          stage done\n"
        "      consumers:\n"
        "        acc = 0\n"
        "        for s in (depth + 63) // 64:\n"
        "          next stage: a_s, b_s\n"
        "          acc += a_s @ b_s.T\n"
        "          stage done\n"
        "        c[i * 128 : +128, j * 128 : +128] = plain store acc\n"
    )


def test_marks_say_nothing_to_the_one_launch() -> None:
    plain, deep = loops.library.matmul(), mark_rings(loops.library.matmul(), a_s=4, b_s=3)
    assert share_ring(plain).body == share_ring(deep).body


def test_roles_that_count_different_stages_are_a_hazard() -> None:
    kernel = share_ring(mark_rings(loops.library.reduce_inner(), s=4), pre_wait={"x"})
    roles = [s.body for s in walk(kernel.body) if isinstance(s, Section)]
    check_steps("right", *roles)
    (outer,) = roles[0]
    (inner,) = outer.body
    longer = replace(outer, body=(replace(inner, stop=inner.stop + 1),))
    once = replace(outer, body=(replace(inner, body=tuple(s for s in inner.body if not isinstance(s, DoneStage))),))
    for wrong in ((longer,), (once,), inner.body, ()):
        with pytest.raises(StepHazard, match="kernel 'wrong': loaders and consumers count different stages"):
            check_steps("wrong", wrong, *roles[1:])


def test_tiles_of_a_step_lie_behind_each_other_in_the_slot_of_their_role() -> None:
    roles = emit_roles(share_ring(beside_a_product(), pre_wait={"b"}), il.H200)
    assert roles.slots.offsets == {"a_s": 0, "d_s": 128 * 128, "b_s": 0}
    assert roles.slots.bytes == {PRE_WAIT: 128 * 128, POST_WAIT: 2 * 128 * 128}
    odd = mark_rings(loops.library.copy_2d(tile=(3, 8)), s=4)  # 96 bytes: a slot of the ring is a multiple of 1024
    assert emit_roles(share_ring(odd), il.H200).slots.bytes == {PRE_WAIT: 0, POST_WAIT: 1024}
    assert roles.register_elements == 128 * 128 + 256 * 8  # sums of products, and the totals of 8 rows to a thread


def test_a_store_is_put_off_only_where_no_inner_loop_hands_stages_back() -> None:
    for inner, late in ((False, "bulk_wait_read<1>"), (True, "bulk_wait_read<0>")):
        k = loops.Builder("stored")
        m, n = k.symbol("m"), k.symbol("n")
        x, z = k.input("x", (m, n), il.fp32), k.input("z", (m, n), il.fp32)
        y, out = k.output("y", (m, n), il.fp32), k.output("out", (m, n), il.fp32)
        tile, other = k.shared("tile", (8, 64), il.fp32), k.shared("other", (8, 64), il.fp32)
        with k.block("b", loops.ceil_div(m, 8)) as b, k.serial("r", 4) as r:
            k.load(tile, x.at(b * 8, r * 64))
            k.store(y.at(b * 8, r * 64), tile, loops.Copy.TMA)
            if inner:
                with k.serial("c", 4) as c:
                    k.load(other, z.at(b * 8, c * 64))
                    k.assign(out.at(b * 8, c * 64 + r), other)
        text = "".join(emit_roles(share_ring(k.build_kernel()), il.H200).functions)
        assert set(re.findall(r"bulk_commit\(\);\s+(\S+)\(\)", text)) == {late}


def test_products_ask_for_the_warpgroups_that_they_were_written_for_and_other_loops_for_none() -> None:
    shapes = tiles_of({"a": (128, 64), "b": (128, 64), "c": (128, 128)}, il.bf16)
    for threads, wanted in ((128, 1), (256, 2)):
        kernel = mark_rings(loops.library.matmul(threads=threads), a_s=2, b_s=2)
        op = loops.as_op("product", kernel, shapes)
        body = build_megakernel_body(op, shapes, frozenset("ab"))
        assert body.tiling.warpgroups.count_required is not None
        assert body.tiling.warpgroups.count_required(op) == wanted
        assert body.loads.pre_wait_inputs == ("a", "b")
    plain = tiles_of({"x": (16, 64), "y": (16, 64)}, il.fp32)
    op = loops.as_op("copy", mark_rings(loops.library.copy_2d(tile=(8, 64)), s=2), plain)
    body = build_megakernel_body(op, plain, frozenset())
    assert (body.tiling.warpgroups.count_required, body.loads.inputs_before_waits) == (None, ())
    assert body.tiling.build_tile(op, 1, 2).dependent_bytes == 8 * 64 * 4


def test_weights_come_ahead_of_all_and_nothing_else_then_comes_ahead_of_waits() -> None:
    shapes = tiles_of({"a": (128, 64), "b": (128, 64), "c": (128, 128)}, il.bf16)
    kernel = mark_rings(loops.library.matmul(), a_s=2, b_s=2)
    op = loops.as_op("product", kernel, shapes, weights=("b",))
    body = build_megakernel_body(op, shapes, frozenset("ab"))
    assert (body.loads.prefetchable_inputs, body.loads.pre_wait_inputs) == (("b",), ())
    assert get_kernel(op).check(op, shapes) is None
    assert loops.as_op("product", kernel, shapes).kernel != op.kernel
    with pytest.raises(PipelineError, match=r"op 'product' has 'c' among its weights.*but from \['a', 'b'\]; leave"):
        loops.as_op("product", kernel, shapes, weights=("c",))


def test_a_stage_is_handed_back_behind_its_last_use_and_before_an_inner_loop_takes_others() -> None:
    printed = loops.print_kernel(share_ring(build_held_tile(kept=True)))
    assert printed[printed.index("  loads after") :] == (
        "  loads after the waits:\n"
        "    for r in m:\n"
        "      next stage: w_s\n"
        "      w_s = tma load w[r * 32 : +32]\n"
        "      stage done\n"
        "      for c in (n + 63) // 64:\n"
        "        next stage: x_s\n"
        "        x_s = tma load x[r : +1, c * 64 : +64]\n"
        "        stage done\n"
        "  consumers:\n"
        "    for r in m:\n"
        "      next stage: w_s\n"
        "      w_r = w_s[0 : +1]\n"
        "      stage done\n"
        "      for c in (n + 63) // 64:\n"
        "        next stage: x_s\n"
        "        y[r : +1, c * 64 : +64] = x_s * w_r\n"
        "        stage done\n"
    )


def test_tiles_that_do_not_come_through_the_ring_are_refused() -> None:
    of = loops.library
    refused = {
        "'z_s' of kernel 'pointwise' is loaded ahead by cp.async.*only begin bulk copies; load it by TMA": mark_rings(
            of.pointwise(plain=loops.Copy.CP_ASYNC), x_s=2, z_s=2
        ),
        "tile 'z_s' of kernel 'pointwise' is loaded by cp.async": of.pointwise(plain=loops.Copy.CP_ASYNC),
        "tile 's' of kernel 'copy_1d' is loaded ahead by plain": mark_rings(of.copy_1d(by=loops.Copy.PLAIN), s=2),
        "'w_s': its stage is held while an inner loop takes further ones": build_held_tile(kept=False),
    }
    for message, kernel in refused.items():
        with pytest.raises(PipelineError, match=message):
            share_ring(kernel)


def test_an_op_that_cannot_join_says_which_and_what_runs_it() -> None:
    plain = tiles_of({"x": (256,), "y": (256,)}, il.fp32)
    op = loops.as_op("alone", mark_rings(loops.library.copy_1d(by=loops.Copy.PLAIN), s=2), plain)
    with pytest.raises(PlanError, match=r"op 'alone' cannot stand in one launch with others: tile 's'.*such as semaph"):
        build_megakernel_body(op, plain, frozenset("x"))
    shapes = tiles_of({"a": (64, 64), "b": (64, 64), "c": (64, 64)}, il.bf16)
    product = loops.as_op("small", mark_rings(loops.library.matmul(m=64, n=64, threads=128), a_s=2, b_s=2), shapes)
    body = build_megakernel_body(product, shapes, frozenset("ab"))
    assert body.tiling.build_tile(product, 1, 1).prefetchable_bytes == 2 * 64 * 128
    with pytest.raises(PlanError, match=r"op 'small' cannot.*64 rows over 256 threads; use 64 rows, or a multiple"):
        body.tiling.build_tile(product, 1, 2)
