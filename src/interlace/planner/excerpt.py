"""An excerpt of a graph of layers that are alike: the first, one from the middle and the last stand for all.

Layers that are alike take the same time again and again, so what a plan of sixteen does follows from one of three. With
a head behind the last layer:

    whole      layer 0 | layer 1 | layer 2 | ... | layer 14 | layer 15 | head
    excerpt    layer 0 | layer 1                            | layer 15 | head

From the end of layer 0 to the end of layer 1 pass 30 us: the whole takes 13 times 30 us more than the excerpt, and
what items of layer 1 read from memory counts 14 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from interlace.core.errors import GraphError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import layer_of, of_layers
from interlace.planner.build import Choices
from interlace.planner.predict import Prediction
from interlace.sim.modes import Mode
from interlace.trace.summary import Summary

_KEPT = 3  # layers: the first, one from the middle, the last


@dataclass(frozen=True, eq=False)
class Excerpt:
    """A graph, and the part of it that is planned for all of it.

    Attributes:
        whole: the graph.
        graph: the part; the graph itself if it has no layers that are alike.
        left_out: layers that the part does not have.
        middle: positions in the part of the ops of the layer that stands for those left out.
    """

    whole: Graph
    graph: Graph
    left_out: int = 0
    middle: tuple[int, ...] = ()

    @staticmethod
    def of(graph: Graph) -> Excerpt:
        """The first, the second and the last layer of four or more, where all but the first and the last are alike."""
        layers = _layers(graph)
        between = layers[1:-1]
        if len(layers) <= _KEPT or len({tuple(map(_alike, layer)) for layer in between}) > 1:
            return Excerpt(graph, graph)
        gone = {op.name for layer in between[1:] for op in layer}
        # What the last layer reads of the one before it, it reads of the middle one.
        kept = {of_layers(name): name for op in between[0] for name in _written(op)}
        moved = {name: kept[of_layers(name)] for op in between[-1] for name in _written(op)}
        last = {op.name for op in layers[-1]}
        ops = tuple(_moved(op, moved) if op.name in last else op for op in graph.ops if op.name not in gone)
        named = {access.tensor for op in ops for access in op.accesses}
        try:
            part = replace(
                graph,
                tensors=tuple(t for t in graph.tensors if t.name in named),
                ops=ops,
                inputs=tuple(name for name in graph.inputs if name in named),
                outputs=tuple(name for name in graph.outputs if name in named),
            )
        except GraphError:  # ops behind the layers need one that is left out
            return Excerpt(graph, graph)
        return Excerpt(graph, part, len(between) - 1, tuple(part.op_index(op.name) for op in between[0]))

    def us(self, prediction: Prediction) -> float:
        """Microseconds of the whole, from a prediction of the part."""
        begin_ns, end_ns = self._window_ns(prediction)
        return prediction.us + 1e-3 * self.left_out * (end_ns - begin_ns)

    def dram_read(self, prediction: Prediction) -> int:
        """Bytes that the whole reads from memory; a layer left out reads what the middle one does of its own."""
        if not self.left_out:
            return prediction.traffic.dram_read
        reads = {a.tensor for o in self.middle for a in self.graph.ops[o].reads}
        others = {a.tensor for o, op in enumerate(self.graph.ops) if o not in self.middle for a in op.reads}
        own = sum(count for name, count in prediction.traffic.read.items() if name in reads - others)
        return prediction.traffic.dram_read + self.left_out * own

    def summary(self, prediction: Prediction) -> Summary:
        """Of the whole: that of the part, and for each layer left out what workers do while the middle one runs.

        Waits of workers that run ahead by more than the part has items are not told.
        """
        workers, trace = prediction.plan.workers, prediction.trace
        summary, begin_ns, end_ns = Summary.of(trace, workers), *self._window_ns(prediction)
        each_ns = end_ns - begin_ns
        if not each_ns:
            return summary
        clipped = {name: np.clip(getattr(trace, name), begin_ns, end_ns) for name in ("wait_ns", "start_ns", "end_ns")}
        window = Summary.of(replace(trace, **clipped), workers)
        span_ns = summary.span_ns + self.left_out * each_ns

        def share(of_part: float, of_window: float) -> float:
            return (of_part * summary.span_ns + self.left_out * of_window * window.span_ns) / span_ns

        busy, waiting = share(summary.busy, window.busy), share(summary.waiting, window.waiting)
        later_ns = self.left_out * each_ns
        after = {op.name for op in self.graph.ops[max(self.middle) + 1 :]}
        ops = tuple(
            replace(op, **{name: getattr(op, name) + later_ns for name in ("start_ns", "end_ns", "last_wave_ns")})
            if op.op in after
            else op
            for op in summary.ops
        )
        return replace(summary, span_ns=span_ns, busy=busy, waiting=waiting, ops=ops)

    def mode(self, mode: Mode) -> Mode:
        """The mode of the part, from that of the whole."""
        if mode.after is None or not self.left_out:
            return mode
        position = {op.name: self.graph.op_index(self._stand_in(op.name)) for op in self.whole.ops}
        names = [op.name for op in self.whole.ops]
        after = (mode.after[self.whole.op_index(op.name)] for op in self.graph.ops)
        return replace(mode, after=tuple(tuple(sorted({position[names[p]] for p in each})) for each in after))

    def lifted(self, choices: Choices) -> Choices:
        """Choices for the whole, from those for the part: a layer that is left out has those of the middle one."""
        if not self.left_out:
            return choices
        named = {name: getattr(choices, name) for name in ("policy", "order", "split")}
        lifted: dict[str, Any] = {
            name: {op.name: each[self._stand_in(op.name)] for op in self.whole.ops if self._stand_in(op.name) in each}
            for name, each in named.items()
            if isinstance(each, Mapping)
        }
        return replace(choices, **lifted)

    def _stand_in(self, name: str) -> str:
        """The op of the part that is planned for an op of the whole."""
        kept = {of_layers(self.graph.ops[o].name): self.graph.ops[o].name for o in self.middle}
        there = any(op.name == name for op in self.graph.ops)
        return name if there else kept[of_layers(name)]

    def _window_ns(self, prediction: Prediction) -> tuple[int, int]:
        """The end of the first layer and that of the middle one; equal if no layer is left out."""
        if not self.left_out:
            return 0, 0
        trace = prediction.trace
        before, within = trace.op < min(self.middle), np.isin(trace.op, self.middle)
        begin_ns = int(trace.end_ns[before].max())
        return begin_ns, max(int(trace.end_ns[within].max()), begin_ns)


def _layers(graph: Graph) -> list[list[Op]]:
    """The ops of each layer, if layers follow one another and are numbered from 0; else none."""
    numbers = [layer_of(op.name) for op in graph.ops]
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


def _alike(op: Op) -> object:
    """Equal for ops that differ in nothing but the numbers of their layers."""
    accesses = tuple((a.arg, of_layers(a.tensor), a.spans) for a in op.accesses)
    return of_layers(op.name), op.kernel, op.grid, op.reduction, op.params, op.flops, op.when, accesses


def _written(op: Op) -> list[str]:
    """Tensors of its layer that an op writes."""
    return [a.tensor for a in op.writes if layer_of(a.tensor) is not None]


def _moved(op: Op, tensors: Mapping[str, str]) -> Op:
    """The same op, reading other tensors."""
    return replace(op, reads=tuple(replace(a, tensor=tensors.get(a.tensor, a.tensor)) for a in op.reads))
