"""Tilings that rules or a search choose for matmuls of the megakernel, each in at least one FFN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import interlace as il
from interlace.kernels.matmul.megakernel_tuning import iter_candidates
from interlace.kernels.matmul.tile import TILING

from .cases import ffn_shape

#: FFNs and numbers of tokens that are planned; those that run have as few rows and columns as in other tests.
_SHAPES = (4096, 14336), (8192, 3584), (12288, 6144), (2048, 8192)
_TOKENS = 1, 8, 16, 17, 33, 64, 100, 128, 129, 160, 192, 255, 300, 511, 1000, 4097


class Offered(NamedTuple):
    """A kind of FFN over some tokens, with the tiles of both of its matmuls."""

    kind: str
    m: int
    up: il.MatmulTile
    down: il.MatmulTile

    def __str__(self) -> str:
        return f"{self.kind}-{self.m}-{_text(self.up)}-{_text(self.down)}"


def _text(tile: il.MatmulTile) -> str:
    return f"{tile.m}x{tile.n}x{tile.k}{'t' * tile.swap_ab}"


@cache
def list_offered() -> tuple[Offered, ...]:
    """Return FFNs of both kinds that cover every offered tile, as few as a greedy search finds."""
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
    """Return the tiles, each with a flag that is True if two matrices share it."""
    return {(found.kind == "gated", found.up), (False, found.down)}


@cache
def _every() -> tuple[Offered, ...]:
    return tuple(dict.fromkeys(_settings()))


def _settings() -> Iterator[Offered]:
    for hidden, ffn in _SHAPES:
        for kind in ("gelu-tanh", "gated"):
            for m in _TOKENS:
                graph = il.workloads.ffn(m, ffn_shape(kind, hidden, ffn))
                for tilings in iter_candidates(graph, il.H200):
                    up, down = (dict(tilings[name].params) for name in ("up", "down"))
                    yield Offered(kind, m, *(il.MatmulTile(*(of[name] for name in TILING)) for of in (up, down)))
