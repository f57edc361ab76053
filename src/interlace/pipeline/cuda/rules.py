"""Which kernels the emitter takes, and the tensor maps that they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from interlace.core.errors import PipelineError
from interlace.pipeline.cuda.indices import INDEX_CALLS
from interlace.pipeline.cuda.preamble import PREAMBLE, wgmma_name
from interlace.pipeline.cuda.values import VALUE_CALLS
from interlace.pipeline.ir import Copy, For, Kernel, Let, Load, Matmul, Store
from interlace.pipeline.traverse import walk

_KEYWORDS = frozenset(
    (
        "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
        "char", "char16_t", "char32_t", "class", "compl", "const", "const_cast", "constexpr", "continue", "decltype",
        "default", "delete", "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false",
        "float", "for", "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept",
        "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private", "protected", "public", "register",
        "reinterpret_cast", "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast", "struct",
        "switch", "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union",
        "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq",
    )
)
#: What a kernel's text declares itself, and what it uses of CUDA without the preamble.
_OF_THE_TEXT = frozenset(("shared", "scratch", "thread", "place", "threadIdx", "blockIdx"))
#: Declarations of the preamble: functions, types, constants, macros.
_DECLARATION = re.compile(
    r"\bDEVICE (?:\w+ )+(\w+)\(|\bstruct\b.*?(\w+) \{|\btypedef \w+ (\w+);|\bconstexpr \w+ (\w+) =|^#define (\w+)",
    re.MULTILINE,
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


@cache
def reserved_names() -> frozenset[str]:
    """Names that mean something else in the text of a kernel: declared there, they would hide it."""
    declared = (name for names in _DECLARATION.findall(PREAMBLE) for name in names if name)
    products = (wgmma_name(n, kind) for n in range(8, 257, 8) for kind in ("bf16", "f16"))  # declared where used
    return frozenset((*declared, *products, *INDEX_CALLS.values(), *VALUE_CALLS.values(), *_OF_THE_TEXT, *_KEYWORDS))


def function_name(kernel: Kernel) -> str:
    """What the text calls a kernel: no name of its author's ends so, and CUDA's ``exp`` or ``main`` do not."""
    return f"{kernel.name}_"


def check_emittable(kernel: Kernel) -> None:
    """What the emitter asks beside ``check_kernel``.

    Raises:
        PipelineError: a name or a matmul that it does not take.
    """
    inside = [t.name for t in kernel.tensors] + list(kernel.symbols)
    inside += [s.var for s in walk(kernel.body) if isinstance(s, For | Let)]
    for name in (kernel.name, *inside):
        if not re.fullmatch(r"[A-Za-z]\w*(?<!_)", name, re.ASCII):
            raise PipelineError(
                f"kernel {kernel.name!r}: {name!r} is no name for CUDA C++; "
                "use letters, digits and underscores, no underscore at the ends"
            )
    taken = reserved_names() | {spec.name for spec in tensor_maps(kernel)}
    for name in inside:
        if name in taken:
            raise PipelineError(
                f"kernel {kernel.name!r}: {name!r} is a keyword, or a function, type or variable of the CUDA text; "
                "rename yours"
            )
    for stmt in walk(kernel.body):
        if isinstance(stmt, Matmul):
            for tensor in (kernel.tensor(stmt.a.tensor), kernel.tensor(stmt.b.tensor)):
                if not tensor.swizzle_bytes:
                    raise PipelineError(
                        f"matmul reads {tensor.name!r} {tensor.tile}: it takes 64 elements along k, "
                        "rows of 128 bytes, swizzled by 128 bytes"
                    )


def map_of(kernel: Kernel, stmt: Load | Store) -> MapSpec:
    """The map that a copy by TMA goes through."""
    inside, box = (stmt.dst, stmt.src) if isinstance(stmt, Load) else (stmt.src, stmt.dst)
    return MapSpec(box.tensor, box.shape, kernel.tensor(inside.tensor).swizzle_bytes > 0)


def tensor_maps(kernel: Kernel) -> tuple[MapSpec, ...]:
    """All maps of a kernel, each once, in the order of its parameters."""
    copies = (s for s in walk(kernel.body) if isinstance(s, Load | Store) and s.by is Copy.TMA)
    return tuple(dict.fromkeys(map_of(kernel, s) for s in copies))
