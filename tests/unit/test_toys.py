"""Costs of additions: a toy op, workload, model family, executor and dtype, and the sources that name a present one.

A toy dispatch is in ``test_emulator_dispatch.py``. Each toy is added from this file alone, without any edit of the
sources; a row that the sources hold for such a thing is patched in, and that row is what the counts include.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

import interlace as il
from interlace import loops, workloads
from interlace.core import dtypes
from interlace.core.devices import CPU
from interlace.core.dtypes import DTYPES, DType
from interlace.core.rounding import round_to
from interlace.models.families import FAMILIES, ModelFamily, WindowRule
from interlace.workloads.base import DTypeField, Option, Workload

from ..emulator.build import MISSING
from .commands import fail, succeed

SOURCES = Path(__file__).parents[2] / "src/interlace"


def read_words(path: Path) -> set[str]:
    """Return the identifiers and strings of a source, without comments and docstrings."""
    if path.suffix != ".py":
        return set(re.findall(r"\w+", re.sub(r"//.*", "", path.read_text())))
    nodes = [*ast.walk(ast.parse(path.read_bytes()))]
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = {getattr(node, name, None) for node in nodes for name in ("id", "attr", "arg", "name")}
    found |= {node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in prose}
    return {word for word in found if isinstance(word, str)}


@cache
def read_sources() -> dict[str, set[str]]:
    paths = sorted([*SOURCES.rglob("*.py"), *SOURCES.rglob("*.cuh")])
    return {path.relative_to(SOURCES).as_posix(): read_words(path) for path in paths}


@pytest.mark.parametrize(
    ("example", "files"),
    [
        ("LAYER_NORM", {"kernels/layer_norm/__init__.py", "kernels/read_plan.py"}),
        ("ops/layer_norm.cuh", {"kernels/layer_norm/__init__.py"}),
        ("ClusterTicketDispatch", {"megakernel/dispatch.py", "csrc/dispatch/cluster_ticket.cuh"}),
        ("qwen3", {"models/families.py"}),
        ("Dag", {"workloads/dag.py", "workloads/__init__.py"}),
        ("StreamsExecutor", {"executors/streams.py", "executors/__init__.py", "api.py"}),
        ("fp16", {"core/dtypes.py", "api.py"}),
    ],
)
def test_an_example_of_each_kind_is_named_in_few_sources(example: str, files: set[str]) -> None:
    assert {path for path, words in read_sources().items() if example in words} == files


# ---------------------------------------------------------------- op

TRIPLE = il.Kernel(
    "triple",
    il.Reference(lambda _, regions, params: {"y": 3 * regions["x"]}),
    megakernel=il.CudaBody(
        """
__device__ void triple_rows(const Tile& tile, const Arguments& a) {
  for (int n = thread(); n < BM * a.N; n += THREADS) {
    const long long at = (long long)tile.i * BM * a.N + n;
    if (at < (long long)a.M * a.N) a.y[at] = rounded<bf16>(3.0f * widened(a.x[at]));
  }
}
""",
        "triple_rows",
        constants=("BM",),
    ),
)


def triple(x: il.Tensor, y: il.Tensor, bm: int = 4) -> il.Op:
    (m, n), (i,) = x.shape, il.axes(1)
    rows = (i.block(bm), il.ALL)
    return TRIPLE.make_op(
        "triple", (-(-m // bm),), {"x": (x, rows)}, {"y": (y, rows)}, params={"M": m, "N": n, "BM": bm}
    )


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_an_op_costs_no_edit() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned

    x, y = (il.Tensor(name, (10, 64), il.bf16) for name in "xy")
    graph = il.Graph("toy", (x, y), (triple(x, y),), ("x",), ("y",))
    plan = il.build(graph, il.Schedule(2))
    values = round_to(np.random.default_rng(0).standard_normal((10, 64)), il.bf16)
    np.testing.assert_array_equal(il.ReferenceExecutor(plan).run({"x": values})["y"], 3 * values.astype(np.float64))
    run = EmulatedLaunch(plan, stages=2)
    prepare([run])
    found = run_poisoned(run, {"x": torch.from_numpy(values).bfloat16()}, 0)
    assert [str(fault) for fault in run.faults] == []
    np.testing.assert_array_equal(found.float().numpy(), round_to(3 * values, il.bf16))


# ---------------------------------------------------------------- workload


@dataclass(frozen=True)
class ToyWorkload(Workload):
    """``y = 3 * x``."""

    name: ClassVar[str] = "toy"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"small": {"n": 64}}
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "small"
    size: ClassVar[str] = "n"
    weights: ClassVar[tuple[str, ...]] = ("x",)

    n: Annotated[int, Option("Columns.", least=1)]
    dtype: DTypeField = il.bf16
    flops = property(lambda self: 8.0 * self.n)

    def build_graph(self, device: il.DeviceSpec, tile: object = None) -> il.Graph:
        x, y = (il.Tensor(name, (8, self.n), self.dtype) for name in "xy")
        return il.Graph("toy", (x, y), (triple(x, y),), ("x",), ("y",))

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": 3 * tensors["x"]}


def test_a_workload_costs_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown workload 'toy'" in fail(2, "run", "toy", "--device", "cpu")
    monkeypatch.setattr(workloads, "WORKLOADS", (*workloads.WORKLOADS, ToyWorkload))
    assert "│ toy " in succeed("run", "--help")
    assert "toy, n 64" in succeed("run", "toy", "--device", "cpu", "--executor", "reference")
    problem = ToyWorkload(5)
    inputs = problem.make_inputs(0)
    found = il.ReferenceExecutor(il.build(problem.build_graph(CPU), il.Schedule(2))).run(inputs)
    np.testing.assert_array_equal(found["y"], 3.0 * inputs["x"])


# ---------------------------------------------------------------- model family


def test_a_model_family_costs_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    from interlace.core.errors import UnsupportedModelError
    from interlace.models.pretrained import load_model_quietly
    from interlace.nn import Decoder

    from .llama import SHAPE, ToyForCausalLM, greedy, stored_names
    from .model_files import config, gguf_bytes, gguf_metadata, gguf_tensors, write_folder

    shape = replace(SHAPE, layers=1, qkv_bias=True, qk_norm=True)
    model = ToyForCausalLM(shape)
    tensors = dict(stored_names(model))
    settings = config(shape, model_type="toy", sliding_window=64)
    settings.pop("hidden_act")
    folder = write_folder(tmp_path / "model", tensors, settings)
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_bytes(gguf_metadata(shape, "toy"), gguf_tensors(tensors, shape, "toy")))
    for path in (folder, file):
        with pytest.raises(UnsupportedModelError, match=r"of type 'toy'; a decoder takes llama, .*"):
            load_model_quietly(path)

    row = ModelFamily({"hidden_act": "swish"}, WindowRule.ALL, has_gguf=True, has_bias=True, has_head_norms=True)
    monkeypatch.setitem(FAMILIES, "toy", row)
    loaded = load_model_quietly(folder)
    assert (loaded.shape, loaded.window) == (shape, 64)
    assert replace(load_model_quietly(file).shape, eps=shape.eps) == shape
    decoder = Decoder.from_pretrained(loaded, max_seq_len=16, device="cpu")
    assert decoder.generate([1, 2], 2, stop_token_ids=[]) == greedy(model, shape, [1, 2], 2)


def test_a_step_of_a_shape_runs_on_the_reference() -> None:
    pytest.importorskip("torch")
    from .llama import SHAPE

    work = workloads.Decode(**{**vars(SHAPE), "qkv_bias": True, "batch": 1, "capacity": 64, "context": 3})
    inputs = work.make_inputs(0)
    right = work.run_dense(np, {name: value.astype(np.float64) for name, value in inputs.items()})
    found = il.ReferenceExecutor(il.build(work.build_graph(CPU), il.Schedule(2))).run(inputs)
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- executor

TOY_EXECUTOR = """
import sys
from interlace import executors


class ToyExecutor(executors.ReferenceExecutor):
    name = title = "toy"
    description = "the reference by another name"


executors.EXECUTORS = (*executors.EXECUTORS, ToyExecutor)  # the line next to a file of its own
from interlace.cli import main

sys.argv[1:] = sys.argv[1:] + ["--device", "cpu", "--executor", "toy"]
main()
"""


def run_toy_executor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TOY_EXECUTOR, "run", "one-matmul", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_an_executor_costs_a_class_and_a_line() -> None:
    done = run_toy_executor("--m", "16", "--n", "16", "--k", "16")
    assert done.returncode == 0, done.stderr
    assert "toy" in done.stdout


# ---------------------------------------------------------------- dtype

TOY = DType("toy16", 2, 2.0**-11, 0xFC15, 0.5, "float16", "float16", "TOY16", 99, "f16", "FLOAT16", True, ("toy",))


def test_a_dtype_costs_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "DTYPES", (*DTYPES, TOY))
    assert il.dtype("toy") is TOY
    values = np.float32([[1.0001, 3e-8, 6e4, 0.3] * 16] * 16)
    kernel = loops.library.copy_2d(tile=(16, 64), walk=1, dtype=TOY)
    found = loops.interpret(kernel, {"x": values})["y"]
    np.testing.assert_array_equal(found, values.astype(np.float16))
    problem = workloads.TwoCopies(64, 64, dtype=TOY)
    inputs = problem.make_inputs(0)
    (out,) = il.ReferenceExecutor(il.build(problem.build_graph(CPU), il.Schedule(2))).run(inputs).values()
    (given,) = inputs.values()
    np.testing.assert_array_equal(given, round_to(given, TOY))
    np.testing.assert_array_equal(out, given)


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 8), ("fp16", 5), ("fp32", 8), ("int32", 0)])
def test_bits_of_the_exponent_follow_from_a_row(dtype: str, bits: int) -> None:
    assert il.dtype(dtype).exponent_bits == bits
