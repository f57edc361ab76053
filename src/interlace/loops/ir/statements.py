"""The loop IR: the work of one thread block, tile by tile.

Every statement works on whole tiles and is executed by all threads of its scope together. The exception is a loop over
threads, where one thread executes an iteration. The emitter decides how elements are spread over threads. A *box* is a
tile of a tensor: an origin and a shape. Reads of a global tensor past its bounds give zeros, and writes past its bounds
are dropped (as TMA does); tails rely on this. A box of a tile lies inside the tile.

Worked example: ``x`` has 10 elements, the tile 4, three steps. The last box is ``x[8 : 12]``: elements 8 and 9, then
two zeros. Stored to ``y[8 : 12]``, only 8 and 9 are written.

Source kernels contain only the statements down to ``Matmul``. The rewrites (``circular.lower``, ``shared.share_ring``)
introduce those from ``Let`` on. A statement is executed by all threads of its scope: the block, the threads of the
enclosing ``Role``, or the one thread (or one thread per warp) of the enclosing ``ElectOne``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod

from interlace.core.dtypes import DType
from interlace.loops.ir.index import Const, Index, Less
from interlace.loops.ir.values import Box, Value

#: Threads of a warp, and of the warpgroup that issues one wgmma.
WARP = 32
WARPGROUP = 128
#: Maximum number of registers per thread that a role requests, a multiple of 8 (setmaxnreg).
ROLE_REGISTERS = 240


class MemorySpace(Enum):
    """The memory that holds a tensor."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"


@dataclass(frozen=True)
class LoopTensor:
    """A named array, row-major.

    Attributes:
        shape: extents; those of shared and register tensors are constants.
        stages: slots of a ring in shared memory; None for a tensor that is not a ring (before the rewrite: all).
        is_written: for global tensors, True if the kernel writes it.
        align_bytes: alignment of a global tensor's base address in bytes.
        swizzle_bytes: 0, or 128: TMA permutes the 16-byte pieces of its rows, which are 128 bytes long.
    """

    name: str
    shape: tuple[Index, ...]
    dtype: DType
    memory: MemorySpace
    stages: int | None = None
    is_written: bool = False
    align_bytes: int = 16
    swizzle_bytes: int = 0

    @property
    def tile(self) -> tuple[int, ...]:
        """The extents of a shared or register tensor as numbers."""
        return tuple(n.value for n in self.shape if isinstance(n, Const))

    @property
    def tile_bytes(self) -> int:
        """Bytes of one slot of a shared or register tensor."""
        return prod(self.tile) * self.dtype.itemsize


class Copy(Enum):
    """Method by which a tile is copied."""

    TMA = "tma"
    """Bulk tensor copy, issued by one thread. An mbarrier counts a load's bytes; a store goes from shared to global."""
    CP_ASYNC = "cp.async"
    """Asynchronous 16-byte copies by every thread."""
    PLAIN = "plain"
    """Load and store by every thread."""


class LoopKind(Enum):
    """Executor of a loop's iterations."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    BLOCK = "block"
    """One thread block per iteration; blocks are numbered in the order of nested loops."""
    THREAD = "thread"
    """One thread of the scope per iteration: of ``T``, thread ``p`` takes p, p + T, p + 2T, ...; none waits."""


class ReduceOp(Enum):
    """Operator of a reduction."""

    SUM = "sum"
    MAX = "max"


class Stmt:
    """A statement."""


@dataclass(frozen=True)
class For(Stmt):
    """``for var in start .. stop - 1``; nothing if ``stop <= start``. Source loops start at 0."""

    var: str
    start: Index
    stop: Index
    kind: LoopKind
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class If(Stmt):
    """``body`` if ``condition`` holds; outside loops over threads, all threads of the block take the same branch."""

    condition: Less
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Load(Stmt):
    """Copy of a global box to a box in shared memory (or, PLAIN only, in registers).

    The rewrite sets ``barrier``: a TMA load completes its bytes on that barrier. A separate arrival follows a cp.async
    or plain load into shared memory.
    """

    dst: Box
    src: Box
    by: Copy
    barrier: BarrierSlot | None = None


@dataclass(frozen=True)
class Store(Stmt):
    """Copy of a box in registers or shared memory to a global box, clipped at its bounds.

    With TMA the source lies in shared memory and has been read when the statement ends. The emitter places the proxy
    fence and the barrier before the store, and the wait for the read. The writes are complete when the kernel ends.
    """

    dst: Box
    src: Box
    by: Copy = Copy.PLAIN


@dataclass(frozen=True)
class Pointwise(Stmt):
    """``dst = value``, element by element over the shape of ``dst``."""

    dst: Box
    value: Value


@dataclass(frozen=True)
class Reduce(Stmt):
    """``dst = op(dst, reduction of value along axes)``, with the value evaluated over a tile of ``shape``.

    ``dst`` lies in registers, has the rank of ``shape``, and extent 1 along ``axes``. It accumulates: fill it first.
    """

    dst: Box
    op: ReduceOp
    axes: tuple[int, ...]
    value: Value
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Matmul(Stmt):
    """``acc[m, n] += a[m, k] @ b[n, k].T`` in fp32, complete when the statement ends.

    ``a`` and ``b`` are whole tiles in shared memory that TMA loaded (wgmma reads through the async proxy).
    """

    acc: Box
    a: Box
    b: Box


@dataclass(frozen=True)
class Let(Stmt):
    """Definition of ``var`` as ``value`` for the rest of the enclosing body."""

    var: str
    value: Index


@dataclass(frozen=True)
class BarrierSlot:
    """One mbarrier of an array."""

    name: str
    slot: Index


@dataclass(frozen=True)
class AllocBarrier(Stmt):
    """Allocation of ``slots`` mbarriers of 8 bytes in shared memory for ``tensor``."""

    name: str
    slots: int
    tensor: str


@dataclass(frozen=True)
class InitBarrier(Stmt):
    """Initialisation of barriers with ``count`` expected arrivals per phase; phase 0 begins."""

    name: str
    count: int


@dataclass(frozen=True)
class FenceBarrierInit(Stmt):
    """Fence that makes initialised barriers visible to the async proxy; ``SyncScope`` does so for threads."""


@dataclass(frozen=True)
class FenceProxy(Stmt):
    """Proxy fence: orders earlier ordinary writes to shared memory before bulk copies after the next ``SyncScope``."""


@dataclass(frozen=True)
class ArriveExpect(Stmt):
    """One arrival of the thread that also makes the phase expect ``bytes`` more from bulk copies."""

    barrier: BarrierSlot
    bytes: int


@dataclass(frozen=True)
class Arrive(Stmt):
    """One arrival of each executing thread, with release semantics for its reads and writes."""

    barrier: BarrierSlot


@dataclass(frozen=True)
class ArriveCopies(Stmt):
    """One arrival of each executing thread, triggered when its earlier cp.async copies have landed."""

    barrier: BarrierSlot


@dataclass(frozen=True)
class WaitParity(Stmt):
    """Wait until the phase of this parity is complete (on a fresh barrier, parity 1 passes at once)."""

    barrier: BarrierSlot
    parity: Index


@dataclass(frozen=True)
class Invalidate(Stmt):
    """End of the barriers' life, after which their memory may be reused."""

    name: str


@dataclass(frozen=True)
class SyncScope(Stmt):
    """Synchronisation of all threads of the scope (``__syncthreads`` for the block, a named barrier in a role)."""


@dataclass(frozen=True)
class NextStage(Stmt):
    """Advance to the next stage of a ring that all ops of a launch share, for the tiles of one step.

    Consumers wait until the tiles have landed. A loader opens the stage for the loads that follow.
    """

    tiles: tuple[str, ...]


@dataclass(frozen=True)
class DoneStage(Stmt):
    """End of work on a stage: consumers release it, a loader has issued all its loads. Both advance to the next one."""


class ElectionScope(Enum):
    """Group of threads that elects one thread."""

    SCOPE = "scope"
    """Always the same thread, in the first warp of the scope."""
    WARP = "warp"
    """The other lanes have reached the same point."""


@dataclass(frozen=True)
class ElectOne(Stmt):
    """``body`` executed by one thread of the scope, or by one of each of its warps."""

    body: tuple[Stmt, ...]
    per: ElectionScope = ElectionScope.SCOPE


class RoleKind(Enum):
    """Role of some warpgroups of a warp-specialised block."""

    LOADER = "loader"
    CONSUMER = "consumer"


@dataclass(frozen=True)
class Role(Stmt):
    """``body`` executed by threads ``first .. first + threads - 1`` only, with ``registers`` each (setmaxnreg)."""

    kind: RoleKind
    first: int
    threads: int
    registers: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Section(Stmt):
    """A named part of the rewritten kernel (``prologue``, ``main``, ...); the name is only for readers."""

    name: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Ring:
    """Mark set by ``circular_buffer``: ``tensor`` gets ``stages`` slots, loaded ``prefetch`` steps ahead."""

    tensor: str
    stages: int
    prefetch: int


@dataclass(frozen=True)
class LoopKernel:
    """One kernel.

    Attributes:
        symbols: run-time extents, the kernel's integer parameters.
        tensors: all tensors; the global ones, in this order, are its pointer parameters.
        threads: threads per block; only the computing ones if warp-specialised (``block_threads`` counts all).
        rings: marks for the rewrite; empty after it.
        loader_threads: threads that only load, 0 unless warp-specialised.
    """

    name: str
    symbols: tuple[str, ...]
    tensors: tuple[LoopTensor, ...]
    body: tuple[Stmt, ...]
    threads: int
    rings: tuple[Ring, ...] = field(default=())
    loader_threads: int = 0

    @property
    def block_threads(self) -> int:
        """Number of all threads of a block."""
        return self.threads + self.loader_threads

    def find_tensor(self, name: str) -> LoopTensor:
        """Return the tensor called ``name``."""
        return next(t for t in self.tensors if t.name == name)

    def find_ring(self, name: str) -> Ring | None:
        """Return the mark on tensor ``name``, if any."""
        return next((r for r in self.rings if r.tensor == name), None)


#: Statements that contain other statements.
Block = For | If | ElectOne | Role | Section
