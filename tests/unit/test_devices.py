"""Chips as data files, dtypes as rows: what is known, what is scaled, and that nothing else names them."""

from __future__ import annotations

import ast
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core import dtypes
from interlace.core.devices import (
    CPU,
    DEFAULT_GPU,
    H100,
    H200,
    Properties,
    load_chip,
    load_chips,
    load_known_chips,
    resolve_spec,
)
from interlace.core.devices.chips import read_chip
from interlace.core.dtypes import DTYPES, DType, bf16, dtype, fp16, fp32
from interlace.core.errors import DeviceDataError, DTypeError
from interlace.core.rounding import round_to
from interlace.executors import gpu
from interlace.planner.explain import explain
from interlace.planner.predict import predict
from interlace.planner.search import search
from interlace.workloads.chains import one_matmul, two_copies

from .gpus import A100, OWN

PACKAGE = Path(il.__file__).parent
DATA = PACKAGE / "core" / "devices"

# ---------------------------------------------------------------- chips


def test_known_chips_are_those_with_a_file() -> None:
    assert set(load_known_chips()) == {path.stem for path in DATA.glob("*.toml")} - {"cpu"}
    assert (load_known_chips()["h200"], load_known_chips()["h100"], DEFAULT_GPU) == (H200, H100, H200)
    assert (H200.capability, H200.architecture, H200.sms, H200.smem_bytes) == ((9, 0), "sm_90a", 132, 227 << 10)
    assert (H200.l2.side_bytes, H200.l2.evict_first_bytes) == (31 << 20, 7 << 19)
    assert (H200.derived, H200.estimate_note, CPU.architecture) == ((), "", "")


def test_what_nobody_measured_on_an_h100_is_an_h200s_scaled_and_marked() -> None:
    assert (H100.sms, H100.l2_bytes, H100.flops_per_s(bf16), H100.like) == (132, 50 << 20, 798e12, H200.name)
    assert H100.dram_bytes_per_s == pytest.approx(H200.dram_bytes_per_s * 3.35 / 4.8)
    assert H100.l2.side_bytes == H200.l2.side_bytes * 50 // 60
    assert H100.l2.evict_first_bytes * 60 // 50 == pytest.approx(H200.l2.evict_first_bytes, abs=2)
    assert H100.latencies == H200.latencies
    assert {"dram_bytes_per_s", "l2", "latencies", "speed_spread"} <= set(H100.derived)
    assert not {"name", "sms", "rates", "l2_bytes", "capability"} & set(H100.derived)
    assert "nobody measured the rate of memory of NVIDIA H100 80GB HBM3" in H100.estimate_note


def properties(spec: il.DeviceSpec) -> Properties:
    """Return the properties that the driver would report of a device."""
    return Properties(**{field.name: getattr(spec, field.name) for field in fields(Properties)})


def test_a_known_chip_has_its_own_spec_and_a_part_of_it_has_not() -> None:
    assert resolve_spec(properties(H200)) is H200
    assert resolve_spec(properties(H100)) is H100
    half = resolve_spec(replace(properties(H200), sms=66, l2_bytes=30 << 20))
    assert (half.name, half.sms, half.like) == (H200.name, 66, H200.name)
    assert half.flops_per_s(bf16) == H200.flops_per_s(bf16) / 2
    assert half.l2.side_bytes == H200.l2.side_bytes // 2
    assert half.dram_bytes_per_s == H200.dram_bytes_per_s


def test_an_unknown_gpu_is_the_nearest_known_chip_scaled_by_what_the_driver_tells() -> None:
    slow = resolve_spec(replace(properties(H200), name="some GPU", clock_hz=0.99e9, bus_bytes_per_s=2.4e12))
    assert slow.like == H100.name  # whose memory per SM is nearer
    assert slow.flops_per_s(bf16) == pytest.approx(798e12 / 2)
    assert slow.dram_bytes_per_s == pytest.approx(4.53e12 / 2)
    assert slow.sm_l2_bytes_per_s == pytest.approx(84e9 / 2)
    assert resolve_spec(replace(properties(H200), name="some GPU")).like == H200.name
    assert (A100.capability, A100.architecture, A100.smem_bytes) == ((8, 0), "sm_80", 163 << 10)
    assert resolve_spec(replace(properties(H200), name="B200", capability=(10, 0))).architecture == "sm_100a"
    # Where a driver does not tell of clock and bus, they are taken to be those of the chip with the nearest cache.
    blind = resolve_spec(replace(properties(H100), name="some GPU", clock_hz=0.0, bus_bytes_per_s=0.0))
    assert (blind.like, blind.clock_hz, blind.bus_bytes_per_s) == (H100.name, H100.clock_hz, H100.bus_bytes_per_s)
    assert {"rates", "dram_bytes_per_s", "clock_hz", "bus_bytes_per_s"} <= set(blind.derived)


def fake_torch(spec: il.DeviceSpec) -> Any:
    """PyTorch on a GPU: what it tells of one."""
    told = SimpleNamespace(
        name=spec.name,
        major=spec.capability[0],
        minor=spec.capability[1],
        multi_processor_count=spec.sms,
        shared_memory_per_block_optin=spec.smem_bytes,
        L2_cache_size=spec.l2_bytes,
        clock_rate=spec.clock_hz / 1e3,
        memory_clock_rate=spec.bus_bytes_per_s * 8 / 6144 / 2 / 1e3,
        memory_bus_width=6144,
    )
    return SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda device: told))


def test_an_unknown_gpu_is_told_of_once() -> None:
    gpu._build_spec.cache_clear()
    torch = fake_torch(replace(A100, name="some other GPU"))
    with pytest.warns(gpu.EstimatedDeviceWarning, match="the rate of memory or the rate of matmuls of some other GPU"):
        first = gpu.detect_spec(torch, "cuda:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpu.detect_spec(torch, "cuda:0") is first
        assert gpu.detect_spec(fake_torch(H200), "cuda:0") is H200
    assert (first.sms, first.bus_bytes_per_s) == (108, pytest.approx(2.0e12))


def test_a_command_notes_an_unknown_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from interlace.cli import machine

    gpu._build_spec.cache_clear()
    monkeypatch.setattr(machine, "open_device", lambda name: (fake_torch(A100), "cuda:0"))
    found = machine.find_machine(machine.Device.CUDA)
    assert (found.spec, found.name, found.facts["sms"]) == (A100, A100.name, 108)
    assert machine.find_machine(machine.Device.CUDA).spec is found.spec
    told = capsys.readouterr().err
    assert told.count("note: nobody measured the rate of memory or the rate of matmuls of NVIDIA A100") == 1


def test_a_chip_costs_one_file(tmp_path: Path) -> None:
    for path in DATA.glob("*.toml"):
        shutil.copy(path, tmp_path)
    (tmp_path / "b300.toml").write_text(
        'like = "h200"\nname = "NVIDIA B300"\ncapability = [10, 3]\narchitecture = "sm_103a"\nsms = 148\n'
        "smem_bytes = 232448\nl2_bytes = 132120576\nclock_hz = 1.92e9\nbus_bytes_per_s = 8e12\n"
        "dram_bytes_per_s = 7e12\nrates = { bf16 = 2e15, fp16 = 1.9e15 }\n"
    )
    found = load_chips(tmp_path)
    assert set(found) == {"h200", "h100", "b300"}
    spec = found["b300"]
    assert (spec.capability, spec.flops_per_s(bf16), spec.flops_per_s(fp16)) == ((10, 3), 2e15, 1.9e15)
    assert spec.estimate_note == ""
    planned = search([one_matmul(512, 512, 512)], spec)
    assert planned.best.prediction.us > 0
    assert [op.op for op in explain(planned, spec).ops] == ["matmul"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"\ncapability = [9, 0]\n', r"new.toml does not describe a chip: .*missing"),
        ('like = "h200"\nname = "x"\ncapability = [9, 0]\n', r"does not describe a chip: 'sms'"),
        ('like = "none"\n', r"does not describe a chip: 'capability'"),
        ("name = ", r"new.toml is no TOML"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    shutil.copy(DATA / "h200.toml", tmp_path)
    (tmp_path / "new.toml").write_text(text)
    with pytest.raises(DeviceDataError, match=message):
        load_chip("new", tmp_path)
    with pytest.raises(DeviceDataError, match="no data of a chip 'h300'; use one of h200, new"):
        load_chip("h300", tmp_path)


# ---------------------------------------------------------------- dtypes


def test_a_dtype_without_a_measured_rate_has_its_rows_share_of_the_bf16_rate() -> None:
    assert H200.flops_per_s(fp16) == H200.flops_per_s(bf16)
    assert H200.flops_per_s(fp32) == pytest.approx(790e12 * 67 / 989)
    assert replace(H200, rates=(*H200.rates, ("fp32", 5e13))).flops_per_s(fp32) == 5e13


def test_a_prediction_multiplies_in_the_dtype_of_each_op() -> None:
    def us(dtype: DType) -> float:
        return predict(il.build(one_matmul(2048, 2048, 2048, dtype), il.Schedule(132)), H200).us

    flops = 2 * 2048**3
    assert us(fp32) >= flops / H200.flops_per_s(fp32) * 1e6 > 5 * us(bf16)
    planned = search([one_matmul(512, 512, 512, fp32)], H200)
    (told,) = explain(planned, H200).ops
    assert told.compute_us == pytest.approx(2 * 512**3 / H200.flops_per_s(fp32) * 1e6)


TOY = DType("half16", 2, 2.0**-11, 0xFC15, 0.5, "float16", "float16", "F16T", 99, "f16", "FLOAT16", True, ("halfling",))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> DType:
    """A dtype whose row was added to the table."""
    monkeypatch.setattr(dtypes, "DTYPES", (*DTYPES, TOY))
    return TOY


def test_a_dtype_costs_one_row(toy: DType) -> None:
    from interlace import loops
    from interlace.kernels.cuda import preamble

    assert dtype("half16") is dtype("halfling") is toy
    with pytest.raises(DTypeError, match="use one of bf16, fp16, fp32, int32, half16"):
        dtype("int4")
    assert gpu.get_torch_dtype(type("Torch", (), {"float16": "torch.float16"}), "half16") == "torch.float16"
    graph = two_copies(64, 64, toy)
    assert CPU.flops_per_s(toy) == 0.5 * CPU.flops_per_s(bf16)
    assert predict(il.build(graph, il.Schedule(8)), CPU).us > 0
    np.testing.assert_array_equal(round_to(np.float32([1.0001, 3e-8]), toy), np.float32([1.0, 5.9604645e-08]))
    assert "struct half16 { unsigned short bits; };" in preamble._declare_element(toy)
    kernel = loops.lower(loops.library.matmul(dtype=toy))
    text = loops.emit_kernel(kernel, DEFAULT_GPU).cuda_source
    assert "const half16* __restrict__ " in text
    assert "wgmma_m64n128k16_f16(" in text


# ---------------------------------------------------------------- nothing else names them

#: Files that still list dtypes in code. The list may only shrink.
DTYPES_LEFT = {
    "nn/modules.py",
}


@cache
def code() -> dict[str, set[str | int]]:
    """Return the names, texts and integers of the package's code by file, docstrings left out."""
    return {path.relative_to(PACKAGE).as_posix(): {*words(path)} for path in sorted(PACKAGE.rglob("*.py"))}


def words(path: Path) -> Iterator[str | int]:
    prose: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # a statement comes before what it is of
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.add(id(node.value))
        elif isinstance(node, ast.Constant) and type(node.value) in (str, int) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def test_no_code_names_a_chip_or_has_its_numbers() -> None:
    numbers = {132, 227, 232_448, 62_914_560, 52_428_800}
    texts = ("h200", "h100", "sm_9")
    found = {
        file
        for file, named in code().items()
        for word in named
        if (word in numbers if isinstance(word, int) else any(text in word.lower() for text in texts))
        and word != "il.H200"  # advice
    }
    assert found == {"api.py", "core/devices/__init__.py"}


def test_no_code_lists_dtypes() -> None:
    """Code that names both 16-bit floats lists dtypes, and would have to name another one too."""
    halves = ({bf16.name, bf16.torch, bf16.safetensors}, {fp16.name, fp16.torch, fp16.safetensors, fp16.ptx})
    found = {file for file, words in code().items() if all(words & names for names in halves)}
    assert found == DTYPES_LEFT | {"api.py", "core/dtypes.py"}


def test_a_file_of_a_users_own_describes_a_gpu_like_a_known_one() -> None:
    spec = read_chip(OWN, "mine.toml")
    assert (spec.name, spec.sms, spec.l2.side_bytes) == ("half an H200", 66, H200.l2.side_bytes // 2)
    assert "nobody measured" in spec.estimate_note


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sms = 0", "mine.toml: sms is 0; use a positive number"),
        ("sms = 6.5", "sms is 6.5; use a positive number"),
        ('sms = "many"', "does not describe a chip|sms is 'many'"),
        ("name = 3", "name is 3; use text"),
        ("speed_spread = 1.5", "speed_spread is below 1"),
        ("dram_bytes_per_s = nan", "dram_bytes_per_s is nan"),
        ("rates = { bf16 = -1.0 }", r"rates.bf16 is -1.0"),
        ("rates = { fp16 = 1e12 }", "rates need one for bf16"),
        ("capability = [9]", r"does not describe a chip|capability \[9\]"),
        ('architecture = "pascal"', "architecture 'pascal'"),
        ("l2 = { sides = 2, side_bytes = -1 }", "l2.side_bytes is -1"),
        ("l2 = { sides = 2, side_bytes = 1, evict_first_bytes = 0.5 }", "l2.evict_first_bytes is 0.5"),
    ],
)
def test_a_value_that_no_device_has_is_named(line: str, message: str) -> None:
    name = line.partition(" ")[0]
    text = "\n".join([row for row in OWN.splitlines() if not row.startswith(f"{name} ")] + [line])
    with pytest.raises(DeviceDataError, match=message):
        read_chip(text, "mine.toml")
