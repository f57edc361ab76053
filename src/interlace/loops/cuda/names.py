"""Name mangling in CUDA source, so that a kernel may use any name, such as ``NULL``, ``int``, ``rest`` or ``thread``.

Every name of the kernel gets a trailing underscore in the CUDA source: its function, tensors, extents and variables,
including those that the rewrite adds (barriers, steps). Nothing else in the source ends in an underscore: neither
keywords and macros of CUDA, nor functions of the preamble, nor what the emitter declares. Names in a kernel may not end
in one either.

    tensor x                x_              its map             x_map_16x256
    extent n                n_              the parameter       n_given
    barriers x_s_full       x_s_full_       previous slot       x_s_full_before
    accumulators acc        acc_            thread's partial    acc_part
"""

from __future__ import annotations

import re

from interlace.core.errors import PipelineError
from interlace.loops.ir.statements import For, Let, LoopKernel
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
