"""The one launch is right in every tiling that its matmuls are offered, and with everything behind a product."""

from __future__ import annotations

from itertools import product as every

import pytest
import torch

import interlace as il

from ..cases import POINTWISE, Case, Tensors, by_default, ffn_shape, relative_error
from ..likely_settings import Offered, list_offered
from .cases import one_launch
from .test_megakernel import check

#: Activation, whether there are a gate, a bias, and a residual; a gate is SiLU's, without a bias.
BEHIND = [
    *((function, False, *more) for function, *more in every(il.Activation, (False, True), (False, True))),
    *((il.Activation.SILU, True, False, residual) for residual in (False, True)),
]
FUNCTIONS = POINTWISE | {il.Activation.NONE: lambda t: t}


@pytest.mark.parametrize("case", list_offered(), ids=str)
def test_every_tiling_that_is_offered_is_right(case: Offered) -> None:
    check(*one_launch(case.m, ffn_shape(case.kind), case.up, case.down), seed=case.m)


def product(m: int, activation: il.Activation, *, gated: bool, bias: bool, residual: bool) -> Case:
    """One product of a width that is no multiple of any tile, and what comes behind it."""
    n, k = 1160, 1024
    x, w, out = il.Tensor("x", (m, k), il.bf16), il.Tensor("w", (n, k), il.bf16), il.Tensor("out", (m, n), il.bf16)
    more = {
        "gate": il.Tensor("w_gate", (n, k), il.bf16) if gated else None,
        "bias": il.Tensor("bias", (n,), il.bf16) if bias else None,
        "residual": il.Tensor("residual", (m, n), il.bf16) if residual else None,
    }
    inputs = x, w, *filter(None, more.values())
    op = il.matmul("product", x, w, out, activation=activation, **more)
    graph = il.Graph("product", (*inputs, out), (op,), tuple(t.name for t in inputs), ("out",))

    def answer(t: Tensors) -> torch.Tensor:
        up = t["x"] @ t["w"].T + (t["bias"] if bias else 0)
        value = FUNCTIONS[activation](t["x"] @ t["w_gate"].T) * up if gated else FUNCTIONS[activation](up)
        return value + (t["residual"] if residual else 0)

    return Case(graph, answer, "cuda")


@pytest.mark.parametrize(("activation", "gated", "bias", "residual"), BEHIND)
@pytest.mark.parametrize("m", [1, 17, 129, 300])
def test_everything_that_comes_behind_a_product_is_right(
    m: int, activation: il.Activation, gated: bool, bias: bool, residual: bool
) -> None:
    c = product(m, activation, gated=gated, bias=bias, residual=residual)
    run = il.MegakernelExecutor(by_default(c.graph, 132), il.RunOptions())
    inputs, out = c.inputs(seed=m), c.make_poisoned_output()
    gold = c.compute_exact(inputs)
    for _ in range(3):
        out.fill_(float("nan"))
        run.run({**inputs, "out": out})
        run.synchronize()
        assert relative_error(out, gold) <= 1.5 * relative_error(c.answer(inputs), gold)
