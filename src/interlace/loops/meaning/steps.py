"""The work of a source kernel's loops in one block, step by step; a rewritten kernel must do exactly this work.

The loops run once, in order. Every *instance* of a statement (with the values of the enclosing loop variables) gets a
number, and so does each *content*, the data in a tile after a load or a statement. Numbers count from 1 in the order of
appearance, so blocks that differ only in tensor offsets get the same ones; 0 stands for unwritten data.

Worked example, ``for i in 2: load s from x[i * 64]; store y[i * 64] from s``:

    content 1     x at (0)       loaded to s
    instance 2    store to 'y' at i = 0, which reads content 1
    content 3     x at (64)      loaded to s
    instance 4    store to 'y' at i = 1, which reads content 3
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from interlace.core.errors import UnknownHazard
from interlace.loops.ir.index import Index, Less, evaluate, find_names
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import Block, Copy, For, If, Load, LoopKernel, LoopKind, MemorySpace, Stmt
from interlace.loops.ir.traverse import find_read_boxes, find_written_box, list_boxes, map_boxes, walk
from interlace.loops.ir.values import Box

Env = dict[str, int]
#: The enclosing loops of a statement, by variable and value.
IterationVector = tuple[tuple[str, int], ...]
#: Loads of a tile: its name, and whether they are bulk copies.
Loads = tuple[str, bool]


class ValueNumbering:
    """Numbers of instances and contents, and the objects that they represent."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._texts: list[str] = []
        self._statements: dict[Stmt, int] = {}
        self._known: dict[int, tuple[Stmt, int]] = {}

    def number_instance(self, stmt: Stmt, at: IterationVector) -> int:
        """Return the number of a statement with its enclosing loops, whatever slots its boxes are in."""
        return self._number(("does", self._number_statement(stmt), at), lambda: f"{_describe(stmt)}{_format_point(at)}")

    def number_loaded(self, tensor: str, origin: tuple[int, ...]) -> int:
        """Return the content of a tile that was loaded from this location."""
        return self._number(("holds", tensor, origin), lambda: f"{tensor!r} at {origin}")

    def number_written(self, instance: int, occurrence: int) -> int:
        """Return the content of a tile that an instance wrote, for the ``occurrence``-th time."""
        return self._number(("wrote", instance, occurrence), lambda: self.describe(instance))

    def number_update(self, before: int, content: int, *, whole: bool) -> int:
        """Return the content of a tile that held ``before`` after all or a part of it is written."""
        if whole:
            return content
        return self._number(("part", before, content), lambda: self.describe(content))

    def find_latest(self, content: int) -> int:
        """Return the part written last of a content that consists of parts, else the content itself."""
        key = self._keys[content - 1] if content else None
        return key[2] if isinstance(key, tuple) and key[0] == "part" else content

    def describe(self, number: int) -> str:
        """Return a description of an instance or a content."""
        return self._texts[number - 1] if number else "nothing"

    def _number(self, key: Hashable, text: Callable[[], str]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers) + 1
            self._keys.append(key)
            self._texts.append(text())
        return number

    def _number_statement(self, stmt: Stmt) -> int:
        known = self._known.get(id(stmt))
        if known is None:
            number = self._statements.setdefault(_drop_slots(stmt), len(self._statements))
            known = self._known[id(stmt)] = stmt, number
        return known[1]


@dataclass
class SourceSteps:
    """The work of one block of a source kernel.

    Attributes:
        loops: variables of its loops, which distinguish instances.
        work: every instance in order, of all statements but loads into shared memory.
        loads: the contents that tiles are loaded with, in order.
        reads: for each execution of each instance, the contents of the shared-memory boxes that it reads.
        reached: statements that were executed, including those in loops over threads.
    """

    numbers: ValueNumbering
    loops: frozenset[str]
    work: list[int] = field(default_factory=list)
    loads: dict[Loads, list[int]] = field(default_factory=dict)
    reads: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    reached: set[Stmt] = field(default_factory=set)


def follow(source: LoopKernel, env: Mapping[str, int]) -> SourceSteps:
    """Run one block of ``source``; ``env`` has the run-time extents and the block loops' variables.

    Raises:
        PipelineError: an extent makes a divisor less than 1.
    """
    _, body = split_block_loops(source)
    loops = frozenset(s.var for s in walk(body) if isinstance(s, For))
    shared = {t.name: t.tile for t in source.tensors if t.memory is MemorySpace.SHARED}
    run = _SourceRun(SourceSteps(ValueNumbering(), loops), shared)
    run.run(body, dict(env), ())
    return run.steps


class _SourceRun:
    def __init__(self, steps: SourceSteps, shared: dict[str, tuple[int, ...]]) -> None:
        self.steps = steps
        self.shared = shared
        self.holds = dict.fromkeys(shared, 0)
        self.known: set[int] = set()

    def run(self, body: tuple[Stmt, ...], env: Env, at: IterationVector) -> None:
        for stmt in body:
            match stmt:
                case For() if stmt.kind is not LoopKind.THREAD:
                    for value in range(evaluate_index(stmt.start, env), evaluate_index(stmt.stop, env)):
                        env[stmt.var] = value
                        self.run(stmt.body, env, (*at, (stmt.var, value)))
                case If():
                    if is_met(stmt.condition, env):
                        self.run(stmt.body, env, at)
                case _:
                    if is_executed(stmt, env):
                        self._reach(stmt)
                        self._execute(stmt, env, at)

    def _reach(self, stmt: Stmt) -> None:
        if id(stmt) not in self.known:
            self.known.add(id(stmt))
            self.steps.reached.update(walk((stmt,)))

    def _execute(self, stmt: Stmt, env: Env, at: IterationVector) -> None:
        steps, numbers = self.steps, self.steps.numbers
        if isinstance(stmt, Load) and stmt.dst.tensor in self.shared:
            content = numbers.number_loaded(stmt.src.tensor, evaluate_origin(stmt.src, env))
            steps.loads.setdefault((stmt.dst.tensor, stmt.by is Copy.TMA), []).append(content)
        else:
            instance = numbers.number_instance(stmt, at)
            steps.work.append(instance)
            times = steps.reads.setdefault(instance, [])
            content = numbers.number_written(instance, len(times))
            times.append(tuple(self.holds[box.tensor] for box in find_shared_reads(stmt, self.shared)))
        for box in find_shared_writes(stmt, self.shared):
            whole = box.shape == self.shared[box.tensor]
            self.holds[box.tensor] = numbers.number_update(self.holds[box.tensor], content, whole=whole)


def is_executed(stmt: Stmt, env: Env) -> bool:
    """Return True if a statement is executed at all: a loop over threads without iterations is not."""
    return not isinstance(stmt, For) or evaluate_index(stmt.start, env) < evaluate_index(stmt.stop, env)


def find_shared_reads(stmt: Stmt, shared: Mapping[str, object]) -> Iterator[Box]:
    """Return the shared-memory boxes that a statement reads; a loop over threads counts as a whole, conditions met."""
    return (box for inner in walk((stmt,)) for box in find_read_boxes(inner) if box.tensor in shared)


def find_shared_writes(stmt: Stmt, shared: Mapping[str, object]) -> Iterator[Box]:
    """Return the shared-memory boxes that a statement writes."""
    return (box for inner in walk((stmt,)) if (box := find_written_box(inner)) is not None and box.tensor in shared)


def evaluate_index(index: Index, env: Env) -> int:
    """Return the value of an index.

    Raises:
        UnknownHazard: a variable of the index is not defined.
    """
    try:
        return evaluate(index, env)
    except KeyError:
        unknown = sorted(find_names(index) - env.keys())
        raise UnknownHazard(f"the variable {unknown[0]!r} is used where nothing defines it") from None


def is_met(condition: Less, env: Env) -> bool:
    """Return True if a condition holds; raises as ``evaluate_index`` does."""
    return evaluate_index(condition.left, env) < evaluate_index(condition.right, env)


def evaluate_origin(box: Box, env: Env) -> tuple[int, ...]:
    """Return the origin of a box; raises as ``evaluate_index`` does."""
    return tuple(evaluate_index(o, env) for o in box.origin)


def _drop_slots(stmt: Stmt) -> Stmt:
    """Return the statement without slots."""
    if isinstance(stmt, Block):
        return replace(stmt, body=tuple(map(_drop_slots, stmt.body)))
    return map_boxes(stmt, lambda box: replace(box, slot=None))


def _describe(stmt: Stmt) -> str:
    if isinstance(stmt, For):
        return f"loop {stmt.var!r} over threads"
    target = next(iter(list_boxes(stmt)), None)
    return type(stmt).__name__.lower() + (f" to {target.tensor!r}" if target is not None else "")


def _format_point(at: IterationVector) -> str:
    return f" at {', '.join(f'{var} = {value}' for var, value in at)}" if at else ""
