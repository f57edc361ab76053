"""The Hopper body of matmul: weights are the free operand, activations the bound one, sums stay in registers.

The tensor core multiplies rows by columns: tokens by weights, or, swapped, weights by tokens, which keeps
its 64-row operand full where there are few tokens. Warpgroups share the rows of a tile. The panels of a stage
are consecutive along k, or, with a gate, first those of the gate, then as many of the other weights. Bulk loads
fill what lies beyond the tensors' edges with zeros, and stores are masked, so any M, N and K will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from interlace.graph.op import Op
from interlace.kernels.base import Pipeline, require
from interlace.kernels.hopper.gluon import bulk_load
from interlace.kernels.hopper.ring import PANEL, await_free_slot, await_stage, limit_in_flight, release
from interlace.kernels.primitives.semaphore import (
    meet,
    now_ns,
    order_bulk_loads,
    post,
    ready,
    stretches,
    total,
    wait,
)

_STORE_COLUMNS = gl.constexpr(64)


class MatmulArguments(NamedTuple):
    """What an op's functions need beside its tensor descriptors.

    Attributes:
        weight, gate, bias, residual, out: pointers, None where the op has no such tensor.
        M: tokens.
        N, K: extents of the weights.
        BM, BN: extents of a tile: tokens, weight rows.
        ACTIVATION: as in the op.
        SWAP: weights are the 64-row operand.
        PANELS: of a stage.
        STEP: elements of k in a stage.
        IN_FLIGHT: most stages of weights under way at once.
    """

    weight: gl.tensor
    gate: gl.tensor
    bias: gl.tensor
    residual: gl.tensor
    out: gl.tensor
    M: gl.tensor
    N: gl.constexpr
    K: gl.constexpr
    BM: gl.constexpr
    BN: gl.constexpr
    ACTIVATION: gl.constexpr
    SWAP: gl.constexpr
    PANELS: gl.constexpr
    STEP: gl.constexpr
    IN_FLIGHT: gl.constexpr


def operands(op: Op, tensors: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Descriptors of x, weight and gate, each of one panel."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def descriptor(name: str, rows: int) -> Any:
        at = _tensor(op, name)
        if at is None:
            return None
        value = tensors[at]
        box = [rows, PANEL.value]
        layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
        return TensorDescriptor(value, list(value.shape), list(value.stride()), box, layout)

    bm, bn = int(op.param("BM")), int(op.param("BN"))
    return descriptor("x", bm), descriptor("weight", bn), descriptor("gate", bn)


def arguments(op: Op, tensors: Mapping[str, Any], pipeline: Pipeline) -> MatmulArguments:
    """Pointers and constants of an op."""

    def pointer(name: str) -> Any:
        at = _tensor(op, name)
        return None if at is None else tensors[at]

    def constant(name: str) -> Any:
        return gl.constexpr(op.param(name))

    weights = 1 if _tensor(op, "gate") is None else 2
    require(
        pipeline.panels % weights == 0,
        f"op {op.name!r} is gated, so a stage holds panels of two weights; give its tile a multiple of 128 along k",
    )
    step = pipeline.panels * PANEL.value // weights
    return MatmulArguments(
        weight=pointer("weight"),
        gate=pointer("gate"),
        bias=pointer("bias"),
        residual=pointer("residual"),
        out=pointer("out"),
        M=op.param("M"),
        N=constant("N"),
        K=constant("K"),
        BM=constant("BM"),
        BN=constant("BN"),
        ACTIVATION=constant("ACTIVATION"),
        SWAP=constant("SWAP"),
        PANELS=gl.constexpr(pipeline.panels),
        STEP=gl.constexpr(step),
        IN_FLIGHT=gl.constexpr(pipeline.in_flight),
    )


def _tensor(op: Op, argument: str) -> str | None:
    return next((a.tensor for a in op.accesses if a.arg == argument), None)


@gluon.jit
def matmul_load_free(tile, ring, n, k, operands, arguments):
    """The tile's weights at k, into the n-th stage."""
    GATED: gl.constexpr = operands[2] is not None
    PANELS: gl.constexpr = arguments.PANELS
    ALONG: gl.constexpr = PANELS // 2 if GATED else PANELS
    row = tile.j * arguments.BN
    limit_in_flight(ring, n, arguments.IN_FLIGHT)
    s = await_free_slot(ring, n, ring.free_full, PANELS * operands[1].block_type.nbytes)
    full = ring.free_full.index(s)
    for p in gl.static_range(ALONG):
        if GATED:
            bulk_load(operands[2], [row, k + p * PANEL], full, ring.free.index(s * PANELS + p))
            bulk_load(operands[1], [row, k + p * PANEL], full, ring.free.index(s * PANELS + ALONG + p))
        else:
            bulk_load(operands[1], [row, k + p * PANEL], full, ring.free.index(s * PANELS + p))


@gluon.jit
def matmul_load_bound(tile, sync, ring, n, operands, arguments):
    """The tile's activations along k, each stretch once it is complete."""
    PANELS: gl.constexpr = arguments.PANELS
    ALONG: gl.constexpr = PANELS if operands[2] is None else PANELS // 2
    row = tile.i * arguments.BM
    if sync.TRACE:
        gl.store(sync.trace + tile.item.to(gl.int64) * 4, now_ns(False))
    wait(tile, sync)
    if sync.TRACE:
        gl.store(sync.trace + tile.item.to(gl.int64) * 4 + 1, now_ns(False))
    for s in range(stretches(tile, sync)):
        lo, hi = ready(tile, sync, s)
        order_bulk_loads()
        for k in range(lo, hi, arguments.STEP):
            slot = await_free_slot(ring, n, ring.bound_full, ALONG * operands[0].block_type.nbytes)
            for p in gl.static_range(ALONG):
                full = ring.bound_full.index(slot)
                bulk_load(operands[0], [row, k + p * PANEL], full, ring.bound.index(slot * PANELS + p))
            n += 1
    return n


@gluon.jit
def _multiply(weights, tokens, acc, share: gl.constexpr, ROWS: gl.constexpr, SWAP: gl.constexpr):
    """Issue the wgmma of one panel: this warpgroup's rows times all columns."""
    if SWAP:
        acc = warpgroup_mma(weights.slice(share * ROWS, ROWS, 0), tokens.permute((1, 0)), acc, is_async=True)
    else:
        acc = warpgroup_mma(tokens.slice(share * ROWS, ROWS, 0), weights.permute((1, 0)), acc, is_async=True)
    return acc


@gluon.jit
def matmul_compute(tile, sync, ring, n, arguments, share: gl.constexpr):
    """Sum over the item's k-range, meet other parts, epilogue, post."""
    PANELS: gl.constexpr = arguments.PANELS
    SWAP: gl.constexpr = arguments.SWAP
    ROWS: gl.constexpr = (arguments.BN if SWAP else arguments.BM) // sync.SHARES
    COLUMNS: gl.constexpr = arguments.BM if SWAP else arguments.BN
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout=LAYOUT)
    # One stage's multiplications stay under way while the next is awaited; a stage is handed back when those
    # of its successor have been issued and its own have ended.
    if arguments.gate is None:
        for k in range(tile.k_lo, tile.k_hi, arguments.STEP):
            s = await_stage(ring, n)
            for p in gl.static_range(PANELS):
                tokens = ring.bound.index(s * PANELS + p)
                acc = _multiply(ring.free.index(s * PANELS + p), tokens, acc, share, ROWS, SWAP)
            acc = warpgroup_mma_wait(PANELS, deps=(acc,))
            release(ring, gl.maximum(n - 1, 0), pred=k > tile.k_lo)
            n += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        release(ring, n - 1)
        sums = (acc,)
    else:
        ALONG: gl.constexpr = PANELS // 2
        gates = gl.zeros([ROWS, COLUMNS], gl.float32, layout=LAYOUT)
        for k in range(tile.k_lo, tile.k_hi, arguments.STEP):
            s = await_stage(ring, n)
            for p in gl.static_range(ALONG):
                tokens = ring.bound.index(s * PANELS + p)
                gates = _multiply(ring.free.index(s * PANELS + p), tokens, gates, share, ROWS, SWAP)
                acc = _multiply(ring.free.index(s * PANELS + ALONG + p), tokens, acc, share, ROWS, SWAP)
            acc, gates = warpgroup_mma_wait(PANELS, deps=(acc, gates))
            release(ring, gl.maximum(n - 1, 0), pred=k > tile.k_lo)
            n += 1
        acc, gates = warpgroup_mma_wait(0, deps=(acc, gates))
        release(ring, n - 1)
        sums = (acc, gates)  # type: ignore[assignment]
    if sync.SPLIT:
        if meet(tile, sync, sums, share):
            value = total(tile, sync, sums, 0, share)
            if len(sums) == 2:
                _finish(tile, value, total(tile, sync, sums, 1, share), arguments, share)
            else:
                _finish(tile, value, None, arguments, share)
            post(tile, sync)
    else:
        if len(sums) == 2:
            _finish(tile, acc, sums[1], arguments, share)
        else:
            _finish(tile, acc, None, arguments, share)
        post(tile, sync)
    return n


@gluon.jit
def _finish(tile, value, gated, arguments, share: gl.constexpr):
    """Bias, activation or gate, residual, store."""
    BM: gl.constexpr = arguments.BM
    BN: gl.constexpr = arguments.BN
    SWAP: gl.constexpr = arguments.SWAP
    ROWS: gl.constexpr = value.type.shape[0]
    row = share * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, value.type.layout))
    column = gl.arange(0, value.type.shape[1], layout=gl.SliceLayout(0, value.type.layout))
    if SWAP:
        token = (tile.i * BM + column)[None, :]
        feature = (tile.j * BN + row)[:, None]
    else:
        token = (tile.i * BM + row)[:, None]
        feature = (tile.j * BN + column)[None, :]
    if arguments.bias is not None:
        value += gl.load(arguments.bias + feature, mask=feature < arguments.N, other=0.0).to(gl.float32)
    if gated is not None:
        value *= gated / (1.0 + gl.exp(-gated))
    elif arguments.ACTIVATION == "relu":
        value = gl.maximum(value, 0.0)
    elif arguments.ACTIVATION == "silu":
        value = value / (1.0 + gl.exp(-value))
    elif arguments.ACTIVATION == "gelu-tanh":
        # 0.5 * (1 + tanh(y)) = sigmoid(2 y), which saturates without overflow.
        value = value / (1.0 + gl.exp(-1.5957691216057308 * (value + 0.044715 * value * value * value)))
    if arguments.residual is not None:
        inside = (token < arguments.M) & (feature < arguments.N)
        at = token.to(gl.int64) * arguments.N + feature
        value += gl.load(arguments.residual + at, mask=inside, other=0.0).to(gl.float32)
    first_row = share * ROWS + (tile.j * BN if SWAP else tile.i * BM)
    first_column = tile.i * BM if SWAP else tile.j * BN
    _store(value.to(arguments.out.dtype.element_ty), first_row, first_column, arguments)


@gluon.jit
def _store(block, first_row, first_column, arguments):
    """Store a block in pieces that a small scratch of shared memory turns into rows of whole sectors."""
    ROWS: gl.constexpr = block.type.shape[0]
    COLUMNS: gl.constexpr = block.type.shape[1]
    if COLUMNS > _STORE_COLUMNS:
        left, right = block.reshape([ROWS, 2, COLUMNS // 2]).permute([0, 2, 1]).split()
        _store(left, first_row, first_column, arguments)
        _store(right, first_row, first_column + COLUMNS // 2, arguments)
    else:
        if arguments.SWAP:
            ALONG: gl.constexpr = min(ROWS // 8, 32)
            TILED: gl.constexpr = gl.BlockedLayout([8, 1], [ALONG, 32 // ALONG], [1, 4], [0, 1])
        else:
            ALONG: gl.constexpr = min(COLUMNS // 8, 32)
            TILED: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ALONG, ALONG], [4, 1], [1, 0])
        row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, TILED))[:, None]
        column = first_column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, TILED))[None, :]
        if arguments.SWAP:
            at = column.to(gl.int64) * arguments.N + row
            inside = (column < arguments.M) & (row < arguments.N)
        else:
            at = row.to(gl.int64) * arguments.N + column
            inside = (row < arguments.M) & (column < arguments.N)
        gl.store(arguments.out + at, gl.convert_layout(block, TILED), mask=inside)
