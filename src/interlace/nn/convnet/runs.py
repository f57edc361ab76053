"""Parts of a network for images: the launch of each segment, or PyTorch's ops where they are faster, and their runs.

A launch has tensors of its own, into which a run copies its images. In a captured graph it reads the caller's images
instead, where these have its layout, and writes new tensors. So a network of one segment is captured as one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from interlace.bench.timing import time_medians
from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import DTypeError, InterlaceError
from interlace.deploy import can_overlap, select_executor, select_schedule
from interlace.executors.gpu import find_spec
from interlace.graph.graph import Graph
from interlace.megakernel.options import RunOptions
from interlace.nn.convnet.graphs import SegmentInput, build_segment_graph, list_inputs, list_weights
from interlace.nn.convnet.match import Shapes
from interlace.nn.convnet.steps import ConvStep, Segment
from interlace.nn.convnet.trace import NetworkTrace
from interlace.nn.instances import Instance
from interlace.planner.proof_cache import prove_schedule

#: Dtypes of images and weights that launches take.
IMAGE_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, known.torch): known for known in DTYPES if known.on_tensor_cores
}
_ROUNDS = 9  # rounds in which a launch and PyTorch's ops are timed


@dataclass(frozen=True, eq=False)
class SegmentRun:
    """A segment and what runs it for one shape of the input.

    Attributes:
        segment: the segment.
        shapes: shape of each node's value.
        launch: its launch; None if PyTorch's ops run it.
        inputs: inputs of the launch.
        tensors: the launch's inputs, weights and outputs, by name; the same for all runs, which then skip checks.
        launch_us, library_us: microseconds of both, None where not timed.
        why: reason for which there is no launch, or an empty string.
    """

    segment: Segment
    shapes: Shapes
    launch: Instance | None = None
    inputs: tuple[SegmentInput, ...] = ()
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
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

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The launch's own outputs."""
        return [self.tensors[node.name] for node in self.segment.outputs] if self.launch is not None else []

    def run(self, values: dict[fx.Node, Any]) -> None:
        """Add the results of the segment to the values of nodes."""
        if self.launch is None:
            for step in self.segment.steps:
                residual = None if step.residual is None else values[step.residual]
                values[step.out] = step.run(values[step.x], residual)
            return
        tensors = self._bind(values)
        self.launch.run(tensors)
        for node in self.segment.outputs:
            image = tensors[node.name][..., : self.shapes[node][1]].permute(0, 3, 1, 2)
            values[node] = image.reshape(self.shapes[node])

    def _bind(self, values: Mapping[fx.Node, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of a run by name, after inputs that need it were copied."""
        tensors = dict(self.tensors)
        is_captured = any(_is_captured(values[each.node]) for each in self.inputs)
        for each in self.inputs:
            view = each.find_view(tensors[each.name], values[each.node]) if is_captured else None
            if view is None:
                each.fill(tensors[each.name], values[each.node])
            else:
                tensors[each.name] = view
        if is_captured:
            tensors |= {node.name: torch.empty_like(tensors[node.name]) for node in self.segment.outputs}
        return tensors


class NetworkRun(NamedTuple):
    """Runs of all parts of a network for one shape of the input, with the times of the parts and of the library."""

    trace: NetworkTrace
    runs: dict[Segment, SegmentRun]
    parts_us: float | None = None
    library_us: float | None = None

    @property
    def is_library_faster(self) -> bool:
        """True if the library runs the whole network."""
        return self.parts_us is not None and self.library_us is not None and self.library_us < self.parts_us

    @property
    def is_running(self) -> bool:
        """True if a launch is still in progress on the device."""
        return any(run.launch is not None and run.launch.is_running for run in self.runs.values())

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Run the parts in order, and return the network's result."""
        interpreter = fx.Interpreter(self.trace.module)
        values: dict[fx.Node, Any] = {}
        interpreter.env = values
        interpreter.args_iter = iter((x,))
        for part in self.trace.program:
            if isinstance(part, Segment):
                self.runs[part].run(values)
            else:
                values[part] = interpreter.run_node(part)
                if part.op == "output":
                    return self._own_result(values[part])
        raise AssertionError("a traced network has an output")

    def _own_result(self, result: torch.Tensor) -> torch.Tensor:
        """Return a copy of a result that lies in an output of a launch, which the next run overwrites."""
        outputs = (each for run in self.runs.values() for each in run.outputs)
        shared = any(result.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in outputs)
        return result.clone() if shared else result


def build_launch(graph: Graph, device: str) -> Instance:
    """Return the launch of a graph, planned and proved.

    Raises:
        InterlaceError: the graph cannot be one launch.
    """
    spec = find_spec(device)
    executor = select_executor(graph, spec)
    proof = prove_schedule(graph, select_schedule(graph, spec, executor))
    return executor(proof, RunOptions(device=device, dependent_launch=can_overlap(executor, proof.plan, spec)))


def build_network_run(trace: NetworkTrace, x: torch.Tensor, *, is_channels_last: bool) -> NetworkRun:
    """Return what runs each part of a traced network for images in a layout: the faster of launch and PyTorch's ops.

    Raises:
        DTypeError: a layer's weights have another dtype than x.
    """
    runs = {segment: _build_run(trace, segment, x, is_channels_last) for segment in trace.segments}
    return NetworkRun(trace, runs)


def _build_run(trace: NetworkTrace, segment: Segment, x: torch.Tensor, is_channels_last: bool) -> SegmentRun:
    for n, step in enumerate(segment.steps):
        if isinstance(step, ConvStep):
            if step.weight.dtype != x.dtype:
                raise DTypeError(f"{step.name} has {step.weight.dtype} weights and x is {x.dtype}; convert one")
            if not step.is_linear:
                weight = step.weight.contiguous(memory_format=torch.channels_last)
                segment.steps[n] = replace(step, weight=weight)
    none = SegmentRun(segment, trace.shapes)
    try:
        found = _launch_segment(none, x, is_channels_last)
    except InterlaceError as error:
        return replace(none, why=str(error))
    values = {node: x if node.op == "placeholder" else _draw_like(trace.shapes[node], x) for node in segment.inputs}
    functions = {"launch": lambda: found.run(dict(values)), "library": lambda: none.run(dict(values))}
    times = time_functions(functions, x.device)
    best = none if times and times["library"] < times["launch"] else found
    return replace(best, launch_us=times.get("launch"), library_us=times.get("library"))


def _launch_segment(run: SegmentRun, x: torch.Tensor, is_channels_last: bool) -> SegmentRun:
    """Return the run of a segment as a launch, with the weights of the given one if this is a launch, too.

    Raises:
        InterlaceError: the segment cannot be one launch.
    """
    segment, sms = run.segment, find_spec(str(x.device)).sms
    graph = build_segment_graph(segment, run.shapes, IMAGE_DTYPES[x.dtype], sms, is_channels_last=is_channels_last)
    inputs = list_inputs(segment, is_channels_last=is_channels_last)
    launch = build_launch(graph, str(x.device))
    images = {each.name: x.new_zeros(graph.tensor(each.name).shape) for each in inputs}  # padding stays zero
    results = {name: x.new_empty(graph.tensor(name).shape) for name in graph.outputs}
    weights = {name: value for name, value in run.tensors.items() if name not in images and name not in results}
    tensors = {**(weights or list_weights(segment)), **images, **results}
    return replace(run, launch=launch, inputs=tuple(inputs), tensors=tensors)


def copy_launches(known: NetworkRun, x: torch.Tensor, *, is_channels_last: bool) -> NetworkRun:
    """Return the same parts with launches of their own: an executor runs on one stream, or in one captured graph."""
    if known.is_library_faster:
        return known
    runs = {
        segment: run if run.launch is None else _launch_segment(run, x, is_channels_last)
        for segment, run in known.runs.items()
    }
    return known._replace(runs=runs)


def time_functions(functions: Mapping[str, Callable[[], Any]], device: torch.device) -> dict[str, float]:
    """Return the microseconds of functions in CUDA graphs; none without CUDA."""
    if device.type != "cuda":
        return {}
    return {name: timing.median_us for name, timing in time_medians(functions, _ROUNDS).items()}


def _draw_like(shape: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    value = torch.randn(shape, dtype=x.dtype, device=x.device)
    return value.to(memory_format=torch.channels_last) if len(shape) == 4 else value


def _is_captured(value: torch.Tensor) -> bool:
    return value.is_cuda and torch.cuda.is_current_stream_capturing()
