"""Emit CUDA source for a rewritten kernel.

    lowered = lower(circular_buffer(copy_2d(), "s", stages=4))
    emitted = emit_kernel(lowered, H200)
    print(emitted.cuda_source)

The CUDA source has one function. Its parameters are the pointers of the global tensors, then the tensor maps of
``maps``, then the run-time extents. For items of a plan a ``Sync`` follows: each block waits for its item's
dependencies, uses the item's tile coordinates in place of the block loops, and posts. Other blocks may then write
inputs concurrently, so no pointer is ``__restrict__``.

Each statement of the IR becomes PTX on its own. The first thread of a scope issues its bulk copies. Two statements wait
for less than the IR demands, where no difference can be observed. A matmul leaves two products in flight if consumers
release its stage one step later. A TMA store from a ring does not wait if the next load of its slot waits until the
store has read the slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.kernels.abi import AXES
from interlace.kernels.cuda.ptx import count_entry_registers, generate_wgmma, get_wgmma_name
from interlace.loops.cuda.barriers import emit_barrier, emit_barrier_slot
from interlace.loops.cuda.combine import Partial
from interlace.loops.cuda.indices import emit_index, emit_less, mangle
from interlace.loops.cuda.lines import UNROLL, Lines, ThreadScope
from interlace.loops.cuda.preamble import ITEM_BYTES, PRODUCTS
from interlace.loops.cuda.register_layout import Fragment, lay_out_registers
from interlace.loops.cuda.rules import (
    TensorMapSpec,
    check_emittable,
    find_map_spec,
    find_products,
    find_ptx_kind,
    list_tensor_maps,
)
from interlace.loops.cuda.tiles import TileEmitter
from interlace.loops.ir.index import Index
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.smem import SCRATCH, SharedLayout, lay_out
from interlace.loops.ir.statements import (
    AllocBarrier,
    Arrive,
    Copy,
    ElectionScope,
    ElectOne,
    For,
    If,
    Let,
    Load,
    LoopKernel,
    LoopKind,
    Matmul,
    MemorySpace,
    Pointwise,
    Reduce,
    Role,
    RoleKind,
    Section,
    Stmt,
    Store,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.peepholes import (
    count_pending_stores,
    find_deferred_stores,
    find_hoistable,
    find_lagging_releases,
    find_overlapping_product,
    is_filled_by_tma,
)


@dataclass(frozen=True)
class EmittedKernel:
    """CUDA source of a kernel with the facts that a launch needs.

    Attributes:
        maps: tensor maps, in the order of the parameters.
        grid: extents of the block loops, to be evaluated with the run-time extents; block numbers are linear.
    """

    kernel: LoopKernel
    cuda_source: str
    maps: tuple[TensorMapSpec, ...]
    layout: SharedLayout
    grid: tuple[Index, ...]


def emit_kernel(kernel: LoopKernel, device: DeviceSpec, *, items: bool = False) -> EmittedKernel:
    """Emit the CUDA source of a kernel that ``circular.lower`` returned.

    Args:
        items: True if each block runs an item of a plan.

    Raises:
        PipelineError: the emitter does not support a construct; the message states what to change.
        SharedMemoryError: the kernel needs more shared memory than a block of ``device`` may use.
    """
    check_emittable(kernel)
    layout = lay_out(kernel, device)
    first = Emitter(kernel, layout, items)
    first.emit_body()
    scratch_bytes = max(first.tiles.scratch_bytes, ITEM_BYTES if items else 0)  # known only after the first emission
    if scratch_bytes:
        layout = lay_out(kernel, device, scratch_bytes=scratch_bytes)
    emitter = Emitter(kernel, layout, items)
    emitter.emit_body()
    maps = list_tensor_maps(kernel)
    grid = tuple(loop.stop for loop in split_block_loops(kernel)[0])
    return EmittedKernel(kernel, emitter.emit_source(maps), maps, layout, grid)


class Emitter:
    """Emitter of the statements of one kernel."""

    def __init__(self, kernel: LoopKernel, layout: SharedLayout, items: bool) -> None:
        self.kernel = kernel
        self.items = items
        self.layout = layout
        self.out = Lines()
        sizes = [t.dtype.itemsize for t in kernel.tensors if t.memory is not MemorySpace.REGISTER]
        itemsize = max(sizes, default=4)
        placed = {p.name: p.slot_bytes for p in layout.placements}
        registers = lay_out_registers(kernel, itemsize)
        self.tiles = TileEmitter(kernel, self.out, registers, itemsize, placed)
        self.open: dict[str, Partial] = {}
        self.lagging: set[str] = set()
        self.late_store: Store | None = None
        self.deferred = find_deferred_stores(kernel)

    def emit_body(self) -> None:
        """Emit the body of the function."""
        kernel, out = self.kernel, self.out
        out.depth = 1
        for symbol in kernel.symbols:
            out.add_line(f"const int {mangle(symbol)} = (int){symbol}_given;")
        if self.layout.total_bytes:
            out.add_line("extern __shared__ __align__(1024) unsigned char shared[];")
        barriers = {s.name for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
        for placed in self.layout.placements:
            if placed.name == SCRATCH:
                out.add_line(f"float* const scratch = reinterpret_cast<float*>(shared + {placed.offset_bytes});")
            elif placed.name in barriers:
                out.add_line(f"const unsigned {mangle(placed.name)} = shared_address(shared + {placed.offset_bytes});")
            else:
                out.add_line(f"unsigned char* const {mangle(placed.name)} = shared + {placed.offset_bytes};")
        out.add_line("const int thread = threadIdx.x;")
        scope = ThreadScope(0, kernel.block_threads, "thread", "__syncthreads();")
        if not any(isinstance(s, Role) for s in walk(kernel.body)):
            self._declare_registers()
        if self.items:
            out.add_line("const Item item = begin_item(sync, reinterpret_cast<unsigned long long*>(scratch));")
        loops, body = split_block_loops(kernel)
        self._emit_blocks(loops)
        self._emit_statements(body, scope)
        if any(isinstance(s, Store) and s.by is Copy.TMA for s in walk(kernel.body)):
            out.add_line("bulk_wait<0>();")
        if self.items:
            out.add_line("end_item(sync, item);")

    def emit_source(self, maps: tuple[TensorMapSpec, ...]) -> str:
        """Return the complete CUDA source."""
        kernel = self.kernel
        restrict = "" if self.items else "__restrict__ "
        parameters = [
            f"{'' if t.is_written else 'const '}{t.dtype}* {restrict}{mangle(t.name)}"
            for t in kernel.tensors
            if t.memory is MemorySpace.GLOBAL
        ]
        parameters += [f"const __grid_constant__ TensorMap {m.name}" for m in maps]
        parameters += [f"long long {symbol}_given" for symbol in kernel.symbols]
        if self.items:
            parameters.append("const __grid_constant__ Sync sync")
        lines = [generate_wgmma(n, kind) for n, kind in find_products(kernel) if (n, kind) not in PRODUCTS]
        # Request one block per SM only. Otherwise ptxas spills to fit one more block than shared memory allows.
        lines.append(f'extern "C" __global__ void __launch_bounds__({kernel.block_threads}, 1)')
        function = mangle(kernel.name)
        lines.append(f"    {function}({(',' + chr(10) + '     ' + ' ' * len(function)).join(parameters)}) {{")
        return "\n".join([*lines, *self.out.render(), "}"]) + "\n"

    def _declare_registers(self) -> None:
        for tensor in self.kernel.tensors:
            if tensor.memory is MemorySpace.REGISTER:
                self.tiles.declare(tensor)

    def _emit_statements(self, body: tuple[Stmt, ...], scope: ThreadScope) -> None:
        for stmt in body:
            self._emit_statement(stmt, scope)

    def _emit_statement(self, stmt: Stmt, scope: ThreadScope) -> None:
        match stmt:
            case For() if stmt.kind is LoopKind.THREAD:
                var = mangle(stmt.var)
                head = f"int {var} = {scope.thread}; {var} < {emit_index(stmt.stop)}"
                self._emit_block(f"for ({head}; {var} += {scope.threads})", stmt.body, scope.one_thread)
            case For():
                self._emit_for(stmt, scope)
            case If():
                self._emit_block(f"if ({emit_less(stmt.condition)})", stmt.body, scope)
            case Section():
                self.out.add_line(f"// {stmt.name}")
                self._emit_statements(stmt.body, scope)
                if any(s in self.deferred for s in walk(stmt.body)):
                    self.out.add_line(f"if (thread == {scope.first}) bulk_wait_read<0>();")
            case Role():
                self._emit_role(stmt)
            case ElectOne():
                self._emit_elect(stmt, scope)
            case AllocBarrier():
                pass
            case Let():
                self.out.add_line(f"const int {mangle(stmt.var)} = {emit_index(stmt.value)};")
            case Load() if stmt.by is Copy.TMA:
                self._emit_tma_load(stmt)
            case Load():
                self.tiles.emit_load(stmt, scope)
            case Store() if stmt.by is Copy.TMA:
                self._emit_tma_store(stmt, scope)
            case Store():
                self.tiles.emit_store(stmt, scope)
            case Pointwise():
                self.tiles.emit_pointwise(stmt, scope)
            case Reduce():
                self._emit_reduce(stmt, scope)
            case Matmul():
                self._emit_matmul(stmt, scope)
            case _:
                self.out.add_line(emit_barrier(stmt, scope, self.layout))

    def _emit_blocks(self, loops: tuple[For, ...]) -> None:
        """Emit the variables of the block loops from the block number; the innermost variable changes fastest."""
        if self.items:
            for axis, loop in enumerate(loops):
                self.out.add_line(f"const int {mangle(loop.var)} = item.{AXES[axis]};")
            return
        number = "blockIdx.x"
        for loop in reversed(loops[1:]):
            extent = emit_index(loop.stop)
            self.out.add_line(f"const int {mangle(loop.var)} = rest({number}, {extent});")
            number = f"quotient({number}, {extent})"
        if loops:
            self.out.add_line(f"const int {mangle(loops[0].var)} = {number};")

    def _emit_block(self, head: str, body: tuple[Stmt, ...], scope: ThreadScope) -> None:
        self.out.open(head)
        self._emit_statements(body, scope)
        self.out.close()

    def _emit_for(self, loop: For, scope: ThreadScope) -> None:
        reductions = [Partial(r) for r in find_hoistable(loop) if r.dst.tensor not in self.open]
        if reductions:
            self.out.open()
        for partial in reductions:
            self.tiles.begin(partial)
            self.open[partial.reduce.dst.tensor] = partial
        product = self._find_overlapping(loop)
        if product is not None:
            self._emit_settle(product)  # otherwise ptxas moves the zeros between products and serialises them
        self.out.add_line(UNROLL if loop.kind is LoopKind.UNROLLED else f"{UNROLL} 1")
        var = mangle(loop.var)
        head = f"for (int {var} = {emit_index(loop.start)}; {var} < {emit_index(loop.stop)}; ++{var})"
        self._emit_block(head, loop.body, scope)
        if product is not None:
            self.out.add_line("wgmma_wait<0>();")
            self._emit_settle(product)
            self.out.add_line("__syncwarp();")
            self._release_late()
            self.lagging = set()
        for partial in reductions:
            self.tiles.finish(partial, scope)
            del self.open[partial.reduce.dst.tensor]
        if reductions:
            self.out.close()

    def _find_overlapping(self, loop: For) -> Matmul | None:
        """Return the matmul that has two products in flight in a loop, if there is one.

        The barriers that it releases late are in ``lagging`` until the loop ends.
        """
        lag = find_lagging_releases(self.kernel, loop)
        for name in lag:
            self.out.add_line(f"unsigned {name}_before = 0;")
        self.lagging = set(lag)
        return find_overlapping_product(self.kernel, loop) if lag else None

    def _release_late(self) -> None:
        for name in sorted(self.lagging):
            self.out.add_line(f"if (thread % 32 == 0 && {name}_before) mbarrier_arrive({name}_before);")

    def _emit_role(self, role: Role) -> None:
        consumer = role.kind is RoleKind.CONSUMER
        self.out.add_line(f"// {role.kind.value}")
        low = f"thread >= {role.first} && " if role.first else ""
        self.out.open(f"if ({low}thread < {role.first + role.threads})")
        change = "raise" if role.registers >= count_entry_registers(self.kernel.block_threads) else "lower"
        self.out.add_line(f"registers_{change}<{role.registers}>();")
        place = "thread" if role.first == 0 else "place"
        if role.first:
            self.out.add_line(f"const int place = thread - {role.first};")
        if consumer:
            self._declare_registers()
        self._emit_statements(
            role.body,
            ThreadScope(role.first, role.threads, place, f"named_barrier({1 if consumer else 2}, {role.threads});"),
        )
        if not consumer:
            self.out.add_line("__syncwarp();")  # one of its threads may have diverged
        self.out.close()

    def _emit_elect(self, stmt: ElectOne, scope: ThreadScope) -> None:
        late = [s for s in stmt.body if isinstance(s, Arrive) and s.barrier.name in self.lagging]
        for arrive in late:
            before = f"{arrive.barrier.name}_before"
            self.out.add_line(f"if (thread % 32 == 0 && {before}) mbarrier_arrive({before});")
            self.out.add_line(f"{before} = {emit_barrier_slot(arrive.barrier)};")
        now = tuple(s for s in stmt.body if s not in late)
        if not now:
            return
        if stmt.per is ElectionScope.WARP:
            self.out.add_line("__syncwarp();")
        condition = f"thread == {scope.first}" if stmt.per is ElectionScope.SCOPE else "thread % 32 == 0"
        self._emit_block(f"if ({condition})", now, scope)

    def _emit_reduce(self, stmt: Reduce, scope: ThreadScope) -> None:
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

    def _emit_tma_load(self, stmt: Load) -> None:
        assert stmt.barrier is not None
        pending = next((count_pending_stores(self.kernel, stmt, store) for store in self.deferred), None)
        if pending is not None:
            self.out.add_line(f"bulk_wait_read<{pending}>();")
        box = stmt.src
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        target = f"shared_address({self.tiles.emit_slot(stmt.dst)})"
        name = find_map_spec(self.kernel, stmt).name
        self.out.add_line(f"tma_load_{len(box.shape)}d({target}, {name}, {where}, {emit_barrier_slot(stmt.barrier)});")

    def _emit_tma_store(self, stmt: Store, scope: ThreadScope) -> None:
        box = stmt.dst
        if not is_filled_by_tma(self.kernel, stmt.src.tensor):
            self.out.add_line("fence_proxy_async();")
            self.out.add_line(scope.sync)
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        self.out.open(f"if (thread == {scope.first})")
        source = f"shared_address({self.tiles.emit_slot(stmt.src)})"
        self.out.add_line(f"tma_store_{len(box.shape)}d({find_map_spec(self.kernel, stmt).name}, {where}, {source});")
        self.out.add_line("bulk_commit();")
        if stmt not in self.deferred:
            self.out.add_line(f"bulk_wait_read<{int(stmt == self.late_store)}>();")
        self.out.close()

    def _emit_matmul(self, stmt: Matmul, scope: ThreadScope) -> None:
        acc = stmt.acc.tensor
        layout = self.tiles.registers[acc]
        assert isinstance(layout, Fragment)
        a, b = self.kernel.find_tensor(stmt.a.tensor), self.kernel.find_tensor(stmt.b.tensor)
        groups = scope.threads // 128
        out = self.out
        out.open()
        group = (scope.warpgroup or f"{scope.thread} / 128") if groups > 1 else "0"
        out.add_line("__syncwarp();")
        out.add_line(f"const unsigned long long a = matrix_descriptor(shared_address({self.tiles.emit_slot(stmt.a)}));")
        out.add_line(f"const unsigned long long b = matrix_descriptor(shared_address({self.tiles.emit_slot(stmt.b)}));")
        out.add_line("wgmma_fence();")
        out.add_line(UNROLL)
        out.open(f"for (int block = 0; block < {layout.blocks}; ++block)")
        out.add_line(UNROLL)
        out.add_line(f"for (int k = 0; k < {a.tile[1] // 16}; ++k)")
        # A block of 64 rows has 64 * 128 bytes: 512 units of a descriptor. 16 elements along k are 2 units.
        name = get_wgmma_name(b.tile[0], find_ptx_kind(self.kernel, stmt))
        out.add_line(f"  {name}({mangle(acc)}[block], a + (block * {groups} + {group}) * 512 + k * 2, b + k * 2);")
        out.close()
        out.add_line("wgmma_commit();")
        if self.lagging:
            out.add_line("wgmma_wait<1>();")
        else:
            out.add_line("wgmma_wait<0>();")
            self._emit_settle(stmt)
        out.close()

    def _emit_settle(self, stmt: Matmul) -> None:
        layout = self.tiles.registers[stmt.acc.tensor]
        assert isinstance(layout, Fragment)
        for block in range(layout.blocks):
            self.out.add_line(f"settle({mangle(stmt.acc.tensor)}[{block}]);")
