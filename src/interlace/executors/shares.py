"""Ops whose tiles' parts add their sums together: each part a share of the tile, which is then all that it finishes.

    three parts of a tile of 96 columns      columns 0..31    32..63    64..95
    part 0, to the workspace                      -              x         x
    part 1                                        x              -         x
    part 2                                        x              x         -
    then each adds its own column of this table to what it has, in the order of k, and posts the tile: 3 posts

So each part waits for all others, later items among them. That may not hang:

- Every worker runs, as lists demand, and has one item of the op at most.
- The op's items follow one another in the plan's sequence, and wait for posts of items before the first of them alone.
  So if all those come to their end, each of the op's comes to where it leaves its sums, since what stands before it in
  its worker's list is one of those. Behind that it waits for its like alone, so all of them come to their end.
- Items of other ops wait for earlier ones, so the argument goes from op to op.

Where a worker could have two, the first would wait for the second, which stands behind it. Then the last part in the
plan's sequence adds all sums alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.ragged import fold, ranges
from interlace.plan.latest import latest_awaited
from interlace.plan.plan import Dispatch, Plan, Waits
from interlace.plan.verify import Proof


@dataclass(frozen=True)
class Shares:
    """Which ops these are, and what follows for waits.

    Attributes:
        ops: whose tiles have parts that share their sums.
        waits: of the plan, for posts of all parts of such tiles. What waited for unlike tiles at once are several.
    """

    ops: frozenset[int]
    waits: Waits

    @staticmethod
    def of(proof: Proof, able: Sequence[bool]) -> Shares:
        """Of a plan in whose launch some ops are able to."""
        plan, found = proof.plan, set()
        if plan.dispatch is Dispatch.STATIC and proof.in_sequence and any(able):
            items, awaited = plan.items, latest_awaited(plan)
            for op in np.flatnonzero(able).tolist():
                at = np.flatnonzero(items.op == op)
                follow = int(at[-1]) - int(at[0]) + 1 == len(at) == len(np.unique(items.worker[at]))
                if follow and awaited[at].max() < at[0]:
                    found.add(op)
        waits = _waits(plan.waits, _posts(plan, found)) if found and len(plan.waits) else plan.waits
        return Shares(frozenset(found), waits)


def parts_of_tiles(plan: Plan) -> list[int]:
    """Of each op the parts of each of its tiles, 0 if tiles have unlike numbers of them."""
    counts = np.bincount(plan.tile_of_item)
    of_op = np.split(counts, plan.tile_base()[1:-1])
    return [int(some[0]) if (some == some[0]).all() else 0 for some in of_op]


def _posts(plan: Plan, shared: Collection[int]) -> Ints:
    """Of each semaphore in a run: one of each tile, or of each of its parts where they share its sums."""
    items = plan.items
    counts = np.isin(items.op, [*shared])
    _, first = np.unique(plan.tile_of_item, return_index=True)
    counts[first] = True
    return np.bincount(items.post[counts & (items.post >= 0)], minlength=plan.semaphores)


def _waits(waits: Waits, posts: Ints) -> Waits:
    """The same for so many posts of each semaphore; a wait has one threshold, so some are cut."""
    columns = waits.first, waits.count, waits.stride
    unlike = fold(np.minimum, posts, *columns) < fold(np.maximum, posts, *columns)
    each = np.where(unlike, waits.count, 1)  # what such a wait becomes at most: one of each semaphore
    row = np.repeat(np.arange(len(waits)), each)
    first = waits.first[row] + ranges(np.zeros_like(each), each) * waits.stride[row]
    opens = np.r_[True, (row[1:] != row[:-1]) | (posts[first[1:]] != posts[first[:-1]])]
    starts = np.flatnonzero(opens)
    row, cut = row[starts], np.diff(np.r_[starts, len(opens)])
    ptr = np.r_[0, np.cumsum(np.bincount(row, minlength=len(waits)))][waits.ptr]
    count = np.where(unlike[row], cut, waits.count[row])
    return Waits(ptr, first[starts], count, waits.stride[row], posts[first[starts]], waits.k[row])
