"""A kernel of loops as a part of the one launch: a C++ type with a function for each role of its walk.

    roles = emit_roles(share_ring(copy_2d(), ahead={"x"}), H200)
    roles.text        struct Loops_1f2e3d4c { prefetch(...), load(...), compute(...) };

What the functions call (``open_prefetch``, ``await_stage``, ``post``, ...) stands in ``csrc/ring/ring.cuh``, which
composes them. A stage has a slot for what is loaded ahead of waits and one for the rest; tiles lie in theirs one behind
the other, in the order in which their step loads them. Worked example, a step that loads ``w_s`` (4096 bytes, ahead),
and ``a_s`` and ``b_s`` (1024 and 2048 bytes, behind):

    prefetch slot       w_s from byte 0                          of 4096 bytes
    load slot           a_s from byte 0, b_s from byte 1024      of 3072 bytes

An item takes at least one stage: without steps an empty one. So consumers see through its first stage what the item
waits for, and only then run anything. Tiles that no ring holds lie in the scratch that all of a block's consumers have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.kernels.abi import AXES, TENSOR_MAP, Struct
from interlace.kernels.cuda.ptx import generate_wgmma
from interlace.loops.cuda.emit import Emitter, find_products
from interlace.loops.cuda.indices import emit_index
from interlace.loops.cuda.lines import ThreadScope
from interlace.loops.cuda.names import mangle
from interlace.loops.cuda.rules import TensorMapSpec, check_emittable, find_map_spec, list_tensor_maps
from interlace.loops.cuda.tile_functions import INDICES, VALUES
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

#: What the text of a launch has before all kernels of one namespace.
PREAMBLE = INDICES + VALUES
_SHARED = "shared_memory + RING_BYTES"
#: Bytes: slots of the ring, whatever is cut from them, lie at multiples of so many.
_SLOT_STEP = 1024


@dataclass(frozen=True)
class StageSlots:
    """Where the tiles of each step lie in the slots of their stage.

    Attributes:
        offsets: bytes from the beginning of the slot, by tile.
        bytes: of each role's slot, by the section that fills it.
    """

    offsets: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True)
class RoleSource:
    """A kernel's part in a launch.

    Attributes:
        type: the C++ type.
        functions: texts that define it and what it needs beside ``PREAMBLE``.
        operands: what a launch has of each op: tensor maps, pointers, extents.
        slots: what the ring has of it.
        scratch_bytes: of the shared memory that all consumers have together.
        register_elements: float32 elements that all consumers have in register tiles.
    """

    type: str
    functions: tuple[str, ...]
    operands: Struct
    slots: StageSlots
    scratch_bytes: int
    register_elements: int


def emit_roles(kernel: LoopKernel, device: DeviceSpec, *, read_only: bool = False) -> RoleSource:
    """The text of a kernel that ``shared.share_ring`` returned; ``read_only``: no launch writes what is loaded ahead.

    Raises:
        PipelineError: something that the emitter does not take; the message says what to change.
        SharedMemoryError: tiles beside the ring need more shared memory than a block of ``device`` may use.
    """
    check_emittable(kernel)
    sections = {s.name: s.body for s in walk(kernel.body) if isinstance(s, Section)}
    slots, maps = _lay_out_slots(kernel, sections), list_tensor_maps(kernel)
    consumers = replace(kernel, body=sections[CONSUMERS])
    in_slots = replace(consumers, tensors=tuple(t for t in kernel.tensors if t.name not in slots.offsets))
    first = _Consumers(consumers, lay_out(in_slots, device), slots, sections)
    first.emit_role()
    layout = lay_out(in_slots, device, scratch_bytes=first.tiles.scratch_bytes)  # known only now
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
    """What a launch has of each op of a kernel: maps, pointers, extents."""
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
    """What all roles have: an item's coordinates and extents, and at least one stage."""

    #: The function, and its parameters behind launch and item.
    name, parameters = "", ""

    def __init__(
        self, kernel: LoopKernel, layout: SharedLayout, slots: StageSlots, sections: dict[str, tuple[Stmt, ...]]
    ) -> None:
        super().__init__(kernel, layout, items=True)
        self.slots, self.sections = slots, sections
        self.scope = ThreadScope(0, kernel.threads, "thread", "synchronise_block();", "group")

    def emit_function(self, loops: tuple[For, ...], maps: Sequence[TensorMapSpec]) -> None:
        """The whole function, given the block loops around the sections."""
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
        """Those of the role."""
        raise NotImplementedError

    def _emit_entry(self) -> None:
        """What stands before anything of the operands is read."""

    def _emit_pointers(self) -> None:
        """Of tensors that the role touches itself."""

    def _emit_exit(self) -> None:
        """The end of the function."""

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
    """Opens stages with the bytes of what it loads into them."""

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
    """Loads what no op before it writes: behind the launch before, which may have written it, and before waits."""

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
    """Loads what nothing writes: before the launch before has ended."""

    def _emit_entry(self) -> None:
        pass


class _PostWaitLoader(_Loader):
    """Loads all else: the item's waits are over."""

    name, parameters = "load", "int k_lo, int k_hi, Stage& stage"
    section, kind = POST_WAIT, "load"

    def _emit_open(self, step_bytes: int) -> None:
        self.out.add_line(f"open_load(stage, {step_bytes});")


class _Consumers(_Role):
    """Computes and stores."""

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
        # What the item waits for is seen behind its first stage.
        out.add_line("await(load_full(stage.slot), stage.phase);")
        # The scratch is one for all warpgroups: none begins before all others have left theirs, or goes on before them.
        out.add_line("if (WARPGROUPS > 1) synchronise_block();")
        self._declare_registers()

    @property
    def register_elements(self) -> int:
        """Float32 elements of register tiles, of all threads."""
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
