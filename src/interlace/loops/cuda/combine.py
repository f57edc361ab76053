"""The last step of a reduction: combine the partial results of threads.

Worked example, 8 x 256 over 128 threads, 32 across and 4 down. In a reduction along rows, the 32 lanes of a warp hold
partials of the same rows; five shuffles combine them. In a reduction along columns, lane ``l`` of all four warps holds
partials of the same columns. Each writes its partial to shared memory and reads all four.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.loops.cuda.lines import UNROLL, Lines, ThreadScope
from interlace.loops.cuda.register_layout import BlockedLayout
from interlace.loops.ir.statements import Reduce, ReduceOp

NEUTRAL = {ReduceOp.SUM: "0.0f", ReduceOp.MAX: "-INFINITE"}


@dataclass(frozen=True)
class Partial:
    """A reduction in progress: every thread has its partial result in ``<dst>_part``."""

    reduce: Reduce

    @property
    def name(self) -> str:
        return f"{self.reduce.dst.tensor}_part"


def combine_neighbours(out: Lines, partial: Partial, count: int, width: int, scope: ThreadScope) -> int:
    """Combine the partials of ``width`` adjacent threads: by shuffles within a warp, then through shared memory.

    Returns:
        Bytes of shared memory that this needs.
    """
    op, name = partial.reduce.op, partial.name
    lanes = min(width, 32)
    out.add_line(UNROLL)
    out.open(f"for (int k = 0; k < {count}; ++k)")
    out.add_line(UNROLL)
    out.add_line(f"for (int distance = {lanes // 2}; distance; distance /= 2)")
    other = f"__shfl_xor_sync(0xffffffff, {name}[k], distance)"
    out.add_line(f"  {name}[k] = {emit_combine(op, f'{name}[k]', other)};")
    out.close()
    if width <= 32:
        return 0
    warps, each = scope.threads // 32, width // 32
    out.add_line(UNROLL)
    out.add_line(f"for (int k = 0; k < {count}; ++k)")
    out.add_line(f"  if ({scope.thread} % 32 == 0) scratch[k * {warps} + {scope.thread} / 32] = {name}[k];")
    out.add_line(scope.sync)
    out.add_line(UNROLL)
    out.open(f"for (int k = 0; k < {count}; ++k)")
    out.add_line(f"const float* const of = scratch + k * {warps} + {scope.thread} / {width} * {each};")
    out.add_line(f"{name}[k] = of[0];")
    out.add_line(UNROLL)
    out.add_line(f"for (int i = 1; i < {each}; ++i) {name}[k] = {emit_combine(op, f'{name}[k]', 'of[i]')};")
    out.close()
    out.add_line(scope.sync)
    return 4 * warps * count


def combine_groups(out: Lines, partial: Partial, count: int, layout: BlockedLayout, scope: ThreadScope) -> int:
    """Combine the partials of threads at the same position of every group, through shared memory.

    Returns:
        Bytes of shared memory that this needs.
    """
    op, name = partial.reduce.op, partial.name
    out.add_line(UNROLL)
    out.add_line(f"for (int k = 0; k < {count}; ++k) scratch[k * {layout.threads} + {scope.thread}] = {name}[k];")
    out.add_line(scope.sync)
    out.add_line(UNROLL)
    out.open(f"for (int k = 0; k < {count}; ++k)")
    out.add_line(f"const float* const of = scratch + k * {layout.threads} + {scope.thread} % {layout.threads_per_row};")
    out.add_line(f"{name}[k] = of[0];")
    out.add_line(UNROLL)
    other = f"of[i * {layout.threads_per_row}]"
    out.add_line(f"for (int i = 1; i < {layout.thread_rows}; ++i) {name}[k] = {emit_combine(op, f'{name}[k]', other)};")
    out.close()
    out.add_line(scope.sync)
    return 4 * layout.threads * count


def emit_combine(op: ReduceOp, a: str, b: str) -> str:
    return f"{a} + {b}" if op is ReduceOp.SUM else f"larger({a}, {b})"
