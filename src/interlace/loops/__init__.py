"""Kernels as plain loops over tiles, and the compiler pass that lowers them to TMA and mbarrier pipelines.

``frontend`` is the user interface, on the statements of ``ir`` under the rules of ``rules``. ``rewrite`` produces loops
that load ahead. ``meaning`` interprets a kernel before and after the rewrite, and ``proof`` shows that nothing can race
or hang. ``cuda`` writes CUDA C++, compiles and launches it, and ``ops`` makes graph ops. The names below are the public
API.
"""

from __future__ import annotations

from interlace.loops.cuda.compiled import Compiled, Launch, compile_kernel
from interlace.loops.cuda.emit import emit_kernel
from interlace.loops.frontend import library
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import Index, Var, ceil_div, maximum, minimum
from interlace.loops.ir.smem import lay_out
from interlace.loops.ir.statements import Copy, LoopKernel, Memory, ReduceOp
from interlace.loops.ir.text import print_kernel
from interlace.loops.ir.values import Box, Coord, Value, exp, larger, less, rsqrt, smaller, sqrt, tanh, where
from interlace.loops.meaning.interpret import interpret
from interlace.loops.ops.op import as_op
from interlace.loops.proof.hazards import Checked, check_hazards
from interlace.loops.proof.prove import Proved, prove
from interlace.loops.rewrite.circular import circular_buffer, lower
from interlace.loops.rewrite.shared import share_ring

__all__ = [
    "Box",
    "Builder",
    "Checked",
    "Compiled",
    "Coord",
    "Copy",
    "Handle",
    "Index",
    "Launch",
    "LoopKernel",
    "Memory",
    "Proved",
    "ReduceOp",
    "Value",
    "Var",
    "as_op",
    "ceil_div",
    "check_hazards",
    "circular_buffer",
    "compile_kernel",
    "emit_kernel",
    "exp",
    "interpret",
    "larger",
    "lay_out",
    "less",
    "library",
    "lower",
    "maximum",
    "minimum",
    "print_kernel",
    "prove",
    "rsqrt",
    "share_ring",
    "smaller",
    "sqrt",
    "tanh",
    "where",
]
