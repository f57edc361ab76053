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

from interlace.core.errors import DeviceError, ShapeError
from interlace.graph.op import Op, Param

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
