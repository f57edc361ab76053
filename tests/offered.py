"""Tilings that matmuls of the one launch are offered, by rule or by a search, each in one FFN at least."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import interlace as il
from interlace.kernels.matmul.tile import TILING
from interlace.kernels.matmul.walk_tuning import iter_settings

from .cases import ffn_shape

#: FFNs that are asked about, and how many tokens; those that are run have as few rows and columns as others in tests.
_SHAPES = (4096, 14336), (8192, 3584), (12288, 6144), (2048, 8192)
_TOKENS = 1, 8, 16, 17, 33, 64, 100, 128, 129, 160, 192, 255, 300, 511, 1000, 4097


class Offered(NamedTuple):
    """An FFN over some tokens, by its kind, and tiles of both of its products."""

    kind: str
    m: int
    up: il.MatmulTile
    down: il.MatmulTile

    def __str__(self) -> str:
        return f"{self.kind}-{self.m}-{_text(self.up)}-{_text(self.down)}"


def _text(tile: il.MatmulTile) -> str:
    return f"{tile.m}x{tile.n}x{tile.k}{'t' * tile.swap_ab}"


@cache
def offered() -> tuple[Offered, ...]:
    """As few as a greedy search finds that have each tile, of both kinds of FFN, that is offered to any."""
    left = {tile for found in _every() for tile in _tiles(found)}
    chosen = []
    for most in (2, 1):
        for found in _every():
            new = _tiles(found) & left
            if len(new) >= most:
                chosen.append(found)
                left -= new
    assert not left
    return tuple(chosen)


def _tiles(found: Offered) -> set[tuple[bool, il.MatmulTile]]:
    """Tiles, with whether two matrices share them."""
    return {(found.kind == "gated", found.up), (False, found.down)}


@cache
def _every() -> tuple[Offered, ...]:
    return tuple(dict.fromkeys(_settings()))


def _settings() -> Iterator[Offered]:
    for hidden, ffn in _SHAPES:
        for kind in ("gelu-tanh", "gated"):
            for m in _TOKENS:
                graph = il.workloads.ffn(m, ffn_shape(kind, hidden, ffn))
                for setting in iter_settings(graph, il.H200):
                    up, down = (dict(setting.op(name).params) for name in ("up", "down"))
                    yield Offered(kind, m, *(il.MatmulTile(*(of[name] for name in TILING)) for of in (up, down)))
