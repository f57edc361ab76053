"""Freedoms of an emitted kernel: events that may come later than its IR has them, and events that may not."""

from __future__ import annotations

import re

import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import fp32
from interlace.loops.cuda.emit import emit_kernel
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.statements import ReduceOp
from interlace.loops.rewrite.circular import lower


@pytest.mark.parametrize("reads_itself", [False, True])
def test_threads_combine_once_after_the_loop_unless_a_step_reads_the_sum(reads_itself: bool) -> None:
    k = Builder("sums")
    n = k.symbol("n")
    x, y = k.input("x", (n, 256), fp32), k.output("y", (8,), fp32)
    s, acc = k.shared("s", (8, 256), fp32), k.register("acc", (8, 1), fp32)
    k.assign(acc, 1)
    with k.serial("i", n) as i:
        k.load(s, x.at(i * 8, 0))
        k.reduce(acc, ReduceOp.SUM, s * acc if reads_itself else s, axes=(1,), shape=(8, 256))
    k.store(y.at(0), acc)
    text = emit_kernel(lower(k.build_kernel()), H200).cuda_source
    assert len(re.findall("float acc_part", text)) == 1
    assert (text.index("float acc_part") > text.index("for (int i_ = 0")) == reads_itself
