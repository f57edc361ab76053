"""Cooperative fix-up: each part of a split tile reduces, and finishes, its own share of the tile.

    three parts of a tile of 96 columns      columns 0..31    32..63    64..95
    part 0, to the workspace                      -              x         x
    part 1                                        x              -         x
    part 2                                        x              x         -
    then each part adds the partials of its own share to its own, in the order of k, and posts the tile: 3 posts

Where sums of squares of a row must stay together, shares are rows (``csrc/ops/matmul/row_shares.cuh``).

So each part waits for all others, including later items. This cannot deadlock:

- Every worker is resident, as per-worker queues require, and has at most one item of the op.
- The op's items are consecutive in the plan's sequence, and wait only for posts of items before the first of them. If
  all those items end, each item of the op stores its partials, because everything before it in its worker's queue is
  one of those items. After that it waits only for the other items of the op, so all of them end.
- Items of other ops wait for earlier items, so the argument extends from op to op.

If a worker could have two items of the op, the first would wait for the second, which follows it. In that case the last
part in the plan's sequence reduces all partials alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.ragged import expand_ranges, fold
from interlace.plan.plan import Dispatch, Plan, Waits, find_latest_awaited
from interlace.plan.verify import Proof


@dataclass(frozen=True)
class CooperativeFixup:
    """Ops with cooperative fix-up, and the waits that follow from it.

    Attributes:
        ops: ops in which the parts of a tile share its reduction.
        waits: waits of the plan, for posts of all parts of such tiles. A wait for tiles with different numbers of posts
            becomes several.
    """

    ops: frozenset[int]
    waits: Waits

    @staticmethod
    def from_proof(proof: Proof, able: Sequence[bool]) -> CooperativeFixup:
        """Select the ops with cooperative fix-up in a plan, given which ops of its launch support it."""
        plan, found = proof.plan, set()
        if plan.dispatch is Dispatch.STATIC and proof.in_sequence and any(able):
            items, awaited = plan.items, find_latest_awaited(plan)
            for op in np.flatnonzero(able).tolist():
                at = np.flatnonzero(items.op == op)
                follow = int(at[-1]) - int(at[0]) + 1 == len(at) == len(np.unique(items.worker[at]))
                if follow and awaited[at].max() < at[0]:
                    found.add(op)
        waits = _split_waits(plan.waits, _count_posts(plan, found)) if found and len(plan.waits) else plan.waits
        return CooperativeFixup(frozenset(found), waits)


def count_parts(plan: Plan) -> list[int]:
    """Return the parts per tile of each op, or 0 if its tiles differ in that number."""
    counts = np.bincount(plan.tile_of_item)
    of_op = np.split(counts, plan.compute_tile_base()[1:-1])
    return [int(some[0]) if (some == some[0]).all() else 0 for some in of_op]


def _count_posts(plan: Plan, shared: Collection[int]) -> Ints:
    """Return the posts of each semaphore in a run: one per tile, or one per part with cooperative fix-up."""
    items = plan.items
    counts = np.isin(items.op, [*shared])
    _, first = np.unique(plan.tile_of_item, return_index=True)
    counts[first] = True
    return np.bincount(items.post[counts & (items.post >= 0)], minlength=plan.semaphores)


def _split_waits(waits: Waits, posts: Ints) -> Waits:
    """Return the waits for these posts of each semaphore; since a wait has one threshold, some are divided."""
    columns = waits.first, waits.count, waits.stride
    unlike = fold(np.minimum, posts, *columns) < fold(np.maximum, posts, *columns)
    each = np.where(unlike, waits.count, 1)  # most waits that one may become: one per semaphore
    row = np.repeat(np.arange(len(waits)), each)
    first = waits.first[row] + expand_ranges(np.zeros_like(each), each) * waits.stride[row]
    opens = np.r_[True, (row[1:] != row[:-1]) | (posts[first[1:]] != posts[first[:-1]])]
    starts = np.flatnonzero(opens)
    row, cut = row[starts], np.diff(np.r_[starts, len(opens)])
    ptr = np.r_[0, np.cumsum(np.bincount(row, minlength=len(waits)))][waits.ptr]
    count = np.where(unlike[row], cut, waits.count[row])
    return Waits(ptr, first[starts], count, waits.stride[row], posts[first[starts]], waits.k[row])
