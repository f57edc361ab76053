"""Modules that replace a model's feed-forward networks."""

from __future__ import annotations

import torch
from torch import nn

from interlace.core.arguments import check_int, check_type
from interlace.core.errors import ArgumentError, DTypeError, GraphError, ShapeError
from interlace.deploy import Choice
from interlace.kernels.matmul import Activation
from interlace.nn.hooks import list_hooks
from interlace.nn.op import check_norm, explain, ffn

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


#: Classes of transformers that compute ``nn.functional.rms_norm``, as torch's own does. Gemma's adds 1 to its weight.
_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


class _Network(nn.Module):
    """Base class of the modules: explains what runs them, and prepares it."""

    w_up: nn.Parameter
    w_norm: nn.Parameter | None
    norm: float | None
    activation: Activation

    def _set_norm(self, w_norm: nn.Parameter | None, norm: float | None) -> None:
        self.norm = check_norm(type(self).__name__, w_norm, norm)
        self.register_parameter("w_norm", w_norm)

    @property
    def _norm_repr(self) -> str:
        return "" if self.norm is None else f", norm={self.norm:g}"

    def explain(self, tokens: int) -> Choice:
        """Return what runs the network for a number of tokens, and why: the megakernel or PyTorch's own ops.

        The result holds for calls without gradients. Print it, or read ``executor`` (None for PyTorch's ops),
        ``launch_us``, ``predict_library_us`` and ``why``.

        Raises:
            ArgumentError: ``tokens`` is not a positive number.
        """
        weights = {name: weight.detach() for name, weight in self.named_parameters(recurse=False)}
        return explain(weights, self.activation, _check_positive(tokens, "explain"), self.norm)

    def prepare(self, *tokens: int) -> None:
        """Compile ahead what calls with these numbers of tokens need on the current stream, by calls on zeros.

        The first launch for a number of rows (``deploy.choose_launch_rows``) takes seconds to compile. Other numbers of
        tokens that share this launch, other networks of this shape, and graphs captured later compile nothing.

        Raises:
            ArgumentError: an entry of ``tokens`` is not a positive number.
        """
        for count in tokens:
            extents = (_check_positive(count, "prepare"), self.w_up.shape[1])
            with torch.inference_mode():
                self(torch.zeros(extents, dtype=self.w_up.dtype, device=self.w_up.device))


def _check_positive(tokens: int, where: str) -> int:
    tokens = check_int(tokens, where, "tokens")
    if tokens <= 0:
        raise ArgumentError(f"{where}: tokens is {tokens}; give a positive number")
    return tokens


class FFN(_Network):
    """Feed-forward network ``down(activation(up(x)))``, optionally with RMS norm and residual.

    With a norm it computes ``x + down(activation(up(rms_norm(x))))``.

    Args:
        w_up: (ffn, hidden).
        w_down: (hidden, ffn).
        activation: pointwise function between the two products.
        b_up, b_down: (ffn,) and (hidden,), both or neither.
        w_norm: (hidden,), weight of the RMS norm; requires ``norm``.
        norm: epsilon that the RMS norm adds to the mean square; requires ``w_norm``.

    Raises:
        ArgumentError: only one of ``w_norm`` and ``norm`` is given, or ``norm`` is not a small number >= 0.
    """

    b_up: nn.Parameter | None
    b_down: nn.Parameter | None

    def __init__(
        self,
        w_up: nn.Parameter,
        w_down: nn.Parameter,
        activation: Activation,
        b_up: nn.Parameter | None = None,
        b_down: nn.Parameter | None = None,
        w_norm: nn.Parameter | None = None,
        norm: float | None = None,
    ) -> None:
        super().__init__()
        self.w_up, self.w_down, self.activation = w_up, w_down, activation
        self.register_parameter("b_up", b_up)
        self.register_parameter("b_down", b_down)
        self._set_norm(w_norm, norm)

    @classmethod
    def from_linears(
        cls, up: nn.Linear, down: nn.Linear, activation: Activation | str, norm: nn.Module | None = None
    ) -> FFN:
        """Build the module on the parameters of two linears; only non-contiguous weights are copied.

        Args:
            up: linear from hidden to ffn.
            down: linear from ffn to hidden; it has a bias if and only if ``up`` has one.
            activation: activation or its name: "relu", "gelu-tanh" or "silu".
            norm: RMS norm of width hidden; with it the module computes ``x + ffn(norm(x))``.

        Raises:
            GraphError: an unknown activation, a bias on one side only, a norm of another kind or without eps, linears
                on different devices or without data, or anything that the module would drop: another class, hooks, or
                parts other than weight and bias.
            ShapeError, DTypeError: linears that do not match, or that have quantised weights.
        """
        _check({"up": up, "down": down})
        normed = _extract_norm(norm, up.weight)
        if (up.bias is None) != (down.bias is None):
            raise GraphError(
                f"up has {_describe_bias(up)}, down has {_describe_bias(down)}; give both a bias (zeros will do) or "
                "neither"
            )
        try:
            activation = Activation(activation)
        except ValueError:
            names = ", ".join(repr(known.value) for known in Activation)
            raise GraphError(f"unknown activation {activation!r}; it must be one of {names}") from None
        module = cls(
            _make_contiguous(up.weight), _make_contiguous(down.weight), activation, up.bias, down.bias, *normed
        )
        return module.train(up.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network to x (..., hidden); return a new tensor (..., hidden). See ``interlace.nn.op.ffn``.

        Raises:
            ShapeError, DTypeError: the width or dtype of x differs from that of the weights.
        """
        _check_input(x, self.w_up)
        return ffn(x, self.w_up, self.w_down, self.activation, None, self.b_up, self.b_down, self.w_norm, self.norm)

    def extra_repr(self) -> str:
        widths = f"hidden={self.w_up.shape[1]}, ffn={self.w_up.shape[0]}"
        return f"{widths}, {self.activation.value}, bias={self.b_up is not None}{self._norm_repr}"


class SwiGLU(_Network):
    """Gated feed-forward network ``down(silu(gate(x)) * up(x))``, optionally with RMS norm and residual.

    With a norm it computes ``x + down(silu(gate(h)) * up(h))``, where ``h = rms_norm(x)``.

    Args:
        w_gate, w_up: (ffn, hidden).
        w_down: (hidden, ffn).
        w_norm: (hidden,), weight of the RMS norm; requires ``norm``.
        norm: epsilon that the RMS norm adds to the mean square; requires ``w_norm``.

    Raises:
        ArgumentError: only one of ``w_norm`` and ``norm`` is given, or ``norm`` is not a small number >= 0.
    """

    def __init__(
        self,
        w_gate: nn.Parameter,
        w_up: nn.Parameter,
        w_down: nn.Parameter,
        w_norm: nn.Parameter | None = None,
        norm: float | None = None,
    ) -> None:
        super().__init__()
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down
        self.activation = Activation.SILU
        self._set_norm(w_norm, norm)

    @classmethod
    def from_linears(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear, norm: nn.Module | None = None) -> SwiGLU:
        """Build the module on the parameters of three linears; only non-contiguous weights are copied.

        Args:
            gate, up: linears from hidden to ffn, without bias.
            down: linear from ffn to hidden, without bias.
            norm: RMS norm of width hidden; with it the module computes ``x + ffn(norm(x))``.

        Raises:
            GraphError: a bias, a norm of another kind or without eps, linears on different devices or without data, or
                anything that the module would drop: another class, hooks, or parts other than weight and bias.
            ShapeError, DTypeError: linears that do not match, or that have quantised weights.
        """
        linears = {"gate": gate, "up": up, "down": down}
        _check(linears)
        for name, linear in linears.items():
            if linear.bias is not None:
                raise GraphError(f"{name} has a bias; a gated FFN takes linears with bias=False")
        w_gate, w_up, w_down = (_make_contiguous(linear.weight) for linear in linears.values())
        return cls(w_gate, w_up, w_down, *_extract_norm(norm, up.weight)).train(up.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network to x (..., hidden); return a new tensor (..., hidden). See ``interlace.nn.op.ffn``.

        Raises:
            ShapeError, DTypeError: the width or dtype of x differs from that of the weights.
        """
        _check_input(x, self.w_up)
        return ffn(x, self.w_up, self.w_down, self.activation, self.w_gate, w_norm=self.w_norm, norm=self.norm)

    def extra_repr(self) -> str:
        return f"hidden={self.w_up.shape[1]}, ffn={self.w_up.shape[0]}{self._norm_repr}"


def _check(linears: dict[str, nn.Linear]) -> None:
    """Check that these are plain linears that match each other; "up" and "down" must be included."""
    for name, linear in linears.items():
        _check_plain(name, linear)
    up = linears["up"].weight
    wanted = dict.fromkeys(linears, up.shape) | {"down": up.shape[::-1]}
    for name, linear in linears.items():
        weight = linear.weight
        if weight.shape != wanted[name]:
            raise ShapeError(
                f"{name} has a weight of shape {tuple(weight.shape)}, next to up with {tuple(up.shape)} it must be "
                f"{tuple(wanted[name])}; are the linears in the right order?"
            )
        if linear.bias is not None and linear.bias.shape != weight.shape[:1]:
            raise ShapeError(
                f"{name} has a bias of shape {tuple(linear.bias.shape)}; in addition to its weight it must be "
                f"({weight.shape[0]},)"
            )
        for what, tensor in ((name, weight), (f"the bias of {name}", linear.bias)):
            if tensor is not None and tensor.dtype != up.dtype:
                raise DTypeError(f"{what} is {tensor.dtype}, up is {up.dtype}; cast them to one dtype")
            if tensor is not None and tensor.device != up.device:
                raise GraphError(f"{what} is on {tensor.device}, up is on {up.device}; move them to one device")
    if up.dtype not in _DTYPES:
        raise DTypeError(f"the linears are {up.dtype}; cast or dequantise them to bf16, fp16, fp32 or fp64")
    if up.device.type == "meta":
        raise GraphError("the linears have no data, they are on the device 'meta'; load their weights first")


def _extract_norm(norm: nn.Module | None, up: torch.Tensor) -> tuple[nn.Parameter | None, float | None]:
    """Return weight and epsilon of the RMS norm before a network with this up-projection."""
    if norm is None:
        return None, None
    check_type(norm, nn.Module, "from_linears", "norm", "nn.RMSNorm(hidden, eps=1e-5)")
    kind = type(norm)
    known = kind is nn.RMSNorm or (kind.__name__ in _NORMS and kind.__module__.startswith("transformers."))
    if not known or "forward" in vars(norm):
        own = " with a forward of its own" if known else ""
        raise GraphError(
            f"norm is a {kind.__module__}.{kind.__name__}{own}; it must be torch's RMSNorm, or one of transformers': "
            f"{', '.join(_NORMS)}"
        )
    if norm.weight is None:
        raise GraphError("norm has no weight; make it with elementwise_affine=True")
    _check_parts("norm", norm, ("weight",))
    weight, eps = norm.weight, getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    assert isinstance(weight, nn.Parameter)
    if eps is None:
        raise GraphError("norm has eps None, of which dtypes and versions of PyTorch make unlike numbers; give it one")
    if weight.shape != up.shape[1:]:
        raise ShapeError(
            f"norm has a weight of shape {tuple(weight.shape)}; next to up with {tuple(up.shape)} it must be "
            f"({up.shape[1]},)"
        )
    if weight.dtype != up.dtype:
        raise DTypeError(f"norm is {weight.dtype}, up is {up.dtype}; cast them to one dtype")
    if weight.device != up.device:
        raise GraphError(f"norm is on {weight.device}, up is on {up.device}; move them to one device")
    return _make_contiguous(weight), eps


def _check_plain(name: str, linear: nn.Linear) -> None:
    """Check that a linear has only a weight and perhaps a bias, and nothing that the new module would drop."""
    # A subclass or a wrapper may compute something else; parametrisations create a subclass.
    if type(linear) is not nn.Linear or "forward" in vars(linear):
        kind = type(linear).__name__ + (" with a forward of its own" if type(linear) is nn.Linear else "")
        raise GraphError(
            f"{name} is a {kind}, which may compute more than nn.Linear; "
            "merge adapters and remove parametrisations first, or leave this network as it is"
        )
    _check_parts(name, linear, ("weight", "bias"))
    hooked = linear.weight._backward_hooks or getattr(linear.weight, "_post_accumulate_grad_hooks", None)
    if hooked and not linear.weight.is_contiguous():
        raise GraphError(
            f"the weight of {name} has hooks and is not contiguous, so the new module would take a copy without them; "
            "make it contiguous first"
        )


def _check_parts(name: str, module: nn.Module, taken: tuple[str, ...]) -> None:
    """Check that a module's used parts are plain parameters, and that it has no others that would be dropped."""
    hooks = list_hooks(module)
    if hooks:
        raise GraphError(
            f"{name} has {' and '.join(hooks)}, which the new module would drop; remove them, or put them on the new "
            "module"
        )
    parts = {**module._parameters, **module._buffers, **module._modules}
    more = [part for part in parts if part not in taken]
    if more:
        raise GraphError(
            f"{name} holds {', '.join(more)} in addition to its {' and '.join(taken)}, which the new module would "
            "drop; merge adapters first, or leave this network as it is"
        )
    for part in taken:
        tensor = getattr(module, part)
        if type(tensor) is not nn.Parameter and not (part == "bias" and tensor is None):
            raise GraphError(
                f"the {part} of {name} is a {type(tensor).__name__}, not a plain nn.Parameter; dequantise or gather "
                "it, and remove pruning and old-style normalisation first"
            )


def _check_input(x: torch.Tensor, weight: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor):
        raise DTypeError(f"x is a {type(x).__name__}; pass a tensor of torch")
    if not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"x has shape {tuple(x.shape)}; its last extent must be hidden = {weight.shape[1]}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise DTypeError(f"x is {x.dtype}, the weights are {weight.dtype}; cast either of them")


def _make_contiguous(weight: torch.Tensor) -> nn.Parameter:
    if isinstance(weight, nn.Parameter) and weight.is_contiguous():
        return weight
    return nn.Parameter(weight.detach().contiguous(), weight.requires_grad)


def _describe_bias(linear: nn.Linear) -> str:
    return "no bias" if linear.bias is None else "a bias"
