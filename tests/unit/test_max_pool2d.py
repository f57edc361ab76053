"""Max-pooling: the reference and the megakernel on the emulator against PyTorch, exact dependencies, bad input."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import ArgumentError, DTypeError, ShapeError  # noqa: E402
from interlace.kernels.conv2d import Conv2DTile, conv2d  # noqa: E402
from interlace.kernels.max_pool2d import max_pool2d  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned  # noqa: E402

#: Shape of x; window, stride, padding; tile; dtype.
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], il.DType]] = {
    "resnet": ((2, 12, 12, 64), {"window": 3, "stride": 2, "padding": 1, "tile": (1, 32)}, il.bf16),
    "vgg": ((1, 8, 8, 72), {"window": 2, "tile": (3, 64)}, il.fp16),
    "uneven": ((2, 7, 9, 16), {"window": (3, 2), "stride": (1, 3), "padding": (1, 0), "tile": (4, 8)}, il.fp32),
}


def build_graph(name: str) -> il.Graph:
    shape, options, dtype = CASES[name]
    window, stride, padding = (
        options.get(key, default) for key, default in (("window", 0), ("stride", None), ("padding", 0))
    )
    pooled = torch.nn.functional.max_pool2d(torch.zeros(shape).permute(0, 3, 1, 2), window, stride, padding)
    x, out = il.Tensor("x", shape, dtype), il.Tensor("out", tuple(pooled.permute(0, 2, 3, 1).shape), dtype)
    return il.Graph("pool", (x, out), (max_pool2d("pool", x, out, **options),), ("x",), ("out",))


def answer(name: str, x: torch.Tensor) -> torch.Tensor:
    options = CASES[name][1]
    arguments = options["window"], options.get("stride"), options.get("padding", 0)
    return torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), *arguments).permute(0, 2, 3, 1)


def draw(name: str, seed: int) -> torch.Tensor:
    shape, _, dtype = CASES[name]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(TORCH[dtype.name])


@pytest.mark.parametrize("name", CASES)
def test_reference_matches_pytorch(name: str) -> None:
    x = draw(name, 0).double()
    x[0, 3, 2, 1] = float("nan")  # the maximum of a window with it
    plan = il.build(build_graph(name), il.Schedule(2))
    assert il.verify(plan)
    out = il.ReferenceExecutor(plan).run({"x": x.numpy()})["out"]
    assert np.array_equal(out, answer(name, x).numpy(), equal_nan=True)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: EmulatedLaunch(il.build(build_graph(name), il.Schedule(1)), stages=2) for name in CASES}
    change = "p * a.STRIDE_H - a.PAD_H + k / S", "p * a.STRIDE_H - a.PAD_H + k / S + 1"
    made["window a row late"] = EmulatedLaunch(il.build(build_graph("resnet"), il.Schedule(1)), stages=2, change=change)
    prepare([*made.values()])
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", CASES)
def test_megakernel_matches_pytorch(name: str) -> None:
    run = launches()[name]
    for seed in range(2):
        x = draw(name, seed)
        x[0, 3, 2, 1] = float("nan")
        out = run_poisoned(run, {"x": x}, seed)
        assert [str(fault) for fault in run.faults] == []
        assert torch.equal(out.nan_to_num(7.0), answer(name, x.float()).to(out.dtype).nan_to_num(7.0))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_window_a_row_late_is_wrong() -> None:
    x = draw("resnet", 0)
    out = run_poisoned(launches()["window a row late"], {"x": x}, 0)
    assert not torch.equal(out, answer("resnet", x.float()).to(out.dtype))


def test_tile_waits_for_exactly_the_rows_of_its_windows() -> None:
    shapes = {"x": (1, 8, 8, 8), "w": (8, 3, 3, 8), "h": (1, 8, 8, 8), "out": (1, 4, 4, 8)}
    t = {name: il.Tensor(name, shape, il.fp32) for name, shape in shapes.items()}
    ops = (
        conv2d("conv", t["x"], t["w"], t["h"], padding=1, tile=Conv2DTile(1, 1, 8, 8)),
        max_pool2d("pool", t["h"], t["out"], window=3, stride=2, padding=1, tile=(1, 8)),
    )
    plan = il.build(il.Graph("both", (*t.values(),), ops, ("x", "w"), ("out",)), il.Schedule(1))
    assert il.verify(plan)
    counts = [int(plan.waits.count[plan.waits.ptr[i] : plan.waits.ptr[i + 1]].sum()) for i in range(8, 12)]
    assert counts == [2, 3, 3, 3]  # of the first window, one row is padding


@pytest.mark.parametrize(
    ("shape", "out", "options", "error", "message"),
    [
        ((1, 4, 4, 12), (1, 2, 2, 12), {"window": 2}, ShapeError, "12 channels; pad them to a multiple of 8"),
        ((4, 4, 8), (1, 2, 2, 8), {"window": 2}, ShapeError, r"must be \(images, H, W, C\)"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 2, "padding": 2}, ShapeError, "padding of at most half of the window"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 5}, ShapeError, "larger than the padded image"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 2, "stride": 0}, ShapeError, "stride 0; use 1 to"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": "2"}, ArgumentError, "use an int, or two for height and width"),
        ((1, 4, 4, 8), (1, 3, 2, 8), {"window": 2}, ShapeError, r"out .* must have shape \(1, 2, 2, 8\)"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 2, "tile": (1, 12)}, ShapeError, "12 channels; use a multiple of 8"),
    ],
)
def test_bad_input_gives_one_clear_line(
    shape: tuple[int, ...], out: tuple[int, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        max_pool2d("pool", il.Tensor("x", shape, il.fp32), il.Tensor("out", out, il.fp32), **options)


def test_mixed_dtypes_are_rejected() -> None:
    x, out = il.Tensor("x", (1, 4, 4, 8), il.bf16), il.Tensor("out", (1, 2, 2, 8), il.fp16)
    with pytest.raises(DTypeError, match="mixes dtypes"):
        max_pool2d("pool", x, out, window=2)
