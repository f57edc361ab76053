"""Streams: which ops share one, and which events order the rest.

Ops are numbered in program order, so every dependency leads from a lower number to a higher one. Ops 0 and 1 depend on
nothing, 2 on 0, 3 on 0, 1 and 2, 4 on 1:

    chains                0 - 2 - 3 and 1 - 4: the fewest in which each op depends on the one before
    stream 0              0   2   3
    stream 1              1   4
    events                3 waits for 1; that 3 follows 0 is so already, by way of 2
    urgency               1, 0 where all take as long: 0 - 2 - 3 is the longest path, and 1 - 4 is shorter

The fewest chains are as many as there are ops at most of which none depends on another (Dilworth, *A decomposition
theorem for partially ordered sets*, 1950): n less the largest matching of ops with later ones that depend on them
(Fulkerson, 1956), which is grown along augmenting paths (Kuhn, 1955). Sets of ops are bits of an int.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from interlace.core.errors import GraphError

_DIGITS = 6  # of a length, beyond which sums in another order differ

#: Of each op, the earlier ops on which it depends.
Before = Sequence[Collection[int]]


@dataclass(frozen=True)
class Streams:
    """Where each op of a graph is launched, in program order, and what it waits for there.

    Attributes:
        stream: of each op, its stream, numbered from 0.
        after: of each op, the fewest earlier ops from whose ends all others that it follows are implied.
        urgency: of each stream, how many different lengths its longest path comes behind from the shortest: the largest
            is that of streams with the critical path. Empty where all are alike.
    """

    stream: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    urgency: tuple[int, ...] = ()

    @staticmethod
    def of(before: Before, weights: Sequence[float], most: int) -> Streams:
        """Ops in chains, a stream for each; if there are more than ``most``, streams of about equal weight.

        Args:
            before: what depends on what.
            weights: of each op, its time or whatever grows with it.
            most: streams.

        Raises:
            GraphError: an op that depends on itself or a later one, weights of other ops, fewer than one stream.
        """
        late = [v for v, earlier in enumerate(before) if any(not 0 <= u < v for u in earlier)]
        if late:
            raise GraphError(f"op {late[0]} comes after ops {sorted(before[late[0]])}; name earlier ones only")
        if len(weights) != len(before) or most < 1:
            raise GraphError(
                f"{len(weights)} weights of {len(before)} ops on at most {most} streams; give each op a weight, and at "
                "least one stream"
            )
        stream = [0] * len(before)
        for s, ops in enumerate(_bins(chains(before), weights, most)):
            for v in ops:
                stream[v] = s
        return Streams(tuple(stream), _reduced(before, stream), _urgency(before, weights, stream))

    @property
    def count(self) -> int:
        """How many streams there are."""
        return max(self.stream, default=-1) + 1

    def priorities(self, least: int, greatest: int) -> tuple[int, ...]:
        """Of each stream, its priority in a device's range, in which lower numbers come first.

        Streams of the longest paths have priorities of their own; where there are too few for all, others share the
        least.
        """
        urgency = self.urgency or (0,) * self.count
        shared = max(max(urgency, default=0) - (least - greatest), 0)
        return tuple(least - max(u - shared, 0) for u in urgency)

    @property
    def awaited(self) -> tuple[tuple[int, ...], ...]:
        """Of each op, the ops of other streams whose events it waits for."""
        return tuple(
            tuple(u for u in earlier if self.stream[u] != self.stream[v]) for v, earlier in enumerate(self.after)
        )

    @property
    def first(self) -> tuple[int, ...]:
        """Ops that follow none."""
        return tuple(v for v, earlier in enumerate(self.after) if not earlier)

    @property
    def last(self) -> tuple[int, ...]:
        """Ops that none follows; each is the last of its stream."""
        followed = {u for earlier in self.after for u in earlier}
        return tuple(v for v in range(len(self.after)) if v not in followed)


def chains(before: Before) -> list[list[int]]:
    """All ops in the fewest chains, in which each op depends on the one before it, if by way of others."""
    n = len(before)
    ancestors = _ancestors(before)
    leader, follower = [-1] * n, [-1] * n
    alone = (1 << n) - 1  # those without a follower
    for v in range(n):  # most pairs are found at once, and then are direct dependencies
        for u in sorted(before[v], reverse=True):
            if alone >> u & 1:
                leader[v], follower[u], alone = u, v, alone & ~(1 << u)
                break
    for v in range(n):
        if leader[v] < 0:
            alone = _augment(v, ancestors, leader, follower, alone)
    found = []
    for v in range(n):
        if leader[v] < 0:
            chain = [v]
            while follower[chain[-1]] >= 0:
                chain.append(follower[chain[-1]])
            found.append(chain)
    return found


def _ancestors(before: Before) -> list[int]:
    """Of each op, all that it depends on, also by way of others."""
    found: list[int] = []
    for earlier in before:
        bits = 0
        for u in earlier:
            bits |= found[u] | 1 << u
        found.append(bits)
    return found


def _augment(v: int, ancestors: Sequence[int], leader: list[int], follower: list[int], alone: int) -> int:
    """Give op v a leader, changing those of others if need be and possible. Returns the ops still without follower."""
    seen, queue = 0, [v]
    came: dict[int, int] = {}
    for w in queue:
        fresh = ancestors[w] & ~seen
        seen |= fresh
        free = fresh & alone
        if free:
            u = free.bit_length() - 1
            alone &= ~(1 << u)
            while True:
                left, leader[w], follower[u] = leader[w], u, w
                if w == v:
                    return alone
                u, w = left, came[left]
        for u in _bits(fresh):
            came[u] = w
            queue.append(follower[u])
    return alone


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _bins(found: list[list[int]], weights: Sequence[float], most: int) -> list[list[int]]:
    """Chains as they are, or the heaviest first each to the lightest of ``most`` streams (Graham, 1969)."""
    if len(found) <= most:
        return found
    bins: list[list[int]] = [[] for _ in range(most)]
    loads = [(0.0, s) for s in range(most)]
    heapify(loads)
    for weight, chain in sorted(((sum(weights[v] for v in c), c) for c in found), key=lambda pair: -pair[0]):
        load, s = loads[0]
        bins[s] += chain
        heapreplace(loads, (load + weight, s))
    return bins


def _urgency(before: Before, weights: Sequence[float], stream: Sequence[int]) -> tuple[int, ...]:
    """Of each stream, the rank of the longest path through any of its ops, from 0; those of the same length alike."""
    n = len(before)
    ahead, behind = [0.0] * n, [0.0] * n
    for v in range(n):
        ahead[v] = max((ahead[u] + weights[u] for u in before[v]), default=0.0)
    for v in reversed(range(n)):
        for u in before[v]:
            behind[u] = max(behind[u], behind[v] + weights[v])
    longest = [0.0] * (max(stream, default=-1) + 1)
    for v, s in enumerate(stream):
        longest[s] = max(longest[s], ahead[v] + weights[v] + behind[v])
    whole = max(longest, default=0.0) or 1.0
    shares = [round(length / whole, _DIGITS) for length in longest]
    ranks = {share: rank for rank, share in enumerate(sorted(set(shares)))}
    return tuple(ranks[share] for share in shares)


def _reduced(before: Before, stream: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Of each op, those that it follows, by dependency or as the next of its stream, less what others imply."""
    behind: list[int] = []  # of each op, all that it follows
    newest: dict[int, int] = {}
    after = []
    for v, earlier in enumerate(before):
        mine, implied = [], 0
        for u in sorted({*earlier, *([newest[stream[v]]] if stream[v] in newest else [])}, reverse=True):
            if not implied >> u & 1:
                mine.append(u)
                implied |= behind[u] | 1 << u
        behind.append(implied)
        newest[stream[v]] = v
        after.append(tuple(reversed(mine)))
    return tuple(after)
