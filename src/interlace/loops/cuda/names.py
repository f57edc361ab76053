"""What the CUDA text calls things, so that a kernel may use any name: ``NULL``, ``int``, ``rest``, ``thread``.

What has a name in the kernel ends in an underscore in the text: its function, and its tensors, extents and variables,
those of the rewrite (barriers, steps) among them. Nothing else in the text does, neither keywords and macros of CUDA,
nor the functions of the preamble, nor what the emitter declares for itself; and no name in a kernel does.

    tensor x                x_              its map             x_map_16x256
    extent n                n_              the parameter       n_given
    barriers x_s_full       x_s_full_       the slot before     x_s_full_before
    sums acc                acc_            a thread's part     acc_part
"""

from __future__ import annotations

import re

from interlace.core.errors import PipelineError
from interlace.loops.ir.statements import For, Let, LoopKernel
from interlace.loops.ir.traverse import walk


def mangle(name: str) -> str:
    """What the text calls ``name``, which something has in the kernel."""
    return f"{name}_"


def check_names(kernel: LoopKernel) -> None:
    """Checks that names are words of C++.

    Raises:
        PipelineError: one is not, or begins or ends in an underscore.
    """
    inside = [t.name for t in kernel.tensors] + list(kernel.symbols)
    inside += [s.var for s in walk(kernel.body) if isinstance(s, For | Let)]
    for name in (kernel.name, *inside):
        if not re.fullmatch(r"[A-Za-z]\w*(?<!_)", name, re.ASCII):
            raise PipelineError(
                f"kernel {kernel.name!r}: {name!r} is no name for CUDA C++; "
                "use letters, digits and underscores, no underscore at the ends"
            )
