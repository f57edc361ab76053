"""Excerpts of graphs with repeated layers: the first, one middle and the last layer represent all layers.

Identical layers take the same time, so the behaviour of a plan of 16 layers follows from a plan of three. With a head
after the last layer:

    whole      layer 0 | layer 1 | layer 2 | ... | layer 14 | layer 15 | head
    excerpt    layer 0 | layer 1                            | layer 15 | head

If 30 us pass from the end of layer 0 to the end of layer 1, the whole takes 13 times 30 us more than the excerpt, and
the bytes that items of layer 1 read from memory count 14 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from interlace.core.errors import GraphError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import mask_layer_index, parse_layer_index
from interlace.planner.predict import Prediction
from interlace.policies.schedule import Schedule
from interlace.sim.modes import Mode
from interlace.trace.summary import Summary

_KEPT_LAYERS = 3  # number of layers in an excerpt: first, one middle, last


@dataclass(frozen=True, eq=False)
class Excerpt:
    """A graph and the excerpt that is planned in its place.

    Attributes:
        full_graph: whole graph.
        graph: excerpt; the whole graph if it has no repeated layers.
        omitted_layers: number of layers that the excerpt omits.
        middle: indices in the excerpt of the ops of the layer that represents the omitted ones.
    """

    full_graph: Graph
    graph: Graph
    omitted_layers: int = 0
    middle: tuple[int, ...] = ()

    @staticmethod
    def from_graph(graph: Graph) -> Excerpt:
        """Extract the first, second and last of four or more layers if all layers in between are identical."""
        layers = _find_layers(graph)
        between = layers[1:-1]
        if len(layers) <= _KEPT_LAYERS or len({tuple(map(_make_layer_key, layer)) for layer in between}) > 1:
            return Excerpt(graph, graph)
        gone = {op.name for layer in between[1:] for op in layer}
        # Inputs of the last layer from the layer before it come from the middle layer instead.
        kept = {mask_layer_index(name): name for op in between[0] for name in _find_written(op)}
        moved = {name: kept[mask_layer_index(name)] for op in between[-1] for name in _find_written(op)}
        last = {op.name for op in layers[-1]}
        ops = tuple(_rename_inputs(op, moved) if op.name in last else op for op in graph.ops if op.name not in gone)
        named = {access.tensor for op in ops for access in op.accesses}
        try:
            part = replace(
                graph,
                tensors=tuple(t for t in graph.tensors if t.name in named),
                ops=ops,
                inputs=tuple(name for name in graph.inputs if name in named),
                outputs=tuple(name for name in graph.outputs if name in named),
            )
        except GraphError:  # ops after the layers need a layer that is omitted
            return Excerpt(graph, graph)
        return Excerpt(graph, part, len(between) - 1, tuple(part.op_index(op.name) for op in between[0]))

    def scale_us(self, prediction: Prediction) -> float:
        """Return the time of the whole graph in microseconds, from a prediction of the excerpt."""
        begin_ns, end_ns = self._compute_window_ns(prediction)
        return prediction.us + 1e-3 * self.omitted_layers * (end_ns - begin_ns)

    def scale_dram_read(self, prediction: Prediction) -> int:
        """Return the bytes that the whole graph reads from memory.

        Each omitted layer reads as many bytes of its own tensors as the middle layer.
        """
        if not self.omitted_layers:
            return prediction.traffic.dram_read
        reads = {a.tensor for o in self.middle for a in self.graph.ops[o].reads}
        others = {a.tensor for o, op in enumerate(self.graph.ops) if o not in self.middle for a in op.reads}
        own = sum(count for name, count in prediction.traffic.read_bytes.items() if name in reads - others)
        return prediction.traffic.dram_read + self.omitted_layers * own

    def scale_summary(self, prediction: Prediction) -> Summary:
        """Return the summary of the whole graph.

        It adds the middle layer's share of working and waiting to the excerpt's summary once for each omitted layer.
        Waits of workers that run ahead by more items than the excerpt has are not included.
        """
        workers, trace = prediction.plan.workers, prediction.trace
        summary, begin_ns, end_ns = Summary.from_trace(trace, workers), *self._compute_window_ns(prediction)
        each_ns = end_ns - begin_ns
        if not each_ns:
            return summary
        clipped = {name: np.clip(getattr(trace, name), begin_ns, end_ns) for name in ("wait_ns", "start_ns", "end_ns")}
        window = Summary.from_trace(replace(trace, **clipped), workers)
        span_ns = summary.span_ns + self.omitted_layers * each_ns

        def share(of_part: float, of_window: float) -> float:
            return (of_part * summary.span_ns + self.omitted_layers * of_window * window.span_ns) / span_ns

        busy, waiting = share(summary.busy, window.busy), share(summary.waiting, window.waiting)
        later_ns = self.omitted_layers * each_ns
        after = {op.name for op in self.graph.ops[max(self.middle) + 1 :]}
        ops = tuple(
            replace(op, **{name: getattr(op, name) + later_ns for name in ("start_ns", "end_ns", "last_wave_ns")})
            if op.op in after
            else op
            for op in summary.ops
        )
        return replace(summary, span_ns=span_ns, busy=busy, waiting=waiting, ops=ops)

    def restrict_mode(self, mode: Mode) -> Mode:
        """Return the mode for the excerpt, given the mode for the whole graph."""
        if mode.after is None or not self.omitted_layers:
            return mode
        position = {op.name: self.graph.op_index(self._find_representative(op.name)) for op in self.full_graph.ops}
        names = [op.name for op in self.full_graph.ops]
        after = (mode.after[self.full_graph.op_index(op.name)] for op in self.graph.ops)
        return replace(mode, after=tuple(tuple(sorted({position[names[p]] for p in each})) for each in after))

    def extend_schedule(self, schedule: Schedule) -> Schedule:
        """Extend a schedule of the excerpt to the whole graph; omitted layers get the values of the middle one."""
        if not self.omitted_layers:
            return schedule
        named = {name: getattr(schedule, name) for name in ("policy", "order", "split")}
        lifted: dict[str, Any] = {
            name: {
                op.name: each[self._find_representative(op.name)]
                for op in self.full_graph.ops
                if self._find_representative(op.name) in each
            }
            for name, each in named.items()
            if isinstance(each, Mapping)
        }
        return replace(schedule, **lifted)

    def _find_representative(self, name: str) -> str:
        """Return the name of the excerpt's op that represents an op of the whole graph."""
        kept = {mask_layer_index(self.graph.ops[o].name): self.graph.ops[o].name for o in self.middle}
        there = any(op.name == name for op in self.graph.ops)
        return name if there else kept[mask_layer_index(name)]

    def _compute_window_ns(self, prediction: Prediction) -> tuple[int, int]:
        """Return the end times of the first and the middle layer; equal if no layer is omitted."""
        if not self.omitted_layers:
            return 0, 0
        trace = prediction.trace
        before, within = trace.op < min(self.middle), np.isin(trace.op, self.middle)
        begin_ns = int(trace.end_ns[before].max())
        return begin_ns, max(int(trace.end_ns[within].max()), begin_ns)


def _find_layers(graph: Graph) -> list[list[Op]]:
    """Return the ops of each layer if layers are contiguous and numbered from 0, else an empty list."""
    numbers = [parse_layer_index(op.name) for op in graph.ops]
    within = [n for n in numbers if n is not None]
    if within != sorted(within) or {*within} != {*range(len({*within}))}:
        return []
    begin = next((i for i, n in enumerate(numbers) if n is not None), 0)
    if None in numbers[begin : begin + len(within)]:
        return []
    layers: list[list[Op]] = [[] for _ in {*within}]
    for op, n in zip(graph.ops, numbers, strict=True):
        if n is not None:
            layers[n].append(op)
    return layers


def _make_layer_key(op: Op) -> object:
    """Return a key that is equal for ops that differ only in their layer numbers."""
    accesses = tuple((a.arg, mask_layer_index(a.tensor), a.spans) for a in op.accesses)
    return mask_layer_index(op.name), op.kernel, op.grid, op.reduction, op.params, op.flops, op.when, accesses


def _find_written(op: Op) -> list[str]:
    """Return the tensors of an op's own layer that it writes."""
    return [a.tensor for a in op.writes if parse_layer_index(a.tensor) is not None]


def _rename_inputs(op: Op, tensors: Mapping[str, str]) -> Op:
    """Return the same op with its inputs renamed."""
    return replace(op, reads=tuple(replace(a, tensor=tensors.get(a.tensor, a.tensor)) for a in op.reads))
