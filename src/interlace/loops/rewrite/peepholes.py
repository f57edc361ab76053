"""Peepholes: places where an emitted kernel may wait less than its IR specifies without observable difference.

reductions      threads combine their partial results once after a loop instead of at every step
products        a consumer releases the stages of a matmul one step later, so that two products are in flight
TMA stores      are awaited when their slot of the ring is loaded again, not at once; of a shared ring, a step later
"""

from __future__ import annotations

from collections.abc import Iterator

from interlace.loops.ir.index import BinaryIndex
from interlace.loops.ir.statements import (
    AllocBarrier,
    Arrive,
    Block,
    Copy,
    ElectOne,
    For,
    Load,
    LoopKernel,
    Matmul,
    NextStage,
    Reduce,
    Stmt,
    Store,
)
from interlace.loops.ir.traverse import find_written_box, list_boxes, list_value_boxes, walk


def walk_touching(body: tuple[Stmt, ...], name: str) -> Iterator[Stmt]:
    for stmt in walk(body):
        if name in {box.tensor for box in list_boxes(stmt)}:
            yield stmt


def find_hoistable(loop: For) -> tuple[Reduce, ...]:
    """Return reductions that threads may combine once after the loop: nothing else in it touches their result."""
    found: dict[str, Reduce] = {}
    for stmt in walk(loop.body):
        if isinstance(stmt, Reduce) and stmt.dst.tensor not in found:
            same = (
                isinstance(s, Reduce)
                and (s.op, s.dst, s.shape) == (stmt.op, stmt.dst, stmt.shape)
                and s.dst.tensor not in {box.tensor for box in list_value_boxes(s.value)}
                for s in walk_touching(loop.body, stmt.dst.tensor)
            )
            if all(same):
                found[stmt.dst.tensor] = stmt
    return tuple(found.values())


def find_overlapping_product(kernel: LoopKernel, loop: For) -> Matmul | None:
    """Return the matmul of a loop that may have two in flight if stages are released a step late, or None.

    The loop must contain exactly one matmul. Nothing else in the loop touches its accumulator, only the matmul reads
    its operands, and these are rings of two stages or more.
    """
    products = [s for s in loop.body if isinstance(s, Matmul)]
    if len(products) != 1 or not kernel.loader_threads:
        return None
    (product,) = products
    operands = {product.a.tensor, product.b.tensor}
    if any(isinstance(s, Block) and not isinstance(s, ElectOne) for s in loop.body):
        return None
    if any(len(list(walk_touching(loop.body, name))) > 1 for name in (product.acc.tensor, *operands)):
        return None
    return None if any((kernel.find_tensor(name).stages or 1) < 2 for name in operands) else product


def find_lagging_releases(kernel: LoopKernel, loop: For) -> tuple[str, ...]:
    """Return barriers whose arrival may come a step late, so that two matrix products are in flight."""
    product = find_overlapping_product(kernel, loop)
    if product is None:
        return ()
    released = [b.barrier.name for s in loop.body if isinstance(s, ElectOne) for b in s.body if isinstance(b, Arrive)]
    of = {s.name: s.tensor for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
    return tuple(name for name in released if of[name] in (product.a.tensor, product.b.tensor))


def find_overlapping_store(loop: For) -> Store | None:
    """Return the TMA store of a loop that may have two in flight if shared stages are released a step late.

    The loop must directly contain exactly one, of a tile of its step's stage. It must contain neither a matrix product
    nor stages of an inner loop.
    """
    stages = [s for s in walk(loop.body) if isinstance(s, NextStage)]
    stores = [s for s in walk(loop.body) if isinstance(s, Store) and s.by is Copy.TMA]
    if len(stages) != 1 or len(stores) != 1 or any(isinstance(s, Matmul) for s in walk(loop.body)):
        return None
    (stage,), (store,) = stages, stores
    return store if {stage, store} <= set(loop.body) and store.src.tensor in stage.tiles else None


def is_filled_by_tma(kernel: LoopKernel, tile: str) -> bool:
    """Return True if only bulk copies write a tile, so that a TMA store of it needs no proxy fence."""
    writers = (s for s in walk(kernel.body) if (box := find_written_box(s)) is not None and box.tensor == tile)
    return all(isinstance(s, Load) and s.by is Copy.TMA for s in writers)


def find_deferred_stores(kernel: LoopKernel) -> frozenset[Store]:
    """Return the one TMA store, if it empties a ring that only TMA fills, directly in the loop that loads ahead.

    The storing thread also issues the loads, so it can wait before a load for the stores from that load's slot.
    """
    stores = {s for s in walk(kernel.body) if isinstance(s, Store) and s.by is Copy.TMA}
    if len(stores) != 1 or kernel.loader_threads:
        return frozenset()
    (store,) = stores
    loads = [s for s in walk(kernel.body) if isinstance(s, Load) and s.dst.tensor == store.src.tensor]
    ahead = [s for s in loads if count_pending_stores(kernel, s, store) is not None]
    held = [s for s in walk(kernel.body) if isinstance(s, For) and store in s.body]
    with_load = [loop for loop in held if set(ahead) & set(walk(loop.body))]
    by_tma = all(s.by is Copy.TMA for s in loads)
    return frozenset(stores) if by_tma and ahead and with_load else frozenset()


def count_pending_stores(kernel: LoopKernel, load: Load, store: Store) -> int | None:
    """Return how many stores may still be unread when ``load`` begins; None if it fills another ring.

    Worked example, 4 stages, prefetch 2: at step 6 the load is of step 8, into the slot of step 4. Steps 0 to 5 have
    been stored; all but the newest one must have been read: ``4 - 1 - 2``.
    """
    ahead, here = load.dst.slot, store.src.slot
    stages = kernel.find_tensor(load.dst.tensor).stages
    if load.dst.tensor != store.src.tensor or ahead is None or here is None or stages is None:
        return None
    for prefetch in range(stages):
        names = (
            (ahead.left, here.left)
            if isinstance(ahead, BinaryIndex) and isinstance(here, BinaryIndex)
            else (ahead, here)
        )
        if names[0] == names[1] + prefetch:
            return stages - 1 - prefetch
    return None
