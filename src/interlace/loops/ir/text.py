"""Kernels as readable text, stable enough for golden files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from interlace.core.text import format_count
from interlace.loops.ir.index import BinaryIndex, Const, Index, IndexOp, Less, Var
from interlace.loops.ir.statements import (
    AllocBarrier,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Block,
    DoneStage,
    ElectionScope,
    ElectOne,
    FenceBarrierInit,
    FenceProxy,
    For,
    If,
    InitBarrier,
    Invalidate,
    Let,
    Load,
    LoopKernel,
    LoopKind,
    LoopTensor,
    Matmul,
    MemorySpace,
    NextStage,
    Pointwise,
    Reduce,
    Role,
    Section,
    Stmt,
    Store,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.values import Apply, Box, Coord, FromIndex, ReadBox, Scalar, Value, ValueOp

_BINDING = {IndexOp.ADD: 1, IndexOp.SUB: 1, IndexOp.MUL: 2, IndexOp.FLOORDIV: 2, IndexOp.MOD: 2}
_INFIX = {ValueOp.ADD: 1, ValueOp.SUB: 1, ValueOp.MUL: 2, ValueOp.DIV: 2, ValueOp.LESS: 0}


def print_kernel(kernel: LoopKernel) -> str:
    """Return the kernel as text, one statement per line."""
    threads = f"{kernel.threads} threads"
    if kernel.loader_threads:
        threads += f" and {kernel.loader_threads} that load"
    lines = [f"kernel {kernel.name}({', '.join(kernel.symbols)}), {threads}"]
    lines += ["  " + _format_tensor(kernel, tensor) for tensor in kernel.tensors]
    tiles = {t.name: t.tile for t in kernel.tensors if t.memory is not MemorySpace.GLOBAL}
    _Printer(tiles, lines).print_body(kernel.body, 1)
    return "\n".join(lines) + "\n"


def print_index(index: Index) -> str:
    """Return an index expression as text."""
    return _format_index(index, 0)


def _format_tensor(kernel: LoopKernel, tensor: LoopTensor) -> str:
    shape = ", ".join(print_index(n) for n in tensor.shape)
    text = f"{tensor.memory.value} {tensor.name}[{shape}] {tensor.dtype}"
    if tensor.memory is MemorySpace.GLOBAL:
        text += ", written" if tensor.is_written else ""
    if tensor.swizzle_bytes:
        text += f", swizzled by {tensor.swizzle_bytes} bytes"
    if tensor.stages is not None:
        text += f", {format_count(tensor.stages, 'slot')}"
    ring = kernel.find_ring(tensor.name)
    if ring is not None:
        text += f", circular: {format_count(ring.stages, 'stage')}, prefetch {ring.prefetch}"
    return text


@dataclass(frozen=True)
class _Printer:
    """Printer of statements to ``lines``; a box of a whole tile (shapes in ``tiles``) prints as the name alone."""

    tiles: Mapping[str, tuple[int, ...]]
    lines: list[str]

    def print_body(self, body: tuple[Stmt, ...], depth: int) -> None:
        for stmt in body:
            text = "  " * depth + self.format_line(stmt)
            if not isinstance(stmt, Block):
                self.lines.append(text)
            elif isinstance(stmt, ElectOne) and len(stmt.body) == 1 and not isinstance(stmt.body[0], Block):
                self.lines.append(f"{text}: {self.format_line(stmt.body[0])}")
            else:
                self.lines.append(text + ":")
                self.print_body(stmt.body, depth + 1)

    def format_line(self, stmt: Stmt) -> str:
        match stmt:
            case For():
                start = "" if stmt.start == Const(0) else f"{print_index(stmt.start)} .. "
                kind = "" if stmt.kind is LoopKind.SERIAL else f", {stmt.kind.value}"
                return f"for {stmt.var} in {start}{print_index(stmt.stop)}{kind}"
            case If():
                return f"if {_format_less(stmt.condition)}"
            case Load():
                barrier = "" if stmt.barrier is None else f", completes {_format_barrier(stmt.barrier)}"
                return f"{self.format_box(stmt.dst)} = {stmt.by.value} load {self.format_box(stmt.src)}{barrier}"
            case Store():
                return f"{self.format_box(stmt.dst)} = {stmt.by.value} store {self.format_box(stmt.src)}"
            case Pointwise():
                return f"{self.format_box(stmt.dst)} = {self.format_value(stmt.value, 0)}"
            case Reduce():
                axes = ", ".join(map(str, stmt.axes))
                shape = " x ".join(map(str, stmt.shape))
                over = f"axes {axes} of {shape}" if len(stmt.axes) > 1 else f"axis {axes} of {shape}"
                return f"{self.format_box(stmt.dst)} {stmt.op.value}= {self.format_value(stmt.value, 0)} over {over}"
            case Matmul():
                return f"{self.format_box(stmt.acc)} += {self.format_box(stmt.a)} @ {self.format_box(stmt.b)}.T"
            case ElectOne():
                return "one thread" if stmt.per is ElectionScope.SCOPE else "one thread of each warp"
            case Role():
                last = stmt.first + stmt.threads - 1
                return f"{stmt.kind.value}, threads {stmt.first} .. {last}, {stmt.registers} registers"
            case Section():
                return stmt.name
            case Let():
                return f"let {stmt.var} = {print_index(stmt.value)}"
        return _format_barrier_line(stmt)

    def format_box(self, box: Box) -> str:
        slot = "" if box.slot is None else "{" + print_index(box.slot) + "}"
        if self.tiles.get(box.tensor) == box.shape and all(o == Const(0) for o in box.origin):
            return box.tensor + slot
        ranges = ", ".join(f"{print_index(o)} : +{n}" for o, n in zip(box.origin, box.shape, strict=True))
        return f"{box.tensor}{slot}[{ranges}]"

    def format_value(self, value: Value, outer: int) -> str:
        match value:
            case Scalar():
                return f"{value.number:g}"
            case FromIndex():
                return f"float({print_index(value.index)})"
            case Coord():
                return f"coord{value.axis}"
            case ReadBox():
                return self.format_box(value.box)
        assert isinstance(value, Apply)
        if value.op is ValueOp.NEG:
            return f"-{self.format_value(value.args[0], 3)}"
        if value.op not in _INFIX:
            return f"{value.op.value}({', '.join(self.format_value(a, 0) for a in value.args)})"
        binding = _INFIX[value.op]
        left, right = value.args
        text = f"{self.format_value(left, binding)} {value.op.value} {self.format_value(right, binding + 1)}"
        return f"({text})" if binding < outer else text


def _format_barrier_line(stmt: Stmt) -> str:
    match stmt:
        case AllocBarrier():
            return f"barriers {stmt.name}{{{stmt.slots}}} for {stmt.tensor}"
        case InitBarrier():
            return f"init {stmt.name}, {format_count(stmt.count, 'arrival')}"
        case FenceBarrierInit():
            return "fence barrier init"
        case FenceProxy():
            return "fence proxy"
        case ArriveExpect():
            return f"arrive {_format_barrier(stmt.barrier)}, expect {stmt.bytes} bytes"
        case Arrive():
            return f"arrive {_format_barrier(stmt.barrier)}"
        case ArriveCopies():
            return f"arrive {_format_barrier(stmt.barrier)} when copies have landed"
        case WaitParity():
            return f"wait {_format_barrier(stmt.barrier)}, parity {print_index(stmt.parity)}"
        case Invalidate():
            return f"invalidate {stmt.name}"
        case SyncScope():
            return "sync"
        case NextStage():
            return f"next stage: {', '.join(stmt.tiles)}"
        case DoneStage():
            return "stage done"
    raise TypeError(f"no text for {type(stmt).__name__}")


def _format_barrier(barrier: BarrierSlot) -> str:
    return f"{barrier.name}{{{print_index(barrier.slot)}}}"


def _format_less(condition: Less) -> str:
    return f"{print_index(condition.left)} < {print_index(condition.right)}"


def _format_index(index: Index, outer: int) -> str:
    if isinstance(index, Const):
        return str(index.value)
    if isinstance(index, Var):
        return index.name
    assert isinstance(index, BinaryIndex)
    if index.op in (IndexOp.MIN, IndexOp.MAX):
        return f"{index.op.value}({_format_index(index.left, 0)}, {_format_index(index.right, 0)})"
    binding = _BINDING[index.op]
    # All operators but + and * are left-associative: a right operand of equal precedence needs parentheses.
    text = f"{_format_index(index.left, binding)} {index.op.value} {_format_index(index.right, binding + 1)}"
    return f"({text})" if binding < outer else text
