"""A network for images: its layers run as megakernels where that is faster, and otherwise by PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from interlace.core.arguments import check_type, format_value
from interlace.core.errors import ArgumentError, GraphError, ShapeError
from interlace.megakernel.capture import get_capture_id, run_outside_capture
from interlace.nn.convnet import runs
from interlace.nn.convnet.runs import NetworkRun
from interlace.nn.convnet.trace import trace_network
from interlace.nn.devices import device_fallback_reason
from interlace.nn.op import FallbackWarning

_MAX_SHAPES = 32  # input shapes whose launches are kept outside captures


class _Images(NamedTuple):
    """Properties of images that launches are built for."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_channels_last: bool


class _Key(NamedTuple):
    """Images that launches are built for, and the calls that may run them."""

    images: _Images
    stream: int
    capture: int


class ConvNet(nn.Module):
    """A network for images at inference, such as a ResNet or a VGG.

    The first call for a shape, layout, dtype, device and stream traces the network, folds batch norms, builds a launch
    of layers that follow one another, times it against PyTorch's ops, and takes the faster. It does so with pooling and
    linear layers in the launches and without, and times both against ``library``. This takes seconds; call ``prepare``
    before a capture. Later calls run what was chosen. ``explain`` says what that is. Launches are kept for the 32 input
    shapes used last, and for captured graphs.

    Weights are copied at that time: after they change, make a new ConvNet. A launch waits for its own blocks on all
    SMs, so let nothing that runs at the same time wait for this network.

    Args:
        model: network in evaluation mode, with bf16 or fp16 weights on a Hopper GPU; elsewhere PyTorch runs all of it,
            with a ``FallbackWarning`` once for each reason.
        library: function that computes the same, such as ``torch.compile(model)``; by default the model itself. It runs
            where it is faster.

    Raises:
        ArgumentError: a model that is no module, or a library that is no function.
    """

    def __init__(self, model: nn.Module, library: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        check_type(model, nn.Module, "ConvNet", "model")
        if library is not None and not callable(library):
            raise ArgumentError(f"ConvNet: library is {library!r}; pass a function of images, or leave it out")
        self.model = model
        self._library = [model if library is None else library]  # in a list, or its parameters would count twice
        self._prepared: dict[_Key, NetworkRun] = {}
        self._recent: dict[_Images, None] = {}  # the most recently used last
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles keep: launches are made anew."""
        return {**self.__dict__, "_prepared": {}, "_recent": {}}

    @classmethod
    def from_model(cls, model: nn.Module, library: Callable[[torch.Tensor], torch.Tensor] | None = None) -> ConvNet:
        """Return the network of a model; see the class."""
        return cls(model, library)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's result for images (images, channels, H, W).

        Raises:
            GraphError: the model is in training mode or cannot be traced, or ``prepare`` did not come before a capture.
            ShapeError: x is no batch of images.
            ArgumentError: x is no tensor.
        """
        reason = self._explain_fallback(x)
        if reason is not None:
            if reason not in self._warned:
                self._warned.add(reason)
                warnings.warn(f"this network runs as plain PyTorch: {reason}", FallbackWarning, stacklevel=2)
            result: torch.Tensor = self.model(x)
            return result
        prepared = self._prepare(x)
        return self._library[0](x) if prepared.is_library_faster else prepared.run(x)

    def prepare(self, x: torch.Tensor) -> None:
        """Trace, compile and time what calls with such images on the current stream need.

        Raises:
            ArgumentError, GraphError, ShapeError: see ``forward``.
        """
        if self._explain_fallback(x) is None:
            self._prepare(x)

    def explain(self, x: torch.Tensor) -> str:
        """Return what runs each part of the network for such images, one part a line.

        Raises:
            ArgumentError, GraphError, ShapeError: see ``forward``.
        """
        reason = self._explain_fallback(x)
        if reason is not None:
            return f"all layers: PyTorch; {reason}"
        trace, parts, parts_us, library_us = prepared = self._prepare(x)
        layers = trace.list_library_layers()
        lines = [str(parts[segment]) for segment in trace.segments]
        if parts_us is not None and library_us is not None:
            runner = "the library" if prepared.is_library_faster else "these parts"
            lines.insert(0, f"all: {runner}; the parts take {parts_us:.1f} us, the library {library_us:.1f} us")
        return "\n".join([*lines, f"by PyTorch: {', '.join(layers)}" if layers else "no layer by PyTorch"])

    def _explain_fallback(self, x: torch.Tensor) -> str | None:
        """Return why PyTorch runs the whole network, or None."""
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"ConvNet: x is {format_value(x)}; pass a tensor (images, channels, H, W)")
        if x.dim() != 4:
            raise ShapeError(f"ConvNet: x has shape {tuple(x.shape)}; pass (images, channels, H, W)")
        if torch.is_grad_enabled() and any(p.requires_grad for p in (x, *self.model.parameters())):
            return "gradients are wanted; call it under torch.inference_mode() or torch.no_grad()"
        if torch.is_autocast_enabled(x.device.type):
            return "autocast is on; cast the module instead, as in module.to(torch.bfloat16)"
        if not x.numel():
            return f"images of shape {tuple(x.shape)} are empty"
        reason = device_fallback_reason(x.device)
        if reason is None and x.dtype not in runs.IMAGE_DTYPES:
            return f"the dtype is {x.dtype}, the kernels take {' and '.join(map(str, runs.IMAGE_DTYPES.values()))}"
        return reason

    def _prepare(self, x: torch.Tensor) -> NetworkRun:
        is_channels_last = x.is_contiguous(memory_format=torch.channels_last) or not x.is_contiguous()
        key = _Key(_Images(tuple(x.shape), x.dtype, x.device, is_channels_last), *_get_stream(x.device))
        if key not in self._prepared:
            known = next((each for other, each in self._prepared.items() if other.images == key.images), None)
            if known is None and key.capture:
                raise GraphError(f"ConvNet: images {key.images.shape} are new in a capture; call prepare(x) before it")
            self._prepared[key] = run_outside_capture(x.device, partial(self._build, x, key.images, known))
        self._recent.pop(key.images, None)
        self._recent[key.images] = None
        return self._prepared[key]

    def _drop_shapes(self, count: int) -> None:
        """Drop the least recently used input shapes until so many are left.

        Launches of captured graphs stay, since these may be replayed; so do running ones, whose memory is in use.
        """
        for images in list(self._recent)[: max(0, len(self._recent) - count)]:
            own = {key: run for key, run in self._prepared.items() if key.images == images and not key.capture}
            if not any(run.is_running for run in own.values()):
                del self._recent[images]
                for key in own:
                    del self._prepared[key]

    def _build(self, x: torch.Tensor, images: _Images, known: NetworkRun | None) -> NetworkRun:
        """Return new launches for images, as in what is known of them."""
        layout = {"is_channels_last": images.is_channels_last}
        if known is not None:
            return runs.copy_launches(known, x, **layout)
        self._drop_shapes(_MAX_SHAPES - 1)
        with torch.no_grad():
            traces = [trace_network(self.model, x, joins_layers=joins) for joins in (True, False)]
            unlike = traces if traces[0].count_steps() > traces[1].count_steps() else traces[:1]
            candidates = [runs.build_network_run(trace, x, **layout) for trace in unlike]
            functions = {f"parts {n}": partial(each.run, x) for n, each in enumerate(candidates)}
            times = runs.time_functions({**functions, "library": partial(self._library[0], x)}, x.device)
        best = min(range(len(candidates)), key=lambda n: times.get(f"parts {n}", 0.0))
        return candidates[best]._replace(parts_us=times.get(f"parts {best}"), library_us=times.get("library"))


def _get_stream(device: torch.device) -> tuple[int, int]:
    """Return the current stream's handle and the id of the capture in progress on it; zeros without CUDA."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.current_stream(device).cuda_stream, get_capture_id()
