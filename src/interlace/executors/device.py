"""What the device executors share: tables and counters in device memory, arguments, faults, trace.

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
from interlace.executors.base import Executor, by_name
from interlace.executors.bound import Bound
from interlace.executors.gpu import open_device, torch_dtype
from interlace.executors.launch import AnyLaunch, TextLaunch
from interlace.executors.options import Options, given
from interlace.executors.run import Run
from interlace.executors.table import Table
from interlace.executors.tensors import check_short, check_tensors
from interlace.executors.watchdog import ended_error, hang_error
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.abi import RECORD, TRACE
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.trace.events import Trace

if TYPE_CHECKING:
    import torch

_FAILED = RECORD.column("failed")


class DeviceExecutor(Executor):
    """A plan compiled for a device.

    Args:
        plan: verified here unless it comes with its proof.
        options: device, watchdog, trace.

    Raises:
        PlanError: the plan is not safe, or rests on an ordering that this executor does not keep.
        NoDeviceError: torch, triton or the device is missing.
        GraphError: an op has no body for it.
        DeviceError: options that are none.
    """

    #: Of its one launch, as profilers show it; empty if it makes several.
    kernel: ClassVar[str] = ""
    #: Ops of which every part of a tile posts; of others only one does.
    _shared: Collection[int] = ()

    def __init__(self, plan: Plan | Proof, options: Options | None = None) -> None:
        self.proof = self.prove(plan)
        self.plan = self.proof.plan
        self.options = given(options)
        self._torch, self._device = open_device(self.options.device)
        self._interpret = self._device.type == "cpu"
        check_short(self.plan.graph, self.options.short, self._filled, self.name)
        self._table = self._lower()
        self._allocate()
        self._owned: dict[str, torch.Tensor] = {}
        self._bound: Bound | None = None
        self._last: tuple[Any, Run] | None = None
        self._prepare()

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if there is no tiling in which it can run a graph on a device; see ``Executor.check``."""
        super().check(graph, device)
        if device.capability == (0, 0) and not cls.interpreted:
            raise NoDeviceError(f"the {cls.name} executor needs a CUDA GPU, and {device.name!r} is none")

    @abstractmethod
    def _lower(self) -> Table:
        """The tables of the plan in this executor's launch order."""

    def _filled(self, op: Op) -> Sequence[str]:
        """Arguments of an op whose loads leave out rows that are not there."""
        return ()

    def _prepare(self) -> None:
        """Further buffers and checks, before the first run."""

    @abstractmethod
    def _arguments(self, op: Op, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What the launches take of an op's tensors, given all by name."""

    @abstractmethod
    def _partial(self, op: Op) -> Callable[[Op], int] | None:
        """How many float32 elements one partial sum of an op has, if its body tells."""

    @abstractmethod
    def _launches(self, arguments: tuple[Any, ...]) -> Sequence[AnyLaunch]:
        """The launches of one run, given the arguments of every body."""

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        """Enqueue one run on the current stream."""
        for launch in launches:
            launch.run()

    def launches(self, tensors: Mapping[str, torch.Tensor] | None = None) -> list[AnyLaunch]:
        """The launches of one run on these tensors; without tensors, on stand-ins, to compile ahead of time."""
        if tensors is None:
            graph = self.plan.graph
            wanted = (*graph.inputs, *graph.outputs)
            tensors = {name: self.empty(name) for name in wanted}
        return self._bind(tensors)

    # ---------------------------------------------------------------- running

    def run(self, tensors: Mapping[str, torch.Tensor]) -> Run:
        """Enqueue one run on the current stream; outputs (and intermediates, if given) are written in place.

        Intermediates that go from op to op as words (``Options.words``) are not; ``words=()`` has none.

        Raises:
            GraphError: an input or output is missing or no tensor, lies elsewhere than the device, or shares bytes
                with one that is written.
            ShapeError, DTypeError: a tensor differs from the graph's.
            ConcurrentRunError: an earlier run of this instance is still going on another stream.
            HangError: a wait of an earlier run ended by the watchdog.
            LaunchEndedError: an earlier run ended itself, and with it the CUDA context.
        """
        if self._interpret:
            self._enqueue(self._bind(tensors))
            self._raise_fault()
            return Run(None, False, self._check)
        self._check()
        launches = self._bind(tensors)
        with self._torch.cuda.device(self._device.index):
            stream = self._torch.cuda.current_stream(self._device.index)
            capturing = self._torch.cuda.is_current_stream_capturing()
            if not capturing and self._last is not None:
                last_stream, last = self._last
                if last_stream != stream and not last.done():
                    raise ConcurrentRunError(
                        f"executor {self.name!r} is still running on another stream; a compiled plan owns its "
                        "semaphores, so make a second instance or wait for the first run"
                    )
            self._enqueue(launches)
            if capturing:
                return Run(None, True, self._check)
            done = self._torch.cuda.Event()
            done.record(stream)
            self._last = (stream, Run(done, False, self._check))
            return self._last[1]

    def synchronize(self) -> None:
        """Wait for all runs.

        Raises:
            HangError: a wait ended by the watchdog; the instance is then as new.
            LaunchEndedError: a run ended itself, and with it the CUDA context.
        """
        if not self._interpret:
            try:
                self._torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                self._raise_ended(error)
                raise
        self._raise_fault()

    def _check(self) -> None:
        if self.failed:
            self.synchronize()

    @property
    def failed(self) -> bool:
        """Whether a wait ended by the watchdog, or a run ended itself; ``synchronize`` raises what it was."""
        return self._seen is not None and bool(self._seen[_FAILED])

    @property
    def running(self) -> bool:
        """Whether the last run is still going on the device. Replays of a captured run are not known here."""
        return self._last is not None and not self._last[1].done()

    def release(self) -> None:
        """Forget the tensors of the last run, which are kept so that a next run on them need not check them."""
        self._bound = None

    def intermediate(self, name: str) -> torch.Tensor:
        """The tensor that holds an intermediate unless the caller passes one."""
        if name not in self._owned:
            self._owned[name] = self.empty(name)
        return self._owned[name]

    def empty(self, name: str) -> torch.Tensor:
        """A new uninitialised tensor for one of the graph's."""
        tensor = self.plan.graph.tensor(name)
        dtype = torch_dtype(self._torch, tensor.dtype.name)
        empty: torch.Tensor = self._torch.empty(tensor.shape, dtype=dtype, device=self._device)
        return empty

    def _bind(self, tensors: Mapping[str, torch.Tensor]) -> list[AnyLaunch]:
        """The launches on these tensors, kept until their addresses change."""
        graph = self.plan.graph
        everything = by_name(tensors)
        for name in graph.intermediates:
            if name not in everything:
                everything[name] = self.intermediate(name)
        bound = self._bound
        if bound is not None and bound.holds(everything):
            return bound.launches
        check_tensors(self._torch, self._device, graph, everything, self.options.short)
        if bound is not None and bound.serves(everything, any_layout=not self.options.short):
            launches = bound.launches
        else:
            launches = list(self._launches(tuple(self._arguments(op, everything) for op in graph.ops)))
            if self._device.type == "cuda":
                with self._torch.cuda.device(self._device):
                    for launch in launches:
                        if isinstance(launch, TextLaunch):
                            launch.load()  # all of them before the first runs: others may wait for it on the device
        self._bound = Bound.on(everything, launches)
        return launches

    # ---------------------------------------------------------------- device state

    def _allocate(self) -> None:
        """Tables, counters and workspaces; launches and captured runs hold their addresses, so they stay for good."""
        torch, device, table = self._torch, self._device, self._table
        n = len(self.plan.items)

        def zeros(size: int, dtype: Any) -> Any:
            return torch.zeros(max(size, 1), dtype=dtype, device=device)

        self._items = torch.tensor(table.items.view(np.int32), device=device)
        self._waits = torch.tensor(table.waits.view(np.int32), device=device)
        self._semaphores = zeros(table.semaphores, torch.int32)
        self._arrivals = zeros(table.splits, torch.int64)
        self._slot_size = self._slot_floats()
        self._workspace = zeros(table.slots * self._slot_size, torch.float32)
        self._done = zeros(n, torch.int32)
        self._fault = zeros(1, torch.int32)
        self._record = torch.zeros(RECORD.columns, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._seen = None if device.type == "meta" else self._record.numpy()  # the same memory, which is quick to read
        self._trace = zeros(n * TRACE.columns if self.options.trace else 1, torch.int64)
        self._counters = zeros(len(self.plan.graph.ops) * (len(self.plan.graph.ops) + 1), torch.int64)

    def _reset(self) -> None:
        """Tables and counters as before the first run; nothing runs now."""
        self._items.copy_(self._torch.tensor(self._table.items.view(np.int32)))
        self._waits.copy_(self._torch.tensor(self._table.waits.view(np.int32)))
        counters = self._semaphores, self._arrivals, self._done, self._fault, self._record, self._trace, self._counters
        for buffer in counters:
            buffer.zero_()
        if not self._interpret:
            self._torch.cuda.synchronize(self._device)  # the next run may be on another stream

    def _slot_floats(self) -> int:  # float32 elements of a slot of the workspace
        return max((self._accumulator_size(op) for op in self.plan.graph.ops), default=0)

    def _accumulator_size(self, op: Op) -> int:
        """float32 elements of one partial sum of an op, 0 if none of its tiles is split."""
        items = self.plan.items
        mine = items.op == self.plan.graph.op_index(op.name)
        if not (mine & (items.k_hi - items.k_lo < op.k_extent)).any():
            return 0
        partial = self._partial(op)
        if partial is None:
            raise GraphError(
                f"op {op.name!r} is split, but kernel {op.kernel!r} does not tell the size of a partial sum; "
                "give its TritonBody partial=, or plan it with Whole()"
            )
        return int(partial(op))

    def _raise_fault(self) -> None:
        """Raise what is recorded; where a wait ended, the instance and captured runs of it are as new then."""
        if not self.failed:
            return
        self._raise_ended()
        error = self._error(*self._recorded)
        self._reset()
        raise error

    def _raise_ended(self, cause: BaseException | None = None) -> None:
        """Raise what a launch recorded that ended itself, which is in memory of the host."""
        error = ended_error(self.plan, *self._recorded) if self.failed else None
        if error is not None:
            raise error from cause

    @property
    def _recorded(self) -> tuple[int, int, int, int]:
        """Item, semaphore, expected and seen of the record."""
        (record,) = self._record.numpy().copy().view(RECORD.dtype)
        item, semaphore, expected, seen = (int(record[name]) for name in ("item", "semaphore", "expected", "seen"))
        return item, semaphore, expected, seen

    def _error(self, item: int, semaphore: int, expected: int, seen: int) -> InterlaceError:
        """What the first failed wait recorded, as an error."""
        done, came = self._done.cpu().numpy(), self._came()
        return hang_error(self.plan, item, semaphore, expected, seen, done, came, self._shared)

    def _came(self) -> NDArray[np.bool_] | None:
        """Which items came to a queue of ready items in the last run; None where there is none."""
        return None

    def trace(self) -> Trace:
        """Times of the last run; needs ``Options(trace=True)``. Waits for the device.

        Raises:
            GraphError: the executor was made without trace.
        """
        if not self.options.trace:
            raise GraphError("this executor records no trace; make it with Options(trace=True)")
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
