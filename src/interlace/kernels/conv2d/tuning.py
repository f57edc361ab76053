"""Tiling of convolutions: the default rule and candidates.

The rule is a formula: for each op, the cheapest of all tiles and parts by ``cost``. Its candidates are tiles of whole
rows, as few as make a number of row tiles, and of whole images; with either operand as the tensor core's 64-row one; in
parts along channels. An image of 7 x 7 pixels with 512 channels has, on 132 SMs:

    tiles of 7 rows x 64 channels         8, in 8 parts of 64 channels: 64 items
    tiles of 4 rows x 64 channels        16, in 8 parts: 128 items

All ops of a launch share its warps and the slots of its ring. So their number of warps, and the bytes of weights and of
pixels that a stage may have, are chosen for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, product

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import require
from interlace.kernels.bodies import MAX_BOX_ROWS, PANEL
from interlace.kernels.conv2d.cost import ConvCandidate, estimate_seconds
from interlace.kernels.conv2d.tile import NAME, Conv2DTile, ConvExtents, count_block_elements, read_extents
from interlace.kernels.matmul.tilings import MAX_ACCUMULATORS, MAX_THREAD_ACCUMULATORS
from interlace.kernels.tuning import Tuning
from interlace.plan.plan import Dispatch
from interlace.policies.tiling import OpTiling, Tilings

_WARPS = (4, 8)
_DEPTHS = (PANEL, 2 * PANEL)
_TALL, _WIDEST, _WIDTH_STEP = 64, 256, 32
_MAX_PARTS = 8
#: Bytes of weights and of pixels that a stage may have, in KiB: the ring has four stages or more.
_SLOTS_KIB = ((8, 16), (8, 32), (16, 16), (16, 32), (32, 16), (24, 24))
_MAX_LIKELY = 4  # candidates of each op that a planner tries
_BLOCK_PIXELS = 128  # upper bound of the pixels of a Triton block, unless a row has more


def select_convolutions(graph: Graph) -> tuple[Op, ...]:
    """Return the convolutions of a graph, in program order."""
    return tuple(op for op in graph.ops if op.kernel == NAME)


def list_pixel_tiles(extents: ConvExtents, most: int) -> list[tuple[int, int]]:
    """Return images and rows of tiles of up to ``most`` pixels, or of one row: the fewest for each number of tiles."""
    rows_that_fit = max(1, min(extents.out_rows, most // extents.out_columns))
    rows = {-(-extents.out_rows // tiles) for tiles in range(1, extents.out_rows + 1)}
    found = [(1, count) for count in sorted(rows) if count <= rows_that_fit]
    images_that_fit = most // (extents.out_rows * extents.out_columns)
    images = {-(-extents.images // tiles) for tiles in range(1, extents.images + 1)}
    return found + [(count, extents.out_rows) for count in sorted(images) if 1 < count <= images_that_fit]


@cache
def _rank_candidates(
    extents: ConvExtents, warps: int, slots_kib: tuple[int, int], device: DeviceSpec
) -> tuple[tuple[float, ConvCandidate], ...]:
    """Return the cheapest candidates that fit slots of a ring, at most ``_MAX_LIKELY``, with their seconds."""
    fitting = (
        (seconds, candidate)
        for seconds, candidate in _price_candidates(extents, warps, device)
        if all(
            nbytes <= kib << 10 for nbytes, kib in zip(_count_slot_bytes(extents, candidate), slots_kib, strict=True)
        )
    )
    return tuple(islice(fitting, _MAX_LIKELY))


@cache
def _price_candidates(extents: ConvExtents, warps: int, device: DeviceSpec) -> tuple[tuple[float, ConvCandidate], ...]:
    """Return all candidates of a convolution for a number of warps with their seconds, the cheapest first."""
    priced = ((estimate_seconds(extents, each, device), each) for each in _iter_candidates(extents, warps))
    return tuple(sorted(priced, key=lambda pair: pair[0]))


def _count_slot_bytes(extents: ConvExtents, candidate: ConvCandidate) -> tuple[int, int]:
    """Return the bytes of weights and of pixels of a stage."""
    tile = candidate.tile
    return 2 * tile.n * tile.k, 2 * tile.pad_pixels(extents) * tile.k


def _iter_candidates(extents: ConvExtents, warps: int) -> Iterator[ConvCandidate]:
    warpgroups = warps // 4
    most_sums = MAX_ACCUMULATORS[warpgroups] * 128 * warpgroups
    for images, rows in list_pixel_tiles(extents, _WIDEST):
        for swap_ab in (True, False):
            step = _TALL * warpgroups if swap_ab else _WIDTH_STEP
            widest = min(_WIDEST, -(-extents.out_channels // step) * step)
            for n in range(step, widest + 1, step):
                tile = Conv2DTile(images, rows, n, PANEL, num_warps=warps, swap_ab=swap_ab)
                pixels = tile.pad_pixels(extents)
                if pixels * n > most_sums or pixels > MAX_BOX_ROWS:
                    continue
                for k in _DEPTHS:
                    if k >= extents.channels + PANEL:
                        continue
                    for parts in range(1, min(_MAX_PARTS, -(-extents.channels // k)) + 1):
                        yield ConvCandidate(replace(tile, k=k), parts)


def _build_tilings(ops: Sequence[Op], rank: int, device: DeviceSpec) -> Tilings:
    """Return the tiling of each op's candidate of a rank, with the warps and the slots that are best for all ops."""
    if not ops:
        return {}
    extents = [read_extents(op) for op in ops]
    found = []
    for warps, slots in product(_WARPS, _SLOTS_KIB):
        ranked = [_rank_candidates(each, warps, slots, device) for each in extents]
        if all(ranked):
            found.append((sum(each[0][0] for each in ranked), ranked))
    if not found:
        return {}
    _, ranked = min(found, key=lambda pair: pair[0])
    chosen = (each[min(rank, len(each) - 1)][1] for each in ranked)
    return {op.name: OpTiling(c.tile.params, c.parts) for op, c in zip(ops, chosen, strict=True)}


def _select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    return _build_tilings(select_convolutions(graph), 0, device)


def _iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    ops = select_convolutions(graph)
    if ops:
        found: list[Tilings] = []
        for tilings in (_build_tilings(ops, rank, device) for rank in range(_MAX_LIKELY)):
            if tilings and tilings not in found:
                found.append(tilings)
        yield from found


def _select_triton_default(graph: Graph, device: DeviceSpec) -> Tilings:
    def build(op: Op) -> OpTiling:
        extents = read_extents(op)
        images, rows = list_pixel_tiles(extents, _BLOCK_PIXELS)[-1]
        itemsize = graph.tensor(op.writes[0].tensor).dtype.itemsize
        return OpTiling(Conv2DTile(images, rows, 64, max(16, 128 // itemsize), 3, 4, swap_ab=False).params)

    return {op.name: build(op) for op in select_convolutions(graph)}


def _iter_triton_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    yield _select_triton_default(graph, device)


def _check_triton(graph: Graph, op: Op, device: DeviceSpec) -> None:
    """Raise ShapeError unless the op's stages fit shared memory and its sums fit the registers."""
    itemsize = graph.tensor(op.writes[0].tensor).dtype.itemsize
    block, bn, bk, stages = (int(op.param(name)) for name in ("BLOCK", "BN", "BK", "STAGES"))
    nbytes = stages * bk * (block + bn) * itemsize
    what = f"op {op.name!r}: tile of {block} pixels x {bn} channels x {bk}"
    require(
        nbytes <= device.smem_bytes,
        f"{what}: {stages} stages take {nbytes} bytes of shared memory, and {device.name} has {device.smem_bytes}; use "
        "fewer stages or a smaller tile",
    )
    registers = count_block_elements(op) // (32 * int(op.param("num_warps")))
    require(
        registers <= MAX_THREAD_ACCUMULATORS,
        f"{what}: sums of {registers} registers per thread, and at most {MAX_THREAD_ACCUMULATORS} fit; use a smaller "
        "tile or more warps",
    )


TRITON_TUNING = Tuning(_select_triton_default, _iter_triton_likely, _iter_triton_likely, _check_triton)
#: Static schedules were 0 to 14 % faster than tickets in 20 rows (benchmarks/notes/convolutions.md).
MEGAKERNEL_TUNING = Tuning(_select_default, _iter_likely, _iter_likely, dispatch=Dispatch.STATIC)
