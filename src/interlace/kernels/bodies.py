"""The bodies that a kernel may have, one kind for each way in which executors run it.

    kind         what it is                                     run by
    REFERENCE    NumPy on float64 regions: the meaning          the reference executors
    TRITON       ``@triton.jit`` functions of one tile          a launch per op, and the persistent Triton launch
    CUDA         a launch of CUDA C++ of its own                executors that launch each op on its own
    WALK         parts of a persistent launch of CUDA C++       the one-launch executor

A kernel without a reduction has one function per tile. A kernel with one has two halves, so that an executor can split
its reduction: ``accumulate`` sums over a k-range, ``finish`` turns the sum into the output tile. Reference and Triton
halves correspond one to one.

Parameters of a Triton body are found by name: ``tile``, ``sync`` and ``acc`` come from the executor, every
other name is a tensor argument of the op (None if the op has no such argument) or one of its params.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DType
from interlace.core.errors import DeviceError, ShapeError
from interlace.graph.op import Op, Param
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import Struct

Array = NDArray[np.float64]
Regions = Mapping[str, Array]
Params = Mapping[str, Param]

#: Parameters of a Triton body that the executor gives.
PROVIDED_PARAMETERS = ("tile", "sync", "acc")
#: Elements of k in a panel of the one launch: 128 bytes of 16-bit elements, one swizzled line of the tensor core.
PANEL = 64
#: The major compute capability whose instructions bodies of the one launch use.
COMPUTE_CAPABILITY_MAJOR = 9
#: Rows that one bulk load brings, at most (CUDA driver API, cuTensorMapEncodeTiled).
MAX_BOX_ROWS = 256


class BodyKind(Enum):
    """What a body is written in."""

    REFERENCE = "NumPy"
    TRITON = "Triton"
    CUDA = "CUDA C++"
    MEGAKERNEL = "one-launch CUDA C++"


@dataclass(frozen=True)
class Reference:
    """What one tile computes, on float64 regions clipped to their tensors.

    Attributes:
        finish: (accumulator or None, regions read that do not move with k, params) -> regions written.
        accumulate: (regions read over a k-range, params) -> partial sum; None for kernels without one.
        needs_coords: ``finish`` takes the tile's coordinates as a fourth argument.
    """

    finish: Callable[..., Mapping[str, Array]]
    accumulate: Callable[[Regions, Params], Array] | None = None
    needs_coords: bool = False


@dataclass(frozen=True)
class TritonBody:
    """The Triton side of a kernel; each entry is a ``@triton.jit`` function.

    Attributes:
        finish: ``(tile, acc, ...)`` with a reduction, else ``(tile, ...)`` or ``(tile, sync, ...)``: stores the
            output tile.
        accumulate: ``(tile, sync, ...)`` returning a tuple of float32 blocks, or None.
        prefetch: ``(tile, ...)``: asks the L2 for data that depends on nothing (weights), or None.
        partial_elements: float32 elements of one partial sum of an op (all blocks of ``accumulate`` together); without
            it the kernel's reductions cannot be split.
        is_chunked: ``accumulate`` asks ``ready`` for each stretch of its k-range; without it all waits of an item
            stand at its start.
        check: op -> raises ShapeError unless the body takes its tile; None if it takes any.
    """

    finish: Any
    accumulate: Any = None
    prefetch: Any = None
    partial_elements: Callable[[Op], int] | None = None
    is_chunked: bool = False
    check: Callable[[Op], None] | None = None


@dataclass(frozen=True)
class Cluster:
    """Blocks of the one launch that load for one another, as the tiles that they take together.

    Attributes:
        rows: tiles along tokens, which need the same weights.
        columns: tiles along weights, which need the same tokens.

    Raises:
        DeviceError: other than 1, 2 or 4 blocks.
    """

    rows: int = 1
    columns: int = 1

    def __post_init__(self) -> None:
        whole = type(self.rows) is int and type(self.columns) is int
        if not whole or min(self.rows, self.columns) < 1 or self.blocks not in (1, 2, 4):
            raise DeviceError(f"a cluster of {self.rows!r} x {self.columns!r} blocks; use 1, 2 or 4 blocks in all")

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} blocks"


#: Each block loads for itself.
NO_CLUSTER = Cluster()
#: float32 elements of a row of partial sums in the workspace: 16 bytes of each thread of a warpgroup.
ROW_FLOATS = 4 * 128
#: Registers of a thread, ``REGISTERS_TO_HOLD`` of a text, that it may have for operands which it takes ahead of waits,
#: with what else an item has. What is left beside them only the compiler knows: a launch that spills tries the next.
#: Each try is a compilation of seconds, so there are but three more. With the last, products of 64 weight rows hold one
#: stage where they would hold two.
OPERAND_REGISTERS = (172, 160, 142, 100)


@dataclass(frozen=True)
class MegakernelTile:
    """How the one launch computes the tiles of an op; ops with equal ones of one text share their code.

    Attributes:
        type: the C++ type whose functions do it, which the kernel's text defines.
        functions: further texts that the type needs, each once in a launch.
        prefetchable_bytes, dependent_bytes: of shared memory that a stage of the ring takes, for operands that depend
            on nothing (weights) and for those that earlier items produce.
        scratch_bytes: of shared memory that each warpgroup takes for itself.
        overread_bytes: that may be read, whatever they hold, behind the last stage.
        partial_elements: float32 elements of one partial sum; without one, of what all consumers keep in registers.
        shared_elements: float32 elements of a partial sum that one part adds, where all parts add; else 0.
        has_register_operands: whether operands wait in registers; see ``OPERAND_REGISTERS``.
        header_bytes: of shared memory beside the slots of a stage, for what else comes with an item's first one.
        resident_bytes: of shared memory that the loader ahead fills once in a launch.
    """

    type: str
    functions: tuple[str, ...]
    prefetchable_bytes: int
    dependent_bytes: int
    scratch_bytes: int
    overread_bytes: int
    partial_elements: int
    shared_elements: int = 0
    has_register_operands: bool = False
    header_bytes: int = 0
    resident_bytes: int = 0


_EPOCH_BYTES, _ALIGN_BYTES = 4, 16  # of what is kept; parts of shared memory lie at multiples of so many


@dataclass(frozen=True)
class ResidentVector:
    """A small vector of which a loader can have a number for each element, an int, in shared memory.

    Attributes:
        arg: the argument, one of those that are loaded early.
        count: its elements.
    """

    arg: str
    count: int

    def apply_to(self, tile: MegakernelTile) -> MegakernelTile:
        """A tile whose loader keeps them."""
        nbytes = -(-self.count * _EPOCH_BYTES // _ALIGN_BYTES) * _ALIGN_BYTES
        return replace(tile, type=f"{tile.type}::Resident", resident_bytes=nbytes)


#: The C++ type of a word (``csrc/ll.cuh``).
LL_WORD = "unsigned long long"


@dataclass(frozen=True)
class LLTensors:
    """Which arguments of an op are words (``csrc/ll.cuh``).

    Attributes:
        epochs: of each the number of its publication in a run.
        epochs_per_run: numbers of a run.
    """

    epochs: Mapping[str, int]
    epochs_per_run: int = 0

    @property
    def operand_values(self) -> dict[str, int]:
        """What operands of an op have beside addresses, by field."""
        numbers = {f"{name}_number": number for name, number in self.epochs.items()}
        return {**numbers, "publications": self.epochs_per_run} if numbers else {}

    @property
    def operand_fields(self) -> tuple[tuple[str, str], ...]:
        """These fields and their kinds."""
        return tuple((name, "unsigned") for name in self.operand_values)


#: None of them.
NO_LL = LLTensors({})


@dataclass(frozen=True)
class MegakernelBody:
    """The part of a kernel in the one launch (``csrc/ring/ring.cuh``), as CUDA C++.

    Attributes:
        source: defines what ``MegakernelTile.type`` names; it stands behind the walk, in a namespace of its own, where
            ``ELEMENT_PTX`` is the dtype of the op's first argument in PTX.
        operands: the struct that a launch has of each op in device memory, called ``Operands``.
        prefetchable_inputs: names of the arguments that are loaded before any wait; no op of the graph may write them.
        tile: op, most parts of a tile, warpgroups -> how its tiles are computed; raises ShapeError if they are not.
        pack: op, tensors by argument, dtype of the first -> the bytes of ``operands``. It needs a CUDA driver.
        check: op, the graph's tensors by argument -> raises DTypeError or ShapeError unless some tiling of it can run.
        warpgroups: op -> consumer warpgroups that its tiling is for; None if any number will do.
        max_warpgroups: with which it can be.
        is_chunked: it waits inside its reduction; else all waits of an item stand at its start.
        pre_wait_inputs: names of the arguments that are loaded before the item's waits, though behind the launch
            before; no earlier op of the graph may write them.
        resident: what the loader may keep in shared memory, where all ops of the launch that could have the same
            tensor. None if there is nothing.
        post_wait_inputs: names of the arguments that a text has through the ring behind the item's waits
            (``ring/fetched.cuh``).
        prefers_two_warpgroups: where no tiling says how many warpgroups there are, it has two, as its items compute on
            rows that come as fast as memory brings them.
        build_clustered_body: op, cluster -> the part where its blocks load for one another; raises ShapeError if they
            cannot. None if no tiling can.
        short_inputs: names of the arguments that may have fewer rows than the graph says; those that are not there are
            not read.
        build_cooperative_tile: op, parts of each tile, warpgroups -> how tiles are computed of which each part adds and
            finishes a share; None where they are not, or for a body that has no such tiles.
        build_prefetching_tile: op, its tile, the least extent along k that an item has -> the same, whose items may
            take weights into registers ahead of their waits. None if none do, or all as they are.
        ll_inputs: names of the arguments that it can read as words, all or none; then each tile polls all that the op's
            access maps say it reads of them.
        ll_outputs: names of those that it can write as words, all or none.
        has_tensor_copy: it writes these to their tensors too, and has their words as ``<name>_words``; else nothing is
            there but words.
        can_use_ll: op, name of an argument -> whether that can; None if all always can.
        count_ll_trips: op -> how many times one behind the other a tile asks the L2 for words; None if it is once.
        reads_before_ll_stores: op -> whether a tile leaves no word before all that it reads has come, so that any of
            its words tells so; None if it does not.
        ll_needs_reads: all that a tile reads goes into its words, whatever else it stores, so that all of them
            together tell that its reads are over.
        build_ll_body: which arguments are words -> the part that has them so.
    """

    source: str
    operands: Struct
    prefetchable_inputs: tuple[str, ...]
    tile: Callable[[Op, int, int], MegakernelTile]
    pack: Callable[[Op, Mapping[str, Any], DType], bytes]
    check: Callable[[Op, Mapping[str, Tensor]], None]
    warpgroups: Callable[[Op], int] | None = None
    max_warpgroups: int = 2
    is_chunked: bool = True
    pre_wait_inputs: tuple[str, ...] = ()
    resident: ResidentVector | None = None
    post_wait_inputs: tuple[str, ...] = ()
    prefers_two_warpgroups: bool = False
    short_inputs: tuple[str, ...] = ()
    build_clustered_body: Callable[[Op, Cluster], MegakernelBody] | None = None
    build_cooperative_tile: Callable[[Op, int, int], MegakernelTile | None] | None = None
    build_prefetching_tile: Callable[[Op, MegakernelTile, int], MegakernelTile] | None = None
    ll_inputs: tuple[str, ...] = ()
    ll_outputs: tuple[str, ...] = ()
    has_tensor_copy: bool = False
    can_use_ll: Callable[[Op, str], bool] | None = None
    count_ll_trips: Callable[[Op], int] | None = None
    reads_before_ll_stores: Callable[[Op], bool] | None = None
    ll_needs_reads: bool = False
    build_ll_body: Callable[[LLTensors], MegakernelBody] | None = None


class MegakernelBodyFactory(Protocol):
    """The part of a kernel in the one launch, made for each op."""

    def build_megakernel_body(self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str]) -> MegakernelBody:
        """Of an op.

        Args:
            tensors: the graph's, by argument.
            read_only: arguments that no op before it writes.

        Raises:
            ParamError: names or params that are none of CUDA C++.
            PlanError: it cannot stand in a launch with others.
        """


class CudaLaunch(Protocol):
    """One launch of CUDA C++ as a value."""

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, given its handle."""

    def compile(self) -> Any:
        """Compile, which needs no device."""

    def load(self) -> None:
        """Compile and load for the current device, so that a call only launches, as a capture demands."""


#: Makes the launch of some items of an op, from the op, its tensors by argument, a ``Sync`` and how many items.
CudaLauncher = Callable[[Op, Mapping[str, Any], Any, int], CudaLaunch]


def check_alignment(op: str, arg: str, address: int, step: int, why: str) -> None:
    """Raise ShapeError unless an argument of an op begins at a multiple of so many bytes."""
    if address % step:
        raise ShapeError(
            f"op {op!r}: {arg} begins at address {address:#x}, and {why} a multiple of {step} bytes; copy it to a "
            "tensor of its own"
        )
