"""Checks of the tensors passed to a device executor: they match the graph, and outputs share no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from interlace.core.arguments import format_value
from interlace.core.errors import DTypeError, GraphError, PlanError
from interlace.core.overlap import MemoryRange, find_overlap
from interlace.executors.base import check_arguments
from interlace.executors.gpu import get_torch_dtype
from interlace.graph.graph import Graph
from interlace.graph.op import Op

if TYPE_CHECKING:
    import torch


def check_tensors(
    torch: Any,
    device: torch.device,
    graph: Graph,
    tensors: Mapping[str, torch.Tensor],
    short_inputs: Sequence[str] = (),
) -> None:
    """Raise unless all inputs and outputs are passed, and all tensors match the graph and are on the device.

    Args:
        short_inputs: names of the tensors that may have fewer rows.

    Raises:
        GraphError: a tensor is missing, is not a tensor, is elsewhere, is not dense and contiguous, or shares bytes
            with one that is written.
        ShapeError, DTypeError: a tensor differs from the graph's.
    """
    missing = [name for name in graph.outputs if name not in tensors]
    if missing:
        raise GraphError(f"graph {graph.name!r} writes outputs {missing}; pass a tensor for each")
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise GraphError(
                f"tensor {name!r} is {format_value(value)}; pass a tensor of PyTorch on {device}, such as "
                f"torch.from_numpy(array).to({str(device)!r})"
            )
    check_arguments(graph, {name: tuple(value.shape) for name, value in tensors.items()}, short_inputs)
    for name, value in tensors.items():
        expected = get_torch_dtype(torch, graph.tensor(name).dtype.name)
        if value.dtype != expected:
            raise DTypeError(f"tensor {name!r} is {value.dtype}; graph {graph.name!r} was built for {expected}")
        if value.device != device:
            raise GraphError(f"tensor {name!r} is on {value.device}; this executor runs on {device}")
        if value.layout is not torch.strided:
            raise GraphError(f"tensor {name!r} has layout {value.layout}; pass tensor.to_dense()")
        if not value.is_contiguous():
            raise GraphError(f"tensor {name!r} is not contiguous; pass tensor.contiguous()")
    _check_no_overlap(graph, tensors)


def check_short_inputs(
    graph: Graph, short: Sequence[str], filled: Callable[[Op], Sequence[str]], executor: str
) -> None:
    """Raise unless all tensors that may have fewer rows are inputs whose loads fill the missing rows in.

    Args:
        short: names of the tensors that may have fewer rows.
        filled: function from an op to the arguments whose loads skip missing rows.
        executor: name of the executor, for the message.

    Raises:
        GraphError: a name is not an input's.
        PlanError: a load does not fill missing rows in, or an op writes the tensor.
    """
    for name in short:
        if name not in graph.inputs:
            raise GraphError(f"RunOptions.short_inputs names {name!r}, which is no input of graph {graph.name!r}")
        for op in graph.ops:
            if any(access.tensor == name for access in op.writes):
                raise PlanError(
                    f"tensor {name!r} may not have fewer rows than graph {graph.name!r} says: op {op.name!r} writes "
                    "all of them; leave it out of RunOptions.short_inputs, or write to another tensor"
                )
            for access in op.reads:
                if access.tensor == name and access.arg not in filled(op):
                    raise PlanError(
                        f"tensor {name!r} may not have fewer rows than graph {graph.name!r} says: op {op.name!r} "
                        f"reads it as {access.arg!r}, where the {executor} executor fills nothing in; leave it "
                        "out of RunOptions.short_inputs and pad it"
                    )


def _check_no_overlap(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise if a written tensor shares memory with another, because dependencies are found by tensor names."""
    writers = {a.tensor: op.name for op in graph.ops for a in op.writes}
    found = find_overlap(
        MemoryRange(value.data_ptr(), value.nbytes, name in writers, name) for name, value in tensors.items()
    )
    if found is not None:
        names = [piece.name for piece in found]
        written = next(name for name in names if name in writers)
        raise GraphError(
            f"tensors {names[0]!r} and {names[1]!r} share memory, and op {writers[written]!r} writes {written!r}; give "
            "each memory of its own, or build the graph with one tensor that is updated in place"
        )
