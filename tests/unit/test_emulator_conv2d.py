"""Convolutions in the megakernel on the emulator: right for any geometry, and planted faults are reported."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.kernels.conv2d import Conv2DTile  # noqa: E402
from interlace.kernels.max_pool2d import max_pool2d  # noqa: E402
from interlace.workloads import conv_chain  # noqa: E402

from ..cases import TORCH, relative_error  # noqa: E402
from ..convolutions import Convolution, draw_convolution  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@dataclass(frozen=True)
class Case:
    """A convolution in a tile, and the schedule of its plan."""

    conv: Convolution
    tile: Conv2DTile
    stages: int
    dtype: il.DType = il.bf16
    schedule: dict[str, Any] = field(default_factory=dict)

    def build(self, change: tuple[str, str] | None = None) -> EmulatedLaunch:
        """Return its launch."""
        plan = il.build(self.conv.build_graph(self.tile, self.dtype), il.Schedule(1, **self.schedule))
        return EmulatedLaunch(plan, stages=self.stages, change=change)


CASES = {
    "halo, an image of 49 pixels": Case(Convolution((1, 7, 7, 64), 64, (3, 3), padding=(1, 1)), Conv2DTile(1, 7), 3),
    "whole images, strides, dilations, few channels": Case(
        Convolution((3, 9, 6, 24), 72, (3, 2), (2, 1), (1, 0), (1, 2)), Conv2DTile(2, 5), 2
    ),
    "pixels as the 64-row operand": Case(
        Convolution((1, 6, 6, 128), 16, (1, 1), (2, 2)), Conv2DTile(1, 2, 16, swap_ab=False), 3
    ),
    "two panels, rows beyond the image": Case(
        Convolution((1, 5, 5, 136), 64, (3, 3), padding=(2, 2), epilogue=("bias",)), Conv2DTile(1, 4, 64, 128), 2
    ),
    "three parts along channels": Case(
        Convolution((1, 5, 5, 192), 64, (3, 3), padding=(1, 1)),
        Conv2DTile(1, 3),
        3,
        schedule={"split": {"conv": il.SplitK(3)}},
    ),
    "two warpgroups": Case(
        Convolution((2, 5, 7, 64), 128, (3, 5), (2, 2), (1, 2), epilogue=("residual", "relu")),
        Conv2DTile(1, 2, 128, num_warps=8),
        4,
        il.fp16,
    ),
}
#: Changes of the source, and the kind of the fault that is reported, or a wrong result.
FAULTS = {
    "halo that starts a row late": ("item.j * op.row_step - op.pad_h", "item.j * op.row_step", "wrong"),
    "weights of the tap before": ("op.weight, k + p * 64, tap, row", "op.weight, k + p * 64, 0, row", "wrong"),
    "pixels after the tile stored": ("own.m = rows", "own.m = 64 + rows", "bounds"),
    "bytes of another box awaited": (
        "open_load(stage, PANELS * pixels * 128)",
        "open_load(stage, ROWS * 128)",
        "deadlock",
    ),
    "stage of each tap left out": (
        "/ BK * op.taps_h * op.taps_w * BK",
        "/ BK * op.taps_h * BK",
        "deadlock",
    ),
}


def build_pair() -> EmulatedLaunch:
    """Return the launch of two convolutions that hand rows on, with a residual, chunk by chunk of channels."""
    graph = conv_chain(1, 6, 128, tile=Conv2DTile(1, 2), has_residual=True)
    return EmulatedLaunch(il.build(graph, il.Schedule(1, policy=il.TileSync(), chunk_waits=True)), stages=3)


def build_pooled() -> EmulatedLaunch:
    """Return the launch of a convolution, a max-pooling and a convolution, in two warpgroups."""
    shapes = {"x": (1, 6, 6, 64), "w1": (128, 3, 3, 64), "h": (1, 6, 6, 128), "pooled": (1, 3, 3, 128)}
    shapes |= {"w2": (128, 1, 1, 128), "out": (1, 3, 3, 128)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    tile = Conv2DTile(1, 2, 128, num_warps=8)
    ops = (
        il.conv2d("first", t["x"], t["w1"], t["h"], padding=1, tile=tile),
        max_pool2d("pool", t["h"], t["pooled"], window=2, tile=(1, 64)),
        il.conv2d("second", t["pooled"], t["w2"], t["out"], tile=tile),
    )
    graph = il.Graph("pooled", (*t.values(),), ops, ("x", "w1", "w2"), ("out",))
    return EmulatedLaunch(il.build(graph, il.Schedule(1, il.Dispatch.STATIC)), stages=2)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: case.build() for name, case in CASES.items()}
    made |= {"pair": build_pair(), "pooled": build_pooled()}
    first = next(iter(CASES.values()))
    made |= {name: first.build((before, after)) for name, (before, after, _) in FAULTS.items()}
    prepare([*made.values()])
    return made


def draw_inputs(graph: il.Graph, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for tensor in map(graph.tensor, graph.inputs):
        value = torch.randn(tensor.shape, generator=generator)
        if tensor.name.startswith("w"):
            value /= (9 * tensor.shape[-1]) ** 0.5
        inputs[tensor.name] = value.to(TORCH[tensor.dtype.name])
    return inputs


def draw_case(number: int) -> Case:
    """Draw a convolution whose tile the megakernel takes."""
    random = np.random.default_rng(number)
    while True:
        conv, tile = draw_convolution(random)
        warps = int(random.choice((4, 4, 8)))
        swapped = bool(random.integers(2))
        width = (64 if swapped else 8) * (warps // 4 if swapped else int(random.integers(1, 9)))
        tile = replace(tile, n=width, k=int(random.choice((64, 64, 128))), num_warps=warps, swap_ab=swapped)
        if tile.pad_pixels(conv.extents) <= 128:
            break
    channels = int(random.choice((8, 64, 72, 136, 192)))
    conv = replace(conv, x=(*conv.x[:3], channels), n=8 * int(random.integers(1, 17)))
    parts = int(random.integers(1, -(-channels // tile.k) + 1))
    schedule: dict[str, Any] = {"split": {"conv": il.SplitK(parts)}} if parts > 1 else {}
    schedule["dispatch"] = (il.Dispatch.TICKET, il.Dispatch.STATIC)[number % 2]
    return Case(conv, tile, int(random.integers(2, 5)), (il.bf16, il.fp16)[number % 3 == 0], schedule)


def check(case: Case, run: EmulatedLaunch, seed: int) -> None:
    """Run under a schedule; neither a fault nor a wrong result may show."""
    inputs = draw_inputs(run.plan.graph, seed)
    out = run_poisoned(run, inputs, seed)
    assert [str(fault) for fault in run.faults] == []
    gold = case.conv.answer({n: value.double() for n, value in inputs.items()})
    assert float((out.double() - gold).norm()) <= case.dtype.epsilon * max(float(gold.norm()), 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 48, 12))
def test_random_convolutions_are_right(first: int) -> None:
    cases = [draw_case(number) for number in range(first, first + 12)]
    runs = [case.build() for case in cases]
    prepare(runs)
    for case, run in zip(cases, runs, strict=True):
        for seed in range(2):
            check(case, run, seed)


@pytest.mark.parametrize("name", CASES)
def test_convolution_is_right_run_after_run(name: str) -> None:
    for seed in range(2):
        check(CASES[name], launches()[name], seed)


def test_pair_hands_rows_on_chunk_by_chunk() -> None:
    run = launches()["pair"]
    graph = run.plan.graph
    assert set(run.plan.waits.k.tolist()) == {0, 64}  # some are inside reductions
    for seed in range(2):
        t = draw_inputs(graph, seed)
        out = run_poisoned(run, t, seed)
        assert [str(fault) for fault in run.faults] == []
        d = {n: value.double() for n, value in t.items()}
        first = Convolution((1, 6, 6, 128), 128, (3, 3), padding=(1, 1), epilogue=("relu",))
        middle = first.answer({"x": d["x"], "w": d["w1"], "bias": d["b1"]}).bfloat16().double()
        gold = first.answer({"x": middle, "w": d["w2"], "bias": d["b2"], "residual": d["x"]})
        assert relative_error(out, gold) < il.bf16.epsilon


def test_pooling_runs_between_convolutions() -> None:
    run = launches()["pooled"]
    for seed in range(2):
        t = draw_inputs(run.plan.graph, seed)
        out = run_poisoned(run, t, seed)
        assert [str(fault) for fault in run.faults] == []
        d = {n: value.double().permute(0, 3, 1, 2) for n, value in t.items()}
        convolve, pool = torch.nn.functional.conv2d, torch.nn.functional.max_pool2d
        first = convolve(d["x"], d["w1"], padding=1).bfloat16().double()
        assert relative_error(out, convolve(pool(first, 2), d["w2"]).permute(0, 2, 3, 1)) < il.bf16.epsilon


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_reported(name: str) -> None:
    run, (_, _, kind) = launches()[name], FAULTS[name]
    inputs = draw_inputs(run.plan.graph, 0)
    if kind != "wrong":
        assert kind in kinds_of_faults(run, inputs, range(2))
        return
    gold = next(iter(CASES.values())).conv.answer({n: value.double() for n, value in inputs.items()})
    assert relative_error(run_poisoned(run, inputs, 0), gold) > 0.1
