"""A kernel's body in the megakernel, in CUDA C++, divided into parts.

    part         what it declares
    loads        inputs that are loaded before an item's waits, and inputs that may be shorter than declared
    tiling       how tiles are computed, for a split and a number of warpgroups
    ll           arguments that can use the LL protocol, and what their words prove
    clustering   how blocks of a thread block cluster load for one another

``CudaBody`` declares its loads, warpgroups and LL arguments by the same classes, or by subclasses of the same base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from interlace.core.arguments import check_sequence, check_type, format_value
from interlace.core.dtypes import DType
from interlace.core.errors import ArgumentError
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import Struct
from interlace.kernels.bodies import Cluster, LLTensors, MegakernelTile, ResidentVector

_MAX_RESIDENT = 256  # upper bound of the elements that may be resident in shared memory: a kilobyte


def check_names(part: object, *fields: str) -> None:
    """Raise ArgumentError unless these fields of a part are sequences of names; make them tuples."""
    for field in fields:
        object.__setattr__(part, field, check_sequence(getattr(part, field), str, type(part).__name__, field))


def check_functions(part: object, *fields: str) -> None:
    """Raise ArgumentError unless these fields of a part are functions or None."""
    for field in fields:
        value = getattr(part, field)
        if value is not None and not callable(value):
            raise ArgumentError(
                f"{type(part).__name__}: {field} is {format_value(value)}; give a function of the op, "
                f"{field}=lambda op: ..."
            )


@dataclass(frozen=True)
class Loads:
    """Inputs of an op whose loads differ from plain loads after the item's waits.

    Attributes:
        pre_wait_inputs: arguments that are loaded before the item's waits but after the end of the previous launch; no
            earlier op of the graph may write them.
        short_inputs: (argument, operand) pairs: arguments that may have fewer rows than the graph declares, and the
            operand that then holds their number of rows. Missing rows are not read.
        resident_input: one of the pre-wait inputs, a vector; loads of tile i wait for its element i. "" for none.
        evict_first_inputs: arguments that are loaded with the L2's eviction policy ``evict_first``.
    """

    pre_wait_inputs: tuple[str, ...] = ()
    short_inputs: tuple[tuple[str, str], ...] = ()
    resident_input: str = ""
    evict_first_inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_names(self, "pre_wait_inputs", "evict_first_inputs")
        check_type(self.resident_input, str, owner, "resident_input")
        given = check_sequence(self.short_inputs, tuple, owner, "short_inputs")
        pairs = tuple(check_sequence(pair, str, owner, "short_inputs") for pair in given)
        if any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(f"{owner}: short_inputs is {self.short_inputs!r}; give pairs, such as (('x', 'M'),)")
        object.__setattr__(self, "short_inputs", pairs)

    @property
    def short_names(self) -> tuple[str, ...]:
        """Arguments that may have fewer rows than the graph declares."""
        return tuple(name for name, _ in self.short_inputs)

    def find_resident_vector(self, op: Op, tensors: Mapping[str, Tensor]) -> ResidentVector | None:
        """Return the vector that the loader may keep in shared memory: few elements, one for each tile i."""
        shape = tensors[self.resident_input].shape if self.resident_input in tensors else ()
        fits = len(shape) == 1 and op.grid[0] <= shape[0] <= _MAX_RESIDENT
        return ResidentVector(self.resident_input, shape[0]) if fits else None


@dataclass(frozen=True)
class MegakernelLoads(Loads):
    """Loads of a body that has its own code in the loader.

    Attributes:
        prefetchable_inputs: arguments that are loaded before any wait; no op of the graph may write them.
        is_chunked: True if it waits inside its reduction; otherwise an item does all its waits at its start.
    """

    prefetchable_inputs: tuple[str, ...] = ()
    is_chunked: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "prefetchable_inputs")

    @property
    def inputs_before_waits(self) -> tuple[str, ...]:
        """Arguments that are loaded before the item's waits."""
        return *self.prefetchable_inputs, *self.pre_wait_inputs


@dataclass(frozen=True)
class Warpgroups:
    """Numbers of consumer warpgroups that can compute a tile.

    Attributes:
        max_count: upper bound, 2 or 3.
        prefers_two: True if two are used when no tiling of the launch determines their number, because items compute
            on rows at the rate of memory.
        count_required: op -> number that its tiling requires; None if any number is supported.

    Raises:
        ArgumentError: another upper bound.
    """

    max_count: int = 2
    prefers_two: bool = False
    count_required: Callable[[Op], int] | None = None

    def __post_init__(self) -> None:
        if type(self.max_count) is not int or self.max_count not in (2, 3):
            raise ArgumentError(f"Warpgroups: max_count is {format_value(self.max_count)}; use 2 or 3")
        check_functions(self, "count_required")


#: One or two warpgroups, whichever the launch has.
ANY_WARPGROUPS = Warpgroups()


@dataclass(frozen=True)
class Tiling:
    """How the tiles of an op are computed.

    Attributes:
        build_tile: op, upper bound of a tile's parts, warpgroups -> its tiles; raises ShapeError if that is not
            supported.
        warpgroups: supported numbers of warpgroups.
        build_cooperative_tile: op, parts of each tile, warpgroups -> its tiles if each part reduces and finishes a
            share of the tile; returns None if that is not supported. None for a body without such tiles.
        build_prefetching_tile: op, its tile, lower bound of an item's extent along k -> the same tile, whose items
            may load weights into registers before their waits. None if the body has no such tiles, or if all its
            tiles are such.
    """

    build_tile: Callable[[Op, int, int], MegakernelTile]
    warpgroups: Warpgroups = ANY_WARPGROUPS
    build_cooperative_tile: Callable[[Op, int, int], MegakernelTile | None] | None = None
    build_prefetching_tile: Callable[[Op, MegakernelTile, int], MegakernelTile] | None = None

    def find_cooperative_tile(self, op: Op, parts: int, warpgroups: int) -> MegakernelTile | None:
        """Return the tile of a cooperative fix-up; None if that is not supported."""
        return None if self.build_cooperative_tile is None else self.build_cooperative_tile(op, parts, warpgroups)


@dataclass(frozen=True)
class LLArguments:
    """Arguments that can use the LL protocol (NCCL's: data with an inline epoch; ``csrc/ll.cuh``).

    Attributes:
        inputs: arguments that the body can read as LL words, all or none; each tile then polls all that the op's
            access maps declare as read from them.
        outputs: arguments that the body can write as LL words, all or none.
        can_use: op, tensors by argument, name of an argument -> True if the argument can use LL; None if all always
            can.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    can_use: Callable[[Op, Mapping[str, Tensor], str], bool] | None = None

    def __post_init__(self) -> None:
        check_names(self, "inputs", "outputs")
        check_functions(self, "can_use")

    def select(self, names: Iterable[str], op: Op, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Return those of an op's arguments that can use LL."""
        present = (name for name in names if name in tensors)
        return tuple(name for name in present if self.can_use is None or self.can_use(op, tensors, name))


@dataclass(frozen=True)
class LLSupport(LLArguments):
    """Arguments of a body that can use the LL protocol, and what its words prove.

    Attributes:
        has_tensor_copy: True if the body also writes LL outputs to their tensors, with the words in ``<name>_words``;
            otherwise only the words exist.
        needs_reads: True if everything that a tile reads affects its LL words, whatever else it stores, so that all
            words together prove that its reads are complete.
        reads_before_stores: op -> True if a tile stores no LL word before all its reads are complete, so that any of
            its words proves that; None if that does not hold.
        count_trips: op -> number of consecutive L2 round trips in which a tile polls LL words; None for one.
        build_body: the arguments that use LL -> the body that uses it for them; None if no argument can.
    """

    has_tensor_copy: bool = False
    needs_reads: bool = False
    reads_before_stores: Callable[[Op], bool] | None = None
    count_trips: Callable[[Op], int] | None = None
    build_body: Callable[[LLTensors], MegakernelBody] | None = None


@dataclass(frozen=True)
class Clustering:
    """How blocks of a thread block cluster load for one another.

    Attributes:
        check: op, cluster -> raises ShapeError unless the blocks can.
        pack: op, tensors by argument, dtype of the first, cluster -> the bytes of the op's operands, by which each
            block loads its share. It needs a CUDA driver.
    """

    check: Callable[[Op, Cluster], None]
    pack: Callable[[Op, Mapping[str, Any], DType, Cluster], bytes]


def accept_any(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Accept any tensors, as bodies do whose ops were checked when they were made."""


_PLAIN_LOADS, _NO_LL_SUPPORT = MegakernelLoads(), LLSupport()


@dataclass(frozen=True)
class MegakernelBody:
    """A kernel's body in the megakernel (``csrc/ring/ring.cuh``), as CUDA C++.

    Attributes:
        source: CUDA source that defines ``MegakernelTile.type``; it follows the megakernel's own source, in a
            separate namespace in which ``ELEMENT_PTX`` is the PTX dtype of the op's first argument.
        operands: struct of each op's operands in device memory, called ``Operands``.
        pack: op, tensors by argument, dtype of the first -> the bytes of ``operands``. It needs a CUDA driver.
        tiling: how tiles are computed.
        loads: how inputs are loaded.
        ll: arguments that can use the LL protocol.
        clustering: how blocks of a cluster load for one another; None if no tiling can.
        check: op, the graph's tensors by argument -> raises DTypeError or ShapeError unless some tiling of it can run.
    """

    source: str
    operands: Struct
    pack: Callable[[Op, Mapping[str, Any], DType], bytes]
    tiling: Tiling
    loads: MegakernelLoads = _PLAIN_LOADS
    ll: LLSupport = _NO_LL_SUPPORT
    clustering: Clustering | None = None
    check: Callable[[Op, Mapping[str, Tensor]], None] = accept_any

    @property
    def is_proved(self) -> bool:
        """True: such bodies belong to the package, whose tests check them against the access maps of their ops."""
        return True

    @property
    def max_warpgroups(self) -> int:
        """Upper bound of the consumer warpgroups that may compute a tile."""
        return self.tiling.warpgroups.max_count

    def join_cluster(self, op: Op, cluster: Cluster) -> MegakernelBody:
        """Return the body whose blocks load for one another.

        Raises:
            ShapeError: the operands of a tile cannot be divided into shares.
        """
        assert self.clustering is not None
        self.clustering.check(op, cluster)
        pack = self.clustering.pack
        return replace(self, pack=lambda op, tensors, dtype: pack(op, tensors, dtype, cluster))


class MegakernelBodyFactory(Protocol):
    """Factory that builds a kernel's megakernel body for each op."""

    @property
    def is_proved(self) -> bool:
        """False if nothing checks the bodies against the access maps of their ops."""

    @property
    def max_warpgroups(self) -> int:
        """Upper bound of the consumer warpgroups that may compute a tile."""

    def build_megakernel_body(self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str]) -> MegakernelBody:
        """Return the body for an op.

        Args:
            tensors: tensors of the graph, by argument.
            read_only: arguments that no earlier op writes.

        Raises:
            ParamError: names or params that are invalid in CUDA C++.
            PlanError: an op that cannot share a launch with others.
        """
