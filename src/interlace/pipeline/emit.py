"""From a rewritten kernel to CUDA C++ text.

    lowered = lower(circular_buffer(copy_2d(), "s", stages=4))
    emitted = emit_kernel(lowered, H200)
    print(emitted.text)

The text has one function, whose parameters are the pointers of the global tensors, then the tensor maps of ``maps``,
then the run-time extents. Statements of the IR become PTX one by one; the thread that issues a bulk copy is the first
of its scope. Two statements may wait less than the IR says, where nothing can tell: a matmul whose stage a
consumer releases one step later (two products are in flight), and a store by TMA out of a ring whose next load waits
until that store has been read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16
from interlace.core.errors import PipelineError
from interlace.pipeline.emit_index import emit_index, emit_less
from interlace.pipeline.emit_tiles import UNROLL, Lines, Partial, Scope, Tiles
from interlace.pipeline.index import Binary, Index
from interlace.pipeline.ir import (
    AllocBarrier,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Block,
    Box,
    Copy,
    ElectOne,
    FenceBarrierInit,
    FenceProxy,
    For,
    If,
    InitBarrier,
    Invalidate,
    Kernel,
    Let,
    Load,
    LoopKind,
    Matmul,
    Memory,
    Per,
    Pointwise,
    Reduce,
    Role,
    RoleKind,
    Section,
    Stmt,
    Store,
    Sync,
    WaitParity,
    read,
    walk,
    written,
)
from interlace.pipeline.preamble import wgmma, wgmma_name
from interlace.pipeline.smem import BARRIER_BYTES, SharedLayout, lay_out
from interlace.pipeline.spread import Fragment, spread_registers

#: Registers of an SM, and the most that ptxas gives a thread.
SM_REGISTERS = 65536
THREAD_REGISTERS = 255
_AXES = "xyz"
_KEYWORDS = frozenset(
    "asm auto bool break case char class const continue default delete do double else enum extern false float for goto "
    "if inline int long new private public register return short signed sizeof static struct switch template this "
    "true typedef union unsigned void volatile while shared scratch".split()
)


@dataclass(frozen=True)
class MapSpec:
    """A tensor map that the host builds: which tensor, in boxes of which shape, with the 128-byte swizzle or not."""

    tensor: str
    box: tuple[int, ...]
    swizzled: bool

    @property
    def name(self) -> str:
        """The parameter."""
        return f"{self.tensor}_map_{'x'.join(map(str, self.box))}{'s' * self.swizzled}"


@dataclass(frozen=True)
class Emitted:
    """A kernel as text, and what a launch needs to know.

    Attributes:
        maps: tensor maps, in the order of the parameters.
        grid: blocks along x, y, z, to be evaluated under the run-time extents.
    """

    kernel: Kernel
    text: str
    maps: tuple[MapSpec, ...]
    layout: SharedLayout
    grid: tuple[Index, ...]


def emit_kernel(kernel: Kernel, device: DeviceSpec) -> Emitted:
    """The text of a kernel that ``circular.lower`` returned.

    Raises:
        PipelineError: something that the emitter does not take; the message says what to change.
        SharedMemoryError: more shared memory than a block of ``device`` may use.
    """
    _check(kernel)
    layout = lay_out(kernel, device)
    first = _Emitter(kernel, layout)
    first.body()
    if first.tiles.scratch_bytes:  # known only now
        layout = lay_out(kernel, device, scratch_bytes=first.tiles.scratch_bytes)
    emitter = _Emitter(kernel, layout)
    emitter.body()
    grid: list[Index] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.BLOCK:
        grid.append(body[0].stop)
        body = body[0].body
    maps = _maps(kernel)
    return Emitted(kernel, emitter.text(maps), maps, layout, tuple(grid))


def _check(kernel: Kernel) -> None:
    names = [t.name for t in kernel.tensors] + [*kernel.symbols, kernel.name]
    names += [s.var for s in walk(kernel.body) if isinstance(s, For | Let)]
    for name in names:
        if not re.fullmatch(r"[A-Za-z]\w*(?<!_)", name, re.ASCII) or name in _KEYWORDS:
            raise PipelineError(
                f"kernel {kernel.name!r}: {name!r} is no name for CUDA C++; "
                "use letters, digits and underscores, no keyword, no underscore at the ends"
            )
    for stmt in walk(kernel.body):
        if isinstance(stmt, Load | Store) and stmt.by is Copy.TMA:
            box = _outside(stmt)
            if len(box.shape) > 3:
                raise PipelineError(f"TMA box of {box.tensor!r} has {len(box.shape)} dimensions; the emitter takes 3")
        if isinstance(stmt, Matmul):
            for tensor in (kernel.tensor(stmt.a.tensor), kernel.tensor(stmt.b.tensor)):
                if tensor.swizzle_bytes != 128 or tensor.tile[1] * tensor.dtype.itemsize != 128:
                    raise PipelineError(
                        f"matmul reads {tensor.name!r} {tensor.tile}: it takes 64 elements along k, "
                        "rows of 128 bytes, swizzled by 128 bytes"
                    )
    for tensor in kernel.tensors:
        if tensor.swizzle_bytes and (tensor.swizzle_bytes != 128 or tensor.tile[-1] * tensor.dtype.itemsize != 128):
            raise PipelineError(
                f"tensor {tensor.name!r}: swizzle of {tensor.swizzle_bytes} bytes; "
                "the emitter takes 128, with rows of 128 bytes"
            )


def _outside(stmt: Load | Store) -> Box:
    return stmt.src if isinstance(stmt, Load) else stmt.dst


def _map(kernel: Kernel, stmt: Load | Store) -> MapSpec:
    inside = stmt.dst if isinstance(stmt, Load) else stmt.src
    box = _outside(stmt)
    return MapSpec(box.tensor, box.shape, kernel.tensor(inside.tensor).swizzle_bytes == 128)


def _maps(kernel: Kernel) -> tuple[MapSpec, ...]:
    copies = (s for s in walk(kernel.body) if isinstance(s, Load | Store) and s.by is Copy.TMA)
    return tuple(dict.fromkeys(_map(kernel, s) for s in copies))


class _Emitter:
    """Walks the statements of one kernel."""

    def __init__(self, kernel: Kernel, layout: SharedLayout) -> None:
        self.kernel = kernel
        self.layout = layout
        self.out = Lines()
        sizes = [t.dtype.itemsize for t in kernel.tensors if t.memory is not Memory.REGISTER]
        itemsize = max(sizes, default=4)
        placed = {p.name: p.slot_bytes for p in layout.placed}
        registers = spread_registers(kernel, itemsize)
        self.tiles = Tiles(kernel, self.out, registers, itemsize, placed)
        self.open: dict[str, Partial] = {}
        self.lagging: set[str] = set()
        self.deferred = _deferred_stores(kernel)
        self.blocks = 0
        self.elected = False

    def body(self) -> None:
        """The inside of the function."""
        kernel, out = self.kernel, self.out
        out.depth = 1
        for symbol in kernel.symbols:
            out.add(f"const int {symbol} = (int){symbol}_;")
        if self.layout.total_bytes:
            out.add("extern __shared__ __align__(1024) unsigned char shared[];")
        barriers = {s.name for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
        for placed in self.layout.placed:
            if placed.name == "scratch":
                out.add(f"float* const scratch = reinterpret_cast<float*>(shared + {placed.offset_bytes});")
            elif placed.name in barriers:
                out.add(f"const unsigned {placed.name} = shared_address(shared + {placed.offset_bytes});")
            else:
                out.add(f"unsigned char* const {placed.name} = shared + {placed.offset_bytes};")
        out.add("const int thread = threadIdx.x;")
        scope = Scope(0, kernel.block_threads, "thread", "__syncthreads();")
        if not any(isinstance(s, Role) for s in walk(kernel.body)):
            self._registers()
        self._statements(kernel.body, scope)
        if any(isinstance(s, Store) and s.by is Copy.TMA for s in walk(kernel.body)):
            out.add("if (thread == 0) bulk_wait<0>();")

    def text(self, maps: tuple[MapSpec, ...]) -> str:
        """The whole text."""
        kernel = self.kernel
        parameters = [
            f"{'' if t.written else 'const '}{t.dtype}* __restrict__ {t.name}"
            for t in kernel.tensors
            if t.memory is Memory.GLOBAL
        ]
        parameters += [f"const __grid_constant__ TensorMap {m.name}" for m in maps]
        parameters += [f"long long {symbol}_" for symbol in kernel.symbols]
        functions = sorted(
            {(s.acc.shape[1], _ptx_kind(kernel, s)) for s in walk(kernel.body) if isinstance(s, Matmul)}
            - {(128, "bf16"), (256, "bf16")}
        )
        lines = [wgmma(n, kind) for n, kind in functions]
        one = ", 1" if kernel.loader_threads else ""
        lines.append(f'extern "C" __global__ void __launch_bounds__({kernel.block_threads}{one})')
        lines.append(f"    {kernel.name}({(',' + chr(10) + '     ' + ' ' * len(kernel.name)).join(parameters)}) {{")
        return "\n".join([*lines, *self.out.text(), "}"]) + "\n"

    def _registers(self) -> None:
        for tensor in self.kernel.tensors:
            if tensor.memory is Memory.REGISTER:
                self.tiles.declare(tensor)

    def _statements(self, body: tuple[Stmt, ...], scope: Scope) -> None:
        for stmt in body:
            self._statement(stmt, scope)

    def _statement(self, stmt: Stmt, scope: Scope) -> None:
        match stmt:
            case For() if stmt.kind is LoopKind.BLOCK:
                self.out.add(f"const int {stmt.var} = blockIdx.{_AXES[self.blocks]};")
                self.blocks += 1
                self._statements(stmt.body, scope)
            case For():
                self._for(stmt, scope)
            case If():
                self._block(f"if ({emit_less(stmt.condition)})", stmt.body, scope)
            case Section():
                self.out.add(f"// {stmt.name}")
                self._statements(stmt.body, scope)
                if any(s in self.deferred for s in walk(stmt.body)):
                    self.out.add(f"if (thread == {scope.first}) bulk_wait_read<0>();")
            case Role():
                self._role(stmt)
            case ElectOne():
                self._elect(stmt, scope)
            case Let():
                self.out.add(f"const int {stmt.var} = {emit_index(stmt.value)};")
            case Load() if stmt.by is Copy.TMA:
                self._tma_load(stmt)
            case Load():
                self.tiles.load(stmt, scope)
            case Store() if stmt.by is Copy.TMA:
                self._tma_store(stmt, scope)
            case Store():
                self.tiles.store(stmt, scope)
            case Pointwise():
                self.tiles.pointwise(stmt, scope)
            case Reduce():
                self._reduce(stmt, scope)
            case Matmul():
                self._matmul(stmt, scope)
            case _:
                self._barrier(stmt, scope)

    def _block(self, head: str, body: tuple[Stmt, ...], scope: Scope) -> None:
        self.out.open(head)
        self._statements(body, scope)
        self.out.close()

    def _for(self, loop: For, scope: Scope) -> None:
        reductions = [Partial(r) for r in _hoisted(loop) if r.dst.tensor not in self.open]
        if reductions:
            self.out.open()
        for partial in reductions:
            self.tiles.begin(partial)
            self.open[partial.reduce.dst.tensor] = partial
        lag = _lagging_releases(self.kernel, loop)
        for box_name in lag:
            self.out.add(f"unsigned {box_name}_before_ = 0;")
        self.lagging = set(lag)
        if lag:
            (product,) = (s for s in loop.body if isinstance(s, Matmul))
            self._settle(product)  # else ptxas moves the zeros between products and serialises these
        self.out.add(UNROLL if loop.kind is LoopKind.UNROLLED else f"{UNROLL} 1")
        head = f"for (int {loop.var} = {emit_index(loop.start)}; {loop.var} < {emit_index(loop.stop)}; ++{loop.var})"
        self._block(head, loop.body, scope)
        if lag:
            self.out.add("wgmma_wait<0>();")
            self._settle(product)
            self.out.add("__syncwarp();")
            for name in lag:
                self.out.add(f"if (thread % 32 == 0 && {name}_before_) mbarrier_arrive({name}_before_);")
            self.lagging = set()
        for partial in reductions:
            self.tiles.finish(partial, scope)
            del self.open[partial.reduce.dst.tensor]
        if reductions:
            self.out.close()

    def _role(self, role: Role) -> None:
        consumer = role.kind is RoleKind.CONSUMER
        self.out.add(f"// {role.kind.value}")
        low = f"thread >= {role.first} && " if role.first else ""
        self.out.open(f"if ({low}thread < {role.first + role.threads})")
        at_entry = min(THREAD_REGISTERS, SM_REGISTERS // self.kernel.block_threads // 8 * 8)
        change = "raise" if role.registers >= at_entry else "lower"
        self.out.add(f"registers_{change}<{role.registers}>();")
        place = "thread" if role.first == 0 else "place"
        if role.first:
            self.out.add(f"const int place = thread - {role.first};")
        if consumer:
            self._registers()
        self._statements(
            role.body, Scope(role.first, role.threads, place, f"named_barrier({1 if consumer else 2}, {role.threads});")
        )
        self.out.close()

    def _elect(self, stmt: ElectOne, scope: Scope) -> None:
        arrives = [s.barrier for s in stmt.body if isinstance(s, Arrive)]
        if self.lagging and len(arrives) == len(stmt.body) and {b.name for b in arrives} <= self.lagging:
            for barrier in arrives:
                before = f"{barrier.name}_before_"
                self.out.add(f"if (thread % 32 == 0 && {before}) mbarrier_arrive({before});")
                self.out.add(f"{before} = {self._slot(barrier)};")
            return
        if stmt.per is Per.WARP:
            self.out.add("__syncwarp();")
        condition = f"thread == {scope.first}" if stmt.per is Per.SCOPE else "thread % 32 == 0"
        self._block(f"if ({condition})", stmt.body, scope)

    def _reduce(self, stmt: Reduce, scope: Scope) -> None:
        partial = self.open.get(stmt.dst.tensor)
        if partial is not None:
            self.tiles.accumulate(partial, stmt, scope)
            return
        partial = Partial(stmt)
        self.out.open()
        self.tiles.begin(partial)
        self.tiles.accumulate(partial, stmt, scope)
        self.tiles.finish(partial, scope)
        self.out.close()

    def _tma_load(self, stmt: Load) -> None:
        assert stmt.barrier is not None
        pending = next((_pending(self.kernel, stmt, store) for store in self.deferred), None)
        if pending is not None:
            self.out.add(f"bulk_wait_read<{pending}>();")
        box = stmt.src
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        target = f"shared_address({self.tiles.slot(stmt.dst)})"
        name = _map(self.kernel, stmt).name
        self.out.add(f"tma_load_{len(box.shape)}d({target}, {name}, {where}, {self._slot(stmt.barrier)});")

    def _tma_store(self, stmt: Store, scope: Scope) -> None:
        box = stmt.dst
        by_tma = all(
            isinstance(s, Load) and s.by is Copy.TMA
            for s in walk(self.kernel.body)
            if (w := written(s)) is not None and w.tensor == stmt.src.tensor
        )
        if not by_tma:
            self.out.add("fence_proxy_async();")
            self.out.add(scope.sync)
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        self.out.open(f"if (thread == {scope.first})")
        source = f"shared_address({self.tiles.slot(stmt.src)})"
        self.out.add(f"tma_store_{len(box.shape)}d({_map(self.kernel, stmt).name}, {where}, {source});")
        self.out.add("bulk_commit();")
        if stmt not in self.deferred:
            self.out.add("bulk_wait_read<0>();")
        self.out.close()

    def _matmul(self, stmt: Matmul, scope: Scope) -> None:
        acc = stmt.acc.tensor
        layout = self.tiles.registers[acc]
        assert isinstance(layout, Fragment)
        a, b = self.kernel.tensor(stmt.a.tensor), self.kernel.tensor(stmt.b.tensor)
        groups = scope.threads // 128
        out = self.out
        out.open()
        group = f"{scope.thread} / 128" if groups > 1 else "0"
        out.add("__syncwarp();")
        out.add(f"const unsigned long long a_ = matrix_descriptor(shared_address({self.tiles.slot(stmt.a)}));")
        out.add(f"const unsigned long long b_ = matrix_descriptor(shared_address({self.tiles.slot(stmt.b)}));")
        out.add("wgmma_fence();")
        out.add(UNROLL)
        out.open(f"for (int block_ = 0; block_ < {layout.blocks}; ++block_)")
        out.add(UNROLL)
        out.add(f"for (int k_ = 0; k_ < {a.tile[1] // 16}; ++k_)")
        # A block of 64 rows has 64 * 128 bytes, 512 units of a descriptor; 16 elements along k have 2 units.
        name = wgmma_name(b.tile[0], _ptx_kind(self.kernel, stmt))
        out.add(f"  {name}({acc}[block_], a_ + (block_ * {groups} + {group}) * 512 + k_ * 2, b_ + k_ * 2);")
        out.close()
        out.add("wgmma_commit();")
        if self.lagging:
            out.add("wgmma_wait<1>();")
        else:
            out.add("wgmma_wait<0>();")
            self._settle(stmt)
        out.close()

    def _settle(self, stmt: Matmul) -> None:
        layout = self.tiles.registers[stmt.acc.tensor]
        assert isinstance(layout, Fragment)
        for block in range(layout.blocks):
            self.out.add(f"settle({stmt.acc.tensor}[{block}]);")

    def _slot(self, barrier: BarrierSlot) -> str:
        slot = emit_index(barrier.slot, 2)
        return barrier.name if slot == "0" else f"{barrier.name} + {slot} * {BARRIER_BYTES}"

    def _barrier(self, stmt: Stmt, scope: Scope) -> None:
        out = self.out
        match stmt:
            case AllocBarrier():
                pass
            case InitBarrier():
                out.add(self._every_slot(stmt.name, f"mbarrier_init({{}}, {stmt.count});"))
            case Invalidate():
                out.add(self._every_slot(stmt.name, "mbarrier_inval({});"))
            case FenceBarrierInit():
                out.add("fence_mbarrier_init();")
            case FenceProxy():
                out.add("fence_proxy_async();")
            case ArriveExpect():
                out.add(f"mbarrier_arrive_expect_tx({self._slot(stmt.barrier)}, {stmt.bytes});")
            case Arrive():
                out.add(f"mbarrier_arrive({self._slot(stmt.barrier)});")
            case ArriveCopies():
                out.add(f"copy_async_arrive({self._slot(stmt.barrier)});")
            case WaitParity():
                out.add(f"mbarrier_wait({self._slot(stmt.barrier)}, {emit_index(stmt.parity)});")
            case Sync():
                out.add(scope.sync)
            case _:
                raise PipelineError(f"no CUDA for {type(stmt).__name__}")

    def _every_slot(self, name: str, call: str) -> str:
        slots = self.layout.of(name).slots
        if slots == 1:
            return call.format(name)
        return f"for (int s_ = 0; s_ < {slots}; ++s_) {call.format(f'{name} + s_ * {BARRIER_BYTES}')}"


def _ptx_kind(kernel: Kernel, stmt: Matmul) -> str:
    return "bf16" if kernel.tensor(stmt.a.tensor).dtype == bf16 else "f16"


def _touching(body: tuple[Stmt, ...], name: str) -> Iterator[Stmt]:
    for stmt in walk(body):
        target = written(stmt)
        if (target is not None and target.tensor == name) or name in {b.tensor for b in read(stmt)}:
            yield stmt


def _hoisted(loop: For) -> tuple[Reduce, ...]:
    """Reductions that threads may combine once after the loop: nothing else in it touches their destinations."""
    found: dict[str, Reduce] = {}
    for stmt in walk(loop.body):
        if isinstance(stmt, Reduce) and stmt.dst.tensor not in found:
            same = (
                isinstance(s, Reduce) and (s.op, s.dst, s.shape) == (stmt.op, stmt.dst, stmt.shape)
                for s in _touching(loop.body, stmt.dst.tensor)
            )
            if all(same):
                found[stmt.dst.tensor] = stmt
    return tuple(found.values())


def _lagging_releases(kernel: Kernel, loop: For) -> tuple[str, ...]:
    """Barriers whose arrival may come a step late, so that two matrix products are in flight.

    A loop with one matmul, whose sums nothing else in it touches, and releases of rings of two stages or more that
    nothing but the matmul reads.
    """
    products = [s for s in loop.body if isinstance(s, Matmul)]
    if len(products) != 1 or not kernel.loader_threads:
        return ()
    (product,) = products
    operands = {product.a.tensor, product.b.tensor}
    if any(isinstance(s, Block) and not isinstance(s, ElectOne) for s in loop.body):
        return ()
    if any(len(list(_touching(loop.body, name))) > 1 for name in (product.acc.tensor, *operands)):
        return ()
    if any((kernel.tensor(name).stages or 1) < 2 for name in operands):
        return ()
    released = [b.barrier.name for s in loop.body if isinstance(s, ElectOne) for b in s.body if isinstance(b, Arrive)]
    of = {s.name: s.tensor for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
    return tuple(name for name in released if of[name] in operands)


def _deferred_stores(kernel: Kernel) -> frozenset[Store]:
    """The one store by TMA, if it empties a ring that only TMA fills, directly in the loop that loads ahead.

    The thread that stores issues the loads too, so it may wait there: before a load, for the stores out of its slot.
    """
    stores = {s for s in walk(kernel.body) if isinstance(s, Store) and s.by is Copy.TMA}
    if len(stores) != 1 or kernel.loader_threads:
        return frozenset()
    (store,) = stores
    loads = [s for s in walk(kernel.body) if isinstance(s, Load) and s.dst.tensor == store.src.tensor]
    ahead = [s for s in loads if _pending(kernel, s, store) is not None]
    held = [s for s in walk(kernel.body) if isinstance(s, For) and store in s.body]
    with_load = [loop for loop in held if set(ahead) & set(walk(loop.body))]
    by_tma = all(s.by is Copy.TMA for s in loads)
    return frozenset(stores) if by_tma and ahead and with_load and kernel.tensor(store.src.tensor).stages else frozenset()


def _pending(kernel: Kernel, load: Load, store: Store) -> int | None:
    """Stores that need not have been read when ``load`` begins; None if it does not fill the ring that they empty.

    Worked example, 4 stages, prefetch 2: at step 6 the load is of step 8, into the slot of step 4. Steps 0 to 5 have
    been stored; all but the newest one must have been read: ``4 - 1 - 2``.
    """
    ahead, here = load.dst.slot, store.src.slot
    stages = kernel.tensor(load.dst.tensor).stages
    if load.dst.tensor != store.src.tensor or ahead is None or here is None or stages is None:
        return None
    for prefetch in range(stages):
        names = (ahead.left, here.left) if isinstance(ahead, Binary) and isinstance(here, Binary) else (ahead, here)
        if names[0] == names[1] + prefetch:
            return stages - 1 - prefetch
    return None
