"""Settings: tiling, splits and order of a graph's ops in one megakernel, as plain numbers that serialise to JSON.

Rules compute settings, searches vary them, and stores save them. A setting applies to one graph, whose ops it names:

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
class OpSetting:
    """Tiling, split and order of one op.

    Attributes:
        params: the kernel's params that define its tiling; if empty, the op keeps its tiling.
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


@dataclass(frozen=True)
class Setting:
    """Tiling, splits and orders of a graph that runs as one megakernel.

    Attributes:
        ops: settings by op name; an op that is not named is whole, row-major, and keeps its tiling.
    """

    ops: tuple[tuple[str, OpSetting], ...] = ()

    def op(self, name: str) -> OpSetting:
        """Return the setting of the op called ``name``."""
        return dict(self.ops).get(name, OpSetting())

    def to_data(self) -> dict[str, Any]:
        """Convert the setting to JSON data."""
        ops = {name: {**asdict(op), "params": dict(op.params)} for name, op in self.ops}
        return {"ops": ops}

    @staticmethod
    def from_data(data: Any) -> Setting:
        """Restore a setting from the data that ``to_data`` returned.

        Raises:
            ValueError: any other data.
        """
        fields = _check_fields(data, {"ops": dict}, "setting")
        return Setting(tuple((name, _parse_op(op)) for name, op in fields["ops"].items()))

    @staticmethod
    def merge(settings: Iterable[Setting]) -> Setting:
        """Merge settings for different ops of one graph."""
        return Setting(tuple(pair for setting in settings for pair in setting.ops))

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, op in self.ops:
            names.setdefault(str(op), []).append(name)
        told = [f"{' and '.join(same)} {op}" for op, same in names.items()] or ["as tiled"]
        return "; ".join(told)


def _parse_op(data: Any) -> OpSetting:
    fields = _check_fields(data, {"params": dict, "parts": int, "split_tail": bool, "group": int}, "setting of an op")
    setting = OpSetting(**{**fields, "params": tuple(fields["params"].items())})
    if any(type(value) not in (int, float, str, bool) for _, value in setting.params):
        raise ValueError(f"params that are no numbers, texts or truths: {setting.params!r}")
    if not 1 <= setting.parts <= (1 if setting.split_tail else _MAX_PARTS):
        raise ValueError(f"a reduction in {setting.parts} parts; use 1 to {_MAX_PARTS}, and 1 where the tail is split")
    if setting.group < 0:
        raise ValueError(f"an order of groups of {setting.group} rows; use 0 for row-major")
    return setting


def _check_fields(data: Any, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """Check that the data has exactly these fields, each of its type.

    Raises:
        ValueError: it does not.
    """
    right = isinstance(data, dict) and set(data) == set(kinds) and all(isinstance(name, str) for name in data)
    if not right or any(type(data[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"not a {what}: {data!r}")
    return {name: data[name] for name in kinds}
