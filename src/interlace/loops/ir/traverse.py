"""Traversal of statements: the boxes that each reads and writes, and copies with other boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from interlace.loops.ir.index import Index, substitute
from interlace.loops.ir.statements import Block, For, If, Load, Matmul, Pointwise, Reduce, Stmt, Store
from interlace.loops.ir.values import Apply, Box, FromIndex, ReadBox, Value


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yield every statement in order, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, Block):
            yield from walk(stmt.body)


def find_written_box(stmt: Stmt) -> Box | None:
    """Return the box that a statement writes."""
    if isinstance(stmt, Load | Store | Pointwise | Reduce):
        return stmt.dst
    return stmt.acc if isinstance(stmt, Matmul) else None


def find_read_boxes(stmt: Stmt) -> tuple[Box, ...]:
    """Return the boxes that a statement reads, without those of nested statements."""
    match stmt:
        case Load() | Store():
            return (stmt.src,)
        case Pointwise():
            return list_value_boxes(stmt.value)
        case Reduce():
            return (*list_value_boxes(stmt.value), stmt.dst)
        case Matmul():
            return stmt.a, stmt.b, stmt.acc
    return ()


def list_boxes(stmt: Stmt) -> tuple[Box, ...]:
    """Return the box that a statement writes, if any, and those that it reads."""
    target = find_written_box(stmt)
    return find_read_boxes(stmt) if target is None else (target, *find_read_boxes(stmt))


def walk_leaves(value: Value) -> Iterator[Value]:
    """Yield the leaves of a value in order: boxes read, numbers, indices, coordinates."""
    if isinstance(value, Apply):
        for arg in value.args:
            yield from walk_leaves(arg)
    else:
        yield value


def list_value_boxes(value: Value) -> tuple[Box, ...]:
    """Return every box that a value reads, in order."""
    return tuple(leaf.box for leaf in walk_leaves(value) if isinstance(leaf, ReadBox))


def map_boxes(stmt: Stmt, change: Callable[[Box], Box]) -> Stmt:
    """Apply ``change`` to each box of a statement that has no nested statements."""
    match stmt:
        case Load() | Store():
            return replace(stmt, dst=change(stmt.dst), src=change(stmt.src))
        case Pointwise():
            return replace(stmt, dst=change(stmt.dst), value=_map_value(stmt.value, change))
        case Reduce():
            return replace(stmt, dst=change(stmt.dst), value=_map_value(stmt.value, change))
        case Matmul():
            return replace(stmt, acc=change(stmt.acc), a=change(stmt.a), b=change(stmt.b))
    return stmt


def _map_value(value: Value, change: Callable[[Box], Box]) -> Value:
    if isinstance(value, ReadBox):
        return ReadBox(change(value.box))
    return Apply(value.op, tuple(_map_value(a, change) for a in value.args)) if isinstance(value, Apply) else value


def substitute_box(box: Box, by: dict[str, Index]) -> Box:
    """Return ``box`` with variables of its origin and slot replaced."""
    slot = None if box.slot is None else substitute(box.slot, by)
    return replace(box, origin=tuple(substitute(o, by) for o in box.origin), slot=slot)


def list_value_indices(value: Value) -> tuple[Index, ...]:
    """Return the index expressions that a value uses as numbers."""
    return tuple(leaf.index for leaf in walk_leaves(value) if isinstance(leaf, FromIndex))


def walk_indices(stmt: Stmt) -> Iterator[Index]:
    """Yield the index expressions of a source statement, without those of nested statements."""
    for box in list_boxes(stmt):
        yield from box.origin
    match stmt:
        case For():
            yield stmt.stop
        case If():
            yield from (stmt.condition.left, stmt.condition.right)
        case Pointwise() | Reduce():
            yield from list_value_indices(stmt.value)
