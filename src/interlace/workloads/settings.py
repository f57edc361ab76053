"""Tilings of an FFN worth trying on an H200, by number of tokens, as measured (docs/performance.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from interlace.kernels.matmul import MatmulTile
from interlace.policies.orders import GroupedPanels, Order, RowMajor
from interlace.policies.splits import Split, SplitK, Whole
from interlace.workloads.ffn import FFNShape


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

    def __str__(self) -> str:
        def one(tile: MatmulTile, split: Split) -> str:
            swap = " swapped" if tile.swap else ""
            return f"{tile.m}x{tile.n}x{tile.k}, {tile.stages} stages, {tile.num_warps} warps{swap}, {split}"

        return f"up {one(self.up, self.split_up)}; down {one(self.down, self.split_down)}; {self.order}"


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
