"""FFN in PyTorch's own ops, as the operator runs it and as torch.compile traces it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch.nn import functional

from interlace.megakernel.capture import run_outside_capture

_TRITON = (8, 0)  # compute capability from which Triton compiles


def run_plain(
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
    """Compute the FFN as a user would write it, with RMS norm and residual if ``w_norm`` is given."""
    if w_norm is not None:
        return apply_in_layer(x, w_norm, norm, lambda h: run_plain(h, w_up, w_gate, w_down, b_up, b_down, activation))
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


def apply_in_layer(
    x: torch.Tensor, w_norm: torch.Tensor, norm: float | None, network: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return ``x + network(rms_norm(x))`` as a new contiguous tensor."""
    return (x + network(functional.rms_norm(x, x.shape[-1:], w_norm, norm))).contiguous()


def run_fused(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_gate: torch.Tensor | None,
    w_down: torch.Tensor,
    b_up: torch.Tensor | None,
    b_down: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """Compute the FFN with a fused gate kernel where possible; save nothing for gradients."""
    if w_gate is None or not _can_fuse(x, w_up):
        return run_plain(x, w_up, w_gate, w_down, b_up, b_down, activation)
    from interlace.kernels.gated import silu_and_mul

    _load_gate(x.device, x.dtype)
    gate, up = functional.linear(x, w_gate), functional.linear(x, w_up)
    with torch.cuda.device(x.device):
        return functional.linear(silu_and_mul(gate, up), w_down)


def _can_fuse(x: torch.Tensor, w_up: torch.Tensor) -> bool:
    if x.device.type != "cuda" or torch.version.cuda is None or not has_triton():
        return False
    from interlace.kernels.gated import MULTIPLE

    # The kernel computes in float32, and would lose precision with wider elements.
    narrow = x.is_floating_point() and x.element_size() == 2
    whole = w_up.shape[0] % MULTIPLE == 0 and x.numel() > 0
    return narrow and whole and torch.cuda.get_device_capability(x.device) >= _TRITON


@cache
def _load_gate(device: torch.device, dtype: torch.dtype) -> None:
    """Compile and load the gate's kernel outside any capture in progress, which would forbid it."""
    from interlace.kernels.gated import MULTIPLE, silu_and_mul

    def run() -> None:
        silu_and_mul(*(torch.zeros(MULTIPLE, dtype=dtype, device=device) for _ in range(2)))

    run_outside_capture(device, run)


@cache
def has_triton() -> bool:
    """Return True if Triton is installed."""
    return find_spec("triton") is not None
