"""Facts of a graph and of a plan, found the slow way.

Plain Python over sets of single elements, written from the definitions and sharing no code with the
package: it reads the fields of graphs and plans and nothing else. Only for tiny tensors.

An element is ``(tensor, x0, x1, ...)``, a tile is ``(op position, linear tile number)``, and an edge is
``(hazard, tensor, producer tile, consumer tile)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

from interlace.graph.access import Access, Affine
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.plan.plan import Dispatch, Plan

Element = tuple[object, ...]
Tile = tuple[int, int]
Edge = tuple[str, str, Tile, Tile]


# ---------------------------------------------------------------- what tiles touch


def elements(graph: Graph, access: Access, coords: tuple[int, ...], k_lo: int, k_hi: int) -> frozenset[Element]:
    """The elements that one tile touches through one access during one k-range."""

    def value(bound: Affine) -> int:
        terms = sum(factor * coord for factor, coord in zip(bound.tile, coords, strict=False))
        return bound.const + terms + bound.k_lo * k_lo + bound.k_hi * k_hi

    shape = next(t.shape for t in graph.tensors if t.name == access.tensor)
    extents = [
        range(max(value(span.lo), 0), min(value(span.hi), extent))
        for span, extent in zip(access.spans, shape, strict=True)
    ]
    return frozenset((access.tensor, *index) for index in product(*extents))


def coordinates(op: Op) -> list[tuple[int, ...]]:
    """Coordinates of an op's tiles by linear tile number."""
    return list(product(*map(range, op.grid)))


def get_k_range(op: Op) -> tuple[int, int]:
    """The k-range of a whole tile."""
    return (0, op.reduction.extent) if op.reduction else (0, 1)


@dataclass(frozen=True)
class Touched:
    """Elements that a whole tile reads and writes."""

    reads: frozenset[Element]
    writes: frozenset[Element]


@lru_cache(maxsize=4)
def find_touched(graph: Graph) -> dict[Tile, Touched]:
    """Return the elements that every tile of the graph touches."""
    none: frozenset[Element] = frozenset()
    out = {}
    for p, op in enumerate(graph.ops):
        for t, coords in enumerate(coordinates(op)):
            reads = [elements(graph, a, coords, *get_k_range(op)) for a in op.reads]
            writes = [elements(graph, a, coords, *get_k_range(op)) for a in op.writes]
            out[p, t] = Touched(none.union(*reads), none.union(*writes))
    return out


# ---------------------------------------------------------------- dependencies


def conflicts(graph: Graph) -> set[Edge]:
    """Every pair of tiles of an earlier and a later op that touch one element, at least one writing it."""
    out: set[Edge] = set()
    tiles = find_touched(graph)
    for (p, a), before in tiles.items():
        for (c, b), after in tiles.items():
            if p >= c:
                continue
            for hazard, common in (
                ("RAW", before.writes & after.reads),
                ("WAR", before.reads & after.writes),
                ("WAW", before.writes & after.writes),
            ):
                out |= {(hazard, str(element[0]), (p, a), (c, b)) for element in common}
    return out


@dataclass(frozen=True)
class Use:
    """One access of an op, with the elements that each of its tiles touches."""

    op: int
    access: Access
    writes: bool
    tiles: tuple[frozenset[Element], ...]

    @property
    def all(self) -> frozenset[Element]:
        """Elements that the op touches through it."""
        return frozenset().union(*self.tiles)


@lru_cache(maxsize=4)
def uses(graph: Graph) -> tuple[Use, ...]:
    """All accesses in program order; an op reads before it writes."""
    return tuple(
        Use(p, a, writes, tuple(elements(graph, a, coords, *get_k_range(op)) for coords in coordinates(op)))
        for p, op in enumerate(graph.ops)
        for accesses, writes in ((op.reads, False), (op.writes, True))
        for a in accesses
    )


@lru_cache(maxsize=4)
def find_visible(graph: Graph) -> set[tuple[str, int, int]]:
    """(hazard, earlier access, later one), if some element that both touch is not written by any in between."""
    out, every = set(), uses(graph)
    for b, after in enumerate(every):
        common = after.all
        for a in reversed(range(b)):
            before = every[a]
            if before.op < after.op and (before.writes or after.writes) and before.all & common:
                hazard = ("WAW" if after.writes else "RAW") if before.writes else "WAR"
                out.add((hazard, a, b))
            if before.writes:
                common -= before.all
    return out


@lru_cache(maxsize=4)
def visible(graph: Graph) -> set[Edge]:
    """Conflicts between tiles through accesses that see each other: those that must be enforced directly."""
    every = uses(graph)
    return {
        (hazard, every[a].access.tensor, (every[a].op, p), (every[b].op, c))
        for hazard, a, b in find_visible(graph)
        for p, before in enumerate(every[a].tiles)
        for c, after in enumerate(every[b].tiles)
        if before & after
    }


def unwritten(graph: Graph) -> tuple[int, frozenset[Element]] | None:
    """The first access, in program order, that reads what nothing wrote, and these elements.

    Or the number of all accesses, with what is missing of the outputs.
    """
    held = {e for t in graph.tensors if t.name in graph.inputs for e in _all_of(graph, t.name)}
    every = uses(graph)
    for n, use in enumerate(every):
        if not use.writes and use.all - held:
            return n, use.all - held
        held |= use.all if use.writes else set()
    wanted = frozenset(e for name in graph.outputs for e in _all_of(graph, name))
    return (len(every), wanted - held) if wanted - held else None


def _all_of(graph: Graph, tensor: str) -> list[Element]:
    shape = next(t.shape for t in graph.tensors if t.name == tensor)
    return [(tensor, *index) for index in product(*map(range, shape))]


def closure(edges: set[Edge]) -> set[tuple[Tile, Tile]]:
    """Pairs of tiles that a chain of edges orders."""
    into: dict[Tile, set[Tile]] = {}
    for _, _, a, b in edges:
        into.setdefault(b, set()).add(a)
    before: dict[Tile, set[Tile]] = {}
    for b in sorted(into):  # producers are ops further ahead, so they are complete
        before[b] = set(into[b]).union(*(before.get(a, set()) for a in into[b]))
    return {(a, b) for b, all_before in before.items() for a in all_before}


# ---------------------------------------------------------------- plans


@dataclass(frozen=True)
class Segment:
    """A stretch of an item's reduction: which semaphores it has awaited, what it touches through each access."""

    k_lo: int
    awaited: frozenset[int]
    touched: dict[int, frozenset[Element]]  # by number of the access among ``uses``
    reads: frozenset[Element]
    writes: frozenset[Element]


@dataclass(frozen=True)
class Item:
    """One row of the plan, with its waits spelled out."""

    tile: Tile
    worker: int | None
    post: int
    segments: tuple[Segment, ...]

    @property
    def awaits(self) -> frozenset[int]:
        """All semaphores that the item waits for before it ends."""
        return self.segments[-1].awaited


def items(plan: Plan) -> list[Item]:
    """The plan's items in sequence. A wait counts only if its threshold is the posts of one run.

    ``worker`` is None where no order of the items of one worker is known.
    """
    graph, table, waits = plan.graph, plan.items, plan.waits
    posts, every = _posts(plan), uses(graph)
    out = []
    for n in range(len(table)):
        op = graph.ops[int(table.op[n])]
        k_lo, k_hi = int(table.k_lo[n]), int(table.k_hi[n])
        stands: list[tuple[int, frozenset[int]]] = []
        for row in range(int(waits.ptr[n]), int(waits.ptr[n + 1])):
            first, stride, count = int(waits.first[row]), int(waits.stride[row]), int(waits.count[row])
            held = {first + stride * s for s in range(count)}
            held = {s for s in held if len(posts.get(s, ())) == int(waits.threshold[row])}
            stands.append((max(k_lo, int(waits.k[row])), frozenset(held)))
        cuts = [*sorted({k_lo, *(k for k, _ in stands)}), k_hi]
        coords = coordinates(op)[int(table.tile[n])]
        segments = []
        for lo, hi in pairwise(cuts):
            touched = {
                u: elements(graph, use.access, coords, lo, hi)
                for u, use in enumerate(every)
                if use.op == int(table.op[n]) and (lo == k_lo or _moves(use.access))
            }
            reads, writes = (
                frozenset().union(*(e for u, e in touched.items() if every[u].writes is written))
                for written in (False, True)
            )
            awaited = frozenset(s for k, held in stands if k <= lo for s in held)
            segments.append(Segment(lo, awaited, touched, reads, writes))
        worker: int | None = int(table.worker[n])
        if plan.dispatch is not Dispatch.STATIC:
            of_one = plan.workers == 1 and not plan.dispatch.can_reorder and plan.dispatch is not Dispatch.SPAWN
            worker = 0 if of_one else None
        tile = (int(table.op[n]), int(table.tile[n]))
        out.append(Item(tile, worker, int(table.post[n]), tuple(segments)))
    return out


def _moves(access: Access) -> bool:
    return any(bound.k_lo or bound.k_hi for span in access.spans for bound in (span.lo, span.hi))


def _posts(plan: Plan) -> dict[int, set[Tile]]:
    """The tiles that post each semaphore."""
    out: dict[int, set[Tile]] = {}
    for op, tile, post in zip(plan.items.op, plan.items.tile, plan.items.post, strict=True):
        if post >= 0:
            out.setdefault(int(post), set()).add((int(op), int(tile)))
    return out


def structural_faults(plan: Plan) -> set[str]:
    """Names of the errors that the entries of a plan deserve by themselves, whatever its graph depends on.

    Everything is compared as Python integers, which do not wrap.
    """
    n, ops, table = len(plan.items), plan.graph.ops, plan.items
    found = set()
    if not 1 <= plan.workers < 1 << 31:
        found.add("PlanError")
    if not 0 <= plan.semaphores <= sum(len(coordinates(op)) for op in ops):
        found.add("SemaphoreError")
    rows = list(zip(*(getattr(table, c).tolist() for c in ("op", "tile", "k_lo", "k_hi", "worker")), strict=True))
    shared = False  # an item of a hybrid plan is in no list
    for n_item, (p, tile, k_lo, k_hi, worker) in enumerate(rows):
        if not 0 <= p < len(ops):
            found.add("ItemError")
            continue
        extent, block = get_k_range(ops[p])[1], ops[p].reduction.block if ops[p].reduction else 1
        good = 0 <= tile < len(coordinates(ops[p])) and 0 <= k_lo < k_hi <= extent
        good &= k_lo % block == 0 and (k_hi % block == 0 or k_hi == extent)
        if plan.dispatch is Dispatch.HYBRID:
            good &= -1 <= worker < plan.workers and not (shared and worker >= 0) and not (n_item == 0 and worker < 0)
            shared |= worker < 0
        elif plan.dispatch in (Dispatch.STATIC, Dispatch.STEALING):
            good &= 0 <= worker < plan.workers
        else:
            good &= worker == -1
        found |= set() if good else {"ItemError"}
    ptr, first, count, stride, threshold, k = (
        getattr(plan.waits, c).tolist() for c in ("ptr", "first", "count", "stride", "threshold", "k")
    )
    if (ptr[0], ptr[-1]) != (0, len(first)) or any(a > b for a, b in pairwise(ptr)):
        found.add("PlanError")
    if found:
        return found
    parts: dict[Tile, list[int]] = {(p, t): [] for p, op in enumerate(ops) for t in range(len(coordinates(op)))}
    for i, (p, tile, *_) in enumerate(rows):
        parts[p, tile].append(i)
    for (p, _), members in parts.items():
        ranges = sorted((rows[i][2], rows[i][3]) for i in members)
        ends = [lo for lo, _ in ranges] + [get_k_range(ops[p])[1]]
        if not members or ends != [0] + [hi for _, hi in ranges]:
            found.add("ItemError")
        if len({int(table.post[i]) for i in members}) > 1:
            found.add("SemaphoreError")
    if any(not -1 <= int(post) < plan.semaphores for post in table.post):
        found.add("SemaphoreError")
    posts = _posts(plan)
    for i in range(n):
        _, _, k_lo, k_hi, _ = rows[i]
        reduction = ops[rows[i][0]].reduction
        block, own = reduction.block if reduction else 1, k[ptr[i] : ptr[i + 1]]
        good = own == sorted(own) and all(0 <= at < k_hi and (at <= k_lo or at % block == 0) for at in own)
        if not good or any(c < 1 for c in count[ptr[i] : ptr[i + 1]]):
            found.add("PlanError")
    for row in range(len(first)):
        last = first[row] + (count[row] - 1) * stride[row]
        upwards = stride[row] >= 1 and (count[row] != 1 or stride[row] <= plan.semaphores)
        if not upwards or not 0 <= first[row] < plan.semaphores or last >= plan.semaphores:
            found.add("SemaphoreError")
        elif count[row] >= 1:
            awaited = range(first[row], last + 1, stride[row])
            if threshold[row] < 1 or any(len(posts.get(s, ())) != threshold[row] for s in awaited):
                found.add("ThresholdError")
    return found


@dataclass(frozen=True)
class Account:
    """Figures that the proof of a safe plan reports.

    Attributes:
        edges: dependencies on a tile of each segment and access.
        by_wait: those of them that the item waits for.
        overwriting: those for which it does not wait and that need not be waited for, if waits of others order them.
        longest_chain: items on the longest chain of waits.
        in_sequence: every item waits for earlier ones only.
    """

    edges: int
    by_wait: int
    overwriting: int
    longest_chain: int
    in_sequence: bool


def account(plan: Plan) -> Account:
    """Count what a proof of a safe plan reports."""
    sequence, every, edges = items(plan), uses(plan.graph), find_visible(plan.graph)
    post = {item.tile: item.post for item in sequence}
    posters: dict[int, list[int]] = {}
    for n, item in enumerate(sequence):
        posters.setdefault(item.post, []).append(n)
    total = by_wait = overwriting = 0
    for item in sequence:
        for segment in item.segments:
            for hazard, a, b in edges:
                for p, before in enumerate(every[a].tiles):
                    if before & segment.touched.get(b, frozenset()):
                        total += 1
                        awaited = post[every[a].op, p] in segment.awaited
                        by_wait += awaited
                        overwriting += hazard != "RAW" and not awaited
    depth: dict[int, int] = {}

    def chain(n: int) -> int:
        if n not in depth:
            depth[n] = 1 + max((chain(m) for s in sequence[n].awaits for m in posters[s]), default=0)
        return depth[n]

    longest = max(chain(n) for n in range(len(sequence)))
    ordered = all(m < n for n, item in enumerate(sequence) for s in item.awaits for m in posters[s])
    return Account(total, by_wait, overwriting, longest, ordered)


def find_unenforced(plan: Plan, hazards: Iterable[str] = ("RAW", "WAR", "WAW")) -> list[str]:
    """Visible dependencies that neither a wait before the access nor one worker's order enforces by itself."""
    sequence, every, edges = items(plan), uses(plan.graph), find_visible(plan.graph)
    parts: dict[Tile, list[int]] = {}
    for n, item in enumerate(sequence):
        parts.setdefault(item.tile, []).append(n)
    post = {item.tile: item.post for item in sequence}
    out = []
    for n, item in enumerate(sequence):
        for segment in item.segments:
            needed = {
                (every[a].op, p)
                for hazard, a, b in edges
                if hazard in hazards
                for p, before in enumerate(every[a].tiles)
                if before & segment.touched.get(b, frozenset())
            }
            for tile in sorted(needed):
                same = item.worker is not None and all(p < n and sequence[p].worker == item.worker for p in parts[tile])
                if post[tile] not in segment.awaited and not same:
                    out.append(f"item {n} {item.tile} at k {segment.k_lo} does not wait for {tile}")
    return out


def stuck(plan: Plan) -> bool:
    """True if the run may never end.

    Under another dispatch than static, if an item waits for a later one; otherwise, if running each worker's list as
    far as it goes leaves something over.
    """
    if plan.dispatch is Dispatch.STATIC:
        return bool(left_over(plan))
    sequence = items(plan)
    return any(
        n >= m for m, item in enumerate(sequence) for n, other in enumerate(sequence) if other.post in item.awaits
    )


def left_over(plan: Plan) -> set[int]:
    """Items of a static plan that never run."""
    sequence, posts = items(plan), _posts(plan)
    queues: dict[int | None, list[int]] = {}
    left: dict[Tile, int] = {}
    for n, item in enumerate(sequence):
        queues.setdefault(item.worker, []).append(n)
        left[item.tile] = left.get(item.tile, 0) + 1
    progress = True
    while progress:
        progress = False
        for queue in queues.values():
            while queue and all(left[t] == 0 for s in sequence[queue[0]].awaits for t in posts.get(s, ())):
                left[sequence[queue.pop(0)].tile] -= 1
                progress = True
    return {n for queue in queues.values() for n in queue}


def races(plan: Plan) -> list[str]:
    """Conflicting accesses that some timing of the workers can bring into the wrong order.

    Happens-before over events: the start of each segment, the arrival of each part of a tile, the end of
    each item, and the completion of each tile, which is done by whichever part arrives last. Nothing is
    hidden here: every conflict of the program must follow from waits and workers' orders.
    """
    sequence, posts = items(plan), _posts(plan)
    events: dict[tuple[object, ...], int] = {}
    after: list[set[int]] = []  # direct predecessors

    def event(*key: object) -> int:
        if key not in events:
            events[key] = len(after)
            after.append(set())
        return events[key]

    parts: dict[Tile, list[int]] = {}
    last_of_worker: dict[int, int] = {}
    for n, item in enumerate(sequence):
        parts.setdefault(item.tile, []).append(n)
        previous = last_of_worker.get(item.worker) if item.worker is not None else None
        for s, segment in enumerate(item.segments):
            now = event("start", n, s)
            after[now] |= {event("tile", t) for sem in segment.awaited for t in posts.get(sem, ())}
            after[now] |= {previous} if previous is not None else set()
            previous = now
        after[event("arrive", n)].add(event("start", n, len(item.segments) - 1))
        after[event("end", n)].add(event("arrive", n))
        after[event("tile", item.tile)].add(event("arrive", n))
        if item.worker is not None:
            last_of_worker[item.worker] = event("end", n)

    ends = {event("tile", t): _mask(event("end", n) for n in members) for t, members in parts.items()}
    before = [_mask(p) for p in after]
    changed = True
    while changed:
        changed = False
        for e in range(len(before)):
            mask = before[e]
            for p in after[e]:
                mask |= before[p]
            for tile_event, needed in ends.items():
                if needed & ~mask == 0:  # after the end of every part, so after the one that completed it
                    mask |= 1 << tile_event
            changed |= mask != before[e]
            before[e] = mask

    tiles = find_touched(plan.graph)
    out = []
    for n, item in enumerate(sequence):
        for s, segment in enumerate(item.segments):
            past = before[event("start", n, s)]
            for tile, t in tiles.items():
                if tile[0] >= item.tile[0]:
                    continue
                if t.writes & (segment.reads | segment.writes) and not past >> event("tile", tile) & 1:
                    out.append(f"item {n} {item.tile} may run before {tile} has written")
            for m, other in enumerate(sequence):
                if other.tile[0] >= item.tile[0] or past >> event("arrive", m) & 1:
                    continue
                if any(x.reads & segment.writes for x in other.segments):
                    out.append(f"item {n} {item.tile} may overwrite what item {m} {other.tile} still reads")
    return out


def _mask(positions: Iterable[int]) -> int:
    mask = 0
    for p in positions:
        mask |= 1 << p
    return mask
