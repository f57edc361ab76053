"""A feed-forward network as a PyTorch operator: one launch on a Hopper GPU, plain PyTorch elsewhere."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch.nn import functional

from interlace.core.dtypes import dtype
from interlace.deploy import deployment
from interlace.executors.gpu import spec_by_name
from interlace.executors.options import Options
from interlace.kernels.matmul import Activation
from interlace.nn.capture import capture_id
from interlace.nn.instances import Instance, Instances, Key, Tensors
from interlace.workloads.ffn import FFNShape
from interlace.workloads.ffn import ffn as ffn_graph

_DTYPES = {torch.bfloat16: dtype("bf16"), torch.float16: dtype("fp16")}


class FallbackWarning(UserWarning):
    """An FFN runs as plain PyTorch; the text says why. Given once per process and reason."""


def ffn(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    activation: Activation,
    w_gate: torch.Tensor | None = None,
    b_up: torch.Tensor | None = None,
    b_down: torch.Tensor | None = None,
) -> torch.Tensor:
    """``down(activation(up(x)))``, or with a gate ``down(silu(gate(x)) * up(x))``.

    On a Hopper GPU one launch, if no gradient is wanted, the dtype is bf16 or fp16, widths are multiples of 16 and
    weights contiguous; otherwise plain PyTorch, with a ``FallbackWarning``.

    Args:
        x: (..., hidden).
        w_up, w_gate: (ffn, hidden).
        w_down: (hidden, ffn).
        activation: SILU with a gate.
        b_up, b_down: (ffn,) and (hidden,), both or neither; neither with a gate.

    Returns:
        A new contiguous tensor of the shape and dtype of x.

    Raises:
        GraphError, ShapeError, DTypeError: tensors that do not fit together, on a Hopper GPU; elsewhere PyTorch's
            own errors.
        HangError: an earlier run ended by the watchdog.
    """
    tensors = (x, w_up, w_gate, w_down, b_up, b_down)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        _warn("gradients are wanted; call it under torch.inference_mode() or torch.no_grad()")
        return _plain(*tensors, activation.value)
    if torch.is_autocast_enabled(x.device.type):
        _warn("autocast is on; cast the module instead, as in module.to(torch.bfloat16)")
        return _plain(*tensors, activation.value)
    out: torch.Tensor = _ffn(*tensors, activation.value)
    return out


@torch.library.custom_op(
    "interlace::ffn",
    mutates_args=(),
    schema="(Tensor x, Tensor w_up, Tensor? w_gate, Tensor w_down, Tensor? b_up, Tensor? b_down, str activation)"
    " -> Tensor",
)
def _ffn(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_gate: torch.Tensor | None,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None,
    b_down: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    given = {"x": rows, "w_up": w_up, "w_gate": w_gate, "w_down": w_down, "b_up": b_up, "b_down": b_down}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    reason = obstacle(tensors)
    if reason is None and len(rows):
        return _launch(tensors, Activation(activation)).view(x.shape)
    if reason is not None:
        _warn(reason)
    return _plain(x, w_up, w_gate, w_down, b_up, b_down, activation).contiguous()


@_ffn.register_fake
def _(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_gate: torch.Tensor | None,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None,
    b_down: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    return x.new_empty(x.shape)


def obstacle(tensors: Tensors) -> str | None:
    """Why the Hopper executor cannot take an FFN's tensors, or None if it can."""
    x = tensors["x"]
    if x.device.type != "cuda" or torch.version.cuda is None:
        return f"tensors are on a device of type {x.device.type!r}, the kernels are for NVIDIA GPUs"
    capability = torch.cuda.get_device_capability(x.device)
    if capability != (9, 0):
        return "the GPU has compute capability {}.{}, the kernels are for 9.0 (Hopper)".format(*capability)
    if not _has_triton():
        return "triton is missing; `pip install 'interlace[gpu]'`"
    if x.dtype not in _DTYPES:
        return f"the dtype is {x.dtype}, the kernels take bf16 and fp16"
    ffn, hidden = tensors["w_up"].shape
    if ffn % 16 or hidden % 16:
        return f"widths are {hidden} and {ffn}, the kernels take multiples of 16"
    if not all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in tensors.values()):
        return "a tensor is not contiguous or not aligned to 16 bytes"
    return None


def _launch(tensors: dict[str, torch.Tensor], activation: Activation) -> torch.Tensor:
    """The FFN of x (m, hidden), by the Hopper executor, on the current stream of x's device."""
    x, w_up = tensors["x"], tensors["w_up"]
    shape = FFNShape(x.shape[1], w_up.shape[0], activation, "w_gate" in tensors)
    out = torch.empty_like(x)
    with torch.cuda.device(x.device):
        stream = torch.cuda.current_stream().cuda_stream
        key = Key(x.device, stream, capture_id(), x.shape[0], shape, _DTYPES[x.dtype], "b_up" in tensors)
        _instances.run(key, {**tensors, "out": out})
    return out


def _make(key: Key, tensors: Tensors) -> Instance:
    device = str(key.device)
    chosen = deployment(ffn_graph(key.m, key.shape, key.dtype, bias=key.bias), spec_by_name(device))
    executor = chosen.make(chosen.setting(), Options(device=device, dependent_launch=True))
    for launch in executor.launches(tensors):
        launch.load()
    return executor


_instances = Instances(_make)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _plain(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_gate: torch.Tensor | None,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None,
    b_down: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    up = functional.linear(x, w_up, b_up)
    if w_gate is not None:
        hidden = functional.silu(functional.linear(x, w_gate)) * up
    elif activation == "relu":
        hidden = functional.relu(up)
    elif activation == "gelu-tanh":
        hidden = functional.gelu(up, approximate="tanh")
    elif activation == "silu":
        hidden = functional.silu(up)
    else:
        hidden = up
    return functional.linear(hidden, w_down, b_down)


_warned: set[str] = set()


@torch.compiler.assume_constant_result
def _warn(reason: str) -> bool:
    """Warn unless this reason was given before; while a graph is traced, then and not in every call."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"this FFN runs as plain PyTorch: {reason}", FallbackWarning, stacklevel=3)
    return True
