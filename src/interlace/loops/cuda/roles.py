"""Emit a kernel of loops as an op of the megakernel: a C++ type with one function for each role.

    roles = emit_roles(share_ring(copy_2d(), ahead={"x"}), H200)
    roles.functions   struct Loops_1f2e3d4c { prefetch(...), load(...), compute(...) };

``csrc/ring/ring.cuh`` defines what these functions call (``open_prefetch``, ``await_stage``, ``post``, ...). A stage
has one slot for pre-wait loads and one for post-wait loads. The tiles of a slot are consecutive, in the order in which
their step loads them. Worked example, a step that loads ``w_s`` (4096 bytes, pre-wait), and ``a_s`` and ``b_s`` (1024
and 2048 bytes, post-wait):

    prefetch slot       w_s from byte 0                          of 4096 bytes
    load slot           a_s from byte 0, b_s from byte 1024      of 3072 bytes

An item has at least one stage; without steps it has an empty one. Consumers await the item's first stage before they
run anything, and so observe that the item's waits have completed. Tiles that are in no ring are in shared scratch
memory of the block's consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.kernels.abi import AXES, TENSOR_MAP, Struct
from interlace.kernels.cuda.ptx import generate_wgmma
from interlace.loops.cuda.emit import Emitter
from interlace.loops.cuda.indices import emit_index, mangle
from interlace.loops.cuda.lines import ThreadScope
from interlace.loops.cuda.preamble import INDICES, VALUES
from interlace.loops.cuda.rules import TensorMapSpec, check_emittable, find_map_spec, find_products, list_tensor_maps
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.smem import SCRATCH, SharedLayout, compute_slot_bytes, find_tile_align_bytes, lay_out
from interlace.loops.ir.statements import (
    Copy,
    DoneStage,
    For,
    Load,
    LoopKernel,
    LoopTensor,
    Matmul,
    MemorySpace,
    NextStage,
    Section,
    Stmt,
    Store,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.peepholes import find_overlapping_product, find_overlapping_store
from interlace.loops.rewrite.shared import CONSUMERS, POST_WAIT, PRE_WAIT

#: CUDA source that precedes all kernels of a megakernel in their namespace.
PREAMBLE = INDICES + VALUES
_SHARED = "shared_memory + RING_BYTES"
#: Alignment of the slots of the ring in bytes, however the ring is divided.
_SLOT_STEP = 1024


@dataclass(frozen=True)
class StageSlots:
    """Layout of the tiles of each step within the slots of their stage.

    Attributes:
        offsets: offset of each tile from the beginning of its slot in bytes.
        bytes: size of each slot in bytes, by the section that fills it.
    """

    offsets: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True)
class RoleSource:
    """CUDA source of a kernel as an op of a megakernel, with its resources.

    Attributes:
        type: name of the C++ type.
        functions: CUDA sources that define the type and what it needs in addition to ``PREAMBLE``.
        operands: struct of each op's operands: tensor maps, pointers, extents.
        slots: layout of its tiles in the slots of the ring.
        scratch_bytes: shared memory of all consumers together, in bytes.
        register_elements: number of float32 elements in register tiles of all consumers together.
    """

    type: str
    functions: tuple[str, ...]
    operands: Struct
    slots: StageSlots
    scratch_bytes: int
    register_elements: int


def emit_roles(kernel: LoopKernel, device: DeviceSpec, *, read_only: bool = False) -> RoleSource:
    """Emit the CUDA source of a kernel that ``shared.share_ring`` returned.

    Args:
        read_only: True if no launch writes the pre-wait inputs.

    Raises:
        PipelineError: the emitter does not support a construct; the message states what to change.
        SharedMemoryError: tiles outside the ring need more shared memory than a block of ``device`` may use.
    """
    check_emittable(kernel)
    sections = {s.name: s.body for s in walk(kernel.body) if isinstance(s, Section)}
    slots, maps = _lay_out_slots(kernel, sections), list_tensor_maps(kernel)
    consumers = replace(kernel, body=sections[CONSUMERS])
    in_slots = replace(consumers, tensors=tuple(t for t in kernel.tensors if t.name not in slots.offsets))
    first = _Consumers(consumers, lay_out(in_slots, device), slots, sections)
    first.emit_role()
    layout = lay_out(in_slots, device, scratch_bytes=first.tiles.scratch_bytes)  # known only after the first emission
    written: list[str] = []
    first_role = _ReadOnlyLoader if read_only else _PreWaitLoader
    for role in (first_role, _PostWaitLoader, _Consumers):
        emitter = role(consumers, layout, slots, sections)
        emitter.emit_function(split_block_loops(kernel)[0], maps)
        written += emitter.out.render()
    text = "\n".join(written)
    type_ = f"Loops_{sha256(text.encode()).hexdigest()[:8]}"
    functions = *(generate_wgmma(n, kind) for n, kind in find_products(consumers)), f"struct {type_} {{\n{text}\n}};\n"
    return RoleSource(type_, functions, build_operands(kernel), slots, layout.total_bytes, first.register_elements)


def build_operands(kernel: LoopKernel) -> Struct:
    """Build the struct of an op's operands: tensor maps, pointers, extents."""
    fields: list[tuple[str, Any]] = [(m.name, TENSOR_MAP) for m in list_tensor_maps(kernel)]
    fields += [
        (mangle(t.name), f"{_emit_const(t)}{t.dtype}*") for t in kernel.tensors if t.memory is MemorySpace.GLOBAL
    ]
    return Struct("Operands", (*fields, *((f"{symbol}_given", "int") for symbol in kernel.symbols)))


def _emit_const(tensor: LoopTensor) -> str:
    return "" if tensor.is_written else "const "


def _lay_out_slots(kernel: LoopKernel, sections: dict[str, tuple[Stmt, ...]]) -> StageSlots:
    offsets: dict[str, int] = {}
    most: dict[str, int] = {}
    for section in (PRE_WAIT, POST_WAIT):
        most[section] = 0
        for loop in walk(sections[section]):
            if not isinstance(loop, For):
                continue
            end = 0
            for tile in _find_loaded_tiles(kernel, loop.body):
                step = find_tile_align_bytes(tile)
                offsets[tile.name] = -(-end // step) * step
                end = offsets[tile.name] + compute_slot_bytes(tile)
            most[section] = max(most[section], -(-end // _SLOT_STEP) * _SLOT_STEP)
    return StageSlots(offsets, most)


def _find_loaded_tiles(kernel: LoopKernel, body: tuple[Stmt, ...]) -> list[LoopTensor]:
    return [kernel.find_tensor(stmt.dst.tensor) for stmt in body if isinstance(stmt, Load)]


class _Role(Emitter):
    """Base of all roles: emits an item's coordinates and extents, and ensures at least one stage."""

    #: Name of the function, and its parameters after launch and item.
    name, parameters = "", ""

    def __init__(
        self, kernel: LoopKernel, layout: SharedLayout, slots: StageSlots, sections: dict[str, tuple[Stmt, ...]]
    ) -> None:
        super().__init__(kernel, layout, items=True)
        self.slots, self.sections = slots, sections
        self.scope = ThreadScope(0, kernel.threads, "thread", "synchronise_block();", "group")

    def emit_function(self, loops: tuple[For, ...], maps: Sequence[TensorMapSpec]) -> None:
        """Emit the complete function, given the block loops around the sections."""
        out = self.out
        out.depth = 1
        parameters = f"const Launch& launch, const Item& item, {self.parameters}"
        out.open(f"DEVICE static void {self.name}({parameters})")
        self._emit_entry()
        out.add_line("const Operands& op = operands_of<Operands>(launch, item);")
        for spec in maps:
            out.add_line(f"const TensorMap& {spec.name} = op.{spec.name};")
        self._emit_pointers()
        for symbol in self.kernel.symbols:
            out.add_line(f"const int {mangle(symbol)} = op.{symbol}_given;")
        for axis, loop in enumerate(loops):
            out.add_line(f"const int {mangle(loop.var)} = item.{AXES[axis]};")
        out.add_line("bool any = false;")
        self.emit_role()
        out.open("if (!any)")
        self._open_stage(())
        self._finish_stage()
        out.close()
        self._emit_exit()
        out.close()

    def emit_role(self) -> None:
        """Emit the statements of the role."""
        raise NotImplementedError

    def _emit_entry(self) -> None:
        """Emit what must precede every access to the operands."""

    def _emit_pointers(self) -> None:
        """Emit pointers to tensors that the role accesses itself."""

    def _emit_exit(self) -> None:
        """Emit the end of the function."""

    def _open_stage(self, tiles: tuple[str, ...]) -> None:
        raise NotImplementedError

    def _finish_stage(self) -> None:
        raise NotImplementedError

    def _emit_statement(self, stmt: Stmt, scope: ThreadScope) -> None:
        match stmt:
            case NextStage():
                self.out.add_line("any = true;")
                self._open_stage(stmt.tiles)
            case DoneStage():
                self._finish_stage()
            case _:
                super()._emit_statement(stmt, scope)


class _Loader(_Role):
    """A role that loads tiles: it opens each stage with the number of bytes that it loads."""

    section, kind = "", ""

    def emit_role(self) -> None:
        self._emit_statements(self.sections[self.section], self.scope)

    def _count_step_bytes(self, tiles: tuple[str, ...]) -> int:
        mine = {s.dst.tensor for s in walk(self.sections[self.section]) if isinstance(s, Load)}
        return sum(self.kernel.find_tensor(name).tile_bytes for name in tiles if name in mine)

    def _open_stage(self, tiles: tuple[str, ...]) -> None:
        self._emit_open(self._count_step_bytes(tiles))
        self.out.add_line(f"const unsigned slot = {self.kind}_slot(stage.slot), full = {self.kind}_full(stage.slot);")

    def _emit_open(self, step_bytes: int) -> None:
        raise NotImplementedError

    def _finish_stage(self) -> None:
        self.out.add_line("stage.advance();")

    def _emit_tma_load(self, stmt: Load) -> None:
        box = stmt.src
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        name = find_map_spec(self.kernel, stmt).name
        target = f"slot + {self.slots.offsets[stmt.dst.tensor]}"
        self.out.add_line(f"if (first_lane()) tma_load_{len(box.shape)}d({target}, {name}, {where}, full);")


class _PreWaitLoader(_Loader):
    """Loader of pre-wait inputs, which no op before its own writes.

    It starts before the item's waits, but after the previous launch has ended, which may have written the inputs.
    """

    name, parameters = "prefetch", "Stage& stage, int& n, Tickets& tickets"
    section, kind = PRE_WAIT, "prefetch"

    def _emit_entry(self) -> None:
        if self.slots.bytes[PRE_WAIT]:
            self.out.add_line("await_launch_before();")
            self.out.add_line('asm volatile("fence.proxy.async.global;" ::: "memory");')

    def _emit_open(self, step_bytes: int) -> None:
        under_way = f"(IN_FLIGHT_BYTES + {step_bytes - 1}) / {step_bytes}" if step_bytes else "STAGES"
        self.out.add_line("tickets.look(launch);")
        self.out.add_line(f"open_prefetch(stage, n, {under_way}, {step_bytes});")

    def _finish_stage(self) -> None:
        super()._finish_stage()
        self.out.add_line("++n;")


class _ReadOnlyLoader(_PreWaitLoader):
    """Loader of read-only inputs, which no launch writes: it starts before the previous launch has ended."""

    def _emit_entry(self) -> None:
        pass


class _PostWaitLoader(_Loader):
    """Loader of post-wait inputs: it starts after the item's waits."""

    name, parameters = "load", "int k_lo, int k_hi, Stage& stage"
    section, kind = POST_WAIT, "load"

    def _emit_open(self, step_bytes: int) -> None:
        self.out.add_line(f"open_load(stage, {step_bytes});")


class _Consumers(_Role):
    """The consumers: they compute and store."""

    name, parameters = "compute", "Stage& stage"

    def _emit_pointers(self) -> None:
        out = self.out
        for tensor in self.kernel.tensors:
            if tensor.memory is MemorySpace.GLOBAL:
                out.add_line(
                    f"{_emit_const(tensor)}{tensor.dtype}* const {mangle(tensor.name)} = op.{mangle(tensor.name)};"
                )
        for placed in self.layout.placements:
            if placed.name == SCRATCH:
                out.add_line(f"float* const scratch = reinterpret_cast<float*>({_SHARED} + {placed.offset_bytes});")
            else:
                out.add_line(f"unsigned char* const {mangle(placed.name)} = {_SHARED} + {placed.offset_bytes};")
        out.add_line("const int thread = threadIdx.x;")
        out.add_line("const unsigned group = uniform(thread / 128);")
        # The item's waits have completed once its first stage is full.
        out.add_line("await(load_full(stage.slot), stage.phase);")
        # All warpgroups share the scratch: they enter and leave an item together.
        out.add_line("if (WARPGROUPS > 1) synchronise_block();")
        self._declare_registers()

    @property
    def register_elements(self) -> int:
        """Number of float32 elements in register tiles of all threads."""
        tiles = {t.name: t.tile for t in self.kernel.tensors if t.memory is MemorySpace.REGISTER}
        layouts = self.tiles.registers
        return self.scope.threads * sum(layouts[name].count_registers(tile) for name, tile in tiles.items())

    def emit_role(self) -> None:
        self._emit_statements(self.sections[CONSUMERS], self.scope)

    def _emit_exit(self) -> None:
        if any(isinstance(s, Store) and s.by is Copy.TMA for s in walk(self.kernel.body)):
            self.out.add_line("bulk_wait<0>();")
        self.out.add_line("if (WARPGROUPS > 1) synchronise_block();")

    def _open_stage(self, tiles: tuple[str, ...]) -> None:
        out = self.out
        out.add_line("await_stage(stage);")
        ahead = {s.dst.tensor for s in walk(self.sections[PRE_WAIT]) if isinstance(s, Load)}
        for name in tiles:
            slot = "stage.slot * PREFETCH_BYTES"
            if name not in ahead:
                slot = "STAGES * PREFETCH_BYTES + stage.slot * LOAD_BYTES"
            out.add_line(f"unsigned char* const {mangle(name)} = shared_memory + {slot} + {self.slots.offsets[name]};")

    def _finish_stage(self) -> None:
        self.out.add_line("__syncwarp();")
        if self.lagging:
            self.out.add_line("if (before >= 0) release(stage, before);")
            self.out.add_line("before = stage.slot;")
        else:
            self.out.add_line("release(stage, stage.slot);")
        self.out.add_line("stage.advance();")

    def _emit_for(self, loop: For, scope: ThreadScope) -> None:
        store = find_overlapping_store(loop)
        if store is None:
            super()._emit_for(loop, scope)
            return
        self.late_store, self.lagging = store, {"stage"}
        self.out.add_line("int before = -1;")
        super()._emit_for(loop, scope)
        self.out.add_line("if (thread == 0) bulk_wait_read<0>();")
        self.out.add_line("__syncwarp();")
        self._release_late()
        self.late_store, self.lagging = None, set()

    def _find_overlapping(self, loop: For) -> Matmul | None:
        product = find_overlapping_product(self.kernel, loop)
        stages = any(isinstance(s, DoneStage) for s in loop.body)
        if product is None or not stages:
            return None
        self.out.add_line("int before = -1;")
        self.lagging = {"stage"}
        return product

    def _release_late(self) -> None:
        self.out.add_line("if (before >= 0) release(stage, before);")
