"""Average pooling: the reference and the megakernel on the emulator against PyTorch, exact dependencies, bad input."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import ArgumentError, DTypeError, ShapeError  # noqa: E402
from interlace.kernels.avg_pool2d import avg_pool2d  # noqa: E402
from interlace.kernels.conv2d import Conv2DTile, conv2d  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned  # noqa: E402

#: Shape of x; window, stride; tile; dtype.
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], il.DType]] = {
    "global": ((2, 7, 7, 64), {"window": 7, "tile": (1, 16)}, il.bf16),
    "halves": ((1, 8, 6, 72), {"window": 2, "tile": (3, 64)}, il.fp16),
    "overlapping": ((2, 7, 9, 16), {"window": (3, 2), "stride": (2, 3), "tile": (2, 8)}, il.fp32),
}


def build_graph(name: str) -> il.Graph:
    shape, options, dtype = CASES[name]
    x, out = il.Tensor("x", shape, dtype), il.Tensor("out", tuple(answer(name, torch.zeros(shape)).shape), dtype)
    return il.Graph("pool", (x, out), (avg_pool2d("pool", x, out, **options),), ("x",), ("out",))


def answer(name: str, x: torch.Tensor) -> torch.Tensor:
    options = CASES[name][1]
    pooled = torch.nn.functional.avg_pool2d(x.permute(0, 3, 1, 2), options["window"], options.get("stride"))
    return pooled.permute(0, 2, 3, 1)


def draw(name: str, seed: int) -> torch.Tensor:
    shape, _, dtype = CASES[name]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(TORCH[dtype.name])


@pytest.mark.parametrize("name", CASES)
def test_reference_matches_pytorch(name: str) -> None:
    x = draw(name, 0).double()
    plan = il.build(build_graph(name), il.Schedule(2))
    assert il.verify(plan)
    out = il.ReferenceExecutor(plan).run({"x": x.numpy()})["out"]
    assert np.allclose(out, answer(name, x).numpy(), rtol=1e-13, atol=1e-13)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: EmulatedLaunch(il.build(build_graph(name), il.Schedule(1)), stages=2) for name in CASES}
    change = "k += LANES", "k += 2 * LANES"
    made["half a window"] = EmulatedLaunch(il.build(build_graph("global"), il.Schedule(1)), stages=2, change=change)
    prepare([*made.values()])
    return made


def find_error(name: str, case: str) -> float:
    """Return the largest error of a launch over the one that rounding allows."""
    run, (_, _, dtype) = launches()[name], CASES[case]
    worst = 0.0
    for seed in range(2):
        x = draw(case, seed)
        out = run_poisoned(run, {"x": x}, seed).double()
        assert [str(fault) for fault in run.faults] == []
        gold = answer(case, x.double())
        allowed = torch.finfo(TORCH[dtype.name]).eps * gold.abs() + 1e-6
        worst = max(worst, float(((out - gold).abs() / allowed).max()))
    return worst


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", CASES)
def test_megakernel_matches_pytorch(name: str) -> None:
    assert find_error(name, name) < 1


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_half_a_window_is_wrong() -> None:
    assert find_error("half a window", "global") > 10


def test_tile_waits_for_exactly_its_rows() -> None:
    shapes = {"x": (1, 8, 8, 8), "w": (8, 1, 1, 8), "h": (1, 8, 8, 8), "out": (1, 4, 4, 8)}
    t = {name: il.Tensor(name, shape, il.fp32) for name, shape in shapes.items()}
    ops = (
        conv2d("conv", t["x"], t["w"], t["h"], tile=Conv2DTile(1, 1, 8, 8)),
        avg_pool2d("pool", t["h"], t["out"], window=2, tile=(1, 8)),
    )
    plan = il.build(il.Graph("both", (*t.values(),), ops, ("x", "w"), ("out",)), il.Schedule(1))
    assert il.verify(plan)
    counts = [int(plan.waits.count[plan.waits.ptr[i] : plan.waits.ptr[i + 1]].sum()) for i in range(8, 12)]
    assert counts == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("shape", "out", "options", "error", "message"),
    [
        ((1, 4, 4, 12), (1, 2, 2, 12), {"window": 2}, ShapeError, "12 channels; pad them to a multiple of 8"),
        ((4, 4, 8), (1, 2, 2, 8), {"window": 2}, ShapeError, r"must be \(images, H, W, C\)"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 5}, ShapeError, "larger than the image; use a larger image"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 2, "stride": 0}, ShapeError, "stride 0; use 1 to"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": "2"}, ArgumentError, "use an int, or two for height and width"),
        ((1, 4, 4, 8), (1, 3, 2, 8), {"window": 2}, ShapeError, r"out .* must have shape \(1, 2, 2, 8\)"),
        ((1, 4, 4, 8), (1, 2, 2, 8), {"window": 2, "tile": (1, 24)}, ShapeError, "24 channels; use a power of two"),
    ],
)
def test_bad_input_gives_one_clear_line(
    shape: tuple[int, ...], out: tuple[int, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        avg_pool2d("pool", il.Tensor("x", shape, il.fp32), il.Tensor("out", out, il.fp32), **options)


def test_mixed_dtypes_are_rejected() -> None:
    x, out = il.Tensor("x", (1, 4, 4, 8), il.bf16), il.Tensor("out", (1, 2, 2, 8), il.fp16)
    with pytest.raises(DTypeError, match="mixes dtypes"):
        avg_pool2d("pool", x, out, window=2)
