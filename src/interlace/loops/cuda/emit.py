"""From a rewritten kernel to CUDA C++ text.

    lowered = lower(circular_buffer(copy_2d(), "s", stages=4))
    emitted = emit_kernel(lowered, H200)
    print(emitted.text)

The text has one function, whose parameters are the pointers of the global tensors, then the tensor maps of ``maps``,
then the run-time extents. For items of a plan a ``Sync`` follows: each block waits for what its item needs, takes its
tile coordinates for the block loops, and posts. Others may then write inputs meanwhile, so no pointer is restricted.

Statements of the IR become PTX one by one; the thread that issues a bulk copy is the first of its scope. Two statements
may wait less than the IR says, where nothing can tell: a matmul whose stage a consumer releases one step later (two
products are in flight), and a store by TMA out of a ring whose next load waits until that store has been read.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.kernels.abi import AXES
from interlace.kernels.cuda.ptx import registers_at_entry, wgmma, wgmma_name
from interlace.loops.cuda.barriers import barrier_slot, emit_barrier
from interlace.loops.cuda.combine import Partial
from interlace.loops.cuda.indices import emit_index, emit_less
from interlace.loops.cuda.lines import UNROLL, Lines, Scope
from interlace.loops.cuda.names import own
from interlace.loops.cuda.preamble import PRODUCTS
from interlace.loops.cuda.rules import MapSpec, check_emittable, map_of, tensor_maps
from interlace.loops.cuda.spread import Fragment, spread_registers
from interlace.loops.cuda.tiles import Tiles
from interlace.loops.ir.index import Index
from interlace.loops.ir.nest import block_loops
from interlace.loops.ir.smem import SCRATCH, SharedLayout, lay_out
from interlace.loops.ir.statements import (
    AllocBarrier,
    Arrive,
    Copy,
    ElectOne,
    For,
    If,
    Let,
    Load,
    LoopKernel,
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
)
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.peepholes import (
    deferred_stores,
    filled_by_tma,
    hoisted,
    lagging_releases,
    overlapping_product,
    pending_stores,
)

#: Shared memory through which a block learns the number of its run.
ITEM_BYTES = 8


@dataclass(frozen=True)
class Emitted:
    """A kernel as text, and what a launch needs to know.

    Attributes:
        maps: tensor maps, in the order of the parameters.
        grid: extents of the block loops, to be evaluated under the run-time extents; blocks are numbered through.
    """

    kernel: LoopKernel
    text: str
    maps: tuple[MapSpec, ...]
    layout: SharedLayout
    grid: tuple[Index, ...]


def emit_kernel(kernel: LoopKernel, device: DeviceSpec, *, items: bool = False) -> Emitted:
    """The text of a kernel that ``circular.lower`` returned; ``items``: for items of a plan.

    Raises:
        PipelineError: something that the emitter does not take; the message says what to change.
        SharedMemoryError: more shared memory than a block of ``device`` may use.
    """
    check_emittable(kernel)
    layout = lay_out(kernel, device)
    first = Emitter(kernel, layout, items)
    first.body()
    scratch_bytes = max(first.tiles.scratch_bytes, ITEM_BYTES if items else 0)  # known only now
    if scratch_bytes:
        layout = lay_out(kernel, device, scratch_bytes=scratch_bytes)
    emitter = Emitter(kernel, layout, items)
    emitter.body()
    maps = tensor_maps(kernel)
    grid = tuple(loop.stop for loop in block_loops(kernel)[0])
    return Emitted(kernel, emitter.text(maps), maps, layout, grid)


class Emitter:
    """Walks the statements of one kernel."""

    def __init__(self, kernel: LoopKernel, layout: SharedLayout, items: bool) -> None:
        self.kernel = kernel
        self.items = items
        self.layout = layout
        self.out = Lines()
        sizes = [t.dtype.itemsize for t in kernel.tensors if t.memory is not Memory.REGISTER]
        itemsize = max(sizes, default=4)
        placed = {p.name: p.slot_bytes for p in layout.placed}
        registers = spread_registers(kernel, itemsize)
        self.tiles = Tiles(kernel, self.out, registers, itemsize, placed)
        self.open: dict[str, Partial] = {}
        self.lagging: set[str] = set()
        self.late_store: Store | None = None
        self.deferred = deferred_stores(kernel)

    def body(self) -> None:
        """The inside of the function."""
        kernel, out = self.kernel, self.out
        out.depth = 1
        for symbol in kernel.symbols:
            out.add(f"const int {own(symbol)} = (int){symbol}_given;")
        if self.layout.total_bytes:
            out.add("extern __shared__ __align__(1024) unsigned char shared[];")
        barriers = {s.name for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
        for placed in self.layout.placed:
            if placed.name == SCRATCH:
                out.add(f"float* const scratch = reinterpret_cast<float*>(shared + {placed.offset_bytes});")
            elif placed.name in barriers:
                out.add(f"const unsigned {own(placed.name)} = shared_address(shared + {placed.offset_bytes});")
            else:
                out.add(f"unsigned char* const {own(placed.name)} = shared + {placed.offset_bytes};")
        out.add("const int thread = threadIdx.x;")
        scope = Scope(0, kernel.block_threads, "thread", "__syncthreads();")
        if not any(isinstance(s, Role) for s in walk(kernel.body)):
            self._registers()
        if self.items:
            out.add("const Item item = begin_item(sync, reinterpret_cast<unsigned long long*>(scratch));")
        loops, body = block_loops(kernel)
        self._blocks(loops)
        self._statements(body, scope)
        if any(isinstance(s, Store) and s.by is Copy.TMA for s in walk(kernel.body)):
            out.add("bulk_wait<0>();")
        if self.items:
            out.add("end_item(sync, item);")

    def text(self, maps: tuple[MapSpec, ...]) -> str:
        """The whole text."""
        kernel = self.kernel
        restrict = "" if self.items else "__restrict__ "
        parameters = [
            f"{'' if t.written else 'const '}{t.dtype}* {restrict}{own(t.name)}"
            for t in kernel.tensors
            if t.memory is Memory.GLOBAL
        ]
        parameters += [f"const __grid_constant__ TensorMap {m.name}" for m in maps]
        parameters += [f"long long {symbol}_given" for symbol in kernel.symbols]
        if self.items:
            parameters.append("const __grid_constant__ Sync sync")
        lines = [wgmma(n, kind) for n, kind in products(kernel) if (n, kind) not in PRODUCTS]
        # One block per SM is all that is requested: else ptxas spills to fit one more than shared memory allows.
        lines.append(f'extern "C" __global__ void __launch_bounds__({kernel.block_threads}, 1)')
        function = own(kernel.name)
        lines.append(f"    {function}({(',' + chr(10) + '     ' + ' ' * len(function)).join(parameters)}) {{")
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
            case For() if stmt.kind is LoopKind.THREAD:
                var = own(stmt.var)
                head = f"int {var} = {scope.thread}; {var} < {emit_index(stmt.stop)}"
                self._block(f"for ({head}; {var} += {scope.threads})", stmt.body, scope.one)
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
            case AllocBarrier():
                pass
            case Let():
                self.out.add(f"const int {own(stmt.var)} = {emit_index(stmt.value)};")
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
                self.out.add(emit_barrier(stmt, scope, self.layout))

    def _blocks(self, loops: tuple[For, ...]) -> None:
        """Blocks are numbered as the loops would run: the innermost variable changes fastest."""
        if self.items:
            for axis, loop in enumerate(loops):
                self.out.add(f"const int {own(loop.var)} = item.{AXES[axis]};")
            return
        number = "blockIdx.x"
        for loop in reversed(loops[1:]):
            extent = emit_index(loop.stop)
            self.out.add(f"const int {own(loop.var)} = rest({number}, {extent});")
            number = f"quotient({number}, {extent})"
        if loops:
            self.out.add(f"const int {own(loops[0].var)} = {number};")

    def _block(self, head: str, body: tuple[Stmt, ...], scope: Scope) -> None:
        self.out.open(head)
        self._statements(body, scope)
        self.out.close()

    def _for(self, loop: For, scope: Scope) -> None:
        reductions = [Partial(r) for r in hoisted(loop) if r.dst.tensor not in self.open]
        if reductions:
            self.out.open()
        for partial in reductions:
            self.tiles.begin(partial)
            self.open[partial.reduce.dst.tensor] = partial
        product = self._overlapping(loop)
        if product is not None:
            self._settle(product)  # else ptxas moves the zeros between products and serialises these
        self.out.add(UNROLL if loop.kind is LoopKind.UNROLLED else f"{UNROLL} 1")
        var = own(loop.var)
        head = f"for (int {var} = {emit_index(loop.start)}; {var} < {emit_index(loop.stop)}; ++{var})"
        self._block(head, loop.body, scope)
        if product is not None:
            self.out.add("wgmma_wait<0>();")
            self._settle(product)
            self.out.add("__syncwarp();")
            self._release_late()
            self.lagging = set()
        for partial in reductions:
            self.tiles.finish(partial, scope)
            del self.open[partial.reduce.dst.tensor]
        if reductions:
            self.out.close()

    def _overlapping(self, loop: For) -> Matmul | None:
        """The product of which two are in flight in a loop; what it releases late is in ``lagging`` until its end."""
        lag = lagging_releases(self.kernel, loop)
        for name in lag:
            self.out.add(f"unsigned {name}_before = 0;")
        self.lagging = set(lag)
        return overlapping_product(self.kernel, loop) if lag else None

    def _release_late(self) -> None:
        for name in sorted(self.lagging):
            self.out.add(f"if (thread % 32 == 0 && {name}_before) mbarrier_arrive({name}_before);")

    def _role(self, role: Role) -> None:
        consumer = role.kind is RoleKind.CONSUMER
        self.out.add(f"// {role.kind.value}")
        low = f"thread >= {role.first} && " if role.first else ""
        self.out.open(f"if ({low}thread < {role.first + role.threads})")
        change = "raise" if role.registers >= registers_at_entry(self.kernel.block_threads) else "lower"
        self.out.add(f"registers_{change}<{role.registers}>();")
        place = "thread" if role.first == 0 else "place"
        if role.first:
            self.out.add(f"const int place = thread - {role.first};")
        if consumer:
            self._registers()
        self._statements(
            role.body, Scope(role.first, role.threads, place, f"named_barrier({1 if consumer else 2}, {role.threads});")
        )
        if not consumer:
            self.out.add("__syncwarp();")  # one of its threads may have been away
        self.out.close()

    def _elect(self, stmt: ElectOne, scope: Scope) -> None:
        late = [s for s in stmt.body if isinstance(s, Arrive) and s.barrier.name in self.lagging]
        for arrive in late:
            before = f"{arrive.barrier.name}_before"
            self.out.add(f"if (thread % 32 == 0 && {before}) mbarrier_arrive({before});")
            self.out.add(f"{before} = {barrier_slot(arrive.barrier)};")
        now = tuple(s for s in stmt.body if s not in late)
        if not now:
            return
        if stmt.per is Per.WARP:
            self.out.add("__syncwarp();")
        condition = f"thread == {scope.first}" if stmt.per is Per.SCOPE else "thread % 32 == 0"
        self._block(f"if ({condition})", now, scope)

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
        pending = next((pending_stores(self.kernel, stmt, store) for store in self.deferred), None)
        if pending is not None:
            self.out.add(f"bulk_wait_read<{pending}>();")
        box = stmt.src
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        target = f"shared_address({self.tiles.slot(stmt.dst)})"
        name = map_of(self.kernel, stmt).name
        self.out.add(f"tma_load_{len(box.shape)}d({target}, {name}, {where}, {barrier_slot(stmt.barrier)});")

    def _tma_store(self, stmt: Store, scope: Scope) -> None:
        box = stmt.dst
        if not filled_by_tma(self.kernel, stmt.src.tensor):
            self.out.add("fence_proxy_async();")
            self.out.add(scope.sync)
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        self.out.open(f"if (thread == {scope.first})")
        source = f"shared_address({self.tiles.slot(stmt.src)})"
        self.out.add(f"tma_store_{len(box.shape)}d({map_of(self.kernel, stmt).name}, {where}, {source});")
        self.out.add("bulk_commit();")
        if stmt not in self.deferred:
            self.out.add(f"bulk_wait_read<{int(stmt == self.late_store)}>();")
        self.out.close()

    def _matmul(self, stmt: Matmul, scope: Scope) -> None:
        acc = stmt.acc.tensor
        layout = self.tiles.registers[acc]
        assert isinstance(layout, Fragment)
        a, b = self.kernel.tensor(stmt.a.tensor), self.kernel.tensor(stmt.b.tensor)
        groups = scope.threads // 128
        out = self.out
        out.open()
        group = (scope.warpgroup or f"{scope.thread} / 128") if groups > 1 else "0"
        out.add("__syncwarp();")
        out.add(f"const unsigned long long a = matrix_descriptor(shared_address({self.tiles.slot(stmt.a)}));")
        out.add(f"const unsigned long long b = matrix_descriptor(shared_address({self.tiles.slot(stmt.b)}));")
        out.add("wgmma_fence();")
        out.add(UNROLL)
        out.open(f"for (int block = 0; block < {layout.blocks}; ++block)")
        out.add(UNROLL)
        out.add(f"for (int k = 0; k < {a.tile[1] // 16}; ++k)")
        # A block of 64 rows has 64 * 128 bytes, 512 units of a descriptor; 16 elements along k have 2 units.
        name = wgmma_name(b.tile[0], _ptx_kind(self.kernel, stmt))
        out.add(f"  {name}({own(acc)}[block], a + (block * {groups} + {group}) * 512 + k * 2, b + k * 2);")
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
            self.out.add(f"settle({own(stmt.acc.tensor)}[{block}]);")


def products(kernel: LoopKernel) -> list[tuple[int, str]]:
    """Columns and element types of a kernel's matrix products, each once."""
    return sorted({(s.acc.shape[1], _ptx_kind(kernel, s)) for s in walk(kernel.body) if isinstance(s, Matmul)})


def _ptx_kind(kernel: LoopKernel, stmt: Matmul) -> str:
    return kernel.tensor(stmt.a.tensor).dtype.ptx
