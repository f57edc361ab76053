"""CUDA sources of tiles: forbidden content, location of the function, and scope of macros.

Macros ignore namespaces. A source that defines ``ROWS``, and ``DEVICE`` if it is missing, is wrapped as follows:

    #ifdef ROWS                  whether it was defined before
    #define ROWS_was_there
    #endif
    the source
    #ifndef ROWS_was_there       a new macro ends with the source
    #undef ROWS
    #endif
    #undef ROWS_was_there
    #undef DEVICE                macros of the preamble are restored
    #define DEVICE __device__ __forceinline__
"""

from __future__ import annotations

import re
from functools import lru_cache

from interlace.core.errors import ParamError
from interlace.csrc import expand
from interlace.kernels.cuda.ptx import PTX

_CACHE_SIZE = 256  # cached results: an executor builds the bodies of all ops several times
_MACRO = re.compile(r"^[^\S\n]*(?:#|%:)\s*(?:define|undef)\s+(\w+)", re.MULTILINE)
_BRANCHES = re.compile(r"^[^\S\n]*(?:#|%:)\s*if", re.MULTILINE)
#: Continued lines, which a compiler joins.
_CONTINUED_LINES = re.compile(r"^(?:[^\n]*\\\n)+[^\n]*", re.MULTILINE)
#: Comments, strings and character literals.
_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\b(?:u8|[uUL])?R"(?P<ends>[^()\\\s]*)\(.*?\)(?P=ends)"|"(?:\\.|[^"\\\n])*"|"""
    r"""'(?:\\.|[^'\\\n])'""",
    re.DOTALL,
)
#: A barrier of all threads of a block, in C++ and in PTX.
_BLOCK_BARRIER = re.compile(r"\b(?:__syncthreads(?:_count|_and|_or)?|__barrier_sync)\b")
_BLOCK_BARRIER_PTX = re.compile(r"\bbar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?\s+0\s*;")
#: Inline assembly: its consecutive string literals.
_ASSEMBLY = re.compile(
    r'\basm\b\s*(?:volatile\b|__volatile__\b)?\s*\(\s*((?:"(?:\\.|[^"\\\n])*"\s*|R"\(.*?\)"\s*)+)', re.DOTALL
)
#: Macros of a launch that its preamble does not define.
_MACROS = frozenset({"ELEMENT", "ELEMENT_PTX", "INFINITE", "REGISTERS_TO_HOLD", "SHARED_BASE"})
#: Keywords of C++17, and names that precede every source.
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
    """Raise ParamError for errors that a compiler or driver would not report clearly."""
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
    branches = _BRANCHES.search(plain)  # each branch may have its own braces, and some are for other compilers
    if opened and not branches:
        raise ParamError(
            f"the text of a CudaBody {'opens' if opened > 0 else 'closes'} {abs(opened)} braces more than it "
            f"{'closes' if opened > 0 else 'opens'}, so what follows it in the launch would be in the wrong place"
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
    """Return True if a source may use a name for something of its op; leading double underscores are reserved."""
    return name.isidentifier() and name.isascii() and name not in _RESERVED_NAMES and not name.startswith("__")


@lru_cache(_CACHE_SIZE)
def find_line(text: str, function: str) -> int:
    """Return the line, from 1, where a source defines a function, preferring the last that takes a tile; 0 if none."""
    plain, named = _strip_comments(text), rf"\bvoid\s+{re.escape(function)}\s*\("
    patterns = (named + r"[^(){};]*\bTile\b[^;{]*\{", named + r"[^;{]*\{", named) if function.isidentifier() else ()
    starts = ([found.start() for found in re.finditer(pattern, plain)] for pattern in patterns)
    last = next((some[-1] for some in starts if some), None)
    return 0 if last is None else plain.count("\n", 0, last) + 1


@lru_cache(_CACHE_SIZE)
def isolate_macros(text: str) -> tuple[str, str]:
    """Return the text before and after a source that limits the scope of its macros to it."""
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
    """Join continued lines as a compiler does; the text that follows keeps its line number."""
    return _CONTINUED_LINES.sub(lambda lines: lines[0].replace("\\\n", "") + "\n" * lines[0].count("\n"), text)


def _strip_comments(text: str) -> str:
    """Return the source without comments and strings."""
    return _NO_CODE.sub(lambda found: " " + "\n" * found[0].count("\n"), _join_lines(text))


def _extract_ptx(text: str) -> str:
    """Return the inline PTX of a source, without comments."""
    code = _NO_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], _join_lines(text))
    ptx = "\n".join(re.sub(r'"\s*R?"', "", found[1]) for found in _ASSEMBLY.finditer(code))
    return re.sub(r"//[^\n]*", "", ptx.replace(r"\n", "\n").replace(r"\t", " "))
