"""The graph: tensors and ops in program order, checked once at construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from interlace.core.arguments import check_sequence, check_type
from interlace.core.dtypes import DType, dtype
from interlace.core.errors import CyclicGraphError, GraphError, ShapeError
from interlace.graph.access import Access, Affine, Span
from interlace.graph.op import Body, Op, Param, Reduction
from interlace.graph.tensor import Region, Tensor


@dataclass(frozen=True)
class Graph:
    """Tiled ops over tensors.

    The order of ``ops`` defines the program's meaning: each op reads the values that the ops before it wrote. A
    tensor may be written more than once.

    Attributes:
        name: display name.
        tensors: all tensors.
        ops: ops in program order.
        inputs: names of the tensors that hold data before the run. All others are undefined until written.
        outputs: names of the tensors that are read after the run; other written tensors are intermediates.

    Raises:
        ArgumentError: tensors, ops or names of the wrong type; sequences of them become tuples.
        ShapeError: an access map differs in rank from its tensor.
        CyclicGraphError: ops that wait for each other.
        ParamError: an op that differs from the one that its kernel makes for its tensors and params.
        GraphError: unknown or repeated names, a tensor that is read before anything writes it, an output that nothing
            writes.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        check_type(self.name, str, "Graph", "name")
        for name, kind in (("tensors", Tensor), ("ops", Op), ("inputs", str), ("outputs", str)):
            object.__setattr__(self, name, check_sequence(getattr(self, name), kind, f"graph {self.name!r}", name))
        _check_names(self)
        # Equal ops, such as those of a model's layers, are checked once.
        unlike: dict[object, Op] = {}
        for op in self.ops:
            unlike.setdefault(op.make_structure_key({a.arg: self.tensor(a.tensor) for a in op.accesses}), op)
        _check_bounds(self, unlike.values())
        _check_order(self)
        for op in unlike.values():
            if op.body is not None:
                op.body.check(op, {a.arg: self.tensor(a.tensor) for a in op.accesses})

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called ``name``."""
        if name not in self._tensors:
            raise GraphError(f"graph {self.name!r} has no tensor {name!r}; it has {[*self._tensors]}")
        return self._tensors[name]

    def find_compute_dtype(self, op: Op) -> DType:
        """Return the dtype that an op computes in: that of its first tensor, an operand of the product in a matmul."""
        return self.tensor(op.accesses[0].tensor).dtype

    def op(self, name: str) -> Op:
        """Return the op called ``name``."""
        return self.ops[self.op_index(name)]

    def op_index(self, name: str) -> int:
        """Return the position in program order of the op called ``name``."""
        if name not in self._positions:
            raise GraphError(f"graph {self.name!r} has no op {name!r}; it has {[*self._positions]}")
        return self._positions[name]

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {op.name: i for i, op in enumerate(self.ops)}

    def compute_region(self, op: Op, access: Access, tile: int, k_lo: int, k_hi: int) -> Region:
        """Return the region that one item touches through one access."""
        shape = self.tensor(access.tensor).shape
        k = np.array([k_lo, k_hi], np.int64)
        lo, hi = access.compute_bounds(shape, op.compute_coords(np.array([tile])), k[:1], k[1:])
        return Region(access.tensor, tuple(map(int, lo[0])), tuple(map(int, hi[0])))

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Names of the tensors that ops write and that are neither inputs nor outputs."""
        written = {a.tensor for op in self.ops for a in op.writes} - {*self.inputs, *self.outputs}
        return tuple(t.name for t in self.tensors if t.name in written)

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        for t in self.tensors:
            role = "output" if t.name in self.outputs else "intermediate"
            lines.append(f"  {t}  ({'input' if t.name in self.inputs else role})")
        for op in self.ops:
            k = f", reduction {op.reduction.extent} by {op.reduction.block}" if op.reduction else ""
            when = f", when {op.when}" if op.when else ""
            lines.append(f"  {op.name} = {op.kernel}, grid {' x '.join(map(str, op.grid))}{k}{when}")
            lines += [f"    reads  {a}" for a in op.reads] + [f"    writes {a}" for a in op.writes]
        return "\n".join(lines)


def _check_names(graph: Graph) -> None:
    for what, names in (("tensor", [t.name for t in graph.tensors]), ("op", [op.name for op in graph.ops])):
        repeated = _find_repeated(names)
        if repeated:
            raise GraphError(f"graph {graph.name!r} has several {what}s called {repeated}; rename them")
    if not graph.ops:
        raise GraphError(f"graph {graph.name!r} has no ops; give it at least one, there is nothing to run")
    for what, names in (("input", list(graph.inputs)), ("output", list(graph.outputs))):
        repeated = _find_repeated(names)
        if repeated:
            raise GraphError(f"graph {graph.name!r} lists {what}s {repeated} several times; list each once")
        for name in names:
            graph.tensor(name)


def _check_bounds(graph: Graph, ops: Iterable[Op]) -> None:
    for op in ops:
        for access in op.accesses:
            try:
                access.check_rank(graph.tensor(access.tensor).shape)
            except ShapeError as error:
                raise ShapeError(f"op {op.name!r}: {error}") from None
            if access.tile_axes > len(op.grid):
                raise ShapeError(
                    f"op {op.name!r}: access map of {access.arg!r} uses more tile coordinates than grid "
                    f"{op.grid} has; give the grid another extent or use fewer axes"
                )


def _find_repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _check_order(graph: Graph) -> None:
    """Check that every read finds an input or an earlier op's write, and every output an input or any op's write."""
    writers: dict[str, list[int]] = {}
    given = {*graph.inputs}
    for i, op in enumerate(graph.ops):
        for a in op.writes:
            writers.setdefault(a.tensor, []).append(i)
    for i, op in enumerate(graph.ops):
        for a in op.reads:
            if a.tensor in given or writers.get(a.tensor, [i])[0] < i:
                continue
            if a.tensor not in writers:
                raise GraphError(
                    f"op {op.name!r} reads {a.tensor!r}, which no op writes; list it among the graph's inputs"
                )
            path = _find_path(graph, i, set(writers[a.tensor]))
            if path is not None:
                circle = " -> ".join(repr(graph.ops[p].name) for p in (*path, i))
                raise CyclicGraphError(
                    f"ops wait for each other: {circle}; write the circle's result to a new tensor, "
                    f"or list {a.tensor!r} among the inputs if its old value is meant"
                )
            later = graph.ops[writers[a.tensor][0]].name
            raise GraphError(f"op {op.name!r} reads {a.tensor!r} before op {later!r} writes it; list {later!r} first")
    for name in graph.outputs:
        if name not in writers and name not in given:
            raise GraphError(
                f"graph {graph.name!r} has output {name!r}, which no op writes; let one write it, or drop it"
            )


def _find_path(graph: Graph, start: int, goals: set[int]) -> list[int] | None:
    """Return a path of ops from ``start``, along tensors written and then read, to one of ``goals``; None if none."""
    stack = [[start]]
    seen = {start}
    while stack:
        path = stack.pop()
        if path[-1] in goals:
            return path
        written = {a.tensor for a in graph.ops[path[-1]].writes}
        for j, op in enumerate(graph.ops):
            if j not in seen and any(a.tensor in written for a in op.reads):
                seen.add(j)
                stack.append([*path, j])
    return None


# ---------------------------------------------------------------- JSON


def to_data(graph: Graph) -> dict[str, Any]:
    """Convert the graph to JSON-ready data; the bodies are omitted, the names of their kernels kept."""

    def bound(b: Affine) -> list[Any]:
        return [b.const, list(b.tile), b.k_lo, b.k_hi]

    def access(a: Access) -> dict[str, Any]:
        return {"arg": a.arg, "tensor": a.tensor, "spans": [[bound(s.lo), bound(s.hi)] for s in a.spans]}

    return {
        "name": graph.name,
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype.name} for t in graph.tensors],
        "ops": [
            {
                "name": op.name,
                "kernel": op.kernel,
                "grid": list(op.grid),
                "reads": [access(a) for a in op.reads],
                "writes": [access(a) for a in op.writes],
                "reduction": [op.reduction.extent, op.reduction.block] if op.reduction else None,
                "params": dict(op.params),
                "flops": op.flops,
                **({"when": op.when} if op.when else {}),
            }
            for op in graph.ops
        ],
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
    }


def from_data(data: Mapping[str, Any], bodies: Mapping[str, Body] | None = None) -> Graph:
    """Return the graph that ``to_data`` wrote.

    Access maps are those of the data. An op is ``unproved`` if no kernel in ``bodies`` makes its access maps anew.

    Args:
        data: JSON data of the graph.
        bodies: kernels by name, needed to run the graph.

    Raises:
        KeyError, TypeError, ValueError: the data has another form.
        GraphError: the graph in the data is inconsistent.
    """

    def bound(b: Sequence[Any]) -> Affine:
        const, tile, k_lo, k_hi = b
        return Affine(const, tuple(tile), k_lo, k_hi)

    def access(a: Mapping[str, Any]) -> Access:
        spans = tuple(Span(bound(lo), bound(hi)) for lo, hi in a["spans"])
        return Access(_parse_text(a["arg"]), _parse_text(a["tensor"]), spans)

    bodies = bodies or {}
    return Graph(
        _parse_text(data["name"]),
        tuple(
            Tensor(_parse_text(t["name"]), tuple(t["shape"]), dtype(_parse_text(t["dtype"]))) for t in data["tensors"]
        ),
        tuple(
            Op(
                _parse_text(o["name"]),
                _parse_text(o["kernel"]),
                tuple(o["grid"]),
                tuple(access(a) for a in o["reads"]),
                tuple(access(a) for a in o["writes"]),
                None if o["reduction"] is None else Reduction(*o["reduction"]),
                _parse_params(o["params"]),
                _parse_flops(o["flops"]),
                _parse_text(o.get("when", "")),
                body := bodies.get(o["kernel"]),
                body is None or not body.has_op_factory,
            )
            for o in data["ops"]
        ),
        _parse_names(data["inputs"]),
        _parse_names(data["outputs"]),
    )


def _parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a name is expected")
    return value


def _parse_names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} stands where a list of names is expected")
    return tuple(map(_parse_text, values))


def _parse_params(values: Any) -> tuple[tuple[str, Param], ...]:
    if not isinstance(values, dict) or not all(isinstance(v, Param) for v in values.values()):
        raise TypeError(f"params {values!r} are no object of numbers, texts and booleans")
    return tuple(values.items())


def _parse_flops(value: Any) -> float:
    # An int is not converted to float, so that equal plans serialise to equal text.
    if type(value) not in (int, float) or value < 0 or not isfinite(value):
        raise ValueError(f"flops {value!r} is no finite number of at least 0")
    number: float = value
    return number
