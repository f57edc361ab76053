"""Random kernels of loops, built from small trees; a tree with parts cut off still builds.

A tree is a body of steps: loops and conditions with bodies, loads, assignments to tiles, outputs, reductions. When the
kernel is built, reads of tiles that are not definitely written before are dropped. So every kernel has defined results,
and a tree can be reduced to what matters (``shrink.py``). Each load has its own input and each output step its own
output, addressed by the variables of the enclosing loops.

    tree = draw(Random(7))
    kernel, sizes = build_tree(tree)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from random import Random

from interlace.core.dtypes import DType, bf16, fp16, fp32
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import Index, Var, as_index, minimum
from interlace.loops.ir.statements import Copy, LoopKernel, ReduceOp
from interlace.loops.ir.values import Box, Value, as_value, select_larger
from interlace.loops.rewrite.circular import circular_buffer

#: Shapes of tiles; the last one is swizzled if its rows have 128 bytes.
SHAPES = ((64,), (256,), (4, 64), (8, 32))


@dataclass(frozen=True)
class Tile:
    """A tile; with ``stages`` it is loaded ahead."""

    shape: tuple[int, ...]
    dtype: DType = fp32
    stages: int = 0
    prefetch: int = 0
    register: bool = False


@dataclass(frozen=True)
class Loop:
    """A loop, or with ``when`` a condition: the variable of the enclosing loop is below ``extent``.

    Attributes:
        form: kind of extent: a number, a run-time extent, or one that shrinks as the enclosing loop's variable grows.
    """

    var: str
    extent: int
    form: str
    kind: str
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Load:
    """A load of the next box of an input; with ``again``, of the same box in every iteration of the innermost loop."""

    tile: str
    by: Copy
    again: bool = False


@dataclass(frozen=True)
class Assign:
    """``tile = sum of reads``; with ``turned``, by a loop over threads, each of which reads what others wrote."""

    tile: str
    reads: tuple[str, ...]
    turned: bool = False


@dataclass(frozen=True)
class Out:
    """Output of a sum of tiles to the next box; ``how`` is assign, turned, or a store of the first tile."""

    reads: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Total:
    """A reduction over the tiles that ``Add`` steps name in its body, to its own output."""

    name: str
    op: ReduceOp
    axis: int
    shape: tuple[int, ...]
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Add:
    """A step of the reduction called ``total``."""

    total: str
    reads: tuple[str, ...]


Step = Loop | Load | Assign | Out | Total | Add


@dataclass(frozen=True)
class Tree:
    """Description of a kernel: number of thread blocks, tiles by name, steps."""

    threads: int
    warp_specialised: bool
    blocks: int
    tiles: dict[str, Tile]
    body: tuple[Step, ...]


def draw(random: Random) -> Tree:
    """Draw a tree of about ten steps."""
    warp_specialised = random.random() < 0.4
    dtype = random.choice((fp32, fp32, fp32, bf16, fp16))
    shapes = random.sample(SHAPES, random.choice((1, 1, 2)))
    tiles: dict[str, Tile] = {}
    for i in range(random.randint(2, 5)):
        stages = random.choice((0, 1, 1, 2, 3, 4))
        prefetch = random.choice((stages - 1, random.randrange(stages))) if stages else 0
        register = not stages and random.random() < 0.15
        tiles[f"{'r' if register else 's'}{i}"] = Tile(random.choice(shapes), dtype, stages, prefetch, register)
    drawing = _Drawing(random, tiles)
    body = drawing.body(0, [])
    threads = 128 if warp_specialised else random.choice((32, 64, 128))
    return Tree(threads, warp_specialised, random.choice((1, 1, 2)), tiles, body)


@dataclass
class _Drawing:
    random: Random
    tiles: dict[str, Tile]
    loops: int = 0
    left: int = 14
    loaded: set[str] = field(default_factory=set)

    def body(self, depth: int, written: list[str], total: Total | None = None) -> tuple[Step, ...]:
        random, steps, written = self.random, [], list(written)
        for _ in range(random.randint(2, 4) if depth else random.randint(1, 3)):
            self.left -= 1
            choice = random.random()
            if depth < 3 and (choice < 0.45 or not depth) and self.left > 0:
                steps.append(self.loop(depth, written, total))
            elif choice < 0.65 or not written:
                steps += self.load(written, depth)
            elif choice < 0.75:
                tile = random.choice(list(self.tiles))
                if not self.tiles[tile].stages:
                    steps.append(Assign(tile, self.reads(written, self.tiles[tile].shape), random.random() < 0.3))
                    written.append(tile)
            elif total is not None and choice < 0.85:
                steps.append(Add(total.name, self.reads(written, total.shape)))
            else:
                first = random.choice(written)
                reads = (first, *(r for r in self.reads(written, self.tiles[first].shape) if r != first))
                steps.append(Out(reads, random.choice(("assign", "turned", "store", "tma", "tma"))))
        return tuple(steps)

    def loop(self, depth: int, written: list[str], total: Total | None) -> Step:
        random = self.random
        self.loops += 1
        var = f"i{self.loops}"
        if total is None and random.random() < 0.2:
            shape = random.choice(list({t.shape for t in self.tiles.values()}))
            head = Total(f"t{self.loops}", random.choice(tuple(ReduceOp)), random.randrange(len(shape)), shape, ())
            return Total(head.name, head.op, head.axis, shape, self.body(depth + 1, written, head))
        kind = random.choice(("serial",) * 8 + ("unrolled", "when"))
        form = random.choice(("number", "number", "symbol", "symbol", "shrinks"))
        extent = random.choice((0, 1, 2, 3, 4, 5, 7)) if depth == 0 else random.choice((0, 1, 2, 3, 4))
        if kind == "unrolled":
            form, extent = "number", max(extent, 1)
        return Loop(var, extent, form, kind, self.body(depth + 1, written, total))

    def load(self, written: list[str], depth: int) -> list[Step]:
        random = self.random
        tile = random.choice(list(self.tiles))
        if self.tiles[tile].stages and tile in self.loaded:
            return []
        self.loaded.add(tile)
        written.append(tile)
        by = Copy.PLAIN if self.tiles[tile].register else random.choice((Copy.TMA, Copy.TMA, *Copy))
        return [Load(tile, by, random.random() < 0.1)]

    def reads(self, written: list[str], shape: tuple[int, ...]) -> tuple[str, ...]:
        alike = [tile for tile in dict.fromkeys(written) if self.tiles[tile].shape == shape]
        return tuple(self.random.sample(alike, min(len(alike), self.random.randint(1, 2))))


def build_tree(tree: Tree) -> tuple[LoopKernel, dict[str, int]]:
    """Build the kernel, with its marks, and extents to run it with.

    Raises:
        PipelineError: a rule of the loops is broken.
    """
    built = _Building(tree, Builder("random_kernel", threads=tree.threads))
    kernel = built.kernel()
    for name, tile in tree.tiles.items():
        if tile.stages and name in built.loaded:
            kernel = circular_buffer(kernel, name, tile.stages, tile.prefetch)
    return kernel, built.sizes


@dataclass
class _Around:
    """A loop or condition that encloses a step: its variable, and the variable's upper bound.

    Attributes:
        counts: True for a loop; its variable then numbers boxes.
        serial: True for a loop within a block.
    """

    var: Var
    extent: int
    counts: bool = True
    serial: bool = True


class _Building:
    def __init__(self, tree: Tree, builder: Builder) -> None:
        self.tree, self.k = tree, builder
        self.sizes: dict[str, int] = {}
        self.handles: dict[str, Handle] = {}
        self.totals: dict[str, Handle] = {}
        self.loaded: set[str] = set()
        self.outputs = 0

    def kernel(self) -> LoopKernel:
        """Build the complete kernel."""
        for name, tile in self.tree.tiles.items():
            if tile.register:
                self.handles[name] = self.k.register(name, tile.shape, tile.dtype)
            else:
                swizzle = 128 if len(tile.shape) > 1 and tile.shape[-1] * tile.dtype.itemsize == 128 else 0
                self.handles[name] = self.k.shared(name, tile.shape, tile.dtype, swizzle_bytes=swizzle)
        with self.k.block("b", self.tree.blocks) as b:
            self.body(self.tree.body, [_Around(b, self.tree.blocks, serial=False)], set())
        return self.k.build_kernel()

    def body(self, steps: tuple[Step, ...], around: list[_Around], written: set[str]) -> set[str]:
        """Build steps; return the tiles that are definitely written at their end."""
        written = set(written)
        for step in steps:
            match step:
                case Loop():
                    written |= self.loop(step, around, written)
                case Total():
                    self.total(step, around, written)
                case Load():
                    self.load(step, around, written)
                case Assign():
                    self.assign(step, written)
                case Add():
                    reads = self.select_written(step.reads, written)
                    if reads and step.total in self.totals:
                        total = next(t for t in _totals(self.tree.body) if t.name == step.total)
                        value = self.sum(reads)
                        self.k.reduce(self.totals[step.total], total.op, value, (total.axis,), total.shape)
                case Out():
                    self.out(step, around, written)
        return written

    def loop(self, step: Loop, around: list[_Around], written: set[str]) -> set[str]:
        extent: Index = as_index(step.extent)
        if step.form == "symbol":
            extent = self.k.symbol(f"n_{step.var}")
            self.sizes[f"n_{step.var}"] = step.extent
        elif step.form == "shrinks" and len(around) > 1:
            extent = minimum(step.extent, around[-1].extent + 1 - around[-1].var)
        if step.kind == "when":
            last = around[-1]
            with self.k.when(last.var < extent):
                self.body(step.body, [*around, _Around(last.var, last.extent, counts=False, serial=False)], written)
            return set()
        loop = self.k.unrolled(step.var, step.extent) if step.kind == "unrolled" else self.k.serial(step.var, extent)
        with loop as i:
            after = self.body(step.body, [*around, _Around(i, step.extent)], written)
        runs = step.form == "number" and step.extent > 0
        return {name for name in after if runs and not self.tree.tiles[name].stages}

    def total(self, step: Total, around: list[_Around], written: set[str]) -> None:
        kept = tuple(1 if axis == step.axis else n for axis, n in enumerate(step.shape))
        handle = self.k.register(step.name, kept, fp32)
        self.totals[step.name] = handle
        self.k.assign(handle, 0 if step.op is ReduceOp.SUM else -9)
        self.body(step.body, around, written)
        del self.totals[step.name]
        self.k.store(self.next_output(kept, fp32, around), handle)

    def load(self, step: Load, around: list[_Around], written: set[str]) -> None:
        tile = self.tree.tiles[step.tile]
        if tile.stages and (step.tile in self.loaded or not around[-1].serial):
            return
        name = f"x{len(self.sizes)}"
        at = around[:-1] if step.again and len(around) > 1 else around
        source, origin = self.next_box(name, tile.shape, tile.dtype, at, written=False)
        self.k.load(self.handles[step.tile], source.at(*origin), step.by)
        self.loaded.add(step.tile)
        written.add(step.tile)

    def assign(self, step: Assign, written: set[str]) -> None:
        tile, handle = self.tree.tiles[step.tile], self.handles[step.tile]
        reads = self.select_written(step.reads, written)
        if tile.stages:
            return
        alone = [r for r in reads if r != step.tile and not self.tree.tiles[r].register]
        if step.turned and alone and not tile.register:
            self.reverse(handle, tuple(0 for _ in tile.shape), alone, tile.shape)
        else:
            self.k.assign(handle, self.sum(reads) if reads else 3)
        written.add(step.tile)

    def out(self, step: Out, around: list[_Around], written: set[str]) -> None:
        reads = self.select_written(step.reads, written)
        if not reads:
            return
        first = self.tree.tiles[reads[0]]
        how = "assign" if step.how in ("tma", "turned") and first.register else step.how
        dtype = first.dtype if how in ("tma", "store") else fp32
        self.outputs += 1
        target, origin = self.next_box(f"y{self.outputs}", first.shape, dtype, around, written=True)
        if how == "assign":
            self.k.assign(target.at(*origin, shape=first.shape), self.sum(reads))
        elif how == "turned":
            alone = [r for r in reads if not self.tree.tiles[r].register]
            self.reverse(target, origin, alone, first.shape)
        else:
            self.k.store(target.at(*origin), self.handles[reads[0]], Copy.TMA if how == "tma" else Copy.PLAIN)

    def reverse(
        self, target: Handle, origin: tuple[Index | int, ...], reads: list[str], shape: tuple[int, ...]
    ) -> None:
        """Build ``target = sum of reads`` in reverse order, thread by thread."""
        self.outputs += 1
        pieces = prod(shape) // (4 if len(shape) == 1 else 1)
        with self.k.thread(f"p{self.outputs}", pieces) as p:
            if len(shape) == 1:
                boxes = [self.handles[r].at((pieces - 1 - p) * 4, shape=(4,)) for r in reads]
                self.k.assign(target.at(as_index(origin[0]) + p * 4, shape=(4,)), _sum(boxes))
            else:
                rows, columns = shape
                boxes = [self.handles[r].at(p // columns, p % columns, shape=(1, 1)) for r in reads]
                where = as_index(origin[0]) + p % rows, as_index(origin[1]) + p // rows
                self.k.assign(target.at(*where, shape=(1, 1)), _sum(boxes))

    def select_written(self, reads: tuple[str, ...], written: set[str]) -> list[str]:
        return [r for r in reads if r in written]

    def sum(self, reads: list[str]) -> Value:
        return _sum([self.handles[r].to_box() for r in reads])

    def next_output(self, shape: tuple[int, ...], dtype: DType, around: list[_Around]) -> Box:
        self.outputs += 1
        target, origin = self.next_box(f"y{self.outputs}", shape, dtype, around, written=True)
        return target.at(*origin)

    def next_box(
        self, name: str, shape: tuple[int, ...], dtype: DType, around: list[_Around], *, written: bool
    ) -> tuple[Handle, tuple[Index | int, ...]]:
        """Return a tensor with a box per iteration of the enclosing loops (the last cut short), and a box's index."""
        loops = [loop for loop in around if loop.counts]
        number: Index = as_index(0)
        for loop in loops:
            number = number * max(loop.extent, 1) + loop.var
        count = prod(max(loop.extent, 1) for loop in loops)
        rows = self.k.symbol(f"n_{name}")
        short = 1 if len(shape) > 1 and shape[0] > 1 else 4 if len(shape) == 1 and shape[0] > 8 else 0
        self.sizes[f"n_{name}"] = count * shape[0] - short * (len(self.sizes) % 3 > 0)
        declare = self.k.output if written else self.k.input
        return declare(name, (rows, *shape[1:]), dtype), (number * shape[0], *(0 for _ in shape[1:]))


def _sum(boxes: list[Box]) -> Value:
    total = as_value(boxes[0])
    for weight, box in enumerate(boxes[1:], start=2):
        total = total + box * weight
    return select_larger(total, -1000)


def _totals(steps: tuple[Step, ...]) -> list[Total]:
    out = []
    for step in steps:
        if isinstance(step, Total):
            out.append(step)
        if isinstance(step, Total | Loop):
            out += _totals(step.body)
    return out
