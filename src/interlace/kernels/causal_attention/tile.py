"""The tile of causal attention, and the tiles that a launch of its Triton body can run.

Queries of a tile stay in shared memory; keys and values arrive in blocks, through a software pipeline. In bf16, 128
rows of 128 elements with blocks of 64 keys in 3 stages take 128 * 128 * 2 + 3 * 2 * 64 * 128 * 2 = 128 KiB, and each
of 256 threads holds 64 sums of values and 32 scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Param
from interlace.kernels.base import next_power_of_2, require
from interlace.kernels.tuning import Tuning
from interlace.policies.tiling import OpTiling, Tilings

#: Name of the kernel.
NAME = "causal_attention"
#: Params that define an op's tile, in the order of its fields.
TILING = ("BM", "BN", "STAGES", "num_warps")
_MIN_EXTENT = 16  # minimum extent of a Triton block product
# In the megakernel: rows of a warpgroup, upper bound of the keys of a block, default elements of a block.
_ROWS, _KEYS, _BLOCK = 64, 128, 8192
_NUMBERS = 128  # upper bound of a thread's float32 sums and scores, which leaves registers for weights and addresses


@dataclass(frozen=True)
class AttentionTile:
    """Tile shape and pipelining of the loop over keys.

    Attributes:
        m: rows of queries.
        n: keys processed at a time.
        stages: depth of the software pipeline.
        num_warps: warps per thread block.

    Raises:
        ShapeError: extents that are not powers of two of at least 16, or stages out of the range 1 to 64.
    """

    m: int = 64
    n: int = 64
    stages: int = 2
    num_warps: int = 4

    def __post_init__(self) -> None:
        what = f"tile of {self.m!r} queries by {self.n!r} keys"
        for extent in (self.m, self.n):
            require(
                type(extent) is int and _MIN_EXTENT <= extent <= 1024 and extent == next_power_of_2(extent),
                f"{what}: extents must be powers of two from {_MIN_EXTENT} to 1024",
            )
        require(type(self.stages) is int and 1 <= self.stages <= 64, f"{what} has {self.stages!r} stages; use 1 to 64")

    @property
    def params(self) -> tuple[tuple[str, Param], ...]:
        """The tile as an op's params."""
        return tuple(zip(TILING, vars(self).values(), strict=True))

    @staticmethod
    def heuristic(head_dim: int, itemsize: int, device: DeviceSpec) -> AttentionTile:
        """Return the largest standard tile that fits well, for heads of ``head_dim`` elements of ``itemsize`` bytes."""
        if not device.architecture:
            return AttentionTile(_MIN_EXTENT, _MIN_EXTENT)  # small, so that small graphs still have several waves
        fits = (t for t in _list_tiles() if t.compute_smem_bytes(head_dim, itemsize) <= device.smem_bytes)
        return next(
            (t for t in fits if t.count_accumulators(head_dim) <= _NUMBERS), AttentionTile(_MIN_EXTENT, _MIN_EXTENT, 1)
        )

    def compute_smem_bytes(self, head_dim: int, itemsize: int) -> int:
        """Return the bytes of shared memory of the queries and of all stages."""
        return (self.m + 2 * self.stages * self.n) * head_dim * itemsize

    def count_accumulators(self, head_dim: int) -> int:
        """Return the float32 sums and scores of one thread."""
        return self.m * (head_dim + self.n) // (32 * self.num_warps)


def _list_tiles() -> Iterator[AttentionTile]:
    """Yield standard tiles from large to small, few warps first: if four warps hold the sums they are faster.

    Measurements: prefill-h200.json.
    """
    for m, n, stages, warps in product((128, 64, 32), (64, 32), (3, 2), (4, 8)):
        if m > 64 or warps == 4:
            yield AttentionTile(m, n, stages, warps)


def _get_head(graph: Graph, op: Op) -> tuple[int, int]:
    """Return the elements of a head of an op, and the bytes of an element."""
    return int(op.param("D")), graph.tensor(op.writes[0].tensor).dtype.itemsize


def _select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    """Choose for each op the tile for its heads."""
    tiles = ((op.name, AttentionTile.heuristic(*_get_head(graph, op), device)) for op in graph.ops if op.kernel == NAME)
    return {name: OpTiling(tile.params) for name, tile in tiles}


def _iter_candidates(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield each standard tile for all ops; tiles that do not fit are discarded later."""
    names = [op.name for op in graph.ops if op.kernel == NAME]
    for tile in _list_tiles():
        yield {name: OpTiling(tile.params) for name in names}


def _iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield few different tiles: many keys at a time, and half the rows, of which an SM runs two tiles at once."""
    names = [op.name for op in graph.ops if op.kernel == NAME]
    for tile in (AttentionTile(128, 128, 2, 8), AttentionTile(64, 64, 2, 4)):
        yield {name: OpTiling(tile.params) for name in names}


def _check(graph: Graph, op: Op, device: DeviceSpec) -> None:
    """Raise ShapeError unless the op's blocks fit shared memory and its sums fit the registers."""
    (head_dim, itemsize), tile = _get_head(graph, op), AttentionTile(*(int(op.param(name)) for name in TILING))
    what = f"op {op.name!r}: tile of {tile.m} queries by {tile.n} keys of {head_dim}"
    nbytes, numbers = tile.compute_smem_bytes(head_dim, itemsize), tile.count_accumulators(head_dim)
    require(
        nbytes <= device.smem_bytes,
        f"{what}: {tile.stages} stages take {nbytes} bytes of shared memory, and {device.name} has "
        f"{device.smem_bytes}; use fewer stages or a smaller tile",
    )
    require(
        numbers <= _NUMBERS,
        f"{what}: sums of {numbers} registers per thread, and at most {_NUMBERS} fit; use a smaller tile or more warps",
    )


TRITON_TUNING = Tuning(_select_default, _iter_likely, _iter_candidates, _check)


def _select_megakernel(graph: Graph, device: DeviceSpec, block: int = _BLOCK) -> Tilings:
    """Choose 64 rows per consumer warpgroup, two above 64 rows as for matmuls; blocks of ``block`` elements."""
    ops = {}
    for op in graph.ops:
        if op.kernel == NAME:
            groups = 1 if int(op.param("T")) <= _ROWS else 2
            keys = max(_MIN_EXTENT, min(_KEYS, block // int(op.param("D"))))
            ops[op.name] = OpTiling(AttentionTile(_ROWS * groups, keys, 1, 4 * groups).params)
    return ops


def _iter_megakernel_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield the rule's tilings, and blocks of half and of twice as many keys."""
    for block in (_BLOCK, _BLOCK // 2, 2 * _BLOCK):
        yield _select_megakernel(graph, device, block)


MEGAKERNEL_TUNING = Tuning(_select_megakernel, _iter_megakernel_likely, _iter_megakernel_likely)
