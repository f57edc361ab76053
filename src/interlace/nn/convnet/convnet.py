"""A network for images: its convolutions run as megakernels where that is faster, all other layers by PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from interlace.bench.timing import time_medians
from interlace.core.arguments import check_type
from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import ArgumentError, DTypeError, GraphError, InterlaceError, ShapeError
from interlace.deploy import can_overlap, select_executor, select_schedule
from interlace.executors.gpu import find_spec
from interlace.graph.graph import Graph
from interlace.megakernel.capture import get_capture_id, run_outside_capture
from interlace.megakernel.options import RunOptions
from interlace.nn.convnet.graphs import build_segment_graph, list_inputs, list_weights, run_step
from interlace.nn.convnet.trace import ConvStep, NetworkTrace, Segment, trace_network
from interlace.nn.op import FallbackWarning, device_fallback_reason
from interlace.planner.proof_cache import prove_schedule

_DTYPES: dict[torch.dtype, DType] = {getattr(torch, known.torch): known for known in DTYPES if known.on_tensor_cores}
_ROUNDS = 9  # rounds in which a launch and PyTorch's ops are timed
#: Function that runs a graph on tensors by name.
Launch = Callable[[Mapping[str, torch.Tensor]], object]


@dataclass(frozen=True, eq=False)
class SegmentRun:
    """A segment and what runs it for one shape of the input.

    Attributes:
        segment: the segment.
        launch: its launch; None if PyTorch's ops run it.
        tensors: the launch's inputs, weights and outputs, by name; the same for all runs, which then skip checks.
        launch_us, library_us: microseconds of both, None where not timed.
        why: reason for which there is no launch, or an empty string.
    """

    segment: Segment
    launch: Launch | None
    tensors: Mapping[str, torch.Tensor]
    launch_us: float | None = None
    library_us: float | None = None
    why: str = ""

    def __str__(self) -> str:
        names = [step.name for step in self.segment.steps]
        what = f"{names[0]} to {names[-1]}, {len(names)} layers" if len(names) > 1 else names[0]
        runner = "PyTorch" if self.launch is None else "one launch"
        if self.launch_us is not None and self.library_us is not None:
            return f"{what}: {runner}; a launch takes {self.launch_us:.1f} us, PyTorch {self.library_us:.1f} us"
        return f"{what}: {runner}" + (f"; {self.why}" if self.why else "")


class _Key(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stream: int
    capture: int


class _Prepared(NamedTuple):
    """Parts of a network, and the times of all of them and of the library."""

    trace: NetworkTrace
    runs: dict[Segment, SegmentRun]
    parts_us: float | None = None
    library_us: float | None = None

    @property
    def is_library_faster(self) -> bool:
        return self.parts_us is not None and self.library_us is not None and self.library_us < self.parts_us


def build_launch(graph: Graph, device: str) -> Launch:
    """Return the launch of a graph, planned, proved and compiled.

    Raises:
        InterlaceError: the graph cannot be one launch.
    """
    spec = find_spec(device)
    executor = select_executor(graph, spec)
    proof = prove_schedule(graph, select_schedule(graph, spec, executor))
    return executor(proof, RunOptions(device=device, dependent_launch=can_overlap(executor, proof.plan, spec))).run


class ConvNet(nn.Module):
    """A network for images at inference, such as a ResNet or a VGG.

    The first call for a shape, dtype, device and stream traces the network, folds batch norms, builds a launch of
    convolutions that follow one another, times it against PyTorch's ops in channels-last memory, and takes the faster.
    It does so with max-pooling in the launches and without, and times both against ``library``. This takes seconds;
    call ``prepare`` before a capture. Later calls run what was chosen. ``explain`` says what that is.

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
        self._prepared: dict[_Key, _Prepared] = {}
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles keep: launches are made anew."""
        return {**self.__dict__, "_prepared": {}}

    @classmethod
    def from_model(cls, model: nn.Module, library: Callable[[torch.Tensor], torch.Tensor] | None = None) -> ConvNet:
        """Return the network of a model; see the class."""
        return cls(model, library)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's result for images (images, channels, H, W).

        Raises:
            GraphError: the model is in training mode or cannot be traced, or ``prepare`` did not come before a capture.
            ShapeError: x is no batch of images.
        """
        reason = self._explain_fallback(x)
        if reason is not None:
            if reason not in self._warned:
                self._warned.add(reason)
                warnings.warn(f"this network runs as plain PyTorch: {reason}", FallbackWarning, stacklevel=2)
            result: torch.Tensor = self.model(x)
            return result
        prepared = self._prepare(x)
        return self._library[0](x) if prepared.is_library_faster else _run(prepared, x)

    def prepare(self, x: torch.Tensor) -> None:
        """Trace, compile and time what calls with such images on the current stream need.

        Raises:
            GraphError, ShapeError: see ``forward``.
        """
        if self._explain_fallback(x) is None:
            self._prepare(x)

    def explain(self, x: torch.Tensor) -> str:
        """Return what runs each part of the network for such images, one part a line.

        Raises:
            GraphError, ShapeError: see ``forward``.
        """
        reason = self._explain_fallback(x)
        if reason is not None:
            return f"all layers: PyTorch; {reason}"
        trace, runs, parts_us, library_us = prepared = self._prepare(x)
        layers = trace.list_library_layers()
        lines = [str(runs[segment]) for segment in trace.segments]
        if parts_us is not None and library_us is not None:
            runner = "the library" if prepared.is_library_faster else "these parts"
            lines.insert(0, f"all: {runner}; the parts take {parts_us:.1f} us, the library {library_us:.1f} us")
        return "\n".join([*lines, f"by PyTorch: {', '.join(layers)}" if layers else "no layer by PyTorch"])

    def _explain_fallback(self, x: torch.Tensor) -> str | None:
        """Return why PyTorch runs the whole network, or None."""
        if x.dim() != 4:
            raise ShapeError(f"ConvNet: x has shape {tuple(x.shape)}; pass (images, channels, H, W)")
        if torch.is_grad_enabled() and any(p.requires_grad for p in (x, *self.model.parameters())):
            return "gradients are wanted; call it under torch.inference_mode() or torch.no_grad()"
        if torch.is_autocast_enabled(x.device.type):
            return "autocast is on; cast the module instead, as in module.to(torch.bfloat16)"
        reason = device_fallback_reason(x.device)
        if reason is None and x.dtype not in _DTYPES:
            return f"the dtype is {x.dtype}, the kernels take {' and '.join(map(str, _DTYPES.values()))}"
        return reason

    def _prepare(self, x: torch.Tensor) -> _Prepared:
        key = _Key(tuple(x.shape), x.dtype, x.device, *_get_stream(x.device))
        if key not in self._prepared:
            known = next((p for k, p in self._prepared.items() if k[:3] == key[:3]), None)
            if known is None and key.capture:
                raise GraphError(f"ConvNet: images {key.shape} are new in a capture; call prepare(x) before it")
            make = self._build if known is None else lambda given: _copy_launches(known, given)
            if x.device.type == "cuda":
                self._prepared[key] = run_outside_capture(x.device, lambda: make(x))
            else:
                self._prepared[key] = make(x)
        return self._prepared[key]

    def _build(self, x: torch.Tensor) -> _Prepared:
        with torch.no_grad():
            image = x.to(memory_format=torch.channels_last)
            traces = [trace_network(self.model, image, joins_pools=joins) for joins in (True, False)]
            unlike = traces if traces[0].count_steps() > traces[1].count_steps() else traces[:1]
            candidates = [
                _Prepared(trace, {segment: _build_run(trace, segment, x) for segment in trace.segments})
                for trace in unlike
            ]
            functions = {f"parts {n}": partial(_run, each, x) for n, each in enumerate(candidates)}
            times = _time({**functions, "library": partial(self._library[0], x)}, x.device)
        best = min(range(len(candidates)), key=lambda n: times.get(f"parts {n}", 0.0))
        return candidates[best]._replace(parts_us=times.get(f"parts {best}"), library_us=times.get("library"))


def _build_run(trace: NetworkTrace, segment: Segment, x: torch.Tensor) -> SegmentRun:
    """Return what runs a segment: the faster of its launch and PyTorch's ops."""
    for n, step in enumerate(segment.steps):
        if isinstance(step, ConvStep):
            if step.weight.dtype != x.dtype:
                raise DTypeError(f"{step.name} has {step.weight.dtype} weights and x is {x.dtype}; convert one")
            weight = step.weight.contiguous(memory_format=torch.channels_last)
            segment.steps[n] = replace(step, weight=weight)
    none = SegmentRun(segment, None, {})
    try:
        graph = build_segment_graph(segment, trace.shapes, _DTYPES[x.dtype], find_spec(str(x.device)).sms)
        launch = build_launch(graph, str(x.device))
    except InterlaceError as error:
        return replace(none, why=str(error))
    found = SegmentRun(segment, launch, _allocate(segment, graph, list_weights(segment), x))
    values = {
        node: torch.randn(trace.shapes[node], dtype=x.dtype, device=x.device).to(memory_format=torch.channels_last)
        for node in segment.inputs
    }
    functions = {
        "launch": lambda: _run_segment(found, dict(values)),
        "library": lambda: _run_segment(none, dict(values)),
    }
    times = _time(functions, x.device)
    best = none if times and times["library"] < times["launch"] else found
    return replace(best, launch_us=times.get("launch"), library_us=times.get("library"))


def _allocate(
    segment: Segment, graph: Graph, weights: Mapping[str, torch.Tensor], x: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return weights, zeroed inputs, whose padding stays zero, and outputs of a segment's launch."""
    own = {each.name: x.new_zeros(graph.tensor(each.name).shape) for each in list_inputs(segment)}
    return {**weights, **own, **{name: x.new_empty(graph.tensor(name).shape) for name in graph.outputs}}


def _time(functions: Mapping[str, Callable[[], Any]], device: torch.device) -> dict[str, float]:
    """Return the microseconds of functions in CUDA graphs; none without CUDA."""
    if device.type != "cuda":
        return {}
    return {name: timing.median_us for name, timing in time_medians(functions, _ROUNDS).items()}


def _get_stream(device: torch.device) -> tuple[int, int]:
    """Return the current stream's handle and the id of the capture in progress on it; zeros without CUDA."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.current_stream(device).cuda_stream, get_capture_id()


def _copy_launches(known: _Prepared, x: torch.Tensor) -> _Prepared:
    """Return the same parts with launches of their own: an executor runs on one stream, or in one captured graph."""
    own = {}
    for segment, run in known.runs.items():
        if run.launch is not None and not known.is_library_faster:
            graph = build_segment_graph(segment, known.trace.shapes, _DTYPES[x.dtype], find_spec(str(x.device)).sms)
            inputs = {*graph.inputs} - {each.name for each in list_inputs(segment)}
            weights = {name: run.tensors[name] for name in inputs}
            launch = build_launch(graph, str(x.device))
            run = replace(run, launch=launch, tensors=_allocate(segment, graph, weights, x))
        own[segment] = run
    return known._replace(runs=own)


def _run_segment(run: SegmentRun, values: dict[fx.Node, Any]) -> None:
    """Add the outputs of a segment to the values of nodes."""
    if run.launch is None:
        for step in run.segment.steps:
            residual = None if step.residual is None else values[step.residual]
            values[step.out] = run_step(step, values[step.x], residual)
        return
    for each in list_inputs(run.segment):
        each.fill(run.tensors[each.name], values[each.node])
    run.launch(run.tensors)
    for node in run.segment.outputs:
        values[node] = run.tensors[node.name].permute(0, 3, 1, 2)


def _run(prepared: _Prepared, x: torch.Tensor) -> torch.Tensor:
    """Run the parts of a network in order, and return its result."""
    trace, runs = prepared.trace, prepared.runs
    interpreter = fx.Interpreter(trace.module)
    values: dict[fx.Node, Any] = {}
    interpreter.env = values
    interpreter.args_iter = iter((x.contiguous(memory_format=torch.channels_last),))
    for part in trace.program:
        if isinstance(part, Segment):
            _run_segment(runs[part], values)
        else:
            values[part] = interpreter.run_node(part)
            if part.op == "output":
                return _own_result(values[part], runs)
    raise AssertionError("a traced network has an output")


def _own_result(result: torch.Tensor, runs: Mapping[Segment, SegmentRun]) -> torch.Tensor:
    """Return a copy of a result that lies in an output of a launch, which the next run overwrites."""
    outputs = (run.tensors[node.name] for run in runs.values() if run.launch for node in run.segment.outputs)
    shared = any(result.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in outputs)
    return result.clone() if shared else result
