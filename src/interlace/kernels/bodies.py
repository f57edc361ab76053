"""The kinds of bodies of a kernel, one for each way in which executors run it.

    kind         what it is                                     run by
    REFERENCE    NumPy on float64 regions: the definition       the reference executors
    TRITON       ``@triton.jit`` functions of one tile          a launch per op, and the persistent Triton launch
    CUDA         a CUDA C++ kernel with its own launch          executors that launch each op separately
    MEGAKERNEL   parts of a persistent launch in CUDA C++       the megakernel executor

A kernel without a reduction has one function per tile. A kernel with a reduction has two, so that an executor can
split it (split-K): ``accumulate`` sums over a k-range, ``finish`` turns the sum into the output tile. The functions
of Reference and Triton bodies correspond one to one.

Parameters of a Triton body are bound by name: ``tile``, ``sync`` and ``acc`` come from the executor. Every other name
is a tensor argument of the op (None if the op has no such argument) or one of its params.
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

#: Parameters of a Triton body that the executor provides.
PROVIDED_PARAMETERS = ("tile", "sync", "acc")
#: Elements along k of an operand panel of the megakernel: 128 bytes of 16-bit elements, one swizzled line of the
#: tensor core.
PANEL = 64
#: Major compute capability whose instructions the megakernel's bodies use.
COMPUTE_CAPABILITY_MAJOR = 9
#: Upper bound of the rows of one bulk load (CUDA driver API, cuTensorMapEncodeTiled).
MAX_BOX_ROWS = 256


class BodyKind(Enum):
    """Language of a body."""

    REFERENCE = "NumPy"
    TRITON = "Triton"
    CUDA = "CUDA C++"
    MEGAKERNEL = "megakernel CUDA C++"


@dataclass(frozen=True)
class Reference:
    """The computation of one tile, on float64 regions clipped to their tensors.

    Attributes:
        finish: (accumulator or None, input regions that do not move with k, params) -> output regions.
        accumulate: (input regions over a k-range, params) -> partial sum; None for kernels without a reduction.
        needs_coords: True if ``finish`` takes the tile's coordinates as a fourth argument.
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
        prefetch: ``(tile, ...)``: prefetches read-only inputs (weights) into the L2, or None.
        partial_elements: op -> float32 elements of one split-K partial (all blocks of ``accumulate`` together);
            without it the kernel's reductions cannot be split.
        is_chunked: True if ``accumulate`` waits for each chunk of its k-range separately; otherwise an item does all
            its waits at its start.
        check: op -> raises ShapeError unless the body supports its tile; None if it supports any.
    """

    finish: Any
    accumulate: Any = None
    prefetch: Any = None
    partial_elements: Callable[[Op], int] | None = None
    is_chunked: bool = False
    check: Callable[[Op], None] | None = None


@dataclass(frozen=True)
class Cluster:
    """Thread block cluster of the megakernel whose blocks load for one another, as the tiles that they take together.

    Attributes:
        rows: tiles along tokens, which need the same weights.
        columns: tiles along weights, which need the same tokens.

    Raises:
        DeviceError: a number of blocks other than 1, 2 or 4.
    """

    rows: int = 1
    columns: int = 1

    def __post_init__(self) -> None:
        whole = type(self.rows) is int and type(self.columns) is int
        if not whole or min(self.rows, self.columns) < 1 or self.blocks not in (1, 2, 4):
            raise DeviceError(f"a cluster of {self.rows!r} x {self.columns!r} blocks; use 1, 2 or 4 blocks in all")

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} blocks"


#: No cluster: each block loads for itself.
NO_CLUSTER = Cluster()
#: float32 elements of a row of partials in the workspace: 16 bytes per thread of a warpgroup.
ROW_FLOATS = 4 * 128
#: Values of ``REGISTERS_TO_HOLD`` to try: registers of a thread for operands loaded before waits and for an item's
#: other data. Only the compiler knows how many registers everything else needs, so a launch that spills tries the
#: next value. Each try is a compilation of seconds, so there are only three more. With the last, products
#: of 64 weight rows hold one stage instead of two.
OPERAND_REGISTERS = (172, 160, 142, 100)


@dataclass(frozen=True)
class MegakernelTile:
    """How the megakernel computes the tiles of an op; ops with equal tiles of one CUDA source share their code.

    Attributes:
        type: C++ type whose functions compute the tile; the kernel's CUDA source defines it.
        functions: further CUDA sources that the type needs, each included once in a launch.
        prefetchable_bytes, dependent_bytes: bytes of shared memory of a ring stage, for prefetchable operands
            (weights) and for operands that earlier items produce.
        scratch_bytes: bytes of shared memory that each warpgroup uses for itself.
        overread_bytes: bytes after the last stage that may be read, whatever they contain.
        partial_elements: float32 elements of one split-K partial; if tiles are not split, those that all consumers
            keep in registers.
        shared_elements: float32 elements of a partial that one part reduces, in a cooperative reduction; else 0.
        has_register_operands: True if operands are held in registers during waits; see ``OPERAND_REGISTERS``.
        header_bytes: bytes of shared memory in addition to a stage's slots, for data that arrives with an item's
            first stage.
        resident_bytes: bytes of shared memory that the prefetching loader fills once per launch.
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


_EPOCH_BYTES, _ALIGN_BYTES = 4, 16  # bytes of a resident element; alignment of regions of shared memory


@dataclass(frozen=True)
class ResidentVector:
    """A small vector for each element of which a loader can keep an int in shared memory.

    Attributes:
        arg: name of the argument, one of the pre-wait inputs.
        count: number of elements.
    """

    arg: str
    count: int

    def apply_to(self, tile: MegakernelTile) -> MegakernelTile:
        """Return the tile with a loader that keeps these ints."""
        nbytes = -(-self.count * _EPOCH_BYTES // _ALIGN_BYTES) * _ALIGN_BYTES
        return replace(tile, type=f"{tile.type}::Resident", resident_bytes=nbytes)


#: C++ type of an LL word (``csrc/ll.cuh``).
LL_WORD = "unsigned long long"


@dataclass(frozen=True)
class LLTensors:
    """The arguments of an op that use the LL protocol (NCCL's: data with an inline epoch; ``csrc/ll.cuh``).

    Attributes:
        epochs: epoch of each such argument within a run.
        epochs_per_run: number of epochs of a run.
    """

    epochs: Mapping[str, int]
    epochs_per_run: int = 0

    @property
    def operand_values(self) -> dict[str, int]:
        """Values of an op's operands other than addresses, by field."""
        numbers = {f"{name}_number": number for name, number in self.epochs.items()}
        return {**numbers, "publications": self.epochs_per_run} if numbers else {}

    @property
    def operand_fields(self) -> tuple[tuple[str, str], ...]:
        """The fields of ``operand_values`` with their C++ types."""
        return tuple((name, "unsigned") for name in self.operand_values)


#: No argument uses the LL protocol.
NO_LL = LLTensors({})


@dataclass(frozen=True)
class MegakernelBody:
    """A kernel's body in the megakernel (``csrc/ring/ring.cuh``), as CUDA C++.

    Attributes:
        source: CUDA source that defines ``MegakernelTile.type``; it follows the megakernel's own source, in a
            separate namespace in which ``ELEMENT_PTX`` is the PTX dtype of the op's first argument.
        operands: struct of each op's operands in device memory, called ``Operands``.
        prefetchable_inputs: names of the arguments that are loaded before any wait; no op of the graph may write them.
        tile: op, upper bound of a tile's parts, warpgroups -> how its tiles are computed; raises ShapeError if that
            is not supported.
        pack: op, tensors by argument, dtype of the first -> the bytes of ``operands``. It needs a CUDA driver.
        check: op, the graph's tensors by argument -> raises DTypeError or ShapeError unless some tiling of it can run.
        warpgroups: op -> consumer warpgroups that its tiling requires; None if any number is supported.
        max_warpgroups: upper bound of the supported consumer warpgroups.
        is_chunked: True if it waits inside its reduction; otherwise an item does all its waits at its start.
        pre_wait_inputs: names of the arguments that are loaded before the item's waits but after the end of the
            previous launch; no earlier op of the graph may write them.
        resident: data that the loader may keep in shared memory, if it is the same tensor for all ops of the launch
            that have such data. None if there is none.
        post_wait_inputs: names of the arguments that reach a CUDA source through the ring after the item's waits
            (``ring/fetched.cuh``).
        prefers_two_warpgroups: True if two warpgroups are used when no tiling determines their number, because its
            items compute on rows at the rate of memory.
        build_clustered_body: op, cluster -> the body whose blocks load for one another; raises ShapeError if they
            cannot. None if no tiling can.
        short_inputs: names of the arguments that may have fewer rows than the graph declares; missing rows are not
            read.
        build_cooperative_tile: op, parts of each tile, warpgroups -> how tiles are computed if each part reduces and
            finishes a share of the tile; returns None if that is not supported. None for a body without such tiles.
        build_prefetching_tile: op, its tile, lower bound of an item's extent along k -> the same tile, whose items
            may load weights into registers before their waits. None if the body has no such tiles, or if all its
            tiles are such.
        ll_inputs: names of the arguments that it can read as LL words, all or none; each tile then polls all that the
            op's access maps declare as read from them.
        ll_outputs: names of the arguments that it can write as LL words, all or none.
        has_tensor_copy: True if it also writes LL outputs to their tensors, with the words in ``<name>_words``;
            otherwise only the words exist.
        can_use_ll: op, name of an argument -> True if the argument can use LL; None if all always can.
        count_ll_trips: op -> number of consecutive L2 round trips in which a tile polls LL words; None for one.
        reads_before_ll_stores: op -> True if a tile stores no LL word before all its reads are complete, so that any
            of its words proves that; None if that does not hold.
        ll_needs_reads: True if everything that a tile reads affects its LL words, whatever else it stores, so that
            all words together prove that its reads are complete.
        build_ll_body: the arguments that use LL -> the body that uses it for them.
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
    """Factory that builds a kernel's megakernel body for each op."""

    def build_megakernel_body(self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str]) -> MegakernelBody:
        """Return the body for an op.

        Args:
            tensors: tensors of the graph, by argument.
            read_only: arguments that no earlier op writes.

        Raises:
            ParamError: names or params that are invalid in CUDA C++.
            PlanError: an op that cannot share a launch with others.
        """


class CudaLaunch(Protocol):
    """One launch of a CUDA C++ kernel."""

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, given its handle."""

    def compile(self) -> Any:
        """Compile; needs no device."""

    def load(self) -> None:
        """Compile and load for the current device, so that a call only launches, as graph capture requires."""


#: Function that makes the launch of some items of an op: op, tensors by argument, ``Sync``, number of items -> launch.
CudaLauncher = Callable[[Op, Mapping[str, Any], Any, int], CudaLaunch]


def check_alignment(op: str, arg: str, address: int, step: int, why: str) -> None:
    """Raise ShapeError unless an argument of an op begins at a multiple of ``step`` bytes."""
    if address % step:
        raise ShapeError(
            f"op {op!r}: {arg} begins at address {address:#x}, and {why} a multiple of {step} bytes; copy it to a "
            "tensor of its own"
        )
