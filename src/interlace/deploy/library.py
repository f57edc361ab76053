"""Predicted time of PyTorch's own ops on a graph: a roofline for each kernel that PyTorch launches.

Worked example, the gated up-projection of an FFN of 4096 x 14336 over 16 tokens in bf16 on an NVIDIA H200:

    two matmuls       2 * (max(117 MB / 4.40 TB/s, 1.9 GFLOP / 690 TFLOP/s) + 4 us)  = 61.4 us
    silu(gate) * up   3 * 0.46 MB / 8 TB/s + 2.5 us                                  =  2.7 us

The constants fit FFNs of sixteen public models over 1 to 128 tokens to 7 % (standard deviation;
``benchmarks/choose.py``). They are shares of the rates in the device spec, so they scale with the device.
"""

from __future__ import annotations

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.matmul.tilings import NAME as MATMUL
from interlace.kernels.matmul.tilings import count_weights, find_tensor, normalises

_STREAM = 0.971  # share of the memory rate at which a matmul over few rows reads its weights: 4.40 TB/s
_MATMUL = 0.873  # share of the matmul rate that a matmul over more rows reaches: 690 TFLOP/s
_MATMUL_US = 4.0  # additional time of a matmul: launch, first loads and last wave
_POINTWISE = 0.72  # share of the L2 rate, because activations are in the L2: 8 TB/s
_POINTWISE_US = 2.5


def predict_library_us(graph: Graph, device: DeviceSpec) -> float:
    """Return the predicted microseconds of one run of PyTorch's ops, replayed from a CUDA graph with cold weights.

    The model fuses a gate and its product into one kernel, as ``kernels/gated`` and torch.compile do, and a bias into
    its matmul. Every other op is one kernel, and so is a norm that a matmul op includes.
    """
    return sum(_predict_op_us(graph, op, device) for op in graph.ops)


def _predict_op_us(graph: Graph, op: Op, device: DeviceSpec) -> float:
    memory, cache = device.dram_bytes_per_s, device.sms * device.sm_l2_bytes_per_s
    if op.kernel != MATMUL:
        moved = sum(graph.tensor(access.tensor).nbytes for access in (*op.reads, *op.writes))
        return _predict_row_us(moved, memory)
    m, n, k = (int(op.param(name)) for name in ("M", "N", "K"))
    dtype = graph.tensor(op.writes[0].tensor).dtype
    stream = n * k * dtype.itemsize / (_STREAM * memory)
    multiply = 2 * m * n * k / (_MATMUL * device.flops_per_s(dtype))
    us = count_weights(op) * (max(stream, multiply) * 1e6 + _MATMUL_US)
    if normalises(op):  # PyTorch runs the norm as a kernel: it reads x and the gain and writes the normalised x
        us += _predict_row_us((2 * m + 1) * k * dtype.itemsize, memory)
    passes = 3 if count_weights(op) == 2 else 2 if op.param("ACTIVATION") != "none" else 0
    for tensors in (passes, 3 if find_tensor(op, "residual") else 0):
        if tensors:
            us += tensors * m * n * dtype.itemsize / (_POINTWISE * cache) * 1e6 + _POINTWISE_US
    return us


def _predict_row_us(moved: int, memory: float) -> float:
    """Return the microseconds of a kernel that reads and writes so many bytes row by row."""
    return moved / (_STREAM * memory) * 1e6 + _POINTWISE_US
