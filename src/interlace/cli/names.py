"""Names on the command line, and the typed objects that they stand for; no other module reads names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import typer

from interlace import executors
from interlace.cli.console import BadInput
from interlace.cli.inputs import read_text
from interlace.core.devices import DEFAULT_GPU, L2, DeviceSpec, load_known_chips, read_chip
from interlace.core.errors import InterlaceError
from interlace.executors import Executor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.kernels.matmul.tile import TileShape
from interlace.orders import families
from interlace.orders.order_file import read_order
from interlace.orders.panels import EvictionPolicy
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import STEAL_ONE, Stealing, Victim
from interlace.policies.interleavings import Abreast, HalfRowPanels, Interleaving, OpAfterOp, RowPanels
from interlace.policies.orders import Order
from interlace.policies.schedule import Assignment
from interlace.policies.splits import Split, SplitK, StreamK, WholeTiles
from interlace.policies.sync import (
    BatchedRowSync,
    ColumnSync,
    ConsumerSync,
    Conv2DSync,
    KernelSync,
    NoSync,
    RowSync,
    StridedSync,
    SyncPolicy,
    TileSync,
)

T = TypeVar("T")
_LARGEST = 64 << 20  # bytes of a file that is the value of an option


@dataclass(frozen=True)
class NameTable(Generic[T]):
    """Names of all members of a kind.

    Attributes:
        what: the kind, for messages.
        plain: members by name.
        counted: an example number and the constructor of members that take a number, as ``name:4``.
        filed: parser of the text of a file, for members given as ``name:FILE``.
    """

    what: str
    plain: Mapping[str, T]
    counted: Mapping[str, tuple[int, Callable[[int], T]]] = field(default_factory=dict)
    filed: Mapping[str, Callable[[str], T]] = field(default_factory=dict)

    @property
    def listing(self) -> str:
        """All names, as in help texts and messages."""
        return ", ".join([*self._listed_names, *(f"{name}:FILE" for name in self.filed)])

    @property
    def _listed_names(self) -> list[str]:
        return [*self.plain, *(f"{name}:{example}" for name, (example, _) in self.counted.items())]

    def complete(self, incomplete: str) -> list[str]:
        """Return the names that begin with a text, for completion in a shell."""
        return [name for name in self._listed_names if name.startswith(incomplete)]

    def parse(self, text: str) -> T:
        """Return the member that ``text`` names. Raises typer.BadParameter, which lists all names."""
        if text in self.plain:
            return self.plain[text]
        name, _, number = text.partition(":")
        if name in self.filed:
            return self._read_file(name, number)
        if name not in self.counted:
            raise typer.BadParameter(f"unknown {self.what} {text!r}; use one of {self.listing}")
        example, make = self.counted[name]
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise typer.BadParameter(f"{self.what} {name!r} takes a number, such as {name}:{example}")
        try:
            return make(int(number))
        except InterlaceError as error:
            raise typer.BadParameter(str(error)) from None

    def _read_file(self, name: str, path: str) -> T:
        try:
            text = read_text(Path(path), _LARGEST, f"an {self.what}", "`interlace studio`")
            return self.filed[name](text)
        except BadInput as error:
            raise typer.BadParameter(str(error)) from None
        except InterlaceError as error:
            raise typer.BadParameter(f"{path!r}: {error}") from None


class Device(Enum):
    """Machine to run on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class DispatchChoice:
    """Dispatch of a plan, with the assignment of items to per-worker queues and the rule for stealing from them."""

    dispatch: Dispatch
    assignment: Assignment = Assignment.STRIPED
    stealing: Stealing = STEAL_ONE


@dataclass(frozen=True)
class NamedOrder:
    """Order with the name that selected it."""

    name: str
    order: Order


#: Device to run on, or a GPU to plan and predict for, which need not be present.
DeviceChoice = Device | DeviceSpec


@dataclass(frozen=True)
class _Devices(NameTable[DeviceChoice]):
    """Names of devices; a TOML file is accepted too."""

    @property
    def listing(self) -> str:
        return f"{super().listing}, FILE.toml"

    def parse(self, text: str) -> DeviceChoice:
        if not text.endswith(".toml"):
            return super().parse(text)
        try:
            return read_chip(read_text(Path(text), _LARGEST, "a device", "you"), text)
        except (BadInput, InterlaceError) as error:
            raise typer.BadParameter(str(error)) from None


DEVICES = _Devices("device", {**{d.value: d for d in Device}, **load_known_chips()})
EXECUTORS: NameTable[type[Executor]] = NameTable(
    "executor", {e.name: e for e in executors.EXECUTORS} | {"persistent": PersistentTicketExecutor}
)
POLICIES: NameTable[SyncPolicy] = NameTable(
    "policy",
    {
        "tile": TileSync(),
        "row": RowSync(),
        "column": ColumnSync(),
        "conv2d": Conv2DSync(),
        "kernel": KernelSync(),
        "consumer": ConsumerSync(),
        "none": NoSync(),
    },
    {"batched-row": (4, BatchedRowSync), "strided": (3, StridedSync)},
)
ORDERS: NameTable[Order] = NameTable(
    "order",
    families.PLAIN,
    {name: (8, make) for name, make in families.GROUPED.items()},
    {"explicit": read_order},
)
CACHES = NameTable("cache", {c.value: c for c in EvictionPolicy})
INTERLEAVINGS: NameTable[Interleaving] = NameTable(
    "interleaving",
    {"op-after-op": OpAfterOp(), "half-rows": HalfRowPanels()},
    {"panels": (2, RowPanels), "abreast": (DEFAULT_GPU.sms, Abreast)},
)
SPLITS: NameTable[Split] = NameTable(
    "split", {"whole": WholeTiles()}, {"split-k": (4, SplitK), "stream-k": (DEFAULT_GPU.sms, StreamK)}
)
DISPATCHES = NameTable(
    "dispatch",
    {
        "ticket": DispatchChoice(Dispatch.TICKET),
        "static": DispatchChoice(Dispatch.STATIC),
        "static-balanced": DispatchChoice(Dispatch.STATIC, Assignment.BALANCED),
        "stealing": DispatchChoice(Dispatch.STEALING),
        "stealing-half": DispatchChoice(Dispatch.STEALING, stealing=Stealing(None)),
        "stealing-random": DispatchChoice(Dispatch.STEALING, stealing=Stealing(victim=Victim.RANDOM)),
        "stealing-random-half": DispatchChoice(Dispatch.STEALING, stealing=Stealing(None, Victim.RANDOM)),
        "hybrid": DispatchChoice(Dispatch.HYBRID),
        "queue": DispatchChoice(Dispatch.QUEUE),
        "dispatcher": DispatchChoice(Dispatch.DISPATCHER),
        "spawn": DispatchChoice(Dispatch.SPAWN),
    },
    {"stealing": (4, lambda most: DispatchChoice(Dispatch.STEALING, stealing=Stealing(most)))},
)


def parse_grid(text: str) -> tuple[int, int]:
    """Parse a grid, such as ``4x4``. Raises typer.BadParameter."""
    rows, _, columns = text.partition("x")
    if not all(e.isascii() and e.isdigit() and len(e) < 6 for e in (rows, columns)):
        raise typer.BadParameter(f"{text!r} is no grid; write rows x columns, such as 4x4")
    return int(rows), int(columns)


def parse_start(text: str) -> tuple[int, int] | None:
    """Parse a tile, such as ``0,0``, or ``any`` for None. Raises typer.BadParameter."""
    if text == "any":
        return None
    row, _, column = text.partition(",")
    if not all(e.isascii() and e.isdigit() and len(e) < 6 for e in (row, column)):
        raise typer.BadParameter(f"{text!r} is no tile; write row,column, such as 0,0, or any")
    return int(row), int(column)


def parse_tile(text: str) -> TileShape:
    """Parse the extents of a tile, such as ``16x64`` or ``16x64x64``. Raises typer.BadParameter."""
    extents = text.split("x")
    if len(extents) not in (2, 3) or not all(e.isascii() and e.isdigit() and len(e) < 6 for e in extents):
        example = "rows x columns x reduction, such as 16x64x64, each below 100,000"
        raise typer.BadParameter(f"{text!r} is no tile; write {example}")
    return TileShape(*map(int, extents))


def parse_order(text: str) -> NamedOrder:
    """Parse one of ``ORDERS`` and keep its name. Raises typer.BadParameter."""
    return NamedOrder(text, ORDERS.parse(text))


def build_order_option(help: str) -> Any:
    """Return the option ``--order`` of a command that uses the name."""
    complete = ORDERS.complete
    return typer.Option("--order", parser=parse_order, autocompletion=complete, metavar="ORDER", help=help)


def list_orders(grids: Sequence[tuple[int, ...]]) -> list[NamedOrder]:
    """Return all distinct named orders of some grids, with powers of two up to 64 as numbers."""
    powers = [1 << i for i in range(7)]
    listed = [*ORDERS.plain, *(f"{name}:{number}" for name in ORDERS.counted for number in powers)]
    unlike: dict[bytes, NamedOrder] = {}
    for name in listed:
        order = parse_order(name)
        unlike.setdefault(b"".join(order.order.compute_permutation(grid).tobytes() for grid in grids), order)
    return list(unlike.values())


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_MAX_GIB = 64


def parse_size(text: str) -> int:
    """Parse a size in bytes: ``50MiB``, ``60MB``, ``1.5GiB``, ``512KiB``, ``65536``. Raises typer.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)", text)
    if found is None or found[2].upper() not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size; write bytes or a unit, such as 50MiB, 60MB, 512KiB, 65536")
    nbytes = int(float(found[1]) * _UNITS[found[2].upper()])
    if not 1 <= nbytes <= _MAX_GIB << 30:
        raise typer.BadParameter(f"{text!r} is {nbytes} bytes; use 1 to {_MAX_GIB}GiB")
    return nbytes


#: Name of a device that is given only by the size of its cache.
ONE_CACHE = "one cache"


def parse_cache(text: str) -> DeviceSpec:
    """Parse a chip, such as ``h200``, or a size for one plain cache whose readers are equally fast.

    Raises:
        typer.BadParameter: the text is neither.
    """
    if text.lower() in load_known_chips():
        return load_known_chips()[text.lower()]
    try:
        nbytes = parse_size(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(
            f"{error.message}, or {' or '.join(load_known_chips())} for the L2 of that chip"
        ) from None
    return replace(DEFAULT_GPU, name=ONE_CACHE, l2_bytes=nbytes, l2=L2(1, nbytes), speed_spread=0.0)
