"""Taps of a row as channels: the reference and the megakernel on the emulator against PyTorch, and bad input."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import ArgumentError, DTypeError, ShapeError  # noqa: E402
from interlace.kernels.unfold_rows import unfold_rows  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned  # noqa: E402

#: Images, channels, height and width; options; dtype.
CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any], il.DType]] = {
    "resnet": ((2, 3, 6, 16), {"taps": 7, "stride": 2, "padding": 3}, il.bf16),
    "vgg, channels first": ((1, 3, 5, 8), {"taps": 3, "padding": 1, "channels_last": False, "rows": 2}, il.fp16),
    "dilated": ((2, 5, 3, 9), {"taps": 2, "stride": 3, "dilation": 4, "rows": 3}, il.fp32),
    "dilated, channels first": ((2, 4, 3, 9), {"taps": 2, "dilation": 4, "channels_last": False}, il.bf16),
}


def answer(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return the result for an image (images, channels, height, width)."""
    (_, channels, height, _), options, _ = CASES[name]
    geometry = [(1, options.get(key, default)) for key, default in (("dilation", 1), ("stride", 1))]
    padding = 0, options.get("padding", 0)
    taps = options["taps"]
    columns = torch.nn.functional.unfold(x, (1, taps), geometry[0], padding, geometry[1])
    columns = columns.view(len(x), channels, taps, height, -1).permute(0, 3, 4, 2, 1).flatten(3)
    return torch.nn.functional.pad(columns, (0, -columns.shape[3] % 8))


def arrange(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return an image in the layout of a case."""
    return x.permute(0, 2, 3, 1).contiguous() if CASES[name][1].get("channels_last", True) else x


def build_graph(name: str) -> il.Graph:
    shape, options, dtype = CASES[name]
    zeros = torch.zeros(shape)
    x, out = (
        il.Tensor(label, tuple(value.shape), dtype)
        for label, value in (("x", arrange(name, zeros)), ("out", answer(name, zeros)))
    )
    return il.Graph("unfold", (x, out), (unfold_rows("unfold", x, out, **options),), ("x",), ("out",))


def draw(name: str, seed: int) -> torch.Tensor:
    shape, _, dtype = CASES[name]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(TORCH[dtype.name])


@pytest.mark.parametrize("name", CASES)
def test_reference_matches_pytorch(name: str) -> None:
    x = draw(name, 0).double()
    plan = il.build(build_graph(name), il.Schedule(2))
    assert il.verify(plan)
    out = il.ReferenceExecutor(plan).run({"x": arrange(name, x).numpy()})["out"]
    assert np.array_equal(out, answer(name, x).numpy())


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: EmulatedLaunch(il.build(build_graph(name), il.Schedule(1)), stages=2) for name in CASES}
    change = "w >= 0 && w < a.W", "w > 0 && w < a.W"
    made["without a column"] = EmulatedLaunch(il.build(build_graph("resnet"), il.Schedule(1)), stages=2, change=change)
    prepare([*made.values()])
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", CASES)
def test_megakernel_matches_pytorch(name: str) -> None:
    run = launches()[name]
    for seed in range(2):
        x = draw(name, seed)
        out = run_poisoned(run, {"x": arrange(name, x)}, seed)
        assert [str(fault) for fault in run.faults] == []
        assert torch.equal(out, answer(name, x.float()).to(out.dtype))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_missing_column_is_wrong() -> None:
    x = draw("resnet", 0)
    out = run_poisoned(launches()["without a column"], {"x": arrange("resnet", x)}, 0)
    assert not torch.equal(out, answer("resnet", x.float()).to(out.dtype))


@pytest.mark.parametrize(
    ("shape", "out", "options", "error", "message"),
    [
        ((4, 4, 3), (1, 4, 4, 16), {"taps": 3}, ShapeError, r"must be \(images, H, W, C\), or \(images, C, H, W\)"),
        ((1, 4, 4, 3), (1, 4, 2, 16), {"taps": 5}, ShapeError, "5 taps cover 5 columns, and the padded row has 4"),
        ((1, 4, 4, 3), (1, 4, 2, 16), {"taps": 0}, ShapeError, "taps 0; use 1 to"),
        ((1, 4, 4, 3), (1, 4, 2, 16), {"taps": 3, "padding": -1}, ShapeError, "padding -1; use 0 to"),
        ((1, 4, 4, 3), (1, 4, 2, 16), {"taps": 3, "stride": "2"}, ArgumentError, "stride"),
        ((1, 4, 4, 3), (1, 4, 2, 16), {"taps": 3, "channels_last": 1}, ArgumentError, "channels_last"),
        ((1, 4, 4, 3), (1, 4, 2, 9), {"taps": 3}, ShapeError, r"out .* must have shape \(1, 4, 2, 16\)"),
    ],
)
def test_bad_input_gives_one_clear_line(
    shape: tuple[int, ...], out: tuple[int, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        unfold_rows("unfold", il.Tensor("x", shape, il.fp32), il.Tensor("out", out, il.fp32), **options)


def test_mixed_dtypes_are_rejected() -> None:
    x, out = il.Tensor("x", (1, 4, 4, 3), il.bf16), il.Tensor("out", (1, 4, 2, 16), il.fp16)
    with pytest.raises(DTypeError, match="mixes dtypes"):
        unfold_rows("unfold", x, out, taps=3)
