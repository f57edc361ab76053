"""Every error that Interlace raises, as one tree.

    InterlaceError
    ├── ArgumentError       an object of the wrong kind in a call
    ├── GraphError          the graph itself is wrong
    │   ├── ShapeError          shapes that do not match
    │   ├── DTypeError          a dtype that a kernel does not take
    │   ├── ParamError          params that a kernel does not take, or that are not those of the op
    │   ├── CyclicGraphError    ops that wait for each other
    │   ├── IntraOpRaceError    two tiles of one op conflict
    │   ├── UnwrittenError      an element is read, or wanted, that nothing has written
    │   ├── FootprintError      a body touches what its op does not declare
    │   └── ReferenceBodyError  a NumPy reference raises, or takes other arguments
    ├── OrderError          an order that is no permutation of the tiles
    ├── SearchError         an order search that nothing could answer
    ├── ModelError          sizes for which a bound or an estimate means nothing
    ├── PlanError           a plan that may not run
    │   ├── PlanFormatError     not a plan: damaged or foreign JSON
    │   ├── TooManyItemsError   more items than a plan holds
    │   ├── ItemError           items do not cover the tiles exactly once
    │   ├── SemaphoreError      a semaphore index out of range
    │   ├── ThresholdError      a wait that fires too early or never
    │   ├── CoverageError       a dependency that nothing enforces
    │   ├── DeadlockError       items that wait for each other
    │   └── SpawnError          an item that nobody spawns, or that waits for what may never run
    ├── ProtocolError       workers of a launch, or of a model of one, break their protocol
    │   ├── QueueOverflowError  more in a queue than it holds
    │   └── EarlyEndError       the end is seen before all items are done
    ├── SimulationError     a question that the simulated machine cannot answer
    │   ├── StreamError         a stream of accesses that is none
    │   └── CapacityError       a cache too small for what must be in it at once
    ├── PipelineError       a kernel of loops that may not be rewritten or run
    │   ├── BoxError            a box or a tensor that TMA cannot take
    │   ├── DepthError          a ring of a depth or prefetch that means nothing
    │   ├── CarriedError        an iteration depends on an earlier one through the ring
    │   ├── ScopeError          a ring where its loop does not enclose it
    │   ├── TritonSourceError   a Triton function with a construct that loops do not express
    │   ├── SharedMemoryError   more shared memory than a block may use
    │   ├── BarrierError        the interpreter met a wait that cannot end, or a dead barrier
    │   └── HazardError         some interleaving of a rewritten kernel goes wrong
    │       ├── OverwriteHazard     a stage is overwritten before it is released
    │       ├── EarlyReadHazard     a stage is read before it is full
    │       ├── StuckHazard         a wait that no interleaving completes
    │       ├── CountHazard         bytes or arrivals of a phase do not match, or are pending at exit
    │       ├── SharedBarrierHazard two tensors on one barrier
    │       ├── LifetimeHazard      a barrier used before its initialisation, or not invalidated
    │       ├── ProxyHazard         writes of threads meet bulk copies without a proxy fence
    │       ├── StepHazard          steps that are not those of the loops
    │       └── UnknownHazard       a slot, barrier, tile or variable that does not exist
    ├── DeviceDataError     a data file that does not describe a chip
    ├── DeviceError         the device cannot run it
    │   ├── NoDeviceError       no such device, or no GPU stack
    │   ├── ProfilerError       hardware counters could not be read
    │   ├── CompileError        CUDA text that does not compile
    │   ├── DriverError         a call that the CUDA driver refuses
    │   ├── ResourceError       a launch that needs more of a block than the device has
    │   └── TooManyWorkersError more workers than are resident at once
    ├── DecodeError         a language model cannot be decoded, or not what was asked of it
    │   ├── ModelFileError      a file or a folder that holds no model, or a damaged one
    │   ├── UnsupportedModelError  a model of another family, or with parts that would be dropped
    │   ├── PromptError         no ids, or ids out of the vocabulary
    │   ├── SlotError           no free slot, or one that is not taken
    │   │   └── BusyError           another call or stream is under way
    │   ├── PageError           too few free pages of a cache
    │   ├── LengthError         a sequence longer than the cache
    │   ├── SamplingError       a way to draw tokens that means nothing
    │   └── RequestError        a request that an engine cannot take
    ├── StudioError         a game, a link or a file of the studio that makes no sense, or too large a one
    ├── RoutingError        a routing table with an expert that there is not
    ├── StoreError          a tuned setting could not be kept
    ├── ResultError         a result is further from float64 than rounding explains
    ├── ChunkError          a part of a chunk failed in a pipeline of streams
    ├── ConcurrentRunError  one compiled plan on two streams at once
    ├── HangError           a wait on the device ran into the watchdog
    └── LaunchEndedError    a launch ended itself, and the CUDA context with it
        └── StageCountError     roles of a body count stages of the ring differently

A message says what is wrong, where, and what to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

# "X as X" re-exports a name.
from interlace.core.base_error import InterlaceError as InterlaceError
from interlace.core.launch_errors import HangError as HangError
from interlace.core.launch_errors import LaunchEndedError as LaunchEndedError
from interlace.core.launch_errors import StageCountError as StageCountError
from interlace.core.loop_errors import BarrierError as BarrierError
from interlace.core.loop_errors import BoxError as BoxError
from interlace.core.loop_errors import CarriedError as CarriedError
from interlace.core.loop_errors import CountHazard as CountHazard
from interlace.core.loop_errors import DepthError as DepthError
from interlace.core.loop_errors import EarlyReadHazard as EarlyReadHazard
from interlace.core.loop_errors import HazardError as HazardError
from interlace.core.loop_errors import LifetimeHazard as LifetimeHazard
from interlace.core.loop_errors import OverwriteHazard as OverwriteHazard
from interlace.core.loop_errors import PipelineError as PipelineError
from interlace.core.loop_errors import ProxyHazard as ProxyHazard
from interlace.core.loop_errors import ScopeError as ScopeError
from interlace.core.loop_errors import SharedBarrierHazard as SharedBarrierHazard
from interlace.core.loop_errors import SharedMemoryError as SharedMemoryError
from interlace.core.loop_errors import StepHazard as StepHazard
from interlace.core.loop_errors import StuckHazard as StuckHazard
from interlace.core.loop_errors import TritonSourceError as TritonSourceError
from interlace.core.loop_errors import UnknownHazard as UnknownHazard


@dataclass(frozen=True)
class FaultLocation:
    """Location of a fault in a plan.

    Attributes:
        items: positions, in the plan's sequence, of the faulty items.
        producers: positions of the items that should precede them, or that they wait for.
        tile: numbers of op and tile, for a tile without an item.
    """

    items: tuple[int, ...] = ()
    producers: tuple[int, ...] = ()
    tile: tuple[int, int] | None = None


class ArgumentError(InterlaceError):
    """An argument has the wrong type, such as a class in place of an object; the message states what to write."""


class GraphError(InterlaceError):
    """The graph is inconsistent."""


class ShapeError(GraphError):
    """Shapes of tensors, tiles or arguments do not match."""


class DTypeError(GraphError):
    """A kernel does not take this dtype."""


class ParamError(GraphError):
    """An op's params are not accepted by its kernel, or do not agree with its grid, access maps and tensors."""


class CyclicGraphError(GraphError):
    """Ops wait for each other in a cycle, so no order can run them."""


class IntraOpRaceError(GraphError):
    """Two tiles of one op touch the same region and nothing can order them.

    Attributes:
        op: number of the op; None if it is unknown.
        tiles: numbers of the tile that writes and of the other tile.
    """

    def __init__(self, message: str = "", op: int | None = None, tiles: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.op = op
        self.tiles = tiles


class UnwrittenError(GraphError):
    """An element is read before anything writes it, or an output is written in part."""


class FootprintError(GraphError):
    """A tile body reads or writes outside the regions that its op declares."""


class ReferenceBodyError(GraphError):
    """A kernel's NumPy reference raises an error, returns no array, or takes other arguments; names op and tile."""


class OrderError(InterlaceError):
    """An order is not a permutation of its op's tiles, or an interleaving not one of the items."""


class SearchError(InterlaceError):
    """A search for orders does not support the grid or the cache."""


class ModelError(InterlaceError):
    """The sizes for a bound or an estimate are invalid."""


class PlanError(InterlaceError):
    """The plan is not safe to run.

    Attributes:
        location: location of the fault; None if it has no single location.
    """

    def __init__(self, message: str = "", location: FaultLocation | None = None) -> None:
        super().__init__(message)
        self.location = location


class PlanFormatError(PlanError):
    """The text is no plan that this version can read."""


class TooManyItemsError(PlanError):
    """A plan would have more items than a plan can hold."""


class ItemError(PlanError):
    """Items do not cover every tile and its reduction exactly once."""


class SemaphoreError(PlanError):
    """A wait or a post names a semaphore that does not exist."""


class ThresholdError(PlanError):
    """A threshold differs from the number of posts that reach its semaphore."""


class CoverageError(PlanError):
    """A dependency is enforced neither by program order nor by a wait."""


class DeadlockError(PlanError):
    """Items wait for each other, or for items that are never dispatched before them."""


class SpawnError(PlanError):
    """An item has no spawner or several, or waits for an item that may never run."""


class ProtocolError(InterlaceError):
    """Workers of a launch, or of a model of a launch, violate their protocol."""


class QueueOverflowError(ProtocolError):
    """A queue overflows, or may overflow."""


class EarlyEndError(ProtocolError):
    """A worker detects the end although an item may be outstanding."""


class SimulationError(InterlaceError):
    """The simulation is too large, or the data about its items do not match them."""


class StreamError(SimulationError):
    """A stream of accesses is malformed: not dense unit numbers, no sizes for them, or too long."""


class CapacityError(SimulationError):
    """A cache is smaller than the data that it must hold at once."""


class DeviceDataError(InterlaceError):
    """There is no data file of a chip, or it does not describe one."""


class DeviceError(InterlaceError):
    """The device cannot run the request."""


class NoDeviceError(DeviceError):
    """The device or the software it needs is absent."""


class ProfilerError(DeviceError):
    """Hardware counters could not be read."""


class CompileError(DeviceError):
    """CUDA source does not compile."""


class DriverError(DeviceError):
    """The CUDA driver rejected a call."""


class ResourceError(DeviceError):
    """A block of a launch needs more shared memory, registers or threads than the device has."""


class TooManyWorkersError(DeviceError):
    """More workers than the device keeps resident at once."""


class DecodeError(InterlaceError):
    """A language model cannot be decoded, or does not support the request; no state has changed."""


class ModelFileError(DecodeError):
    """A file or a folder has no readable model: it is foreign, damaged, or lacks weights or tokenizer."""


class UnsupportedModelError(DecodeError):
    """A model is not of the Llama family, or has parts that its decoder would drop or get wrong."""


class PromptError(DecodeError):
    """Token ids are missing, not integers, or out of the vocabulary."""


class SlotError(DecodeError):
    """No slot is free, or a named slot holds no sequence."""


class BusyError(SlotError):
    """Another call, or a stream of texts, is in progress on the decoder."""


class PageError(DecodeError):
    """Sequences need more pages of a cache than are free."""


class LengthError(DecodeError):
    """A sequence does not fit the cache."""


class SamplingError(DecodeError):
    """A sampling parameter (temperature, count or share) is invalid."""


class RequestError(DecodeError):
    """A request to an engine has an invalid or unsupported parameter.

    Attributes:
        param: name of the parameter.
    """

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param

    def __reduce__(self) -> tuple[Callable[..., RequestError], tuple[object, ...]]:
        return partial(type(self), param=self.param), self.args


class StudioError(InterlaceError):
    """Options, a path, a link or a file of the studio are invalid, or exceed the limits of a request."""


class RoutingError(InterlaceError):
    """A routing table names an expert that does not exist."""


class StoreError(InterlaceError):
    """The user's cache of tuned settings could not be written."""


class ResultError(InterlaceError):
    """A result differs from float64 by more than rounding explains."""


class ChunkError(InterlaceError):
    """A part of a chunk failed in a pipeline; its cause is the error that it failed with.

    Attributes:
        chunk: number of the chunk, from 0.
        part: ``chunks`` (the iterator failed), ``upload``, ``compute`` or ``download``.
        delivered_chunks: number of chunks, from the first, that ``download`` completed.
    """

    def __init__(self, message: str, *, chunk: int, part: str, delivered_chunks: int) -> None:
        super().__init__(message)
        self.chunk = chunk
        self.part = part
        self.delivered_chunks = delivered_chunks


class ConcurrentRunError(InterlaceError):
    """A compiled plan was started on a second stream while it was still running on the first."""
