"""A kernel of loops as a part of the one launch: a C++ type with a function for each role of its walk.

    roles = emit_roles(share_ring(copy_2d(), ahead={"x"}), H200)
    roles.text        struct Loops_1f2e3d4c { prefetch(...), load(...), compute(...) };

What the functions call (``open_prefetch``, ``await_stage``, ``post``, ...) stands in ``megakernel/walk``, which
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
from interlace.kernels.cuda.ptx import wgmma
from interlace.loops.cuda.emit import Emitter, products
from interlace.loops.cuda.indices import emit_index
from interlace.loops.cuda.lines import Scope
from interlace.loops.cuda.names import own
from interlace.loops.cuda.rules import MapSpec, check_emittable, map_of, tensor_maps
from interlace.loops.cuda.tile_functions import INDICES, VALUES
from interlace.loops.ir.nest import block_loops
from interlace.loops.ir.smem import SCRATCH, SharedLayout, lay_out, slot_bytes, tile_align_bytes
from interlace.loops.ir.statements import (
    Copy,
    DoneStage,
    For,
    Load,
    LoopKernel,
    Matmul,
    Memory,
    NextStage,
    Section,
    Stmt,
    Store,
    Tensor,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.peepholes import overlapping_product, overlapping_store
from interlace.loops.rewrite.shared import AHEAD, BEHIND, CONSUMERS

#: What the text of a launch has before all kernels of one namespace.
PREAMBLE = INDICES + VALUES
_SHARED = "shared_memory + RING_BYTES"
#: Bytes: slots of the ring, whatever is cut from them, lie at multiples of so many.
_SLOT_STEP = 1024


@dataclass(frozen=True)
class Slots:
    """Where the tiles of each step lie in the slots of their stage.

    Attributes:
        offsets: bytes from the beginning of the slot, by tile.
        bytes: of each role's slot, by the section that fills it.
    """

    offsets: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True)
class RoleText:
    """A kernel's part in a launch.

    Attributes:
        type: the C++ type.
        functions: texts that define it and what it needs beside ``PREAMBLE``.
        operands: what a launch has of each op: tensor maps, pointers, extents.
        slots: what the ring has of it.
        scratch_bytes: of the shared memory that all consumers have together.
        held: float32 elements that all consumers have in register tiles.
    """

    type: str
    functions: tuple[str, ...]
    operands: Struct
    slots: Slots
    scratch_bytes: int
    held: int


def emit_roles(kernel: LoopKernel, device: DeviceSpec, *, fixed: bool = False) -> RoleText:
    """The text of a kernel that ``shared.share_ring`` returned; ``fixed``: no launch writes what is loaded ahead.

    Raises:
        PipelineError: something that the emitter does not take; the message says what to change.
        SharedMemoryError: tiles beside the ring need more shared memory than a block of ``device`` may use.
    """
    check_emittable(kernel)
    sections = {s.name: s.body for s in walk(kernel.body) if isinstance(s, Section)}
    slots, maps = _cut(kernel, sections), tensor_maps(kernel)
    consumers = replace(kernel, body=sections[CONSUMERS])
    in_slots = replace(consumers, tensors=tuple(t for t in kernel.tensors if t.name not in slots.offsets))
    first = _Consumers(consumers, lay_out(in_slots, device), slots, sections)
    first.statements()
    layout = lay_out(in_slots, device, scratch_bytes=first.tiles.scratch_bytes)  # known only now
    written: list[str] = []
    first_role = _AheadOfAll if fixed else _Ahead
    for role in (first_role, _Behind, _Consumers):
        emitter = role(consumers, layout, slots, sections)
        emitter.function(block_loops(kernel)[0], maps)
        written += emitter.out.text()
    text = "\n".join(written)
    type_ = f"Loops_{sha256(text.encode()).hexdigest()[:8]}"
    functions = *(wgmma(n, kind) for n, kind in products(consumers)), f"struct {type_} {{\n{text}\n}};\n"
    return RoleText(type_, functions, operands(kernel), slots, layout.total_bytes, first.held)


def operands(kernel: LoopKernel) -> Struct:
    """What a launch has of each op of a kernel: maps, pointers, extents."""
    fields: list[tuple[str, Any]] = [(m.name, TENSOR_MAP) for m in tensor_maps(kernel)]
    fields += [(own(t.name), f"{_const(t)}{t.dtype}*") for t in kernel.tensors if t.memory is Memory.GLOBAL]
    return Struct("Operands", (*fields, *((f"{symbol}_given", "int") for symbol in kernel.symbols)))


def _const(tensor: Tensor) -> str:
    return "" if tensor.written else "const "


def _cut(kernel: LoopKernel, sections: dict[str, tuple[Stmt, ...]]) -> Slots:
    offsets: dict[str, int] = {}
    most: dict[str, int] = {}
    for section in (AHEAD, BEHIND):
        most[section] = 0
        for loop in walk(sections[section]):
            if not isinstance(loop, For):
                continue
            end = 0
            for tile in _loaded(kernel, loop.body):
                step = tile_align_bytes(tile)
                offsets[tile.name] = -(-end // step) * step
                end = offsets[tile.name] + slot_bytes(tile)
            most[section] = max(most[section], -(-end // _SLOT_STEP) * _SLOT_STEP)
    return Slots(offsets, most)


def _loaded(kernel: LoopKernel, body: tuple[Stmt, ...]) -> list[Tensor]:
    return [kernel.tensor(stmt.dst.tensor) for stmt in body if isinstance(stmt, Load)]


class _Role(Emitter):
    """What all roles have: an item's coordinates and extents, and at least one stage."""

    #: The function, and its parameters behind launch and item.
    name, parameters = "", ""

    def __init__(
        self, kernel: LoopKernel, layout: SharedLayout, slots: Slots, sections: dict[str, tuple[Stmt, ...]]
    ) -> None:
        super().__init__(kernel, layout, items=True)
        self.slots, self.sections = slots, sections
        self.scope = Scope(0, kernel.threads, "thread", "synchronise_block();", "group")

    def function(self, loops: tuple[For, ...], maps: Sequence[MapSpec]) -> None:
        """The whole function, given the block loops around the sections."""
        out = self.out
        out.depth = 1
        parameters = f"const Launch& launch, const Item& item, {self.parameters}"
        out.open(f"DEVICE static void {self.name}({parameters})")
        self._before()
        out.add("const Operands& op = operands_of<Operands>(launch, item);")
        for spec in maps:
            out.add(f"const TensorMap& {spec.name} = op.{spec.name};")
        self._pointers()
        for symbol in self.kernel.symbols:
            out.add(f"const int {own(symbol)} = op.{symbol}_given;")
        for axis, loop in enumerate(loops):
            out.add(f"const int {own(loop.var)} = item.{AXES[axis]};")
        out.add("bool any = false;")
        self.statements()
        out.open("if (!any)")
        self._open(())
        self._done()
        out.close()
        self._behind()
        out.close()

    def statements(self) -> None:
        """Those of the role."""
        raise NotImplementedError

    def _before(self) -> None:
        """What stands before anything of the operands is read."""

    def _pointers(self) -> None:
        """Of tensors that the role touches itself."""

    def _behind(self) -> None:
        """The end of the function."""

    def _open(self, tiles: tuple[str, ...]) -> None:
        raise NotImplementedError

    def _done(self) -> None:
        raise NotImplementedError

    def _statement(self, stmt: Stmt, scope: Scope) -> None:
        match stmt:
            case NextStage():
                self.out.add("any = true;")
                self._open(stmt.tiles)
            case DoneStage():
                self._done()
            case _:
                super()._statement(stmt, scope)


class _Loader(_Role):
    """Opens stages with the bytes of what it loads into them."""

    section, kind = "", ""

    def statements(self) -> None:
        self._statements(self.sections[self.section], self.scope)

    def _step_bytes(self, tiles: tuple[str, ...]) -> int:
        mine = {s.dst.tensor for s in walk(self.sections[self.section]) if isinstance(s, Load)}
        return sum(self.kernel.tensor(name).tile_bytes for name in tiles if name in mine)

    def _open(self, tiles: tuple[str, ...]) -> None:
        self._open_for(self._step_bytes(tiles))
        self.out.add(f"const unsigned slot = {self.kind}_slot(stage.slot), full = {self.kind}_full(stage.slot);")

    def _open_for(self, step_bytes: int) -> None:
        raise NotImplementedError

    def _done(self) -> None:
        self.out.add("stage.advance();")

    def _tma_load(self, stmt: Load) -> None:
        box = stmt.src
        where = ", ".join(emit_index(o) for o in reversed(box.origin))
        name = map_of(self.kernel, stmt).name
        target = f"slot + {self.slots.offsets[stmt.dst.tensor]}"
        self.out.add(f"if (first_lane()) tma_load_{len(box.shape)}d({target}, {name}, {where}, full);")


class _Ahead(_Loader):
    """Loads what no op before it writes: behind the launch before, which may have written it, and before waits."""

    name, parameters = "prefetch", "Stage& stage, int& n, Tickets& tickets"
    section, kind = AHEAD, "prefetch"

    def _before(self) -> None:
        if self.slots.bytes[AHEAD]:
            self.out.add("await_launch_before();")
            self.out.add('asm volatile("fence.proxy.async.global;" ::: "memory");')

    def _open_for(self, step_bytes: int) -> None:
        under_way = f"(IN_FLIGHT_BYTES + {step_bytes - 1}) / {step_bytes}" if step_bytes else "STAGES"
        self.out.add("tickets.look(launch);")
        self.out.add(f"open_prefetch(stage, n, {under_way}, {step_bytes});")

    def _done(self) -> None:
        super()._done()
        self.out.add("++n;")


class _AheadOfAll(_Ahead):
    """Loads what nothing writes: before the launch before has ended."""

    def _before(self) -> None:
        pass


class _Behind(_Loader):
    """Loads all else: the item's waits are over."""

    name, parameters = "load", "int k_lo, int k_hi, Stage& stage"
    section, kind = BEHIND, "load"

    def _open_for(self, step_bytes: int) -> None:
        self.out.add(f"open_load(stage, {step_bytes});")


class _Consumers(_Role):
    """Computes and stores."""

    name, parameters = "compute", "Stage& stage"

    def _pointers(self) -> None:
        out = self.out
        for tensor in self.kernel.tensors:
            if tensor.memory is Memory.GLOBAL:
                out.add(f"{_const(tensor)}{tensor.dtype}* const {own(tensor.name)} = op.{own(tensor.name)};")
        for placed in self.layout.placed:
            if placed.name == SCRATCH:
                out.add(f"float* const scratch = reinterpret_cast<float*>({_SHARED} + {placed.offset_bytes});")
            else:
                out.add(f"unsigned char* const {own(placed.name)} = {_SHARED} + {placed.offset_bytes};")
        out.add("const int thread = threadIdx.x;")
        out.add("const unsigned group = uniform(thread / 128);")
        # What the item waits for is seen behind its first stage.
        out.add("await(load_full(stage.slot), stage.phase);")
        # The scratch is one for all warpgroups: none begins before all others have left theirs, or goes on before them.
        out.add("if (WARPGROUPS > 1) synchronise_block();")
        self._registers()

    @property
    def held(self) -> int:
        """Float32 elements of register tiles, of all threads."""
        tiles = {t.name: t.tile for t in self.kernel.tensors if t.memory is Memory.REGISTER}
        layouts = self.tiles.registers
        return self.scope.threads * sum(layouts[name].registers(tile) for name, tile in tiles.items())

    def statements(self) -> None:
        self._statements(self.sections[CONSUMERS], self.scope)

    def _behind(self) -> None:
        if any(isinstance(s, Store) and s.by is Copy.TMA for s in walk(self.kernel.body)):
            self.out.add("bulk_wait<0>();")
        self.out.add("if (WARPGROUPS > 1) synchronise_block();")

    def _open(self, tiles: tuple[str, ...]) -> None:
        out = self.out
        out.add("await_stage(stage);")
        ahead = {s.dst.tensor for s in walk(self.sections[AHEAD]) if isinstance(s, Load)}
        for name in tiles:
            slot = "stage.slot * PREFETCH_BYTES"
            if name not in ahead:
                slot = "STAGES * PREFETCH_BYTES + stage.slot * LOAD_BYTES"
            out.add(f"unsigned char* const {own(name)} = shared_memory + {slot} + {self.slots.offsets[name]};")

    def _done(self) -> None:
        self.out.add("__syncwarp();")
        if self.lagging:
            self.out.add("if (before >= 0) release(stage, before);")
            self.out.add("before = stage.slot;")
        else:
            self.out.add("release(stage, stage.slot);")
        self.out.add("stage.advance();")

    def _for(self, loop: For, scope: Scope) -> None:
        store = overlapping_store(loop)
        if store is None:
            super()._for(loop, scope)
            return
        self.late_store, self.lagging = store, {"stage"}
        self.out.add("int before = -1;")
        super()._for(loop, scope)
        self.out.add("if (thread == 0) bulk_wait_read<0>();")
        self.out.add("__syncwarp();")
        self._release_late()
        self.late_store, self.lagging = None, set()

    def _overlapping(self, loop: For) -> Matmul | None:
        product = overlapping_product(self.kernel, loop)
        stages = any(isinstance(s, DoneStage) for s in loop.body)
        if product is None or not stages:
            return None
        self.out.add("int before = -1;")
        self.lagging = {"stage"}
        return product

    def _release_late(self) -> None:
        self.out.add("if (before >= 0) release(stage, before);")
