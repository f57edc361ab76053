"""The base of all device executors: tables and counters in device memory, arguments, faults, trace.

A compiled plan owns its counters and workspaces, so one instance runs on one stream at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import DeviceSpec
from interlace.core.errors import ConcurrentRunError, GraphError, InterlaceError, NoDeviceError
from interlace.executors.base import Executor, check_named_tensors
from interlace.executors.bound_launches import BoundLaunches
from interlace.executors.gpu import get_torch_dtype, open_device
from interlace.executors.launch import AnyLaunch, CudaSourceLaunch
from interlace.executors.run import RunHandle
from interlace.executors.tensors import check_short_inputs, check_tensors
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.abi import RECORD, TRACE
from interlace.megakernel.options import RunOptions, check_options
from interlace.megakernel.table import DeviceTables
from interlace.megakernel.watchdog import make_hang_error, make_launch_ended_error
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.trace.events import Trace

if TYPE_CHECKING:
    import torch

_FAILED_COLUMN = RECORD.get_column("failed")


class DeviceExecutor(Executor):
    """A plan compiled for a device.

    Args:
        plan: a plan, which is verified here, or its proof.
        options: run options: device, watchdog, trace and others.

    Raises:
        PlanError: the plan is not safe, or rests on an ordering that this executor does not enforce.
        NoDeviceError: torch, triton or the device is missing.
        GraphError: an op has no body for this executor.
        DeviceError: ``options`` is not an ``RunOptions``.
    """

    #: Kernel name of the single launch, as profilers show it; empty if there are several launches.
    kernel: ClassVar[str] = ""
    #: Ops in which every part of a split tile posts; in others only one part does.
    _cooperative_ops: Collection[int] = ()

    def __init__(self, plan: Plan | Proof, options: RunOptions | None = None) -> None:
        self.proof = self.prove(plan)
        self.plan = self.proof.plan
        self.options = check_options(options)
        self._torch, self._device = open_device(self.options.device)
        self._is_interpreted = self._device.type == "cpu"
        check_short_inputs(self.plan.graph, self.options.short_inputs, self._find_short_arguments, self.name)
        self._table = self._lower()
        self._allocate()
        self._intermediates: dict[str, torch.Tensor] = {}
        self._bound_launches: BoundLaunches | None = None
        self._last_run: tuple[Any, RunHandle] | None = None
        self._prepare()

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if no tiling lets the executor run a graph on a device; see ``Executor.check``."""
        super().check(graph, device)
        if device.capability == (0, 0) and not cls.is_interpretable:
            raise NoDeviceError(f"the {cls.name} executor needs a CUDA GPU, and {device.name!r} is none")

    @abstractmethod
    def _lower(self) -> DeviceTables:
        """Return the tables of the plan in this executor's launch order."""

    def _find_short_arguments(self, op: Op) -> Sequence[str]:
        """Return the arguments of an op whose loads skip rows that a short input lacks."""
        return ()

    def _prepare(self) -> None:
        """Allocate further buffers and make further checks before the first run."""

    @abstractmethod
    def _build_arguments(self, op: Op, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Return the launch arguments of an op, given all tensors by name."""

    @abstractmethod
    def _get_partial_size(self, op: Op) -> Callable[[Op], int] | None:
        """Return a function from an op to the float32 elements of one partial, or None if the body declares none."""

    @abstractmethod
    def _build_launches(self, arguments: tuple[Any, ...]) -> Sequence[AnyLaunch]:
        """Return the launches of one run, given the arguments of every body."""

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        """Enqueue one run on the current stream."""
        for launch in launches:
            launch.run()

    def build_launches(self, tensors: Mapping[str, torch.Tensor] | None = None) -> list[AnyLaunch]:
        """Return the launches of one run on these tensors, or on placeholders if None, to compile ahead of time."""
        if tensors is None:
            graph = self.plan.graph
            wanted = (*graph.inputs, *graph.outputs)
            tensors = {name: self.allocate_tensor(name) for name in wanted}
        return self._bind(tensors)

    # ---------------------------------------------------------------- running

    def run(self, tensors: Mapping[str, torch.Tensor]) -> RunHandle:
        """Enqueue one run on the current stream; outputs (and intermediates, if passed) are written in place.

        Intermediates that are handed off by the LL protocol (``RunOptions.ll_tensors``) are not written; ``words=()``
        turns the protocol off.

        Raises:
            GraphError: an input or output is missing or not a tensor, is not on the device, or shares bytes with a
                tensor that is written.
            ShapeError, DTypeError: a tensor differs from the graph's.
            ConcurrentRunError: an earlier run of this instance is still in progress on another stream.
            HangError: a wait of an earlier run ended by the watchdog.
            LaunchEndedError: an earlier run ended itself, and with it the CUDA context.
        """
        if self._is_interpreted:
            self._enqueue(self._bind(tensors))
            self._raise_fault()
            return RunHandle(None, False, self._check)
        self._check()
        launches = self._bind(tensors)
        with self._torch.cuda.device(self._device.index):
            stream = self._torch.cuda.current_stream(self._device.index)
            capturing = self._torch.cuda.is_current_stream_capturing()
            if not capturing and self._last_run is not None:
                last_stream, last = self._last_run
                if last_stream != stream and not last.is_done():
                    raise ConcurrentRunError(
                        f"executor {self.name!r} is still running on another stream; a compiled plan owns its "
                        "semaphores, so make a second instance or wait for the first run"
                    )
            self._enqueue(launches)
            if capturing:
                return RunHandle(None, True, self._check)
            done = self._torch.cuda.Event()
            done.record(stream)
            self._last_run = (stream, RunHandle(done, False, self._check))
            return self._last_run[1]

    def synchronize(self) -> None:
        """Wait for all runs.

        Raises:
            HangError: a wait ended by the watchdog; the instance is then reset to its initial state.
            LaunchEndedError: a run ended itself, and with it the CUDA context.
        """
        if not self._is_interpreted:
            try:
                self._torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                self._raise_ended(error)
                raise
        self._raise_fault()

    def _check(self) -> None:
        if self.has_failed:
            self.synchronize()

    @property
    def has_failed(self) -> bool:
        """True if a wait ended by the watchdog or a run ended itself; ``synchronize`` raises the error."""
        return self._seen is not None and bool(self._seen[_FAILED_COLUMN])

    @property
    def is_running(self) -> bool:
        """True if the last run is still in progress on the device. Replays of captured runs are not tracked."""
        return self._last_run is not None and not self._last_run[1].is_done()

    def release(self) -> None:
        """Drop the tensors of the last run, which are cached so that the next run on them skips the checks."""
        self._bound_launches = None

    def get_intermediate(self, name: str) -> torch.Tensor:
        """Return the tensor that holds an intermediate unless the caller passes one."""
        if name not in self._intermediates:
            self._intermediates[name] = self.allocate_tensor(name)
        return self._intermediates[name]

    def allocate_tensor(self, name: str) -> torch.Tensor:
        """Return a new uninitialised tensor for a tensor of the graph."""
        tensor = self.plan.graph.tensor(name)
        dtype = get_torch_dtype(self._torch, tensor.dtype.name)
        empty: torch.Tensor = self._torch.empty(tensor.shape, dtype=dtype, device=self._device)
        return empty

    def _bind(self, tensors: Mapping[str, torch.Tensor]) -> list[AnyLaunch]:
        """Return the launches on these tensors, cached until the tensors' addresses change."""
        graph = self.plan.graph
        everything = check_named_tensors(tensors)
        for name in graph.intermediates:
            if name not in everything:
                everything[name] = self.get_intermediate(name)
        bound = self._bound_launches
        if bound is not None and bound.is_bound_to(everything):
            return bound.launches
        check_tensors(self._torch, self._device, graph, everything, self.options.short_inputs)
        if bound is not None and bound.is_valid_for(everything, any_layout=not self.options.short_inputs):
            launches = bound.launches
        else:
            launches = list(self._build_launches(tuple(self._build_arguments(op, everything) for op in graph.ops)))
            if self._device.type == "cuda":
                with self._torch.cuda.device(self._device):
                    for launch in launches:
                        if isinstance(launch, CudaSourceLaunch):
                            launch.load()  # before the first runs: a running launch may wait for a later one
        self._bound_launches = BoundLaunches.bind(everything, launches)
        return launches

    # ---------------------------------------------------------------- device state

    def _allocate(self) -> None:
        """Allocate tables, counters and workspaces, once: launches and captured runs hold their addresses."""
        torch, device, table = self._torch, self._device, self._table
        n = len(self.plan.items)

        def zeros(size: int, dtype: Any) -> Any:
            return torch.zeros(max(size, 1), dtype=dtype, device=device)

        self._items = torch.tensor(table.items.view(np.int32), device=device)
        self._waits = torch.tensor(table.waits.view(np.int32), device=device)
        self._semaphores = zeros(table.semaphores, torch.int32)
        self._arrivals = zeros(table.splits, torch.int64)
        self._slot_size = self._compute_slot_floats()
        self._workspace = zeros(table.slots * self._slot_size, torch.float32)
        self._done = zeros(n, torch.int32)
        self._fault = zeros(1, torch.int32)
        self._record = torch.zeros(RECORD.columns, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._seen = None if device.type == "meta" else self._record.numpy()  # the same memory; quick to read
        self._trace = zeros(n * TRACE.columns if self.options.trace else 1, torch.int64)
        self._counters = zeros(len(self.plan.graph.ops) * (len(self.plan.graph.ops) + 1), torch.int64)

    def _reset(self) -> None:
        """Restore tables and counters to their initial state, while nothing runs."""
        self._items.copy_(self._torch.tensor(self._table.items.view(np.int32)))
        self._waits.copy_(self._torch.tensor(self._table.waits.view(np.int32)))
        counters = self._semaphores, self._arrivals, self._done, self._fault, self._record, self._trace, self._counters
        for buffer in counters:
            buffer.zero_()
        if not self._is_interpreted:
            self._torch.cuda.synchronize(self._device)  # the next run may be on another stream

    def _compute_slot_floats(self) -> int:  # float32 elements per workspace slot
        return max((self._count_partial_elements(op) for op in self.plan.graph.ops), default=0)

    def _count_partial_elements(self, op: Op) -> int:
        """Return the float32 elements of one partial of an op, or 0 if none of its tiles is split."""
        items = self.plan.items
        mine = items.op == self.plan.graph.op_index(op.name)
        if not (mine & (items.k_hi - items.k_lo < op.k_extent)).any():
            return 0
        partial = self._get_partial_size(op)
        if partial is None:
            raise GraphError(
                f"op {op.name!r} is split, but kernel {op.kernel!r} does not tell the size of a partial sum; "
                "give its TritonBody partial=, or plan it with WholeTiles()"
            )
        return int(partial(op))

    def _raise_fault(self) -> None:
        """Raise the recorded fault; after a failed wait, first reset the instance and its captured runs."""
        if not self.has_failed:
            return
        self._raise_ended()
        error = self._make_fault_error(*self._fault_record)
        self._reset()
        raise error

    def _raise_ended(self, cause: BaseException | None = None) -> None:
        """Raise the error of a launch that ended itself, from the record in host memory."""
        error = make_launch_ended_error(self.plan, *self._fault_record) if self.has_failed else None
        if error is not None:
            raise error from cause

    @property
    def _fault_record(self) -> tuple[int, int, int, int]:
        """Item, semaphore, expected value and observed value in the record."""
        (record,) = self._record.numpy().copy().view(RECORD.dtype)
        item, semaphore, expected, seen = (int(record[name]) for name in ("item", "semaphore", "expected", "seen"))
        return item, semaphore, expected, seen

    def _make_fault_error(self, item: int, semaphore: int, expected: int, seen: int) -> InterlaceError:
        """Return the error for the first failed wait."""
        done, came = self._done.cpu().numpy(), self._find_enqueued()
        return make_hang_error(self.plan, item, semaphore, expected, seen, done, came, self._cooperative_ops)

    def _find_enqueued(self) -> NDArray[np.bool_] | None:
        """Return a mask of the items that entered the ready queue in the last run, or None without such a queue."""
        return None

    def read_trace(self) -> Trace:
        """Return the times of the last run, after waiting for the device; needs ``RunOptions(read_trace=True)``.

        Raises:
            GraphError: the executor was constructed without trace.
        """
        if not self.options.trace:
            raise GraphError("this executor records no trace; make it with RunOptions(trace=True)")
        self.synchronize()
        rows = self._trace.cpu().numpy().view(TRACE.dtype)
        items = self.plan.items
        return Trace(
            items.op,
            items.tile,
            rows["place"] >> 32,
            rows["place"] & 0xFFFFFFFF,
            rows["arrived_ns"],
            rows["start_ns"],
            rows["end_ns"],
            tuple(op.name for op in self.plan.graph.ops),
            "%globaltimer",
        )
