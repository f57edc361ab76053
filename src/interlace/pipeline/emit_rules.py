"""Which kernels the emitter takes, and the tensor maps that they need."""

from __future__ import annotations

import re
from dataclasses import dataclass

from interlace.core.errors import PipelineError
from interlace.pipeline.ir import Box, Copy, For, Kernel, Let, Load, Matmul, Store, walk

_KEYWORDS = frozenset(
    (
        "asm", "auto", "bool", "break", "case", "char", "class", "const", "continue", "default", "delete", "do",
        "double", "else", "enum", "extern", "false", "float", "for", "goto", "if", "inline", "int", "long", "new",
        "private", "public", "register", "return", "short", "signed", "sizeof", "static", "struct", "switch",
        "template", "this", "true", "typedef", "union", "unsigned", "void", "volatile", "while", "shared", "scratch",
        "thread", "place",
    )
)


@dataclass(frozen=True)
class MapSpec:
    """A tensor map that the host builds: which tensor, in boxes of which shape, with the 128-byte swizzle or not."""

    tensor: str
    box: tuple[int, ...]
    swizzled: bool

    @property
    def name(self) -> str:
        """The parameter."""
        return f"{self.tensor}_map_{'x'.join(map(str, self.box))}{'s' * self.swizzled}"


def check_emittable(kernel: Kernel) -> None:
    """What the emitter asks beside ``check_kernel``.

    Raises:
        PipelineError: a name, box or swizzle that it does not take.
    """
    names = [t.name for t in kernel.tensors] + [*kernel.symbols, kernel.name]
    names += [s.var for s in walk(kernel.body) if isinstance(s, For | Let)]
    for name in names:
        if not re.fullmatch(r"[A-Za-z]\w*(?<!_)", name, re.ASCII) or name in _KEYWORDS:
            raise PipelineError(
                f"kernel {kernel.name!r}: {name!r} is no name for CUDA C++; "
                "use letters, digits and underscores, no keyword, no underscore at the ends"
            )
    for stmt in walk(kernel.body):
        if isinstance(stmt, Load | Store) and stmt.by is Copy.TMA:
            box = _outside(stmt)
            if len(box.shape) > 3:
                raise PipelineError(f"TMA box of {box.tensor!r} has {len(box.shape)} dimensions; the emitter takes 3")
        if isinstance(stmt, Matmul):
            for tensor in (kernel.tensor(stmt.a.tensor), kernel.tensor(stmt.b.tensor)):
                if tensor.swizzle_bytes != 128 or tensor.tile[1] * tensor.dtype.itemsize != 128:
                    raise PipelineError(
                        f"matmul reads {tensor.name!r} {tensor.tile}: it takes 64 elements along k, "
                        "rows of 128 bytes, swizzled by 128 bytes"
                    )
    for tensor in kernel.tensors:
        if tensor.swizzle_bytes and (tensor.swizzle_bytes != 128 or tensor.tile[-1] * tensor.dtype.itemsize != 128):
            raise PipelineError(
                f"tensor {tensor.name!r}: swizzle of {tensor.swizzle_bytes} bytes; "
                "the emitter takes 128, with rows of 128 bytes"
            )


def _outside(stmt: Load | Store) -> Box:
    return stmt.src if isinstance(stmt, Load) else stmt.dst


def map_of(kernel: Kernel, stmt: Load | Store) -> MapSpec:
    """The map that a copy by TMA goes through."""
    inside = stmt.dst if isinstance(stmt, Load) else stmt.src
    box = _outside(stmt)
    return MapSpec(box.tensor, box.shape, kernel.tensor(inside.tensor).swizzle_bytes == 128)


def tensor_maps(kernel: Kernel) -> tuple[MapSpec, ...]:
    """All maps of a kernel, each once, in the order of its parameters."""
    copies = (s for s in walk(kernel.body) if isinstance(s, Load | Store) and s.by is Copy.TMA)
    return tuple(dict.fromkeys(map_of(kernel, s) for s in copies))
