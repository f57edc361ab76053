"""Kernels as plain loops over tiles, and the compiler pass that lowers them to TMA and mbarrier pipelines.

``frontend`` is the user interface, on the statements of ``ir`` under the rules of ``rules``. ``rewrite`` produces loops
that load ahead. ``meaning`` interprets a kernel before and after the rewrite, and ``proof`` shows that nothing can race
or hang. ``cuda`` writes CUDA C++, compiles and launches it, and ``ops`` makes graph ops. The names below are the public
API.
"""

from __future__ import annotations

from interlace.loops.cuda.compiled import CompiledKernel, KernelLaunch, compile_kernel
from interlace.loops.cuda.emit import emit_kernel
from interlace.loops.frontend import library
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.frontend.triton import convert_triton
from interlace.loops.ir.index import Index, Var, ceil_div, maximum, minimum
from interlace.loops.ir.smem import lay_out
from interlace.loops.ir.statements import Copy, LoopKernel, MemorySpace, ReduceOp
from interlace.loops.ir.text import print_kernel
from interlace.loops.ir.values import (
    Box,
    Coord,
    Value,
    compare_less,
    exp,
    rsqrt,
    select_larger,
    select_smaller,
    sqrt,
    tanh,
    where,
)
from interlace.loops.meaning.interpret import interpret
from interlace.loops.ops.op import as_op
from interlace.loops.proof.hazards import HazardReport, check_hazards
from interlace.loops.proof.prove import ProofCoverage, prove
from interlace.loops.rewrite.circular import circular_buffer, lower
from interlace.loops.rewrite.shared import share_ring

__all__ = [
    "Box",
    "Builder",
    "CompiledKernel",
    "Coord",
    "Copy",
    "Handle",
    "HazardReport",
    "Index",
    "KernelLaunch",
    "LoopKernel",
    "MemorySpace",
    "ProofCoverage",
    "ReduceOp",
    "Value",
    "Var",
    "as_op",
    "ceil_div",
    "check_hazards",
    "circular_buffer",
    "compare_less",
    "compile_kernel",
    "convert_triton",
    "emit_kernel",
    "exp",
    "interpret",
    "lay_out",
    "library",
    "lower",
    "maximum",
    "minimum",
    "print_kernel",
    "prove",
    "rsqrt",
    "select_larger",
    "select_smaller",
    "share_ring",
    "sqrt",
    "tanh",
    "where",
]
