"""Small graphs and plans that the tests are about, and hypothesis strategies that draw random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import strategies as st

from interlace.core.dtypes import fp32
from interlace.core.errors import PlanError
from interlace.graph.access import ALL, Access, Affine, Ints, K, Span, axes, constant_span
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.graph.ragged import Groups, compute_offsets
from interlace.graph.tensor import Tensor
from interlace.plan.plan import Dispatch, Items, Plan, Waits
from interlace.plan.stealing import Stealing, Victim
from interlace.plan.verify import verify
from interlace.policies.interleavings import Abreast, HalfRowPanels, Interleaving, OpAfterOp, RowPanels
from interlace.policies.orders import (
    ColumnMajor,
    ExplicitOrder,
    GroupedColumnMajor,
    GroupedSerpentine,
    Hilbert,
    Morton,
    Order,
    RowMajor,
    Serpentine,
)
from interlace.policies.schedule import Assignment, Schedule
from interlace.policies.splits import Split, SplitK, SplitTail, StreamK, WholeTiles
from interlace.policies.sync import (
    BatchedRowSync,
    ColumnSync,
    ConsumerSync,
    Conv2DSync,
    KernelSync,
    RowSync,
    StridedSync,
    SyncPolicy,
    TileSync,
)

from . import oracle


class AnyBody:
    """A body that takes every op."""

    is_proved = has_op_factory = True
    rate_share = 1.0
    expected_accesses = None

    def check(self, op: Op, tensors: Mapping[str, Tensor]) -> None:
        """Nothing is wrong."""


# ---------------------------------------------------------------- ops and graphs by hand


def program(shapes: Mapping[str, tuple[int, ...]], *ops: Op, inputs: tuple[str, ...] | None = None) -> Graph:
    """A graph of fp32 tensors. Inputs default to what no op writes; the outputs are the last op's."""
    written = {a.tensor for op in ops for a in op.writes}
    if inputs is None:
        inputs = tuple(name for name in shapes if name not in written)
    outputs = tuple(dict.fromkeys(a.tensor for a in ops[-1].writes)) if ops else ()
    return Graph("test", tuple(Tensor(n, s, fp32) for n, s in shapes.items()), ops, inputs, outputs)


def tiles(shape: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    """Grid that covers ``shape``, the last tile of each dimension possibly ragged."""
    return tuple(-(-n // t) for n, t in zip(shape, tile, strict=True))


def pointwise(name: str, sources: str, target: str, shape: tuple[int, ...], tile: tuple[int, ...], halo: int = 0) -> Op:
    """Each tile reads its block, widened by ``halo``, of each source and writes its block of ``target``."""
    grid = tiles(shape, tile)
    own = tuple(t.block(n) for t, n in zip(axes(len(grid)), tile, strict=True))
    wide = tuple(t.block(n, halo) for t, n in zip(axes(len(grid)), tile, strict=True))
    reads = tuple(Access(f"in{n}", source, wide) for n, source in enumerate(sources.split()))
    return Op(name, "pointwise", grid, reads, (Access("out", target, own),))


def matmul(name: str, a: str, b: str, c: str, mnk: tuple[int, int, int], tile: tuple[int, int], block: int) -> Op:
    """``c = a @ b``, output tiles of ``tile``, reduction in chunks of ``block``."""
    m, n, k = mnk
    i, j = axes(2)
    return Op(
        name,
        "matmul",
        tiles((m, n), tile),
        (Access("a", a, (i.block(tile[0]), K)), Access("b", b, (K, j.block(tile[1])))),
        (Access("c", c, (i.block(tile[0]), j.block(tile[1]))),),
        Reduction(k, block),
        flops=2.0 * tile[0] * tile[1] * k,
    )


def two_matmuls(
    m: int = 8,
    widths: tuple[int, int, int] = (4, 8, 4),
    up: tuple[int, int] = (2, 2),
    down: tuple[int, int] = (2, 2),
    block: int = 2,
) -> Graph:
    """``hidden = x @ w1; y = hidden @ w2`` with x of m x widths[0], hidden m x widths[1], y m x widths[2]."""
    k, f, n = widths
    shapes = {"x": (m, k), "w1": (k, f), "hidden": (m, f), "w2": (f, n), "y": (m, n)}
    return program(
        shapes,
        matmul("up", "x", "w1", "hidden", (m, f, k), up, block),
        matmul("down", "hidden", "w2", "y", (m, n, f), down, block),
    )


def build_gated(m: int = 6, k: int = 4, f: int = 8, tile: tuple[int, int] = (2, 2)) -> Graph:
    """``gate = x @ wg; up = x @ wu; act = gate * up; y = act @ wd``."""
    shapes = {"x": (m, k), "wg": (k, f), "wu": (k, f), "wd": (f, k)}
    shapes |= {"g": (m, f), "u": (m, f), "act": (m, f), "y": (m, k)}
    return program(
        shapes,
        matmul("gate", "x", "wg", "g", (m, f, k), tile, 2),
        matmul("up", "x", "wu", "u", (m, f, k), tile, 2),
        pointwise("mul", "g u", "act", (m, f), tile),
        matmul("down", "act", "wd", "y", (m, k, f), tile, 2),
    )


def conv_chain(
    images: int = 2, height: int = 6, width: int = 3, channels: int = 4, columns: int | None = None
) -> Graph:
    """Two 3 x 3 convolutions over NHWC tensors, tiles of two rows and two output channels.

    A tile holds one image and whole rows; or, with ``columns``, all images and that many columns.
    """
    a, b, c = axes(3)
    shape = (images, height, width, channels)
    if columns is None:
        grid = (images, -(-height // 2), -(-channels // 2))
        own, wide = (a.block(1), b.block(2), ALL), (a.block(1), b.block(2, halo=1), ALL)
    else:
        grid = (-(-height // 2), -(-width // columns), -(-channels // 2))
        own = (ALL, a.block(2), b.block(columns))
        wide = (ALL, a.block(2, halo=1), b.block(columns, halo=1))

    def conv(name: str, source: str, weight: str, target: str) -> Op:
        return Op(
            name,
            "conv2d",
            grid,
            (Access("x", source, (*wide, K)), Access("w", weight, (ALL, ALL, K, c.block(2)))),
            (Access("y", target, (*own, c.block(2))),),
            Reduction(channels, 2),
        )

    shapes = {"x": shape, "w1": (3, 3, channels, channels), "mid": shape, "w2": (3, 3, channels, channels)}
    return program(shapes | {"y": shape}, conv("first", "x", "w1", "mid"), conv("second", "mid", "w2", "y"))


def pair(tiles: int = 2) -> Graph:
    """``b`` copies, tile by tile, what ``a`` copied: the smallest graph with dependencies."""
    shapes = {"x": (tiles,), "y": (tiles,), "z": (tiles,)}
    return program(shapes, pointwise("a", "x", "y", (tiles,), (1,)), pointwise("b", "y", "z", (tiles,), (1,)))


def chain(ops: int, tiles: int) -> Graph:
    """``ops`` copies of a vector one after another, each of ``tiles`` tiles of 8 elements."""
    shapes = {f"t{n}": (8 * tiles,) for n in range(ops + 1)}
    copies = [pointwise(f"copy{n}", f"t{n}", f"t{n + 1}", (8 * tiles,), (8,)) for n in range(ops)]
    return program(shapes, *copies)


# ---------------------------------------------------------------- plans by hand, and changed plans


def column(*values: int) -> Ints:
    """Integers as a column of a plan's table."""
    return np.array(values, np.int64)


def set_entry(plan: Plan, name: str, at: int, value: int) -> Plan:
    """The plan with one entry changed; ``name`` is ``items.<column>`` or ``waits.<column>``."""
    table_name, column_name = name.split(".")
    table = getattr(plan, table_name)
    values = getattr(table, column_name).copy()
    values[at] = value
    return replace(plan, **{table_name: replace(table, **{column_name: values})})


def take_items(plan: Plan, order: list[int]) -> Plan:
    """The plan with its items, and their waits, at the given positions: reordered, dropped or repeated."""
    rows = Groups(plan.waits.ptr, np.arange(len(plan.waits), dtype=np.int64)).take(column(*order))
    items = Items(*(getattr(plan.items, c)[order] for c in ("op", "tile", "k_lo", "k_hi", "worker", "post")))
    names = ("first", "count", "stride", "threshold", "k")
    return replace(plan, items=items, waits=Waits(rows.ptr, *(getattr(plan.waits, c)[rows.values] for c in names)))


def drop_waits(plan: Plan, *rows: int) -> Plan:
    """The plan without the given rows of its waits."""
    keep = np.setdiff1d(np.arange(len(plan.waits)), rows)
    owner = plan.waits.item[keep]
    ptr = compute_offsets(np.bincount(owner, minlength=len(plan.items)))
    names = ("first", "count", "stride", "threshold", "k")
    return replace(plan, waits=Waits(ptr, *(getattr(plan.waits, c)[keep] for c in names)))


def item_at(plan: Plan, op: str, tile: int, k_lo: int = 0) -> int:
    """Position in the sequence of one item."""
    items = plan.items
    found = (items.op == plan.graph.op_index(op)) & (items.tile == tile) & (items.k_lo == k_lo)
    return int(np.flatnonzero(found)[0])


def wait_rows(plan: Plan, item: int) -> list[int]:
    """Rows of the plan's waits that belong to one item."""
    return list(range(int(plan.waits.ptr[item]), int(plan.waits.ptr[item + 1])))


def expect_refusal(plan: Plan, error: type[PlanError], *words: str) -> None:
    """The plan raises exactly this error, and its message holds all the words."""
    with pytest.raises(error) as caught:
        verify(plan)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


# ---------------------------------------------------------------- random graphs and schedules


@dataclass(frozen=True)
class ScatteredSync(SyncPolicy):
    """A user's policy without any pattern: tiles share ``count`` semaphores at random."""

    count: int
    seed: int

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return np.random.default_rng(self.seed).integers(0, self.count, len(coords))


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 4) -> Graph:
    """Ops that read, write, overwrite and update in place three small matrices, tiled at random.

    Ragged edges, halos, broadcasts, transposes, causal bounds, k-ranges and partial writes all occur. What is read,
    or wanted, and written in part is an input too.
    """
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    names = ("t0", "t1", "t2")
    ops: list[Op] = []
    inputs: list[str] = []
    written: set[str] = set()
    for n in range(draw(st.integers(2, max_ops))):
        targets = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        sources = draw(st.lists(st.sampled_from(names), min_size=min(n, 1), max_size=2))
        tm, tn = draw(st.integers(1, rows)), draw(st.integers(1, columns))
        top = draw(st.sampled_from((0, 0, rows // 2)))
        block = draw(st.integers(1, columns))
        i, j = axes(2)
        own = (Span(i * tm + top, i * tm + (top + tm)), j.block(tn))
        patterns = {
            "block": (i.block(tm), j.block(tn)),
            "halo": (i.block(tm, halo=1), j.block(tn, halo=1)),
            "row": (i.block(tm), ALL),
            "row by k": (i.block(tm), K),
            "row by k with halo": (i.block(tm), Span(Affine(-1, k_lo=1), Affine(1, k_hi=1))),
            "column by k": (K, j.block(tn)),
            "row by k backwards": (i.block(tm), Span(Affine(columns, k_hi=-1), Affine(columns, k_lo=-1))),
            "transposed": (j.block(tm), i.block(tn)),
            "causal": (Span(Affine(), i * tm + tm), ALL),
            "corner": (constant_span(0, 1), constant_span(0, 1)),
            "all": (ALL, ALL),
        }
        reads = []
        for source in sources:
            pattern = own if source in targets else patterns[draw(st.sampled_from(sorted(patterns)))]
            reads.append(Access(f"in{len(reads)}", source, pattern))
            if source not in written and source not in inputs:
                inputs.append(source)
        writes = tuple(Access(f"out{m}", target, own) for m, target in enumerate(targets))
        looped = any(a.uses_k for a in reads) or draw(st.booleans())
        reduction = Reduction(columns, block) if looped else None
        grid = tiles((rows - top, columns), (tm, tn))
        ops.append(Op(f"op{n}", "any", grid, tuple(reads), writes, reduction))
        written |= set(targets)
    while True:
        graph = program(dict.fromkeys(names, (rows, columns)), *ops, inputs=tuple(inputs))
        missing = oracle.unwritten(graph)
        if missing is None:
            return graph
        inputs.append(str(min(missing[1])[0]))


POLICIES: st.SearchStrategy[SyncPolicy] = st.one_of(
    st.sampled_from((TileSync(), RowSync(), ColumnSync(), Conv2DSync(), KernelSync(), ConsumerSync())),
    st.builds(BatchedRowSync, st.integers(1, 3)),
    st.builds(StridedSync, st.integers(1, 3)),
    st.builds(ScatteredSync, st.integers(1, 5), st.integers(0, 9)),
)
SPLITS: st.SearchStrategy[Split] = st.one_of(
    st.just(WholeTiles()),
    st.builds(SplitK, st.integers(1, 3)),
    st.builds(StreamK, st.integers(1, 5)),
    st.builds(SplitTail, st.integers(0, 4), st.integers(1, 3)),
)
INTERLEAVINGS: st.SearchStrategy[Interleaving] = st.one_of(
    st.just(OpAfterOp()),
    st.just(HalfRowPanels()),
    st.builds(RowPanels, st.integers(1, 2), st.integers(0, 2)),
    st.builds(Abreast, st.integers(1, 8)),
)
STEALINGS: st.SearchStrategy[Stealing] = st.builds(Stealing, st.sampled_from((1, 2, None)), st.sampled_from(Victim))


@st.composite
def orders(draw: st.DrawFn, op: Op) -> Order:
    """Any order of one op's tiles, an arbitrary permutation included."""
    plain = (RowMajor(), ColumnMajor(), Serpentine(), Morton(), Hilbert())
    named = (*plain, GroupedColumnMajor(2), GroupedSerpentine(2))
    explicit = st.permutations(range(op.tiles)).map(tuple).map(ExplicitOrder)
    return draw(st.one_of(st.sampled_from(named), explicit))


@st.composite
def schedules(draw: st.DrawFn, graph: Graph, policies: st.SearchStrategy[SyncPolicy] = POLICIES) -> Schedule:
    """Schedule for a graph, op by op, that put producers before consumers."""
    return Schedule(
        workers=draw(st.integers(1, 4)),
        # Spawn dispatch takes whole tiles alone, and has graphs of its own.
        dispatch=draw(st.sampled_from([dispatch for dispatch in Dispatch if dispatch is not Dispatch.SPAWN])),
        assignment=draw(st.sampled_from(Assignment)),
        policy={op.name: draw(policies) for op in graph.ops},
        order={op.name: draw(orders(op)) for op in graph.ops},
        split={op.name: draw(SPLITS) for op in graph.ops},
        interleaving=draw(INTERLEAVINGS),
        chunk_waits=draw(st.booleans()),
        stealing=draw(STEALINGS),
    )
