"""Views of a graph's tensor in a kernel's shape: adjacent kernel dimensions are merged into one of the graph.

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
from interlace.loops.ir.index import Index, Var, evaluate, find_names

Group = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """The kernel dimensions that each graph dimension holds, and the kernel's extents."""

    groups: tuple[Group, ...]
    shape: tuple[int, ...]

    def merge(self, spans: tuple[Span, ...]) -> tuple[Span, ...] | None:
        """Return ``spans`` of the kernel's dimensions as spans of the graph's; None if the result is not a box."""
        out = []
        for group in self.groups:
            # After the first dimension that is longer than 1, all must be touched as a whole.
            long = [d for d in group if self.shape[d] > 1]
            if not long:
                out.append(spans[group[0]] if len(group) == 1 else ALL)
                continue
            first, *inner = long
            if any(not _is_whole(spans[d], self.shape[d]) for d in inner):
                return None
            below = prod(self.shape[d] for d in inner)
            span = spans[first]
            out.append(ALL if _is_whole(span, self.shape[first]) else Span(span.lo * below, span.hi * below))
        return tuple(out)

    def merge_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the graph's shape of a part of ``shape`` in the kernel's dimensions."""
        return tuple(prod(shape[d] for d in group) for group in self.groups)


def find_views(
    declared: tuple[Index, ...], shape: tuple[int, ...], known: Mapping[str, int]
) -> list[tuple[View, dict[str, int]]]:
    """Return every view of a graph's tensor of ``shape`` as ``declared``, with the extents that follow.

    Views that differ only in the location of extents of 1 count as one.
    """
    rank = len(declared)
    fits: dict[tuple[int, ...], tuple[View, dict[str, int]]] = {}
    for cuts in combinations(range(1, rank), len(shape) - 1):
        groups = tuple(tuple(range(a, b)) for a, b in pairwise((0, *cuts, rank)))
        found = dict(known)
        if all(_solve_extents([declared[d] for d in group], n, found) for group, n in zip(groups, shape, strict=True)):
            seen = tuple(evaluate(n, found) for n in declared)
            fits.setdefault(seen, (View(groups, seen), found))
    return list(fits.values())


def _solve_extents(extents: list[Index], merged: int, found: dict[str, int]) -> bool:
    """Return True if ``extents`` multiply to ``merged``; at most one may be unknown, and is added to ``found``."""
    unknown = [n for n in extents if find_names(n) - found.keys()]
    rest = prod(evaluate(n, found) for n in extents if n not in unknown)
    if not unknown:
        return rest == merged
    (first, *more) = unknown
    if more or not isinstance(first, Var) or rest == 0 or merged % rest:
        return False
    found[first.name] = merged // rest
    return True


def _is_whole(span: Span, extent: int) -> bool:
    """Return True if every block touches the whole extent."""
    constant = not any((*span.lo.tile, *span.hi.tile))
    return span == ALL or (constant and span.lo.const <= 0 and span.hi.const >= extent)
