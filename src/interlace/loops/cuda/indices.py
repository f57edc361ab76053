"""Names and index expressions of a kernel as CUDA C++, in 32-bit integers.

Names are mangled, so that a kernel may use any, such as ``NULL``, ``int``, ``rest`` or ``thread``. Every name of the
kernel gets a trailing underscore in the CUDA source: its function, tensors, extents and variables, including those that
the rewrite adds (barriers, steps). Nothing else in the source ends in an underscore: neither keywords and macros of
CUDA, nor functions of the preamble, nor what the emitter declares. Names in a kernel may not end in one either.

    tensor x                x_              its map             x_map_16x256
    extent n                n_              the parameter       n_given
    barriers x_s_full       x_s_full_       previous slot       x_s_full_before
    accumulators acc        acc_            thread's partial    acc_part

Division in C rounds towards zero, in the IR down; they differ only below 0. Dividends that are known not to be negative
use ``quotient`` and ``rest``, which divide unsigned (a shift or a mask for powers of two). All others use
``floor_quotient`` and ``floor_rest``. Worked example, slot and parity of the step three ahead in a ring of four:

    (i + 3) % 4            rest(i_ + 3, 4)
    (i + 3) // 4 % 2       rest(quotient(i_ + 3, 4), 2)
    (m - b + 131) // 132   floor_quotient(m_ - b_ + 131, 132)
"""

from __future__ import annotations

import re

from interlace.core.errors import PipelineError
from interlace.loops.ir.index import BinaryIndex, Const, Index, IndexOp, Less, Var, is_never_negative
from interlace.loops.ir.statements import For, Let, LoopKernel, LoopTensor
from interlace.loops.ir.traverse import walk


def mangle(name: str) -> str:
    """Return the name in CUDA source of a kernel's ``name``."""
    return f"{name}_"


def check_names(kernel: LoopKernel) -> None:
    """Check that names are C++ identifiers.

    Raises:
        PipelineError: a name is no C++ identifier, or begins or ends in an underscore.
    """
    inside = [t.name for t in kernel.tensors] + list(kernel.symbols)
    inside += [s.var for s in walk(kernel.body) if isinstance(s, For | Let)]
    for name in (kernel.name, *inside):
        if not re.fullmatch(r"[A-Za-z]\w*(?<!_)", name, re.ASCII):
            raise PipelineError(
                f"kernel {kernel.name!r}: {name!r} is no name for CUDA C++; "
                "use letters, digits and underscores, no underscore at the ends"
            )


_BINDING = {IndexOp.ADD: 1, IndexOp.SUB: 1, IndexOp.MUL: 2}
_CALLS = {IndexOp.MIN: "min", IndexOp.MAX: "max", IndexOp.FLOORDIV: "quotient", IndexOp.MOD: "rest"}


def emit_index(index: Index, outer: int = 0) -> str:
    """Return ``index`` as an expression, in parentheses if it binds weaker than ``outer`` (1 sums, 2 products)."""
    if isinstance(index, Const):
        return str(index.value)
    if isinstance(index, Var):
        return mangle(index.name)
    assert isinstance(index, BinaryIndex)
    if index.op in _CALLS:
        name = _CALLS[index.op]
        if index.op in (IndexOp.FLOORDIV, IndexOp.MOD) and not is_never_negative(index.left):
            name = f"floor_{name}"
        return f"{name}({emit_index(index.left)}, {emit_index(index.right)})"
    binding = _BINDING[index.op]
    text = f"{emit_index(index.left, binding)} {index.op.value} {emit_index(index.right, binding + 1)}"
    return f"({text})" if binding < outer else text


def emit_less(condition: Less) -> str:
    """Return ``condition`` as an expression."""
    return f"{emit_index(condition.left)} < {emit_index(condition.right)}"


def emit_address(tensor: LoopTensor, offset: str) -> str:
    """Return the address of the element at ``offset`` of a global tensor."""
    return f"{mangle(tensor.name)} + ({offset})"


def emit_row_major(coordinates: list[str], extents: list[str], *, wide: bool = False) -> str:
    """Return the row-major offset of an element, in 64 bits if ``wide``."""
    offset = ""
    for place, extent in zip(coordinates, extents, strict=True):
        if not offset:
            offset = f"(long long)({place})" if wide else place
        elif offset == "0":
            offset = place
        else:
            offset = f"({offset}) * {extent} + {place}"
    return offset
