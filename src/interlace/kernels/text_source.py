"""The source of a tile as CUDA C++ text: what it may not have, where its function stands, and how its macros end.

Macros know no namespace. Around a text that defines ``ROWS``, and ``DEVICE`` where that is missing:

    #ifdef ROWS                  whether it was there before
    #define ROWS_was_there
    #endif
    the text
    #ifndef ROWS_was_there       what was not ends with the text
    #undef ROWS
    #endif
    #undef ROWS_was_there
    #undef DEVICE                what a launch builds on is as it was
    #define DEVICE __device__ __forceinline__
"""

from __future__ import annotations

import re
from functools import lru_cache

from interlace.core.errors import ParamError
from interlace.csrc import expand
from interlace.kernels.cuda.ptx import PTX

_CACHE_SIZE = 256  # texts that are not looked through again: an executor makes bodies of all ops several times
_MACRO = re.compile(r"^[^\S\n]*(?:#|%:)\s*(?:define|undef)\s+(\w+)", re.MULTILINE)
_BRANCHES = re.compile(r"^[^\S\n]*(?:#|%:)\s*if", re.MULTILINE)
#: Lines that a compiler joins.
_CONTINUED_LINES = re.compile(r"^(?:[^\n]*\\\n)+[^\n]*", re.MULTILINE)
#: Comments, strings and characters.
_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\b(?:u8|[uUL])?R"(?P<ends>[^()\\\s]*)\(.*?\)(?P=ends)"|"(?:\\.|[^"\\\n])*"|"""
    r"""'(?:\\.|[^'\\\n])'""",
    re.DOTALL,
)
#: A barrier of all threads of a block, in C++ and in PTX.
_BLOCK_BARRIER = re.compile(r"\b(?:__syncthreads(?:_count|_and|_or)?|__barrier_sync)\b")
_BLOCK_BARRIER_PTX = re.compile(r"\bbar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?\s+0\s*;")
#: Inline assembly: its strings, which follow each other.
_ASSEMBLY = re.compile(
    r'\basm\b\s*(?:volatile\b|__volatile__\b)?\s*\(\s*((?:"(?:\\.|[^"\\\n])*"\s*|R"\(.*?\)"\s*)+)', re.DOTALL
)
#: Macros of a launch that are not of its preamble.
_MACROS = frozenset({"ELEMENT", "ELEMENT_PTX", "INFINITE", "REGISTERS_TO_HOLD", "SHARED_BASE"})
#: Words of C++17, and what stands before every text.
_RESERVED_NAMES = _MACROS | frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const "
    "const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern "
    "false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or "
    "or_eq private protected public register reinterpret_cast return short signed sizeof static static_assert "
    "static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned using "
    "virtual void volatile wchar_t while xor xor_eq DEVICE NULL WATCHDOG offsetof bf16 fp16 fp32 Arguments Fetch "
    "Operands Stream Tile".split()
)


def check_source(source: str) -> None:
    """Raise ParamError for what a compiler, or a driver, would not tell clearly."""
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise ParamError(f"the text of a CudaBody is no UTF-8 at its character {error.start}; write it anew") from None
    if "\0" in source:
        raise ParamError(f"the text of a CudaBody has a NUL at its character {source.index(chr(0))}; write it anew")
    if source.rstrip().endswith("\\"):
        raise ParamError("the text of a CudaBody ends in a backslash, which joins it to what follows; leave it out")
    plain = _strip_comments(source)
    if "__global__" in plain:
        raise ParamError("the text of a CudaBody has a __global__ kernel; it is a tile of one, so make it DEVICE")
    opened = plain.count("{") - plain.count("}")
    branches = _BRANCHES.search(plain)  # of which each may have braces of its own, and some are for other compilers
    if opened and not branches:
        raise ParamError(
            f"the text of a CudaBody {'opens' if opened > 0 else 'closes'} {abs(opened)} braces more than it "
            f"{'closes' if opened > 0 else 'opens'}, so what stands behind it in the launch would be in the wrong place"
        )
    if "__shared__" in plain:
        raise ParamError(
            "the text of a CudaBody declares memory as __shared__, all of which is the launch's; have scratch<T>() of "
            "scratch_bytes= bytes instead"
        )
    macros = {*_MACRO.findall(plain)}
    meet = () if branches else (*_BLOCK_BARRIER.finditer(plain), *_BLOCK_BARRIER_PTX.finditer(_extract_ptx(source)))
    met = next((found for found in meet if found[0] not in macros), None)
    if met is not None:
        raise ParamError(
            f"the text of a CudaBody has {met[0].rstrip(';')}, at which all threads of the block meet, and those that "
            "load run no text; call synchronise_block() instead"
        )
    owned = sorted(_MACROS & macros)
    if owned:
        raise ParamError(f"the text of a CudaBody defines or undefines the macros {owned} of the launch; rename them")


def is_name(name: str) -> bool:
    """Whether a text may call something of its op so; two underscores in front are the compiler's."""
    return name.isidentifier() and name.isascii() and name not in _RESERVED_NAMES and not name.startswith("__")


@lru_cache(_CACHE_SIZE)
def find_line(text: str, function: str) -> int:
    """The line where a text defines a function, from 1; 0 if it does not. Of several the last that takes a tile."""
    plain, named = _strip_comments(text), rf"\bvoid\s+{re.escape(function)}\s*\("
    patterns = (named + r"[^(){};]*\bTile\b[^;{]*\{", named + r"[^;{]*\{", named) if function.isidentifier() else ()
    starts = ([found.start() for found in re.finditer(pattern, plain)] for pattern in patterns)
    last = next((some[-1] for some in starts if some), None)
    return 0 if last is None else plain.count("\n", 0, last) + 1


@lru_cache(_CACHE_SIZE)
def isolate_macros(text: str) -> tuple[str, str]:
    """What stands before a text and behind it, so that its macros end with it."""
    ahead = behind = ""
    for name in dict.fromkeys(_MACRO.findall(_strip_comments(text))):
        own = re.search(rf"^#define {name}\b.*\n", expand(PTX), re.MULTILINE)
        if own is not None:
            behind += f"#undef {name}\n{own[0]}"
            continue
        before = f"{name}_was_there"
        ahead += f"#ifdef {name}\n#define {before}\n#endif\n"
        behind += f"#ifndef {before}\n#undef {name}\n#endif\n#undef {before}\n"
    return ahead, behind


def _join_lines(text: str) -> str:
    """A text with its lines joined as a compiler does; what follows keeps its line."""
    return _CONTINUED_LINES.sub(lambda lines: lines[0].replace("\\\n", "") + "\n" * lines[0].count("\n"), text)


def _strip_comments(text: str) -> str:
    """The same without comments and strings."""
    return _NO_CODE.sub(lambda found: " " + "\n" * found[0].count("\n"), _join_lines(text))


def _extract_ptx(text: str) -> str:
    """The inline PTX of a text, without comments."""
    code = _NO_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], _join_lines(text))
    ptx = "\n".join(re.sub(r'"\s*R?"', "", found[1]) for found in _ASSEMBLY.finditer(code))
    return re.sub(r"//[^\n]*", "", ptx.replace(r"\n", "\n").replace(r"\t", " "))
