"""GPUs as data, for tests of what would run on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from interlace.core.devices import H200, DeviceSpec, Properties, resolve_spec
from interlace.core.dtypes import DType, bf16
from interlace.core.errors import ResultError
from interlace.tune.search import TuningCase
from interlace.workloads import FeedForward, FFNShape, Workload

#: As the driver describes an A100.
A100 = resolve_spec(
    Properties(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        sms=108,
        smem_bytes=163 << 10,
        l2_bytes=40 << 20,
        clock_hz=1.41e9,
        bus_bytes_per_s=2.0e12,
    )
)


def ffn_of(m: int, shape: FFNShape, dtype: DType = bf16) -> FeedForward:
    return FeedForward(shape.hidden, shape.ffn, m, shape.gated, shape.activation, dtype)


def on_h200(m: int, shape: FFNShape, dtype: DType = bf16) -> TuningCase:
    return TuningCase.from_workload(ffn_of(m, shape, dtype), H200)


def on_a100(m: int, shape: FFNShape, dtype: DType = bf16) -> TuningCase:
    return TuningCase.from_workload(ffn_of(m, shape, dtype), A100)


class FakeProblem:
    """Stands for the tensors of a workload on a GPU, for executors that are stand-ins too; wrong ones are wrong."""

    wrong: frozenset[object] = frozenset()
    too_large: frozenset[object] = frozenset()
    memory = True
    runs = 2
    read_buffers: tuple[object, ...] = ()
    weights = ({},)
    bytes_us, flops_us = 20.0, 30.0
    pytorch_error = 1e-3
    run_pytorch = run_fused = "pytorch"
    alternatives: ClassVar[Mapping[str, str]] = {}

    def __init__(self, workload: Workload, device: DeviceSpec, seed: int = 0) -> None:
        self.workload = workload
        if not self.memory:
            raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB.\nMore lines")

    def check(self, executor: object) -> float:
        if executor in self.too_large:
            raise RuntimeError("CUDA out of memory.")
        if executor in self.wrong:
            raise ResultError("wrong")
        return 0.0

    def check_layers(self, block: object, executor: object) -> None:
        self.check(executor)

    def make_run(self, executor: object) -> object:
        return executor

    make_layer = make_whole_layer = make_run

    def run_once(self, run: object, weights: object = None) -> None:
        pass

    run_layer_once = run_once

    def make_rotation(self, run: object, weights: object = None) -> object:
        return run

    make_layer_rotation = make_rotation

    def transpose_weights(self) -> list[object]:
        return [{}]


#: A chip of a user's own, as a file.
OWN = """
like = "h200"
name = "half an H200"
capability = [9, 0]
architecture = "sm_90a"
sms = 66
smem_bytes = 232_448
l1_bytes = 262_144
register_bytes = 262_144
l2_bytes = 31_457_280
"""
