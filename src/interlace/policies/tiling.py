"""Tilings: tile, split and order of single ops as plain numbers that serialise to JSON.

Rules of kernels compute tilings, searches vary them, and caches save them. Mappings name the ops of one graph:

    up BM=16 BN=64 BK=256; down BM=16 BN=64 BK=256 in 4 parts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from interlace.graph.op import Param
from interlace.policies.orders import GroupedColumnMajor, Order, RowMajor
from interlace.policies.splits import Split, SplitK, SplitTail, WholeTiles

_MAX_PARTS = 64  # maximum number of parts of one tile's reduction


@dataclass(frozen=True)
class OpTiling:
    """Tile, split and order of one op.

    Attributes:
        params: the kernel's params that define its tile; if empty, the op keeps its tile.
        parts: number of parts of each tile's reduction, 1 to 64.
        split_tail: True if the tiles of the last wave are cut in two, to occupy all workers; ``parts`` is 1 then.
        group: number of row panels that the order groups, 0 for row-major.
    """

    params: tuple[tuple[str, Param], ...] = ()
    parts: int = 1
    split_tail: bool = False
    group: int = 0

    @property
    def order(self) -> Order:
        """Order of the op's tiles."""
        return GroupedColumnMajor(self.group) if self.group else RowMajor()

    def make_split(self, tiles: int, chunks: int, workers: int) -> Split:
        """Return the split of an op, given its number of tiles, the chunks of each tile's reduction and the workers."""
        if self.split_tail:
            return SplitTail.for_last_wave(tiles, chunks, workers)
        return SplitK(self.parts) if self.parts > 1 else WholeTiles()

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.params]
        parts += [f"in {self.parts} parts"] if self.parts > 1 else []
        parts += ["last wave split"] if self.split_tail else []
        parts += [f"groups of {self.group}"] if self.group else []
        return " ".join(parts) or "as tiled"


#: Tilings of ops of one graph, by op name.
Tilings = Mapping[str, OpTiling]


def merge_tilings(tilings: Iterable[Tilings]) -> dict[str, OpTiling]:
    """Merge tilings of different ops of one graph."""
    return {name: op for each in tilings for name, op in each.items()}


def format_tilings(tilings: Tilings) -> str:
    """Return tilings as text; ops with equal tilings are listed together."""
    names: dict[str, list[str]] = {}
    for name, op in tilings.items():
        names.setdefault(str(op), []).append(name)
    return "; ".join(f"{' and '.join(same)} {op}" for op, same in names.items()) or "as tiled"


def encode_tilings(tilings: Tilings) -> dict[str, Any]:
    """Convert tilings to JSON data."""
    return {"ops": {name: {**asdict(op), "params": dict(op.params)} for name, op in tilings.items()}}


def decode_tilings(data: Any) -> dict[str, OpTiling]:
    """Restore tilings from the data that ``encode_tilings`` returned.

    Raises:
        ValueError: any other data.
    """
    fields = _check_fields(data, {"ops": dict}, "setting")
    return {name: _decode_op(op) for name, op in fields["ops"].items()}


def _decode_op(data: Any) -> OpTiling:
    fields = _check_fields(data, {"params": dict, "parts": int, "split_tail": bool, "group": int}, "setting of an op")
    tiling = OpTiling(**{**fields, "params": tuple(fields["params"].items())})
    if any(type(value) not in (int, float, str, bool) for _, value in tiling.params):
        raise ValueError(f"params that are no numbers, texts or truths: {tiling.params!r}")
    if not 1 <= tiling.parts <= (1 if tiling.split_tail else _MAX_PARTS):
        raise ValueError(f"a reduction in {tiling.parts} parts; use 1 to {_MAX_PARTS}, and 1 where the tail is split")
    if tiling.group < 0:
        raise ValueError(f"an order of groups of {tiling.group} rows; use 0 for row-major")
    return tiling


def _check_fields(data: Any, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """Check that the data has exactly these fields, each of its type.

    Raises:
        ValueError: it does not.
    """
    right = isinstance(data, dict) and set(data) == set(kinds) and all(isinstance(name, str) for name in data)
    if not right or any(type(data[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"not a {what}: {data!r}")
    return {name: data[name] for name in kinds}
