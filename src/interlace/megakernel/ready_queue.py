"""The ready queue: which items become ready after which posts, as tables that are fixed before a run.

Items that wait for the same semaphores become ready together, as a *group*. A semaphore with all its posts of a run
counts once for each group that waits for it. When all semaphores of a group have counted, its items enter the queue in
sequence.

    items    a0 posts 0    a1 posts 0    b0, b1 wait for 0    c0 waits for 0, 1    b0, b1 post 1

    first    a0 a1        posts    0: 2  1: 2      wakes    0: group 0, group 1    1: group 1
                          groups   0: b0 b1, of 1 semaphore    1: c0, of 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, compute_offsets, group_by
from interlace.megakernel.table import DeviceTables
from interlace.plan.plan import Dispatch


@dataclass(frozen=True)
class ReadyGroups:
    """Rows of a table in groups with equal waits: those of an item and of the parts of its tile together.

    Attributes:
        first: rows that wait for nothing.
        posts: number of posts of each semaphore in a run.
        wakes: groups that wait for each semaphore.
        rows: rows of each group.
        missing: number of semaphores that each group waits for.
    """

    first: Ints
    posts: Ints
    wakes: Groups
    rows: Groups
    missing: Ints

    @staticmethod
    def from_table(table: DeviceTables) -> ReadyGroups:
        """Build the tables from a table whose parts wait for each other."""
        items, waits = table.items, table.waits
        leaves = (items["parts"] > 1) & (items["split"] >= 0)
        closes = (items["parts"] > 1) & ~leaves
        posted = np.where(leaves, items["split"], items["post"])
        posts = np.bincount(posted[posted >= 0], minlength=table.semaphores).astype(np.int64)
        ranges = np.stack([waits["first"], waits["count"], waits["stride"]], axis=1).astype(np.int64)
        awaited = np.where(closes, ~items["split"], -1)
        known: dict[bytes, int] = {}  # by ranges; different ranges may cover the same semaphores
        group_of_set: dict[bytes, int] = {}
        semaphores: list[Ints] = []
        group = np.empty(len(items), np.int64)
        spans = zip(items["wait_lo"].tolist(), items["wait_hi"].tolist(), awaited.tolist(), strict=True)
        for row, (low, high, part) in enumerate(spans):
            key = ranges[low:high].tobytes() + part.to_bytes(8, "little", signed=True)
            if key not in known:
                parts = [first + stride * np.arange(count) for first, count, stride in ranges[low:high].tolist()]
                covered = np.unique(np.concatenate([*parts, [part][: part >= 0]]).astype(np.int64))
                known[key] = group_of_set.setdefault(covered.tobytes(), len(semaphores))
                if known[key] == len(semaphores):
                    semaphores.append(covered)
            group[row] = known[key]
        size = np.array([len(some) for some in semaphores], np.int64)
        number = np.where(size > 0, np.cumsum(size > 0) - 1, -1)[group]  # numbers only groups that wait for anything
        some = [each for each in semaphores if len(each)]
        flat = np.concatenate(some) if some else np.zeros(0, np.int64)
        owner = np.repeat(np.arange(len(some)), size[size > 0])
        order = np.argsort(flat, kind="stable")
        waiting = np.flatnonzero(number >= 0)
        by_group = group_by(number[waiting], len(some))
        return ReadyGroups(
            np.flatnonzero(number < 0),
            posts,
            Groups(compute_offsets(np.bincount(flat, minlength=table.semaphores)), owner[order]),
            Groups(by_group.ptr, waiting[by_group.values]),
            size[size > 0],
        )

    def build_fields(self, dispatch: Dispatch) -> dict[str, NDArray[np.int32] | NDArray[np.int64]]:
        """Return the fields of ``launch.dispatch.QUEUE`` as they are before the first run; no array is empty."""
        tables = {
            "first": self.first,
            "posts": self.posts,
            "wakes": self.wakes.ptr,
            "groups": self.wakes.values,
            "members": self.rows.ptr,
            "rows": self.rows.values,
            "missing": self.missing,
        }
        tail = 1 + len(self.posts) if dispatch is Dispatch.DISPATCHER else 1
        return {
            **{name: np.append(values, 0).astype(np.int32) for name, values in tables.items()},
            "met": np.zeros(max(len(self.missing), 1), np.int32),
            "tail": np.zeros(tail, np.int32),
            "slots": np.zeros(max(len(self.rows.values), 1), np.int64),
        }


def find_ready_rows(first: NDArray[np.int32], slots: NDArray[np.int64]) -> Ints:
    """Return the rows that were ready in the last run: those ready from the start, and those in current slots."""
    words = slots.view(np.uint64)
    latest = words[(words >> 32 == (words >> 32).max()) & (words > 0)]
    rows: Ints = np.concatenate([first, latest & 0xFFFFFFFF]).astype(np.int64)
    return rows
