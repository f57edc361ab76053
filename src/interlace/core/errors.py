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
    │   └── SamplingError       a way to draw tokens that means nothing
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

from dataclasses import dataclass

# Names with themselves are exported from here too.
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
from interlace.core.loop_errors import UnknownHazard as UnknownHazard


@dataclass(frozen=True)
class FaultLocation:
    """Where in a plan a fault is.

    Attributes:
        items: numbers, in the plan's sequence, of the items that go wrong.
        producers: of those that should have come before them, or that they wait for.
        tile: op and tile, by number, of what has no item.
    """

    items: tuple[int, ...] = ()
    producers: tuple[int, ...] = ()
    tile: tuple[int, int] | None = None


class ArgumentError(InterlaceError):
    """An argument is of the wrong kind, such as a class where an object belongs; the message says what to write."""


class GraphError(InterlaceError):
    """The graph is inconsistent."""


class ShapeError(GraphError):
    """Shapes of tensors, tiles or arguments do not match."""


class DTypeError(GraphError):
    """A kernel does not take this dtype."""


class ParamError(GraphError):
    """An op's params are none that its kernel takes, or do not agree with its grid, access maps and tensors."""


class CyclicGraphError(GraphError):
    """Ops wait for each other in a circle, so no order can run them."""


class IntraOpRaceError(GraphError):
    """Two tiles of one op touch the same region and nothing can order them.

    Attributes:
        op: number of the op, None if it is not known.
        tiles: number of the tile that writes, and of the other one.
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
    """A search for orders was asked for a grid or a cache that it cannot take."""


class ModelError(InterlaceError):
    """A bound or an estimate was asked for sizes that mean nothing."""


class PlanError(InterlaceError):
    """The plan is not safe to run.

    Attributes:
        place: where in the plan, as far as it is in one place.
    """

    def __init__(self, message: str = "", location: FaultLocation | None = None) -> None:
        super().__init__(message)
        self.location = location


class PlanFormatError(PlanError):
    """The text is not a plan that this version reads."""


class TooManyItemsError(PlanError):
    """A plan would have more items than one holds."""


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
    """An item is spawned by nobody or by several, or waits for what may never run."""


class ProtocolError(InterlaceError):
    """Workers of a launch, or of a model of one, break their protocol."""


class QueueOverflowError(ProtocolError):
    """More is put into a queue than it holds, or may be."""


class EarlyEndError(ProtocolError):
    """A worker takes all items to be done while one may not be."""


class SimulationError(InterlaceError):
    """The simulation cannot answer what was asked: too large, or what is said about its items does not fit them."""


class StreamError(SimulationError):
    """A stream of accesses is malformed: not dense unit numbers, no sizes for them, or too long."""


class CapacityError(SimulationError):
    """A cache is smaller than what must be in it at once."""


class DeviceDataError(InterlaceError):
    """There is no data file of a chip, or it does not describe one."""


class DeviceError(InterlaceError):
    """The device cannot run what was asked."""


class NoDeviceError(DeviceError):
    """The device or the software it needs is absent."""


class ProfilerError(DeviceError):
    """Hardware counters could not be read."""


class CompileError(DeviceError):
    """CUDA C++ text does not compile."""


class DriverError(DeviceError):
    """The CUDA driver refused a call."""


class ResourceError(DeviceError):
    """A block of a launch needs more shared memory, registers or threads than the device has."""


class TooManyWorkersError(DeviceError):
    """More workers than the device keeps resident at once."""


class DecodeError(InterlaceError):
    """A language model cannot be decoded, or cannot take what was asked of it; nothing has changed."""


class ModelFileError(DecodeError):
    """A file or a folder holds no model that can be read: foreign, damaged, or without weights or tokenizer."""


class UnsupportedModelError(DecodeError):
    """A model is not of the Llama family, or has parts that its decoder would drop or get wrong."""


class PromptError(DecodeError):
    """Ids of tokens are missing, no whole numbers, or out of the vocabulary."""


class SlotError(DecodeError):
    """No slot is free, or a slot is named that no sequence holds."""


class BusyError(SlotError):
    """Another call, or a stream of texts, is under way on the decoder."""


class PageError(DecodeError):
    """Sequences need more pages of a cache than are free."""


class LengthError(DecodeError):
    """A sequence does not fit the cache."""


class SamplingError(DecodeError):
    """A temperature, a count or a share that says nothing about how to draw tokens."""


class StudioError(InterlaceError):
    """Options, a path, a link or a file of the studio that make no sense, or ask for more than a request may take."""


class RoutingError(InterlaceError):
    """A routing table names an expert that there is not."""


class StoreError(InterlaceError):
    """The user's cache of tuned settings could not be written."""


class ResultError(InterlaceError):
    """A result is further from float64 than rounding explains."""


class ChunkError(InterlaceError):
    """A part of a chunk failed in a pipeline; its cause is the error that it failed with.

    Attributes:
        chunk: number of the chunk, from 0.
        part: ``chunks`` (it could not be drawn), ``upload``, ``compute`` or ``download``.
        delivered: how many chunks ``download`` was done with, the first ones.
    """

    def __init__(self, message: str, *, chunk: int, part: str, delivered_chunks: int) -> None:
        super().__init__(message)
        self.chunk = chunk
        self.part = part
        self.delivered_chunks = delivered_chunks


class ConcurrentRunError(InterlaceError):
    """One compiled plan was started on a second stream while the first still ran it."""
