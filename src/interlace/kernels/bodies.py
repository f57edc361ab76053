"""The bodies that a kernel may have, one kind for each way in which executors run it.

    kind         what it is                                     run by
    REFERENCE    NumPy on float64 regions: the meaning          the reference executors
    TRITON       ``@triton.jit`` functions of one tile          a launch per op, and the persistent Triton launch
    GLUON        parts of a warp-specialised launch             the Hopper executor
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
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DType
from interlace.graph.op import Op, Param
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import Struct

Array = NDArray[np.float64]
Regions = Mapping[str, Array]
Params = Mapping[str, Param]

#: Parameters of a Triton body that the executor gives.
PROVIDED = ("tile", "sync", "acc")
#: Elements of k in a panel of a Gluon launch: 128 bytes of 16-bit elements, one swizzled line of the tensor core.
PANEL = 64
#: Ops of one Gluon launch at most; descriptors cannot stand in tuples, so its kernel has parameters for each.
MOST_GLUON_OPS = 4


class BodyKind(Enum):
    """What a body is written in."""

    REFERENCE = "NumPy"
    TRITON = "Triton"
    GLUON = "Gluon"
    CUDA = "CUDA C++"
    WALK = "one-launch CUDA C++"


@dataclass(frozen=True)
class Reference:
    """What one tile computes, on float64 regions clipped to their tensors.

    Attributes:
        finish: (accumulator or None, regions read that do not move with k, params) -> regions written.
        accumulate: (regions read over a k-range, params) -> partial sum; None for kernels without one.
        located: ``finish`` takes the tile's coordinates as a fourth argument.
    """

    finish: Callable[..., Mapping[str, Array]]
    accumulate: Callable[[Regions, Params], Array] | None = None
    located: bool = False

    def complete(self, op: Op, tile: int, acc: Array | None, regions: Regions) -> Mapping[str, Array]:
        """The written regions of a tile of ``op``."""
        where = (tuple(op.coords(np.array([tile]))[0].tolist()),) if self.located else ()
        return self.finish(acc, regions, op.parameters, *where)


@dataclass(frozen=True)
class TritonBody:
    """The Triton side of a kernel; each entry is a ``@triton.jit`` function.

    Attributes:
        finish: ``(tile, acc, ...)`` with a reduction, else ``(tile, ...)`` or ``(tile, sync, ...)``: stores the
            output tile.
        accumulate: ``(tile, sync, ...)`` returning a tuple of float32 blocks, or None.
        prefetch: ``(tile, ...)``: asks the L2 for data that depends on nothing (weights), or None.
        partial: float32 elements of one partial sum of an op (all blocks of ``accumulate`` together); without
            it the kernel's reductions cannot be split.
        chunked: ``accumulate`` asks ``ready`` for each stretch of its k-range; without it all waits of an item
            stand at its start.
        check: op -> raises ShapeError unless the body takes its tile; None if it takes any.
    """

    finish: Any
    accumulate: Any = None
    prefetch: Any = None
    partial: Callable[[Op], int] | None = None
    chunked: bool = False
    check: Callable[[Op], None] | None = None


@dataclass(frozen=True)
class Pipeline:
    """How a warp-specialised launch moves data into shared memory.

    Attributes:
        stages: depth of the ring.
        independent_rows, dependent_rows: rows of 64 elements in a stage, of operands that depend on nothing (weights)
            and of those that earlier items produce.
        in_flight: most stages of independent operands under way at once in one block.
        warpgroups: those that share a tile, 1 or 2.
    """

    stages: int
    independent_rows: int
    dependent_rows: int
    in_flight: int
    warpgroups: int

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage, of 16-bit elements."""
        return (self.independent_rows + self.dependent_rows) * PANEL * 2


@dataclass(frozen=True)
class GluonCode:
    """What the template of ``kernels/gluon`` plugs in.

    Attributes:
        load_independent, load_dependent, compute: ``@gluon.jit`` functions, see ``kernels/gluon/template``.
        operands: op, tensors -> (dependent, independent, second independent or None) tensor descriptors.
        arguments: op, tensors, pipeline, most parts of a tile -> the named tuple that all functions take.
    """

    load_independent: Any
    load_dependent: Any
    compute: Any
    operands: Callable[[Op, Mapping[str, Any]], tuple[Any, Any, Any]]
    arguments: Callable[[Op, Mapping[str, Any], Pipeline, int], Any]

    @property
    def functions(self) -> tuple[Any, ...]:
        """In the template's order."""
        return self.load_independent, self.load_dependent, self.compute


@dataclass(frozen=True)
class GluonBody:
    """The Gluon side of a kernel: what can be told of it without Triton, and its code.

    Attributes:
        independent: names of the arguments that are loaded before any wait; no op of the graph may write them.
        check: op, warpgroups -> raises ShapeError unless the op's tile suits so many of them.
        rows: op -> (independent, dependent) rows of 64 elements that a stage of it takes.
        scratch_bytes: op -> shared memory that it needs beside the ring.
        partial: float32 elements of one partial sum of an op.
        filled: names of the arguments that only bulk loads read, which leave out rows that are not there.
        code: returns the code; called only when a launch needs it.
    """

    independent: tuple[str, ...]
    check: Callable[[Op, int], None]
    rows: Callable[[Op], tuple[int, int]]
    scratch_bytes: Callable[[Op], int]
    partial: Callable[[Op], int]
    filled: tuple[str, ...]
    code: Callable[[], GluonCode]


@dataclass(frozen=True)
class WalkTile:
    """How the one launch computes the tiles of an op; ops with equal ones of one text share their code.

    Attributes:
        type: the C++ type whose functions do it, which the kernel's text defines.
        functions: further texts that the type needs, each once in a launch.
        independent_bytes, dependent_bytes: of shared memory that a stage of the ring takes, for operands that depend on
            nothing (weights) and for those that earlier items produce.
        scratch_bytes: of shared memory that each warpgroup takes for itself.
        beyond_bytes: that may be read, whatever they hold, behind the last stage.
        sums: float32 elements of one partial sum; without one, of what all consumers keep in registers.
    """

    type: str
    functions: tuple[str, ...]
    independent_bytes: int
    dependent_bytes: int
    scratch_bytes: int
    beyond_bytes: int
    sums: int


@dataclass(frozen=True)
class WalkBody:
    """The part of a kernel in the one launch (``launch/walk``), as CUDA C++.

    Attributes:
        text: defines what ``WalkTile.type`` names; it stands behind the walk, in a namespace of its own, where
            ``ELEMENT_PTX`` is the dtype of the op's first argument in PTX.
        operands: the struct that a launch has of each op in device memory, called ``Operands``.
        independent: names of the arguments that are loaded before any wait; no op of the graph may write them.
        tile: op, most parts of a tile, warpgroups -> how its tiles are computed; raises ShapeError if they are not.
        pack: op, tensors by argument, dtype of the first -> the bytes of ``operands``. It needs a CUDA driver.
        check: op, the graph's tensors by argument -> raises DTypeError or ShapeError unless some tiling of it can run.
        warpgroups: op -> consumer warpgroups that its tiling is for; None if any number will do.
        chunked: it waits inside its reduction; else all waits of an item stand at its start.
        early: names of the arguments that are loaded before the item's waits, though behind the launch before; no
            earlier op of the graph may write them.
        filled: names of the arguments that only bulk loads read, which leave out rows that are not there.
    """

    text: str
    operands: Struct
    independent: tuple[str, ...]
    tile: Callable[[Op, int, int], WalkTile]
    pack: Callable[[Op, Mapping[str, Any], DType], bytes]
    check: Callable[[Op, Mapping[str, Tensor]], None]
    warpgroups: Callable[[Op], int] | None = None
    chunked: bool = True
    early: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()


class WalkMaker(Protocol):
    """The part of a kernel in the one launch, made for each op."""

    def walk(self, op: Op, tensors: Mapping[str, Tensor], settled: frozenset[str]) -> WalkBody:
        """Of an op.

        Args:
            tensors: the graph's, by argument.
            settled: arguments that no op before it writes.

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
CudaBody = Callable[[Op, Mapping[str, Any], Any, int], CudaLaunch]
