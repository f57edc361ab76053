"""Items that run alone: an item on inputs of a kind, the regions that it declares, and errors for other accesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from interlace.core.errors import FootprintError
from interlace.graph.access import Access
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region, Tensor

#: Kinds of inputs, from magnitudes in [0.5, 1.5) and signs of +1 or -1, since a body's accesses may depend on values.
#: The scale of 2^12 stays within fp16, that of 2^-12 above fp16's subnormal numbers.
INPUT_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "positive inputs": lambda size, sign: size,
    "negative inputs": lambda size, sign: -size,
    "inputs of both signs": lambda size, sign: size * sign,
    "inputs of zero": lambda size, sign: size * 0,
    "large inputs": lambda size, sign: size * sign * 2.0**12,
    "tiny inputs": lambda size, sign: size * sign * 2.0**-12,
    "whole numbers": lambda size, sign: (size * 8).round() * sign,
}
PLAIN_KIND = next(iter(INPUT_KINDS))


@dataclass(frozen=True)
class FootprintItem:
    """A tile and a part of its reduction."""

    graph: Graph
    op: Op
    tile: int
    k_lo: int
    k_hi: int

    def __str__(self) -> str:
        return self.op.format_tile(self.tile) + ("" if self.is_whole else f", k {self.k_lo}:{self.k_hi}")

    @property
    def is_whole(self) -> bool:
        """True if the item is the whole reduction."""
        return (self.k_lo, self.k_hi) == (0, self.op.k_extent)

    def compute_region(self, access: Access) -> Region:
        """Return the region that the item touches through one access."""
        return self.graph.compute_region(self.op, access, self.tile, self.k_lo, self.k_hi)

    def compute_regions(self, accesses: Sequence[Access], tensor: str) -> list[Region]:
        """Return the regions that the item touches of one tensor through some accesses."""
        return [self.compute_region(a) for a in accesses if a.tensor == tensor]


@dataclass(frozen=True)
class FootprintRun:
    """An item on inputs of some kind.

    Attributes:
        item: the item.
        row: index of the item among those that are checked.
        kind: kind of its inputs; messages name it unless it is the plain one.
    """

    item: FootprintItem
    row: int
    kind: str

    def __str__(self) -> str:
        return str(self.item) if self.kind == PLAIN_KIND else f"{self.item}, given {self.kind},"


def build_runs(items: Sequence[FootprintItem]) -> list[FootprintRun]:
    """Return runs kind by kind: whole tiles on all kinds; parts of reductions, with the same code, on plain inputs."""
    return [
        FootprintRun(item, row, kind)
        for kind in INPUT_KINDS
        for row, item in enumerate(items)
        if item.is_whole or kind == PLAIN_KIND
    ]


def make_out_of_bounds_error(run: FootprintRun, verb: str, where: str) -> FootprintError:
    """Return the error for an access outside all tensors; ``verb`` is "reads" or "writes"."""
    return FootprintError(f"{run} {verb} memory {where}; {_suggest_mask(verb)} at the tensor's edge")


def make_undeclared_error(run: FootprintRun, verb: str, tensor: Tensor, box: Region) -> FootprintError:
    """Return the error for an access outside the declared regions: what, where, and what to change."""
    item, name = run.item, tensor.name
    accesses = [a for a in (item.op.reads if verb == "reads" else item.op.writes) if a.tensor == name]
    declared = item.compute_regions(accesses, name)
    if not declared:
        return FootprintError(f"{run} {verb} {box}, but the op declares no such access; add {name!r} to what it {verb}")
    where = f"{run} {verb} {box}, but declares only {' and '.join(map(str, declared))}"
    for whole in replace(item, k_lo=0, k_hi=item.op.k_extent).compute_regions(accesses, name):
        if whole.intersect(box) == box:
            return FootprintError(
                f"{where}; the rest is for other parts of the reduction, so keep to tile.k_lo:tile.k_hi"
            )
    sides = [(min(r.lo[d] for r in declared) - lo, f"below in dimension {d}") for d, lo in enumerate(box.lo)]
    sides += [(hi - max(r.hi[d] for r in declared), f"above in dimension {d}") for d, hi in enumerate(box.hi)]
    missing = " and ".join(f"{n} {side}" for n, side in sides if n > 0)
    return FootprintError(
        f"{where}; widen the access map of {name!r} by {missing or 'the gap'}, or {_suggest_mask(verb)}"
    )


def make_unwritten_error(run: FootprintRun, region: Region, box: Region) -> FootprintError:
    """Return the error for a declared write that omits a box of its region."""
    return FootprintError(
        f"{run} does not write all of {box}, but declares that it writes {region}; "
        f"narrow the access map of {region.tensor!r}, or store all of it"
    )


def _suggest_mask(verb: str) -> str:
    return f"mask its {'loads' if verb == 'reads' else 'stores'}"
