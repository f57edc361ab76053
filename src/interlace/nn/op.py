"""Feed-forward network as a PyTorch operator: a megakernel on Hopper GPUs where faster, otherwise PyTorch's own ops."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value

from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import ArgumentError
from interlace.deploy import (
    Choice,
    avoid_resident_workers,
    choose_launch_rows,
    select_executor,
    select_schedule,
)
from interlace.executors import DeviceExecutor
from interlace.executors.gpu import find_spec
from interlace.kernels.matmul import Activation
from interlace.kernels.row_tiles import select_tile_rows
from interlace.megakernel.capture import get_capture_id
from interlace.megakernel.options import RunOptions
from interlace.nn.choice import MAX_NORM_TOKENS, choose_ffn
from interlace.nn.devices import device_fallback_reason
from interlace.nn.instances import Instance, Instances, Key, Tensors
from interlace.nn.plain import apply_in_layer, run_fused, run_plain
from interlace.plan.verify import Proof
from interlace.planner.proof_cache import prove_schedule
from interlace.workloads.ffn import FFNShape, has_norm_op
from interlace.workloads.ffn import ffn as ffn_graph

#: Dtypes that the megakernel multiplies.
_DTYPES = {getattr(torch, known.torch): known for known in DTYPES if known.on_tensor_cores}
_MAX_EPSILON = torch.finfo(torch.float32).max  # upper bound of an epsilon: the mean square is in float32


class FallbackWarning(UserWarning):
    """Warning that an FFN runs as plain PyTorch, with the reason. Issued once per process and reason."""


def ffn(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    activation: Activation,
    w_gate: torch.Tensor | None = None,
    b_up: torch.Tensor | None = None,
    b_down: torch.Tensor | None = None,
    w_norm: torch.Tensor | None = None,
    norm: float | None = None,
) -> torch.Tensor:
    """Compute ``down(activation(up(x)))``, or with a gate ``down(silu(gate(x)) * up(x))``.

    With a norm, compute ``x + ffn(rms_norm(x))``. The megakernel includes norm and residual for up to
    ``choose_ffn.MOST_WHOLE`` tokens where that is faster. Otherwise PyTorch's ops compute them, around whatever runs
    the FFN.

    On a Hopper GPU the FFN runs as a megakernel where ``deploy.choose`` expects that to be faster than PyTorch's own
    ops. It requires that gradients are off, that the dtype is bf16 or fp16, that the widths are multiples of 8 and
    that the weights are contiguous. Otherwise PyTorch's ops run, with a ``FallbackWarning``. When torch.compile traces
    a call that PyTorch's ops will run, it traces these ops.

    Args:
        x: (..., hidden).
        w_up, w_gate: (ffn, hidden).
        w_down: (hidden, ffn).
        activation: activation function; SILU with a gate.
        b_up, b_down: (ffn,) and (hidden,), both or neither; neither with a gate.
        w_norm: (hidden,), weight of an RMS norm before the FFN; requires ``norm``.
        norm: epsilon that the RMS norm adds to the mean square; requires ``w_norm``.

    Returns:
        A new contiguous tensor of the shape and dtype of x.

    Raises:
        GraphError, ShapeError, DTypeError: tensors that do not match, on a Hopper GPU; elsewhere PyTorch raises its
            own errors.
        ArgumentError: only one of ``w_norm`` and ``norm`` is given, or ``norm`` is not a small number >= 0.
        HangError: the watchdog ended an earlier run.
        LaunchEndedError: an earlier run ended itself, and with it the CUDA context.
    """
    norm = check_norm("ffn", w_norm, norm)
    tensors = (x, w_up, w_gate, w_down, b_up, b_down, w_norm)
    given = (*tensors[:-1], activation.value, w_norm, norm)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        _warn("gradients are wanted; call it under torch.inference_mode() or torch.no_grad()")
        return run_plain(*given)
    if torch.is_autocast_enabled(x.device.type):
        _warn("autocast is on; cast the module instead, as in module.to(torch.bfloat16)")
        return run_plain(*given)
    if torch.compiler.is_compiling():  # otherwise the operator decides
        traced = _is_traced(x, w_up, activation, w_gate is not None, b_up is not None, norm)
        if w_norm is not None and (traced or _count_tokens(x) > MAX_NORM_TOKENS):
            return apply_in_layer(x, w_norm, norm, lambda h: ffn(h, w_up, w_down, activation, w_gate, b_up, b_down))
        if traced:
            return run_plain(*given)
    out: torch.Tensor = torch.ops.interlace.ffn.default(*given)
    return out


def check_norm(where: str, w_norm: torch.Tensor | None, norm: float | None) -> float | None:
    """Return the epsilon of an RMS norm as a float, after checking it.

    Raises:
        ArgumentError: only one of ``w_norm`` and ``norm`` is given, or ``norm`` is not a small number >= 0.
    """
    if (w_norm is None) != (norm is None):
        raise ArgumentError(f"{where}: give w_norm and norm, such as 1e-5, or neither")
    if norm is None:
        return None
    number = isinstance(norm, (int, float)) and not isinstance(norm, bool)
    if number and not has_static_value(norm):  # traced
        return norm
    if not number or not 0 <= norm < _MAX_EPSILON:
        raise ArgumentError(f"{where}: norm is {norm!r}; give what it adds to the mean square, such as 1e-5")
    return float(norm)


def _is_traced(
    x: torch.Tensor, w_up: torch.Tensor, activation: Activation, gated: bool, bias: bool, norm: float | None
) -> bool:
    """Return True if PyTorch's ops will run in any case, so that torch.compile should trace and fuse them."""
    if not all(has_static_value(value) for value in (*w_up.shape, 0.0 if norm is None else norm)):
        return False
    runs: bool = _is_plain(
        x.device, x.dtype, w_up.shape[1], w_up.shape[0], activation.value, gated, bias, norm, _count_tokens(x)
    )
    return runs


def _count_tokens(x: torch.Tensor) -> int:
    """Return the number of rows of x; -1 if it is symbolic."""
    tokens = 1
    for extent in x.shape[:-1]:
        tokens = tokens * extent if tokens >= 0 and has_static_value(extent) else -1
    return tokens


@torch.compiler.assume_constant_result
def _is_plain(
    device: torch.device,
    dtype: torch.dtype,
    hidden: int,
    width: int,
    activation: str,
    gated: bool,
    bias: bool,
    norm: float | None,
    tokens: int,
) -> bool:
    """Return True if PyTorch's ops will run; ``tokens`` is negative if the number is symbolic."""
    reason = _static_fallback_reason(device, dtype, hidden, width)
    if reason is not None:
        _warn(reason)
        return True
    shape = _build_shape(hidden, width, activation, gated, norm)
    return tokens == 0 or (tokens > 0 and choose_ffn(device, shape, _DTYPES[dtype], bias, tokens).executor is None)


# Defined with the low-level API: an operator of ``torch.library.custom_op`` costs 10 to 30 us on the host per call.
torch.library.define(
    "interlace::ffn",
    "(Tensor x, Tensor w_up, Tensor? w_gate, Tensor w_down, Tensor? b_up, Tensor? b_down, str activation, "
    "Tensor? w_norm=None, float? norm=None) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("interlace::ffn", "CompositeExplicitAutograd")
def _run_ffn(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_gate: torch.Tensor | None,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None,
    b_down: torch.Tensor | None,
    activation: str,
    w_norm: torch.Tensor | None = None,
    norm: float | None = None,
) -> torch.Tensor:
    rows = (x if x.dim() == 2 else x.reshape(-1, x.shape[-1])).contiguous()
    weights = {"w_up": w_up, "w_gate": w_gate, "w_down": w_down, "b_up": b_up, "b_down": b_down, "w_norm": w_norm}
    tensors = {"x": rows} | {name: tensor for name, tensor in weights.items() if tensor is not None}
    reason = fallback_reason(tensors)
    if reason is not None:
        _warn(reason)
    elif rows.shape[0]:
        shape = _find_shape(tensors, activation, norm)
        apart = w_norm is not None and rows.shape[0] > MAX_NORM_TOKENS
        if not apart and choose_for_tensors(tensors, shape, rows.shape[0]).executor is not None:
            out = _launch(tensors, shape)
            return out if x.dim() == 2 else out.view(x.shape)
    if w_norm is not None:
        alone = w_up, w_gate, w_down, b_up, b_down, activation
        return apply_in_layer(x, w_norm, norm, lambda h: torch.ops.interlace.ffn.default(h, *alone))
    return run_fused(x, w_up, w_gate, w_down, b_up, b_down, activation).contiguous()


@torch.library.register_fake("interlace::ffn")
def _(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_gate: torch.Tensor | None,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None,
    b_down: torch.Tensor | None,
    activation: str,
    w_norm: torch.Tensor | None = None,
    norm: float | None = None,
) -> torch.Tensor:
    return x.new_empty(x.shape)


def fallback_reason(tensors: Tensors) -> str | None:
    """Return the reason why no launch can run an FFN on these tensors, or None if one can."""
    x = tensors["x"]
    ffn, hidden = tensors["w_up"].shape
    reason = _static_fallback_reason(x.device, x.dtype, hidden, ffn)
    if reason is None and not all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in tensors.values()):
        return "a tensor is not contiguous or not aligned to 16 bytes"
    return reason


def _static_fallback_reason(device: torch.device, dtype: torch.dtype, hidden: int, ffn: int) -> str | None:
    """Return the same reason, as far as it is known without tensors."""
    reason = device_fallback_reason(device)
    if reason is not None:
        return reason
    if dtype not in _DTYPES:
        return f"the dtype is {dtype}, the kernels take {' and '.join(str(known) for known in _DTYPES.values())}"
    if ffn % 8 or hidden % 8:
        return f"widths are {hidden} and {ffn}, the kernels take multiples of 8"
    return None


def choose_for_tensors(tensors: Tensors, shape: FFNShape, tokens: int) -> Choice:
    """Return what runs an FFN for a number of tokens; the tensors must have no ``fallback_reason``."""
    x = tensors["x"]
    return choose_ffn(x.device, shape, _DTYPES[x.dtype], "b_up" in tensors, tokens)


def _find_shape(tensors: Tensors, activation: str, norm: float | None) -> FFNShape:
    ffn, hidden = tensors["w_up"].shape
    return _build_shape(hidden, ffn, activation, "w_gate" in tensors, norm)


@lru_cache(1 << 10)
def _build_shape(hidden: int, ffn: int, activation: str, gated: bool, norm: float | None) -> FFNShape:
    return FFNShape(hidden, ffn, Activation(activation), gated, norm)


def _launch(tensors: dict[str, torch.Tensor], shape: FFNShape) -> torch.Tensor:
    """Run the FFN of x (m, hidden) as one launch on the current stream of x's device.

    The launch is built for more rows than x has. It does not load the missing rows, but writes all rows, so ``out`` has
    all of them. Intermediate tensors are allocated per call; otherwise every instance would own a copy.
    """
    x = tensors["x"]
    tokens = x.shape[0]
    rows = _find_launched_rows(x.device, shape, tokens)
    between, out = _allocate_intermediates(x, rows, shape), x.new_empty(rows, shape.hidden)
    with torch.cuda.device(x.device.index):  # PyTorch is slower with a torch.device
        stream = torch.cuda.current_stream(x.device.index).cuda_stream
        key = Key(x.device, stream, get_capture_id(), rows, shape, _DTYPES[x.dtype], "b_up" in tensors)
        _instances.run(key, {**tensors, **between, "out": out})
    return out if rows == tokens else out[:tokens]


def _allocate_intermediates(x: torch.Tensor, rows: int, shape: FFNShape) -> dict[str, torch.Tensor]:
    """Allocate the intermediate tensors of the graph."""
    between = {"hidden": x.new_empty(rows, shape.ffn)}
    if has_norm_op(rows, shape, _DTYPES[x.dtype]):  # up to MAX_NORM_TOKENS rows on every device, or none
        between["normed"] = x.new_empty(rows, shape.hidden)
    return between


@lru_cache(1 << 14)
def _find_launched_rows(device: torch.device, shape: FFNShape, tokens: int) -> int:
    return choose_launch_rows(tokens, shape, find_spec(str(device)))


def _make(key: Key, tensors: Tensors) -> Instance:
    device = str(key.device)
    executor, proof = _prove_launch(device, key.rows, key.shape, key.dtype, key.bias)
    options = RunOptions(device=device, dependent_launch=True, short_inputs=("x",))
    made = executor(proof, options)
    for launch in made.build_launches(tensors):
        launch.load()
    return made


@lru_cache(256)
def _prove_launch(
    device: str, rows: int, shape: FFNShape, dtype: DType, bias: bool
) -> tuple[type[DeviceExecutor], Proof]:
    """Return executor class and proof of the launch; computed once for all streams and captures."""
    spec = find_spec(device)
    graph = ffn_graph(rows, shape, dtype, bias=bias, norm_rows=select_tile_rows(rows, spec.sms), device=spec)
    executor = select_executor(graph, spec)
    schedule = select_schedule(graph, spec, executor)
    # Captured graphs may be replayed concurrently.
    proof = prove_schedule(graph, avoid_resident_workers(schedule, executor))
    return executor, executor.prove(proof)


_instances = Instances(_make)


def explain(tensors: Tensors, activation: Activation, tokens: int, norm: float | None = None) -> Choice:
    """Return what runs an FFN with these weights for a number of tokens, and why, without gradients and autocast.

    With a norm, the result is a launch that includes it, or otherwise what runs the FFN between PyTorch's norm and
    residual.

    Args:
        tensors: weights by name.
        norm: see ``ffn``.
    """
    reason = fallback_reason({"x": tensors["w_up"], **tensors})
    if reason is not None:
        return Choice(None, None, None, None, reason)
    given, shape = {"x": tensors["w_up"], **tensors}, _find_shape(tensors, activation.value, norm)
    whole = choose_for_tensors(given, shape, tokens)
    alone = whole if norm is None or whole.executor else choose_for_tensors(given, replace(shape, norm=None), tokens)
    return alone if alone.executor else whole


_warned: set[str] = set()


@torch.compiler.assume_constant_result
def _warn(reason: str) -> bool:
    """Warn once per reason; in a traced graph, warn during tracing and not in every call."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"this FFN runs as plain PyTorch: {reason}", FallbackWarning, stacklevel=3)
    return True
