"""Tilings of an FFN worth trying on an H200, by number of tokens, as measured (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from interlace.core.errors import ShapeError
from interlace.kernels.matmul import MatmulTile
from interlace.policies.orders import GroupedPanels, Order, RowMajor
from interlace.policies.splits import Split, SplitK, Whole
from interlace.workloads.ffn import FFNShape

_MOST_PARTS = 64  # of one tile's reduction


@dataclass(frozen=True)
class FFNSetting:
    """How an FFN is tiled: everything about it but who runs which tile when.

    Attributes:
        up, down: tiles of the two matmuls.
        split_up, split_down: splits of their reductions.
        order: tile order of both.
    """

    up: MatmulTile
    down: MatmulTile
    split_up: Split = field(default_factory=Whole)
    split_down: Split = field(default_factory=Whole)
    order: Order = field(default_factory=RowMajor)

    @property
    def splits(self) -> dict[str, Split]:
        """Splits by op name."""
        return {"up": self.split_up, "down": self.split_down}

    def to_data(self) -> dict[str, Any]:
        """As JSON data; a split is its number of parts, an order the rows of its panels, 0 for row-major.

        Raises:
            ValueError: another split than whole tiles and split-K, another order than row-major and grouped panels.
        """
        data = {
            "up": asdict(self.up),
            "down": asdict(self.down),
            "split_up": self.split_up.parts if isinstance(self.split_up, SplitK) else 1,
            "split_down": self.split_down.parts if isinstance(self.split_down, SplitK) else 1,
            "group": self.order.rows if isinstance(self.order, GroupedPanels) else 0,
        }
        if FFNSetting.from_data(data) != self:
            raise ValueError(f"a setting with splits or an order that have no number: {self}")
        return data

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> FFNSetting:
        """The inverse of ``to_data``. Raises ValueError for anything else than what it wrote."""
        numbers = ("split_up", "split_down", "group")
        right = isinstance(data, Mapping) and set(data) == {"up", "down", *numbers}
        if not right or any(type(data[name]) is not int for name in numbers):
            raise ValueError(f"not a setting of the persistent executor: {data!r}")
        if data["group"] < 0:
            raise ValueError(f"an order of groups of {data['group']} rows; use 0 for row-major")
        order = GroupedPanels(data["group"]) if data["group"] else RowMajor()
        splits = _split(data["split_up"]), _split(data["split_down"])
        return FFNSetting(_tile(data["up"]), _tile(data["down"]), *splits, order)

    def __str__(self) -> str:
        def one(tile: MatmulTile, split: Split) -> str:
            swap = " swapped" if tile.swap else ""
            return f"{tile.m}x{tile.n}x{tile.k}, {tile.stages} stages, {tile.num_warps} warps{swap}, {split}"

        return f"up {one(self.up, self.split_up)}; down {one(self.down, self.split_down)}; {self.order}"


def _split(parts: int) -> Split:
    if not 1 <= parts <= _MOST_PARTS:
        raise ValueError(f"a reduction in {parts} parts; use 1 to {_MOST_PARTS}")
    return SplitK(parts) if parts > 1 else Whole()


def _tile(data: Any) -> MatmulTile:
    fields = {name: type(value) for name, value in asdict(MatmulTile()).items()}
    right = isinstance(data, Mapping) and set(data) == set(fields)
    if not right or any(type(data[name]) is not kind for name, kind in fields.items()):
        raise ValueError(f"not a tile: {data!r}")
    try:
        return MatmulTile(**data)
    except ShapeError as error:
        raise ValueError(str(error)) from None


def ffn_settings(m: int, shape: FFNShape) -> tuple[FFNSetting, ...]:
    """The settings that came out best for some executor, for m tokens."""

    def tall(rows: int, columns: int, k: int, stages: int, num_warps: int) -> MatmulTile:
        return MatmulTile(rows, columns, k, stages, num_warps, swap=True, prefetch_bytes=65536)

    two, tile = SplitK(2), MatmulTile
    if m <= 32 and shape.gated:
        rows = 16 if m <= 16 else 32
        return (
            FFNSetting(tall(rows, 64, 128, 4, 4), tall(rows, 64, 128, 6, 4), split_down=two),
            FFNSetting(tall(rows, 64, 64, 7, 4), tall(rows, 64, 128, 5, 4), split_down=two),
            FFNSetting(tall(rows, 128, 64, 5, 4), tall(rows, 64, 128, 6, 4), split_down=two),
        )
    if m <= 32:
        rows = 16 if m <= 16 else 32
        return (
            FFNSetting(tall(rows, 64, 128, 6, 4), tall(rows, 64, 128, 6, 4)),
            FFNSetting(tall(rows, 64, 128, 8, 4), tall(rows, 64, 128, 8, 4)),
        )
    if m <= 64 and shape.gated:
        return (
            FFNSetting(tile(64, 128, 64, 4, 8), tile(64, 64, 128, 5, 8), split_down=two),
            FFNSetting(tile(64, 128, 64, 4, 4), tile(64, 64, 128, 4, 4), split_down=two),
            FFNSetting(tall(64, 64, 64, 5, 4), tall(64, 64, 128, 4, 4), split_down=two),
        )
    if m <= 64:
        return (
            FFNSetting(tall(64, 64, 128, 6, 4), tall(64, 64, 128, 6, 4)),
            FFNSetting(tile(64, 128, 64, 6, 4), tile(64, 128, 64, 6, 4), split_up=two),
        )
    if m <= 128 and shape.gated:
        return (FFNSetting(tile(128, 128, 64, 4, 8), tile(128, 64, 128, 4, 8), split_down=two),)
    if m <= 128:
        return (FFNSetting(tile(128, 128, 64, 6, 8), tile(128, 128, 64, 6, 8), split_up=two),)
    orders = (GroupedPanels(2), GroupedPanels(8)) if m <= 512 else (GroupedPanels(4), GroupedPanels(8))
    square = tile(128, 128, 64, 4, 8)
    deep = tile(128, 128, 64, 6, 8)
    wide = tile(128, 256, 64, 4, 8)
    settings: list[FFNSetting] = []
    for order in orders:
        if shape.gated and m <= 512:
            settings += [
                FFNSetting(square, deep, order=order),
                FFNSetting(square, deep, split_down=two, order=order),
            ]
        elif shape.gated:
            settings += [FFNSetting(square, square, order=order), FFNSetting(square, wide, order=order)]
        elif m <= 512:
            settings += [
                FFNSetting(deep, deep, order=order),
                FFNSetting(deep, deep, split_up=two, order=order),
            ]
        else:
            settings += [FFNSetting(square, square, order=order), FFNSetting(wide, wide, order=order)]
    return tuple(settings)
