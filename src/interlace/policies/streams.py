"""Streams: assignment of ops to CUDA streams, and the events that order ops of different streams.

Ops are numbered in program order, so every dependency leads from a lower number to a higher one. Ops 0 and 1 depend on
nothing, 2 on 0, 3 on 0, 1 and 2, 4 on 1:

    chains                0 - 2 - 3 and 1 - 4: the minimum chain cover, in which each op depends on the one before
    stream 0              0   2   3
    stream 1              1   4
    events                3 waits for 1; its dependency on 0 is implied by 2
    urgency               1, 0 if all ops take equally long: 0 - 2 - 3 is the longest path, and 1 - 4 is shorter

The minimum number of chains equals the maximum number of ops none of which depends on another (Dilworth, *A
decomposition theorem for partially ordered sets*, 1950). It is n minus the size of a maximum matching of ops with later
ops that depend on them (Fulkerson, 1956), which is grown along augmenting paths (Kuhn, 1955). Sets of ops are the bits
of an int.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from interlace.core.errors import GraphError

_DIGITS = 6  # decimals to which relative path lengths are compared, because rounding depends on the order of summation

#: Earlier ops on which each op depends.
Predecessors = Sequence[Collection[int]]


@dataclass(frozen=True)
class Streams:
    """Stream of each op of a graph, in program order, and the ops that it waits for.

    Attributes:
        stream: stream of each op, numbered from 0.
        after: minimal set of earlier ops for each op, from whose ends all others that it follows are implied.
        urgency: rank of each stream's longest path among the distinct path lengths, from 0 for the shortest; the
            streams with the critical path have the highest rank. Empty if all streams are equally urgent.
    """

    stream: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    urgency: tuple[int, ...] = ()

    @staticmethod
    def from_predecessors(before: Predecessors, weights: Sequence[float], most: int) -> Streams:
        """Assign each chain of ops to a stream; more than ``most`` chains share streams of about equal weight.

        Args:
            before: earlier ops on which each op depends.
            weights: weight of each op: its time, or any number that grows with it.
            most: maximum number of streams.

        Raises:
            GraphError: an op that depends on itself or a later one, a wrong number of weights, or fewer than one
                stream.
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
        for s, ops in enumerate(_pack_bins(find_chains(before), weights, most)):
            for v in ops:
                stream[v] = s
        return Streams(tuple(stream), _reduce_transitively(before, stream), _rank_streams(before, weights, stream))

    @property
    def count(self) -> int:
        """Number of streams."""
        return max(self.stream, default=-1) + 1

    def compute_priorities(self, least: int, greatest: int) -> tuple[int, ...]:
        """Return the priority of each stream within a device's range, in which lower numbers are more urgent.

        Streams with the longest paths get distinct priorities. If there are too few priorities for all, the other
        streams share the least one.
        """
        urgency = self.urgency or (0,) * self.count
        shared = max(max(urgency, default=0) - (least - greatest), 0)
        return tuple(least - max(u - shared, 0) for u in urgency)

    @property
    def awaited_ops(self) -> tuple[tuple[int, ...], ...]:
        """Ops of other streams whose events each op waits for."""
        return tuple(
            tuple(u for u in earlier if self.stream[u] != self.stream[v]) for v, earlier in enumerate(self.after)
        )

    @property
    def root_ops(self) -> tuple[int, ...]:
        """Ops that follow no other op."""
        return tuple(v for v, earlier in enumerate(self.after) if not earlier)

    @property
    def final_ops(self) -> tuple[int, ...]:
        """Ops that no other op follows; each is the last of its stream."""
        followed = {u for earlier in self.after for u in earlier}
        return tuple(v for v in range(len(self.after)) if v not in followed)


def find_chains(before: Predecessors) -> list[list[int]]:
    """Partition the ops into the fewest chains, in which each op depends, perhaps transitively, on the one before."""
    n = len(before)
    ancestors = _find_ancestors(before)
    leader, follower = [-1] * n, [-1] * n
    alone = (1 << n) - 1  # ops without a follower
    for v in range(n):  # a greedy pass finds most pairs, and these are direct dependencies
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


def _find_ancestors(before: Predecessors) -> list[int]:
    """Return all ops on which each op depends, directly or transitively, as bits."""
    found: list[int] = []
    for earlier in before:
        bits = 0
        for u in earlier:
            bits |= found[u] | 1 << u
        found.append(bits)
    return found


def _augment(v: int, ancestors: Sequence[int], leader: list[int], follower: list[int], alone: int) -> int:
    """Match op v with a leader along an augmenting path, if one exists. Return the ops still without a follower."""
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
        for u in _iter_bits(fresh):
            came[u] = w
            queue.append(follower[u])
    return alone


def _iter_bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _pack_bins(found: list[list[int]], weights: Sequence[float], most: int) -> list[list[int]]:
    """Return the chains, or up to ``most`` bins: heaviest chain first, each into the lightest bin (Graham, 1969)."""
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


def _rank_streams(before: Predecessors, weights: Sequence[float], stream: Sequence[int]) -> tuple[int, ...]:
    """Rank the streams by the longest path through any of their ops, from 0; equal lengths get equal ranks."""
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


def _reduce_transitively(before: Predecessors, stream: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the ops that each op follows, by dependency or in its stream, after transitive reduction."""
    behind: list[int] = []  # for each op, all that it follows
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
