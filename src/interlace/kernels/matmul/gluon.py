"""The Gluon body of matmul: weights are the independent operand, activations the dependent one, sums stay in registers.

The tensor core multiplies rows by columns: tokens by weights, or, swapped, weights by tokens, which keeps
its 64-row operand full where there are few tokens. Warpgroups share the rows of a tile. The panels of a stage
are consecutive along k, or, with a gate, first those of the gate, then as many of the other weights. Bulk loads
fill what lies beyond the tensors' edges with zeros, and stores are masked, so any M, N and K will do. Boxes of tokens
that lie beyond are not loaded: what shared memory held is multiplied in their place, and a token has no part in what is
computed of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from interlace.graph.op import Op
from interlace.kernels import gelu
from interlace.kernels.bodies import Pipeline
from interlace.kernels.gluon.names import bulk_load, reinterpret
from interlace.kernels.gluon.ring import PANEL, await_empty_slot, await_stage, limit_in_flight, release
from interlace.kernels.matmul.tilings import EPILOGUE_COLUMNS, tensor_of
from interlace.kernels.primitives.columns import TRACE_ARRIVED_NS, TRACE_COLUMNS, TRACE_START_NS
from interlace.kernels.primitives.partial_sums import sum_of_parts
from interlace.kernels.primitives.semaphore import (
    fix_up,
    now_ns,
    order_bulk_loads,
    post,
    ready,
    stretches,
    wait,
)

_WIDE, _NARROW = gl.constexpr(EPILOGUE_COLUMNS), gl.constexpr(EPILOGUE_COLUMNS // 2)
#: Tokens that are loaded at once where they are columns: a box of which most rows lie beyond the tensor takes longer
#: than a whole one. At least a quarter of a tile, for each box costs registers.
_BOX_ROWS, _MOST_BOXES = 32, 4
_GELU_TWICE, _GELU_CUBIC = gl.constexpr(2 * gelu.SCALE), gl.constexpr(gelu.CUBIC)


class MatmulArguments(NamedTuple):
    """What an op's functions need beside its tensor descriptors.

    Attributes:
        gate, bias, residual, out: pointers, None where the op has no such tensor.
        M: tokens.
        N: rows of the weights.
        BM, BN: extents of a tile: tokens, weight rows.
        ACTIVATION: as in the op.
        SWAP: weights are the 64-row operand.
        INDEPENDENT_ROWS, DEPENDENT_ROWS: rows of 64 elements in a stage of the ring.
        STEP: elements of k in a stage.
        IN_FLIGHT: most stages of weights under way at once.
        PARTS: most parts of a tile, 1 if none is split.
    """

    gate: gl.tensor
    bias: gl.tensor
    residual: gl.tensor
    out: gl.tensor
    M: gl.tensor
    N: gl.constexpr
    BM: gl.constexpr
    BN: gl.constexpr
    ACTIVATION: gl.constexpr
    SWAP: gl.constexpr
    INDEPENDENT_ROWS: gl.constexpr
    DEPENDENT_ROWS: gl.constexpr
    STEP: gl.constexpr
    IN_FLIGHT: gl.constexpr
    PARTS: gl.constexpr


def operands(op: Op, tensors: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Descriptors of x, weight and gate, each of one panel, or of x as much of it as is loaded at once."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def descriptor(name: str, rows: int) -> Any:
        at = tensor_of(op, name)
        if at is None:
            return None
        value = tensors[at]
        box = [rows, PANEL.value]
        layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
        return TensorDescriptor(value, list(value.shape), list(value.stride()), box, layout)

    bm, bn = int(op.param("BM")), int(op.param("BN"))
    at_once = min(bm, max(_BOX_ROWS, bm // _MOST_BOXES)) if op.param("SWAP") else bm
    return descriptor("x", at_once), descriptor("weight", bn), descriptor("gate", bn)


def arguments(op: Op, tensors: Mapping[str, Any], pipeline: Pipeline, parts: int) -> MatmulArguments:
    """Pointers and constants of an op."""

    def pointer(name: str) -> Any:
        at = tensor_of(op, name)
        return None if at is None else tensors[at]

    def constant(name: str) -> Any:
        return gl.constexpr(op.param(name))

    return MatmulArguments(
        gate=pointer("gate"),
        bias=pointer("bias"),
        residual=pointer("residual"),
        out=pointer("out"),
        M=op.param("M"),
        N=constant("N"),
        BM=constant("BM"),
        BN=constant("BN"),
        ACTIVATION=constant("ACTIVATION"),
        SWAP=constant("SWAP"),
        INDEPENDENT_ROWS=gl.constexpr(pipeline.independent_rows),
        DEPENDENT_ROWS=gl.constexpr(pipeline.dependent_rows),
        STEP=constant("BK"),
        IN_FLIGHT=gl.constexpr(pipeline.in_flight),
        PARTS=gl.constexpr(parts),
    )


@gluon.jit
def _panels(stages, rows: gl.constexpr, ROWS: gl.constexpr):
    """The stages of a ring, ``rows`` rows each, as panels of ROWS rows."""
    COUNT: gl.constexpr = stages.shape[0] * (rows // ROWS)
    return reinterpret(stages, stages.dtype, [COUNT, ROWS, PANEL], stages.layout)


@gluon.jit
def matmul_load_independent(tile, ring, n, k, operands, arguments):
    """The tile's weights at k, into the n-th stage."""
    ALONG: gl.constexpr = arguments.STEP // PANEL
    PANELS: gl.constexpr = arguments.INDEPENDENT_ROWS // arguments.BN
    panels = _panels(ring.independent, arguments.INDEPENDENT_ROWS, arguments.BN)
    row = tile.j * arguments.BN
    limit_in_flight(ring, n, arguments.IN_FLIGHT)
    GATES: gl.constexpr = 1 if operands[2] is None else 2
    s = await_empty_slot(ring, n, ring.independent_full, ALONG * GATES * operands[1].block_type.nbytes)
    full = ring.independent_full.index(s)
    for p in gl.static_range(ALONG):
        if operands[2] is not None:
            bulk_load(operands[2], [row, k + p * PANEL], full, panels.index(s * PANELS + p))
            bulk_load(operands[1], [row, k + p * PANEL], full, panels.index(s * PANELS + ALONG + p))
        else:
            bulk_load(operands[1], [row, k + p * PANEL], full, panels.index(s * PANELS + p))


@gluon.jit
def matmul_load_dependent(tile, sync, ring, n, operands, arguments):
    """The tile's activations along k, each stretch once it is complete."""
    ALONG: gl.constexpr = arguments.STEP // PANEL
    PANELS: gl.constexpr = arguments.DEPENDENT_ROWS // arguments.BM
    # A box, of which there are some in a panel, has as many rows as the descriptor says.
    BOX: gl.constexpr = operands[0].block_type.shape[0]
    BOXES: gl.constexpr = arguments.BM // BOX
    boxes_of_ring = _panels(ring.dependent, arguments.DEPENDENT_ROWS, BOX)
    row = tile.i * arguments.BM
    boxes = gl.minimum(gl.maximum((operands[0].shape[0] - row + (BOX - 1)) // BOX, 0), BOXES)
    if sync.TRACE:
        gl.store(sync.trace + tile.item.to(gl.int64) * TRACE_COLUMNS + TRACE_ARRIVED_NS, now_ns(False))
    wait(tile, sync)
    order_bulk_loads()
    if sync.TRACE:
        gl.store(sync.trace + tile.item.to(gl.int64) * TRACE_COLUMNS + TRACE_START_NS, now_ns(False))
    for s in range(stretches(tile, sync)):
        lo, hi = ready(tile, sync, s)
        if sync.CHUNKED:
            order_bulk_loads()
        for k in range(lo, hi, arguments.STEP):
            slot = await_empty_slot(ring, n, ring.dependent_full, ALONG * operands[0].block_type.nbytes, BOXES, boxes)
            full = ring.dependent_full.index(slot)
            for p in gl.static_range(ALONG):
                for b in gl.static_range(BOXES):
                    to = boxes_of_ring.index((slot * PANELS + p) * BOXES + b)
                    bulk_load(operands[0], [row + b * BOX, k + p * PANEL], full, to, pred=b < boxes)
            n += 1
    return n


@gluon.jit
def _multiply(weights, tokens, acc, warpgroup: gl.constexpr, ROWS: gl.constexpr, SWAP: gl.constexpr):
    """Issue the wgmma of one panel: this warpgroup's rows times all columns."""
    if SWAP:
        acc = warpgroup_mma(weights.slice(warpgroup * ROWS, ROWS, 0), tokens.permute((1, 0)), acc, is_async=True)
    else:
        acc = warpgroup_mma(tokens.slice(warpgroup * ROWS, ROWS, 0), weights.permute((1, 0)), acc, is_async=True)
    return acc


@gluon.jit
def matmul_compute(tile, sync, ring, n, arguments, warpgroup: gl.constexpr):
    """Sum over the item's k-range, fix-up with other parts, epilogue, post."""
    ALONG: gl.constexpr = arguments.STEP // PANEL
    INDEPENDENT: gl.constexpr = arguments.INDEPENDENT_ROWS // arguments.BN
    DEPENDENT: gl.constexpr = arguments.DEPENDENT_ROWS // arguments.BM
    independent = _panels(ring.independent, arguments.INDEPENDENT_ROWS, arguments.BN)
    dependent = _panels(ring.dependent, arguments.DEPENDENT_ROWS, arguments.BM)
    SWAP: gl.constexpr = arguments.SWAP
    ROWS: gl.constexpr = (arguments.BN if SWAP else arguments.BM) // sync.SHARES
    COLUMNS: gl.constexpr = arguments.BM if SWAP else arguments.BN
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    # The fix-up holds as many pieces at once as a tile has parts.
    PIECE: gl.constexpr = _NARROW if arguments.PARTS > 2 else _WIDE
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout=LAYOUT)
    # One stage's multiplications stay under way while the next is awaited; a stage is handed back when those
    # of its successor have been issued and its own have ended.
    if arguments.gate is None:
        for k in range(tile.k_lo, tile.k_hi, arguments.STEP):
            s = await_stage(ring, n)
            for p in gl.static_range(ALONG):
                tokens = dependent.index(s * DEPENDENT + p)
                acc = _multiply(independent.index(s * INDEPENDENT + p), tokens, acc, warpgroup, ROWS, SWAP)
            acc = warpgroup_mma_wait(ALONG, deps=(acc,))
            release(ring, gl.maximum(n - 1, 0), pred=k > tile.k_lo)
            n += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        release(ring, n - 1)
        pieces = _pieces(acc, PIECE)
    else:
        gates = gl.zeros([ROWS, COLUMNS], gl.float32, layout=LAYOUT)
        for k in range(tile.k_lo, tile.k_hi, arguments.STEP):
            s = await_stage(ring, n)
            for p in gl.static_range(ALONG):
                tokens = dependent.index(s * DEPENDENT + p)
                gates = _multiply(independent.index(s * INDEPENDENT + p), tokens, gates, warpgroup, ROWS, SWAP)
                acc = _multiply(independent.index(s * INDEPENDENT + ALONG + p), tokens, acc, warpgroup, ROWS, SWAP)
            acc, gates = warpgroup_mma_wait(2 * ALONG, deps=(acc, gates))
            release(ring, gl.maximum(n - 1, 0), pred=k > tile.k_lo)
            n += 1
        acc, gates = warpgroup_mma_wait(0, deps=(acc, gates))
        release(ring, n - 1)
        pieces = _pieces(acc, PIECE) + _pieces(gates, PIECE)
    if fix_up(tile, sync, pieces, warpgroup, arguments.PARTS):
        GATES: gl.constexpr = 1 if arguments.gate is None else 2
        COUNT: gl.constexpr = len(pieces) // GATES
        for c in gl.static_range(COUNT):
            value = sum_of_parts(tile, sync, pieces, c, warpgroup, arguments.PARTS)
            if GATES == 2:
                value *= _silu(sum_of_parts(tile, sync, pieces, COUNT + c, warpgroup, arguments.PARTS))
            _finish(tile, value, c, arguments, warpgroup)
        post(tile, sync)
    return n


@gluon.jit
def _pieces(block, PIECE: gl.constexpr):
    """A block as a tuple of blocks of at most PIECE columns: what an epilogue handles at once. Moves nothing."""
    ROWS: gl.constexpr = block.type.shape[0]
    COLUMNS: gl.constexpr = block.type.shape[1]
    if COLUMNS > PIECE:
        left, right = block.reshape([ROWS, 2, COLUMNS // 2]).permute([0, 2, 1]).split()
        return _pieces(left, PIECE) + _pieces(right, PIECE)
    else:
        return (block,)


@gluon.jit
def _silu(value):
    return value / (1.0 + gl.exp(-value))


@gluon.jit
def _finish(tile, value, c: gl.constexpr, arguments, warpgroup: gl.constexpr):
    """Bias, activation, residual and store of the tile's c-th piece."""
    SWAP: gl.constexpr = arguments.SWAP
    ROWS: gl.constexpr = value.type.shape[0]
    COLUMNS: gl.constexpr = value.type.shape[1]
    first_row = warpgroup * ROWS + (tile.j * arguments.BN if SWAP else tile.i * arguments.BM)
    first_column = c * COLUMNS + (tile.i * arguments.BM if SWAP else tile.j * arguments.BN)
    row = (first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, value.type.layout)))[:, None]
    column = (first_column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, value.type.layout)))[None, :]
    token = column if SWAP else row
    feature = row if SWAP else column
    if arguments.bias is not None:
        value += gl.load(arguments.bias + feature, mask=feature < arguments.N, other=0.0).to(gl.float32)
    if arguments.ACTIVATION == "relu":
        value = gl.maximum(value, 0.0)
    elif arguments.ACTIVATION == "silu" and arguments.gate is None:
        value = _silu(value)
    elif arguments.ACTIVATION == "gelu-tanh":
        # 0.5 * (1 + tanh(y)) = sigmoid(2 y), which saturates without overflow.
        value = value / (1.0 + gl.exp(-_GELU_TWICE * (value + _GELU_CUBIC * value * value * value)))
    if arguments.residual is not None:
        inside = (token < arguments.M) & (feature < arguments.N)
        at = token.to(gl.int64) * arguments.N + feature
        value += gl.load(arguments.residual + at, mask=inside, other=0.0).to(gl.float32)
    # A scratch of shared memory turns the piece into rows of whole sectors.
    # A thread stores 8 features of a token, neighbours the next 8.
    FEATURES: gl.constexpr = min((ROWS if SWAP else COLUMNS) // 8, 32)
    TILED: gl.constexpr = (
        gl.BlockedLayout([8, 1], [FEATURES, 32 // FEATURES], [1, 4], [0, 1])
        if SWAP
        else gl.BlockedLayout([1, 8], [32 // FEATURES, FEATURES], [4, 1], [1, 0])
    )
    row = (first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, TILED)))[:, None]
    column = (first_column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, TILED)))[None, :]
    token = column if SWAP else row
    feature = row if SWAP else column
    block = gl.convert_layout(value.to(arguments.out.dtype.element_ty), TILED)
    inside = (token < arguments.M) & (feature < arguments.N)
    gl.store(arguments.out + token.to(gl.int64) * arguments.N + feature, block, mask=inside)
