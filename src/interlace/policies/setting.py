"""A setting: how the ops of a graph are tiled, cut and ordered in one launch, as plain numbers that JSON keeps.

What a rule gives, a search varies and a store keeps. It means something for one graph, whose ops it names:

    up: BM=16 BN=64 BK=256, down: BM=16 BN=64 BK=256 in 4 parts; 3 in flight
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from interlace.graph.op import Param
from interlace.policies.orders import GroupedPanels, Order, RowMajor
from interlace.policies.splits import Split, SplitK, SplitTail, Whole

_MOST_PARTS = 64  # of one tile's reduction


@dataclass(frozen=True)
class OpSetting:
    """How one op runs.

    Attributes:
        params: those of its kernel's params that tell its tiling; none leave the op as it is.
        parts: of each tile's reduction, 1 to 64.
        split_tail: the tiles of the last wave are cut in two, so that all workers share it; they have one part then.
        group: row panels that its order groups, 0 for row-major.
    """

    params: tuple[tuple[str, Param], ...] = ()
    parts: int = 1
    split_tail: bool = False
    group: int = 0

    @property
    def order(self) -> Order:
        """Of its tiles."""
        return GroupedPanels(self.group) if self.group else RowMajor()

    def split(self, tiles: int, chunks: int, workers: int) -> Split:
        """Of so many tiles whose reductions have so many chunks."""
        if self.split_tail:
            return SplitTail.levelled(tiles, chunks, workers)
        return SplitK(self.parts) if self.parts > 1 else Whole()

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.params]
        parts += [f"in {self.parts} parts"] if self.parts > 1 else []
        parts += ["last wave split"] if self.split_tail else []
        parts += [f"groups of {self.group}"] if self.group else []
        return " ".join(parts) or "as tiled"


@dataclass(frozen=True)
class Setting:
    """How a graph runs as one launch.

    Attributes:
        ops: settings by the op's name; an op that is not named is whole, row-major, and tiled as it is.
    """

    ops: tuple[tuple[str, OpSetting], ...] = ()

    def op(self, name: str) -> OpSetting:
        """Of the op called ``name``."""
        return dict(self.ops).get(name, OpSetting())

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        ops = {name: {**asdict(op), "params": dict(op.params)} for name, op in self.ops}
        return {"ops": ops}

    @staticmethod
    def from_data(data: Any) -> Setting:
        """The inverse of ``to_data``. Raises ValueError for anything else than what it wrote."""
        fields = _fields(data, {"ops": dict}, "setting")
        return Setting(tuple((name, _op(op)) for name, op in fields["ops"].items()))

    @staticmethod
    def merged(settings: Iterable[Setting]) -> Setting:
        """Of several settings for different ops of one graph."""
        return Setting(tuple(pair for setting in settings for pair in setting.ops))

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, op in self.ops:
            names.setdefault(str(op), []).append(name)
        told = [f"{' and '.join(same)} {op}" for op, same in names.items()] or ["as tiled"]
        return "; ".join(told)


def _op(data: Any) -> OpSetting:
    fields = _fields(data, {"params": dict, "parts": int, "split_tail": bool, "group": int}, "setting of an op")
    setting = OpSetting(**{**fields, "params": tuple(fields["params"].items())})
    if any(type(value) not in (int, float, str, bool) for _, value in setting.params):
        raise ValueError(f"params that are no numbers, texts or truths: {setting.params!r}")
    if not 1 <= setting.parts <= (1 if setting.split_tail else _MOST_PARTS):
        raise ValueError(f"a reduction in {setting.parts} parts; use 1 to {_MOST_PARTS}, and 1 where the tail is split")
    if setting.group < 0:
        raise ValueError(f"an order of groups of {setting.group} rows; use 0 for row-major")
    return setting


def _fields(data: Any, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """Data that has just these fields, each of its type."""
    right = isinstance(data, dict) and set(data) == set(kinds) and all(isinstance(name, str) for name in data)
    if not right or any(type(data[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"not a {what}: {data!r}")
    return {name: data[name] for name in kinds}
