"""The loop IR: what one thread block does, tile by tile.

Every statement works on whole tiles and is executed by all threads of its scope together, except that an iteration of
a loop over threads is one thread's; how elements are spread over threads is left to the emitter. A *box* is a tile of
a tensor: an origin and a shape. Reading a box of a global tensor past its bounds gives zeros and writing there writes
nothing (as TMA does), which is how tails work; a box of a tile lies inside it.

Worked example: ``x`` has 10 elements, the tile 4, three steps. The last box is ``x[8 : 12]``: elements 8 and 9, then
two zeros; stored to ``y[8 : 12]``, only 8 and 9 are written.

Source kernels hold the statements down to ``Matmul``; those from ``Let`` on are introduced by the rewrites
(``circular.lower``, ``shared.share_ring``) alone. Who executes a statement: all threads of the scope, which is the
block, or inside ``Role`` the threads of that role, or inside ``ElectOne`` one thread of these (or one of each warp).
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
#: The most registers that a role requests for a thread, a multiple of 8 (setmaxnreg).
ROLE_REGISTERS = 240


class Memory(Enum):
    """Where a tensor lives."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"


@dataclass(frozen=True)
class Tensor:
    """A named array, row-major.

    Attributes:
        shape: extents; those of shared and register tensors are constants.
        stages: slots of a ring in shared memory, None for a tensor that is no ring (before the rewrite: all).
        written: for global tensors, whether the kernel writes it.
        align_bytes: what the base address of a global tensor is a multiple of.
        swizzle_bytes: 0, or 128: TMA permutes the 16-byte pieces of its rows, which have as many bytes.
    """

    name: str
    shape: tuple[Index, ...]
    dtype: DType
    memory: Memory
    stages: int | None = None
    written: bool = False
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
    """How a tile is copied."""

    TMA = "tma"
    """Bulk tensor copy: one thread issues it, an mbarrier counts its bytes; or back, from shared to global."""
    CP_ASYNC = "cp.async"
    """Asynchronous 16-byte copies of every thread."""
    PLAIN = "plain"
    """Load and store of every thread."""


class LoopKind(Enum):
    """Who runs the iterations of a loop."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    BLOCK = "block"
    """One thread block each; blocks are numbered as nested loops would run."""
    THREAD = "thread"
    """One thread of the scope each: of ``T``, thread ``p`` takes p, p + T, p + 2T, ... None waits for another."""


class ReduceOp(Enum):
    """What a reduction combines by."""

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
    """``body`` where ``condition`` holds; outside of loops over threads it is the same for all threads of the block."""

    condition: Less
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Load(Stmt):
    """Global box to a box in shared memory (or, PLAIN only, in registers).

    ``barrier`` is set by the rewrite: a TMA load completes its bytes there. A load by cp.async or plain loads into
    shared memory is followed by its own arrival.
    """

    dst: Box
    src: Box
    by: Copy
    barrier: BarrierSlot | None = None


@dataclass(frozen=True)
class Store(Stmt):
    """Box in registers or shared memory to a global box, clipped at its bounds.

    By TMA the source lies in shared memory and has been read when the statement ends (the emitter places the proxy
    fence, the barrier before, and the wait for the read); the writes are complete when the kernel ends.
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
    """``dst = op(dst, reduction of value along axes)``, value taken over a tile of ``shape``.

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
    """``var`` names ``value`` for the rest of the body that this stands in."""

    var: str
    value: Index


@dataclass(frozen=True)
class BarrierSlot:
    """One mbarrier of an array of them."""

    name: str
    slot: Index


@dataclass(frozen=True)
class AllocBarrier(Stmt):
    """``slots`` mbarriers of 8 bytes in shared memory, those of ``tensor``."""

    name: str
    slots: int
    tensor: str


@dataclass(frozen=True)
class InitBarrier(Stmt):
    """Each of the barriers expects ``count`` arrivals per phase; phase 0 begins."""

    name: str
    count: int


@dataclass(frozen=True)
class FenceBarrierInit(Stmt):
    """Initialised barriers become visible to the async proxy; a ``Sync`` shows them to the other threads."""


@dataclass(frozen=True)
class FenceProxy(Stmt):
    """Ordinary writes to shared memory before it come before bulk copies after the next ``Sync``."""


@dataclass(frozen=True)
class ArriveExpect(Stmt):
    """The phase expects ``bytes`` more from bulk copies, and one arrival of the thread."""

    barrier: BarrierSlot
    bytes: int


@dataclass(frozen=True)
class Arrive(Stmt):
    """One arrival of each executing thread, which releases what it has read and written."""

    barrier: BarrierSlot


@dataclass(frozen=True)
class ArriveCopies(Stmt):
    """One arrival of each executing thread, when its cp.async copies so far have landed."""

    barrier: BarrierSlot


@dataclass(frozen=True)
class WaitParity(Stmt):
    """Wait until the phase of this parity is complete (on a fresh barrier, parity 1 passes at once)."""

    barrier: BarrierSlot
    parity: Index


@dataclass(frozen=True)
class Invalidate(Stmt):
    """The barriers' memory may be used for something else."""

    name: str


@dataclass(frozen=True)
class Sync(Stmt):
    """All threads of the scope synchronise (``__syncthreads`` for the block, a named barrier inside a role)."""


@dataclass(frozen=True)
class NextStage(Stmt):
    """The next stage of a ring that all ops of a launch share, for the tiles of one step.

    Consumers wait until they have landed; a loader opens it for those that it loads, which follow.
    """

    tiles: tuple[str, ...]


@dataclass(frozen=True)
class DoneStage(Stmt):
    """Consumers hand the stage back; a loader has issued all that it loads into it. Both go on to the one behind."""


class Per(Enum):
    """Of what one thread is elected."""

    SCOPE = "scope"
    """Always the same thread, in the first warp of the scope."""
    WARP = "warp"
    """The other lanes have reached the same point."""


@dataclass(frozen=True)
class ElectOne(Stmt):
    """``body`` by one thread of the scope, or of each of its warps."""

    body: tuple[Stmt, ...]
    per: Per = Per.SCOPE


class RoleKind(Enum):
    """What some warpgroups of a warp-specialised block do."""

    LOADER = "loader"
    CONSUMER = "consumer"


@dataclass(frozen=True)
class Role(Stmt):
    """``body`` by threads ``first .. first + threads - 1`` alone, with ``registers`` each (setmaxnreg)."""

    kind: RoleKind
    first: int
    threads: int
    registers: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Section(Stmt):
    """A named part of the rewritten kernel (``prologue``, ``main``, ...); the name is for people."""

    name: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Ring:
    """The mark that ``circular_buffer`` leaves: ``tensor`` gets ``stages`` slots, loaded ``prefetch`` steps ahead."""

    tensor: str
    stages: int
    prefetch: int


@dataclass(frozen=True)
class LoopKernel:
    """One kernel.

    Attributes:
        symbols: run-time extents, the kernel's integer parameters.
        tensors: all tensors; the global ones, in this order, are its pointer parameters.
        threads: of a block; those that compute, if the block is warp-specialised (``block_threads`` has them all).
        rings: marks for the rewrite; empty after it.
        loader_threads: threads that only load, 0 unless warp-specialised.
    """

    name: str
    symbols: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    body: tuple[Stmt, ...]
    threads: int
    rings: tuple[Ring, ...] = field(default=())
    loader_threads: int = 0

    @property
    def block_threads(self) -> int:
        """All threads of a block."""
        return self.threads + self.loader_threads

    def tensor(self, name: str) -> Tensor:
        """The tensor called ``name``."""
        return next(t for t in self.tensors if t.name == name)

    def ring(self, name: str) -> Ring | None:
        """The mark on tensor ``name``, if any."""
        return next((r for r in self.rings if r.tensor == name), None)


#: Statements that hold others.
Block = For | If | ElectOne | Role | Section
