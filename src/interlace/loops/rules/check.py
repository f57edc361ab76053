"""The rules of the IR, checked before any rewrite; each error names its rule and its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import isinf

from interlace.core.dtypes import DTYPES, fp32
from interlace.core.errors import BoxError, CarriedError, DepthError, PipelineError, ScopeError, SharedMemoryError
from interlace.loops.ir.index import Const, Index, evaluate, find_names, is_always_positive, walk_divisors
from interlace.loops.ir.nest import Nest, Site, find_nest, walk_sites
from interlace.loops.ir.smem import BLOCK_BYTES, find_max_stages
from interlace.loops.ir.statements import (
    WARP,
    Copy,
    For,
    Load,
    LoopKernel,
    LoopKind,
    LoopTensor,
    Matmul,
    MemorySpace,
    Pointwise,
    Reduce,
    Ring,
    Stmt,
    Store,
)
from interlace.loops.ir.text import print_index
from interlace.loops.ir.traverse import (
    find_read_boxes,
    find_written_box,
    list_boxes,
    list_value_boxes,
    walk,
    walk_indices,
    walk_leaves,
)
from interlace.loops.ir.values import Box, Coord, Scalar, Value
from interlace.loops.rules.copies import check_load, check_store, check_strides
from interlace.loops.rules.outputs import check_outputs
from interlace.loops.rules.threads import check_thread_loop

#: Length of a swizzled row in bytes.
SWIZZLE_BYTES = 128
#: The largest finite fp32 number.
FP32_MAX = (2 - 2**-23) * 2.0**127


def check_kernel(kernel: LoopKernel) -> None:
    """Check a source kernel.

    Raises:
        BoxError: an asynchronous copy of a box or a tensor that the hardware does not support.
        PipelineError: any other broken rule.
    """
    _check_names(kernel)
    for tensor in kernel.tensors:
        _check_tensor(tensor)
        for extent in tensor.shape:
            _check_divided_by(kernel, extent)
    for site in walk_sites(kernel.body):
        _check_scope(kernel, site)
        for index in walk_indices(site.stmt):
            _check_divided_by(kernel, index)
        for box in list_boxes(site.stmt):
            _check_box(kernel, box)
        match site.stmt:
            case Load():
                check_load(kernel, site.stmt)
            case Store():
                check_store(kernel, site.stmt)
            case Pointwise():
                _check_value(kernel, site.stmt.dst.shape, site.stmt.value, site.stmt.dst)
            case Reduce():
                _check_reduce(kernel, site.stmt)
            case Matmul():
                _check_matmul(kernel, site.stmt)
    check_outputs(kernel)
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and stmt.kind is LoopKind.THREAD:
            check_thread_loop(kernel, stmt)
        elif isinstance(stmt, Pointwise):
            _check_in_place(kernel, stmt)


def check_sizes(kernel: LoopKernel, sizes: Mapping[str, int]) -> None:
    """Check run-time extents before a launch.

    Raises:
        PipelineError: an extent is missing or negative, or makes a tensor's negative, or a divisor 0 or less.
        BoxError: with these extents, asynchronous copies do not support a tensor's strides.
    """
    for name in kernel.symbols:
        if sizes.get(name, -1) < 0:
            raise PipelineError(
                f"kernel {kernel.name!r}: extent {name!r} is {sizes.get(name)}; give a number from 0 up"
            )
    statements = [site.stmt for site in walk_sites(kernel.body)]
    extents = (n for tensor in kernel.tensors for n in tensor.shape)
    for index in chain(extents, *map(walk_indices, statements)):
        for by in walk_divisors(index):
            if find_names(by) <= set(kernel.symbols) and evaluate(by, sizes) < 1:
                raise PipelineError(
                    f"kernel {kernel.name!r} divides by {print_index(by)}, which is {evaluate(by, sizes)} under "
                    f"{dict(sizes)}; it must be 1 or more"
                )
    for tensor in kernel.tensors:
        shape = tuple(evaluate(n, sizes) for n in tensor.shape)
        if min(shape) < 0:
            raise PipelineError(
                f"kernel {kernel.name!r}: tensor {tensor.name!r} has shape {shape} under {dict(sizes)}; "
                "give extents that leave none below 0"
            )
    for stmt in statements:
        match stmt:
            case Load() | Store() if stmt.by is not Copy.PLAIN:
                box = stmt.src if isinstance(stmt, Load) else stmt.dst
                tensor = kernel.find_tensor(box.tensor)
                check_strides(tensor, tuple(evaluate(n, sizes) for n in tensor.shape), stmt.by)


def check_ring(kernel: LoopKernel, ring: Ring) -> Nest:
    """Check one circular buffer and return the nest that it is carried through.

    Raises:
        DepthError: no stage, or a prefetch distance outside 0 .. stages - 1.
        SharedMemoryError: more stages than the shared memory of a block can hold.
        ScopeError: no load of the tensor directly in a loop, or a use outside that loop.
        CarriedError: an iteration uses contents of the tensor from an earlier iteration.
    """
    name = ring.tensor
    if name not in {t.name for t in kernel.tensors} or kernel.find_tensor(name).memory is not MemorySpace.SHARED:
        raise ScopeError(f"circular buffer {name!r}: kernel {kernel.name!r} has no shared tensor of this name")
    if ring.stages < 1:
        raise DepthError(f"circular buffer {name!r}: depth is {ring.stages} stages; use 1 or more")
    if not 0 <= ring.prefetch < ring.stages:
        raise DepthError(
            f"circular buffer {name!r}: prefetch distance is {ring.prefetch} with {ring.stages} stages; "
            f"use 0 to {ring.stages - 1}"
        )
    tile = kernel.find_tensor(name)
    most = find_max_stages(tile)
    if ring.stages > most:
        raise SharedMemoryError(
            f"circular buffer {name!r}: {ring.stages} stages of {tile.tile_bytes} bytes and their barriers are more "
            f"than the {BLOCK_BYTES} bytes of shared memory that a block has; "
            + (f"{most} stages would fit" if most else "not even one stage would fit; make the tile smaller")
        )
    everything = tuple(walk_sites(kernel.body))
    writers = [s for s in everything if (w := find_written_box(s.stmt)) is not None and w.tensor == name]
    loads = [s for s in writers if isinstance(s.stmt, Load)]
    if not loads:
        raise ScopeError(f"circular buffer {name!r}: nothing loads it; mark a tensor that a load writes")
    if len(writers) > 1:
        raise CarriedError(
            f"circular buffer {name!r}: written {len(writers)} times in an iteration, so later stages would depend "
            "on it; write results to another tensor"
        )
    load, stmt = loads[0], loads[0].stmt
    assert isinstance(stmt, Load)
    nest = find_nest(load.enclosing)
    if nest is None:
        raise ScopeError(
            f"circular buffer {name!r}: its load is not directly in a serial or unrolled loop; move it there"
        )
    for use in everything:
        if name not in {box.tensor for box in find_read_boxes(use.stmt)}:
            continue
        if nest.loops[-1] not in use.enclosing:
            raise ScopeError(
                f"circular buffer {name!r}: used outside of loop {nest.loops[-1].var!r}, where its slot is not "
                "defined; copy what is needed to registers inside"
            )
        if use.position < load.position:
            raise CarriedError(
                f"circular buffer {name!r}: read before its load in the same iteration, which is the stage of the "
                "iteration before; move the load up"
            )
    return nest


def _check_names(kernel: LoopKernel) -> None:
    if kernel.threads < WARP or kernel.threads % WARP or kernel.threads > 1024:
        raise PipelineError(f"kernel {kernel.name!r} has {kernel.threads} threads; use a multiple of {WARP} up to 1024")
    seen: set[str] = set()
    for name in list_declared_names(kernel):
        if name in seen:
            raise PipelineError(f"kernel {kernel.name!r}: the name {name!r} is used twice; rename one")
        seen.add(name)


def list_declared_names(kernel: LoopKernel) -> list[str]:
    """Return the names of tensors, extents and loop variables; each must be unique in the whole kernel."""
    loops = [stmt.var for stmt in walk(kernel.body) if isinstance(stmt, For)]
    return [*(t.name for t in kernel.tensors), *kernel.symbols, *loops]


def _check_tensor(tensor: LoopTensor) -> None:
    if not tensor.shape:
        raise PipelineError(f"tensor {tensor.name!r} has no dimensions; give it at least one")
    if tensor.align_bytes < 1:
        raise PipelineError(f"tensor {tensor.name!r} is aligned to {tensor.align_bytes} bytes; give a positive number")
    if tensor.memory is MemorySpace.GLOBAL:
        return
    if len(tensor.tile) != len(tensor.shape) or min(tensor.tile) < 1:
        raise PipelineError(
            f"tensor {tensor.name!r} is in {tensor.memory.value} memory; its extents must be positive numbers"
        )
    if tensor.swizzle_bytes not in (0, SWIZZLE_BYTES):
        raise BoxError(f"tensor {tensor.name!r}: swizzle of {tensor.swizzle_bytes} bytes; use {SWIZZLE_BYTES}, or none")
    row_bytes = tensor.tile[-1] * tensor.dtype.itemsize
    if tensor.swizzle_bytes and row_bytes != SWIZZLE_BYTES:
        raise BoxError(
            f"tensor {tensor.name!r} is swizzled by {SWIZZLE_BYTES} bytes, but its rows have {row_bytes}; "
            "let them have as many"
        )


def _check_divided_by(kernel: LoopKernel, index: Index) -> None:
    """Check the divisors of an index, except those made only of run-time extents (see ``check_sizes``)."""
    for by in walk_divisors(index):
        if not is_always_positive(by) and (not find_names(by) or not find_names(by) <= set(kernel.symbols)):
            raise PipelineError(
                f"kernel {kernel.name!r} divides by {print_index(by)}, which may be 0 or less; "
                "divide by positive numbers or by extents"
            )


def _check_scope(kernel: LoopKernel, site: Site) -> None:
    known = {*kernel.symbols, *(a.var for a in site.enclosing if isinstance(a, For))}
    for index in walk_indices(site.stmt):
        unknown = sorted(find_names(index) - known)
        if unknown:
            raise PipelineError(
                f"kernel {kernel.name!r}: {unknown[0]!r} is neither an extent nor a loop variable where it is used"
            )
    if isinstance(site.stmt, For) and site.stmt.kind is LoopKind.BLOCK:
        around = [a for a in site.enclosing if isinstance(a, For) and a.kind is LoopKind.BLOCK]
        moving = sorted(find_names(site.stmt.stop) - set(kernel.symbols))
        if moving:
            raise PipelineError(
                f"kernel {kernel.name!r}: block loop {site.stmt.var!r} runs to {print_index(site.stmt.stop)}, but "
                f"blocks are numbered before there is a {moving[0]!r}; let it run to the most that this can be, and "
                "put what its blocks do under a condition"
            )
        if len(around) != len(site.enclosing) or len(around) > 2 or len(_find_enclosing_body(kernel, site)) != 1:
            raise PipelineError(
                f"kernel {kernel.name!r}: block loop {site.stmt.var!r} must stand alone at the outside, "
                "with at most two others"
            )


def _find_enclosing_body(kernel: LoopKernel, site: Site) -> tuple[Stmt, ...]:
    if not site.enclosing:
        return kernel.body
    outer = site.enclosing[-1]
    assert isinstance(outer, For)
    return outer.body


def _check_box(kernel: LoopKernel, box: Box) -> None:
    if box.tensor not in {t.name for t in kernel.tensors}:
        raise PipelineError(f"kernel {kernel.name!r} has no tensor {box.tensor!r}; declare it")
    tensor = kernel.find_tensor(box.tensor)
    if len(box.shape) != len(tensor.shape) or len(box.origin) != len(tensor.shape) or min(box.shape) < 1:
        raise PipelineError(
            f"tensor {box.tensor!r} has {len(tensor.shape)} dimensions; its box has shape {box.shape}; "
            "give a positive extent for each"
        )
    if tensor.memory is MemorySpace.GLOBAL:
        return
    for axis, (first, n, extent) in enumerate(zip(box.origin, box.shape, tensor.tile, strict=True)):
        start = first.value if isinstance(first, Const) else 0  # a variable origin is known only at run time
        if not 0 <= start <= extent - n:
            raise PipelineError(
                f"a box of tile {box.tensor!r} covers {start} .. {start + n - 1} of 0 .. {extent - 1} along axis "
                f"{axis}; only global tensors clip, so keep it inside"
            )


def _check_value(kernel: LoopKernel, shape: tuple[int, ...], value: Value, target: Box) -> None:
    if (
        kernel.find_tensor(target.tensor).memory is MemorySpace.GLOBAL
        and not kernel.find_tensor(target.tensor).is_written
    ):
        raise PipelineError(f"{target.tensor!r} is assigned to but is an input; declare it as an output")
    for leaf in walk_leaves(value):
        if isinstance(leaf, Coord) and not 0 <= leaf.axis < len(shape):
            raise PipelineError(
                f"value of {target.tensor!r} takes coordinate {leaf.axis} of a tile of {shape}; "
                f"its axes are 0 to {len(shape) - 1}"
            )
        if isinstance(leaf, Scalar) and not (isinf(leaf.number) or abs(leaf.number) <= FP32_MAX):
            raise PipelineError(f"value of {target.tensor!r} has the number {leaf.number}, which fp32 does not have")
    for box in list_value_boxes(value):
        padded = (1,) * (len(shape) - len(box.shape)) + box.shape
        if len(padded) != len(shape) or any(n not in (1, e) for n, e in zip(padded, shape, strict=True)):
            raise PipelineError(
                f"box of {box.tensor!r} has shape {box.shape}, which does not broadcast to the {shape} "
                f"written to {target.tensor!r}"
            )


def _check_in_place(kernel: LoopKernel, stmt: Pointwise) -> None:
    """Check that a statement reads no elements of its destination that other threads write.

    Each thread reads and writes its own elements. Of the tile that it writes, the statement may read the same box or
    boxes disjoint from it.
    """
    for box in list_value_boxes(stmt.value):
        mine = box == stmt.dst or box.tensor != stmt.dst.tensor
        if kernel.find_tensor(box.tensor).memory is MemorySpace.SHARED and not mine and not _is_disjoint(box, stmt.dst):
            raise PipelineError(
                f"value of {box.tensor!r} reads elements of it that other threads write in the same statement; "
                "use another tile"
            )


def _is_disjoint(a: Box, b: Box) -> bool:
    """Return True if two boxes of one tile are known to be disjoint."""
    return any(
        isinstance(i, Const) and isinstance(j, Const) and (i.value + m <= j.value or j.value + n <= i.value)
        for i, m, j, n in zip(a.origin, a.shape, b.origin, b.shape, strict=True)
    )


def _check_reduce(kernel: LoopKernel, stmt: Reduce) -> None:
    target, rank = kernel.find_tensor(stmt.dst.tensor), len(stmt.shape)
    if min(stmt.shape, default=0) < 1:
        raise PipelineError(f"reduction to {target.name!r} over a tile of {stmt.shape}; give it positive extents")
    if len(set(stmt.axes)) != len(stmt.axes) or not set(stmt.axes) <= set(range(rank)):
        raise PipelineError(
            f"reduction to {target.name!r}: axes {stmt.axes} of {stmt.shape}; name each once, from 0 to {rank - 1}"
        )
    kept = tuple(1 if axis in stmt.axes else n for axis, n in enumerate(stmt.shape))
    if target.memory is not MemorySpace.REGISTER or stmt.dst.shape != kept or not stmt.axes:
        raise PipelineError(
            f"reduction to {target.name!r}: needs a register box of {kept} for axes {stmt.axes} of {stmt.shape}"
        )
    if target.dtype != fp32:
        raise PipelineError(
            f"reduction to {target.name!r}, which is {target.dtype}: threads combine in fp32 and would not round at "
            "each step; reduce to an fp32 tile and assign that"
        )
    _check_value(kernel, stmt.shape, stmt.value, stmt.dst)


def _check_matmul(kernel: LoopKernel, stmt: Matmul) -> None:
    acc, a, b = (kernel.find_tensor(box.tensor) for box in (stmt.acc, stmt.a, stmt.b))
    memories = acc.memory, a.memory, b.memory
    if memories != (MemorySpace.REGISTER, MemorySpace.SHARED, MemorySpace.SHARED) or acc.dtype != fp32:
        raise PipelineError(f"matmul into {acc.name!r}: needs an fp32 register tile and two shared tiles")
    if a.dtype != b.dtype or not a.dtype.on_tensor_cores:
        multiplied = ", or both ".join(d.name for d in DTYPES if d.on_tensor_cores)
        raise PipelineError(f"matmul of {a.name!r} and {b.name!r}: both must be {multiplied}")
    pairs = (stmt.acc, acc), (stmt.a, a), (stmt.b, b)
    whole = all(box.shape == tensor.tile and len(tensor.tile) == 2 for box, tensor in pairs)
    if not whole or (a.tile[0], b.tile[0]) != acc.tile or a.tile[1] != b.tile[1]:
        raise PipelineError(
            f"matmul into {acc.name!r} {acc.tile}: {a.name!r} {a.tile} and {b.name!r} {b.tile} "
            "must be whole tiles of m x k and n x k"
        )
    if acc.tile[0] % 64 or acc.tile[1] % 8 or acc.tile[1] > 256 or a.tile[1] % 16:
        raise PipelineError(
            f"matmul into {acc.name!r}: wgmma takes m in multiples of 64, n of 8 up to 256, k of 16; "
            f"not {acc.tile[0]} x {acc.tile[1]} x {a.tile[1]}"
        )
    for tensor in (a, b):
        for stmt_ in (s.stmt for s in walk_sites(kernel.body)):
            target = find_written_box(stmt_)
            by_tma = isinstance(stmt_, Load) and stmt_.by is Copy.TMA
            if target is not None and target.tensor == tensor.name and not by_tma:
                raise PipelineError(
                    f"matmul reads {tensor.name!r} through the async proxy, but not only TMA writes it; load it by TMA"
                )
