"""Checks before any work: plans with too many items, and runs that do not fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from interlace.cli.console import BadInput
from interlace.cli.machine import HostMachine
from interlace.cli.table import format_volume
from interlace.core.errors import TooManyItemsError
from interlace.core.memory import get_available_bytes
from interlace.executors import DeviceExecutor, Executor
from interlace.graph.graph import Graph
from interlace.planner.build import check_item_count
from interlace.policies.schedule import Schedule

_FP32, _FP64 = 4, 8
_TEMPORARIES = 3  # arrays of an intermediate's size while it is computed without tiling


def check_plan(graph: Graph, schedule: Schedule) -> None:
    """Raise BadInput if a plan would have more items than a plan can hold."""
    try:
        check_item_count(graph, schedule)
    except TooManyItemsError as error:
        raise BadInput(f"{error} (--tile, --split, or the sizes)") from None


def check_memory(graph: Graph, chosen: Sequence[type[Executor]], machine: HostMachine, *, compares: bool) -> None:
    """Raise BadInput if a run on these executors does not fit in memory.

    Inputs are drawn in float32 on the host. Each reference executor holds all tensors in float64. If the run
    ``compares``, the expected outputs are computed in float64 where the other executors run.
    """
    inputs, inner, outputs = (
        _count_elements(graph, names) for names in (graph.inputs, graph.intermediates, graph.outputs)
    )
    everything = inputs + inner + outputs
    on_device = [issubclass(executor, DeviceExecutor) for executor in chosen]
    reference = on_device.count(False) * _FP64 * everything
    right = _FP64 * (inputs + _TEMPORARIES * inner + outputs) if compares else 0
    device = sum(tensor.nbytes for tensor in graph.tensors) if any(on_device) else 0
    host = _FP32 * inputs + _FP64 * outputs * compares
    if machine.cuda:
        free, _ = machine.torch.cuda.mem_get_info(machine.device)
        _refuse_beyond(free, right + device, machine.name)
        _refuse_beyond(get_available_bytes(), host + reference, "this machine")
    else:
        _refuse_beyond(get_available_bytes(), host + max(reference + device, right), "this machine")


def _count_elements(graph: Graph, names: Iterable[str]) -> int:
    return sum(prod(graph.tensor(name).shape) for name in names)


def _refuse_beyond(available: int, needed: int, where: str) -> None:
    if needed > available:
        raise BadInput(
            f"inputs, intermediates and results take {format_volume(needed)}, and {where} has "
            f"{format_volume(available)} free; use a smaller problem"
        )
