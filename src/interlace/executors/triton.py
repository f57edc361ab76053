"""Base of executors that launch the Triton templates of ``kernels/templates`` with the bodies of ops.

The templates take a body as tuples: the arguments of its functions, and constants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from interlace.core.devices import DeviceSpec
from interlace.executors.device import DeviceExecutor
from interlace.executors.launch import AnyLaunch, CudaSourceLaunch, TritonLaunch, make_not_interpreted_error
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import build_triton_body, get_kernel
from interlace.kernels.bodies import PROVIDED_PARAMETERS, BodyKind, TritonBody
from interlace.megakernel.table import DeviceTables, build_op_tables
from interlace.plan.orderings import Ordering

if TYPE_CHECKING:
    import torch


class TritonExecutor(DeviceExecutor):
    """A plan as launches of Triton templates; an op whose body is CUDA C++ is a launch of that.

    Args:
        plan, options: as for every device executor.

    Raises:
        GraphError: an op has no body for this executor.
    """

    body_kinds: ClassVar[tuple[BodyKind, ...]] = (BodyKind.TRITON, BodyKind.CUDA)

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if no tiling lets the executor run a graph on a device; see ``Executor.check``."""
        super().check(graph, device)
        if device.capability != (0, 0):
            return
        for op in graph.ops:
            if cls.find_body_kind(op) is BodyKind.CUDA:
                raise make_not_interpreted_error(op)

    def _lower(self) -> DeviceTables:
        return build_op_tables(self.plan, self._find_chunked_ops())

    def _build_arguments(self, op: Op, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Return the arguments of a Triton body's functions; for a body in CUDA C++, the tensors by argument."""
        given = {a.arg: tensors[a.tensor] for a in op.accesses}
        return given if self.find_body_kind(op) is BodyKind.CUDA else build_arguments(op, self._get_body(op), given)

    def _get_body(self, op: Op) -> TritonBody:
        body = build_triton_body(op)
        return replace(body, prefetch=None) if self._is_interpreted else body

    def _build_constants(self) -> tuple[tuple[Any, ...], ...]:
        """Return the bodies in the form that the launch templates take."""
        return tuple(build_constants(self._get_body(op)) for op in self.plan.graph.ops)

    def _get_num_warps(self, op: Op) -> int:
        return int(op.parameters.get("num_warps", 4))

    def _build_grid_launch(self, o: int, arguments: Any, dependent: bool = False) -> AnyLaunch:
        """Return a launch of one program per item of op ``o``, for executors whose table is grouped by op."""
        return self._build_items_launch(o, arguments, self._build_op_sync(o), self._count_programs(o), dependent)

    def _build_items_launch(
        self, o: int, arguments: Any, sync: Any, programs: int, dependent: bool = False
    ) -> AnyLaunch:
        """Return a launch of one program for each of some items of op ``o``."""
        from interlace.kernels.templates import grid_kernel

        op = self.plan.graph.ops[o]
        cuda = get_kernel(op).cuda
        if cuda is not None and self.find_body_kind(op) is BodyKind.CUDA:
            if self._is_interpreted:
                raise make_not_interpreted_error(op)
            return CudaSourceLaunch(cuda(op, arguments, sync, programs))
        dependent = dependent and not self._is_interpreted
        return TritonLaunch(
            grid_kernel,
            (programs,),
            (sync, build_constants(self._get_body(op)), arguments, dependent),
            {"num_warps": self._get_num_warps(op), "launch_pdl": dependent},
            (op.name,),
        )

    def _count_programs(self, o: int) -> int:
        return int(self._table.op_rows[o + 1] - self._table.op_rows[o])

    def _build_op_sync(self, o: int) -> Any:
        return self._build_sync(o, int(self._table.op_rows[o]), self._count_programs(o))

    def _find_chunked_ops(self) -> list[bool]:
        """Return which ops wait inside their reductions; a kernel without a body places its own waits."""
        kinds = [(op, self.find_body_kind(op)) for op in self.plan.graph.ops]
        return [kind is None or (kind is BodyKind.TRITON and build_triton_body(op).is_chunked) for op, kind in kinds]

    def _get_partial_size(self, op: Op) -> Callable[[Op], int] | None:
        return build_triton_body(op).partial_elements

    def _build_sync(self, starts: int, first: int, programs: int) -> Any:
        """Return the Sync argument of a launch: its counter of starts, its first row, its programs per run."""
        from triton.language import constexpr

        from interlace.kernels.primitives.semaphore import Sync

        return Sync(
            items=self._items,
            waits=self._waits,
            semaphores=self._semaphores,
            arrivals=self._arrivals,
            workspace=self._workspace,
            done=self._done,
            fault=self._fault,
            record=self._record,
            trace=self._trace,
            starts=self._counters[starts:],
            first=first,
            programs=programs,
            WAITS=constexpr(Ordering.WAIT in self.enforced_orderings),
            CHUNKED=constexpr(self._table.is_chunked),
            SPLIT=constexpr(int(self._table.parts.max())),
            SLOT=constexpr(self._slot_size),
            TRACE=constexpr(self.options.trace),
            JITTER_NS=constexpr(int(self.options.jitter_s * 1e9)),
            TIMEOUT_NS=constexpr(int(self.options.timeout_s * 1e9)),
            INTERPRET=constexpr(self._is_interpreted),
        )


def build_arguments(op: Op, body: TritonBody, tensors: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """Return each function's arguments other than ``tile``, ``sync`` and ``acc``: tensors, by argument, and params.

    An argument that the op lacks is None or the function's default.
    """
    from triton.language import constexpr

    params = op.parameters

    def values(function: Any) -> tuple[Any, ...]:
        if function is None:
            return ()
        out: list[Any] = []
        for name, parameter in inspect.signature(function.fn).parameters.items():
            if name in PROVIDED_PARAMETERS:
                continue
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            value = tensors.get(name, params.get(name, default))
            constant = "constexpr" in str(parameter.annotation) or isinstance(value, (str, bool))
            out.append(constexpr(value) if constant and value is not None else value)
        return tuple(out)

    return values(body.prefetch), values(body.accumulate), values(body.finish)


def build_constants(body: TritonBody) -> tuple[Any, ...]:
    """Return the functions as one compile-time argument.

    Triton's cache identifies a function passed as a compile-time argument only by its name. So a digest of the sources
    follows the functions of each body; without it, the old code of an edited body would run.
    """
    from triton.language import constexpr

    from interlace.kernels.templates import do_nothing

    functions = body.prefetch or do_nothing, body.accumulate or do_nothing, body.finish
    digest = "-".join(getattr(f, "cache_key", "") for f in functions)
    takes_sync = "sync" in inspect.signature(body.finish.fn).parameters
    return (*functions, constexpr(body.accumulate is not None), constexpr(digest), constexpr(takes_sync))
