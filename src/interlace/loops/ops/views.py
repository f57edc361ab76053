"""A graph's tensor seen as a kernel's: neighbouring dimensions of the kernel merged into one of the graph.

Worked example: the kernel has (m, 16, 256), the graph (1000, 4096). Of the ways to cut three dimensions into two
groups, ``(m) (16, 256)`` fits with ``m = 1000``. A block that touches rows ``8 t : 8 t + 8`` and all of the rest
touches ``[8 t : 8 t + 8, :]`` of the graph's tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

from interlace.graph.access import ALL, Span
from interlace.loops.ir.index import Index, Var, evaluate, names

Group = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """Which dimensions of the kernel's tensor each of the graph's holds, and the kernel's extents."""

    groups: tuple[Group, ...]
    shape: tuple[int, ...]

    def merged(self, spans: tuple[Span, ...]) -> tuple[Span, ...] | None:
        """``spans`` of the kernel's dimensions as spans of the graph's; None where that is no box."""
        out = []
        for group in self.groups:
            # Behind the first dimension that is longer than 1, all must be touched whole.
            long = [d for d in group if self.shape[d] > 1]
            if not long:
                out.append(spans[group[0]] if len(group) == 1 else ALL)
                continue
            first, *inner = long
            if any(not _whole(spans[d], self.shape[d]) for d in inner):
                return None
            below = prod(self.shape[d] for d in inner)
            span = spans[first]
            out.append(ALL if _whole(span, self.shape[first]) else Span(span.lo * below, span.hi * below))
        return tuple(out)

    def merged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The graph's shape of a part of ``shape`` in the kernel's dimensions."""
        return tuple(prod(shape[d] for d in group) for group in self.groups)


def views_of(
    declared: tuple[Index, ...], shape: tuple[int, ...], known: Mapping[str, int]
) -> list[tuple[View, dict[str, int]]]:
    """Every way in which a graph's tensor of ``shape`` is seen as ``declared``, with the extents that follow.

    Ways that differ only in where extents of 1 go count as one.
    """
    rank = len(declared)
    fits: dict[tuple[int, ...], tuple[View, dict[str, int]]] = {}
    for cuts in combinations(range(1, rank), len(shape) - 1):
        groups = tuple(tuple(range(a, b)) for a, b in pairwise((0, *cuts, rank)))
        found = dict(known)
        if all(_fits([declared[d] for d in group], n, found) for group, n in zip(groups, shape, strict=True)):
            seen = tuple(evaluate(n, found) for n in declared)
            fits.setdefault(seen, (View(groups, seen), found))
    return list(fits.values())


def _fits(extents: list[Index], merged: int, found: dict[str, int]) -> bool:
    """Whether ``extents`` multiply to ``merged``, for some value of the one unknown among them, which is then found."""
    unknown = [n for n in extents if names(n) - found.keys()]
    rest = prod(evaluate(n, found) for n in extents if n not in unknown)
    if not unknown:
        return rest == merged
    (first, *more) = unknown
    if more or not isinstance(first, Var) or rest == 0 or merged % rest:
        return False
    found[first.name] = merged // rest
    return True


def _whole(span: Span, extent: int) -> bool:
    """Whether every block touches the whole extent."""
    constant = not any((*span.lo.tile, *span.hi.tile))
    return span == ALL or (constant and span.lo.const <= 0 and span.hi.const >= extent)
