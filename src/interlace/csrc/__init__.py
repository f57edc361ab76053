"""CUDA C++ headers of the package, and how sources include them.

A launch is one source (``megakernel/compose``): generated constants and structs, and a line for each header. ``expand``
puts the headers in place of these lines, so that compilers, the emulator and hashes get one text without files:

    constexpr int STAGES = 4;                  constexpr int STAGES = 4;
    #include "ring/passage.cuh"                #line 33 "ring/ring.cuh"
    struct Mine {};                            ... text of ring/ring.cuh ...
                                               #line 4 "ring/passage.cuh"
                                               ... text of ring/passage.cuh ...
                                               #line 3 "mine.cu"
                                               struct Mine {};

A header begins with a prelude: a comment, ``#pragma once`` and its includes. Headers below ``generated/`` stand for
what a source has already; on disk there are none. Headers of ops and of loops stand in a namespace for each dtype, and
some in several of one launch. So a source has such a header wherever it includes it, and says itself what precedes it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from posixpath import dirname, join, normpath

_PRELUDE = re.compile(r"(?:(?://[^\n]*)?\n)*#pragma once\n(?:#include [^\n]*\n)*")
_INCLUDE = re.compile(r'^#include "([\w./]+\.cuh)"\n', re.MULTILINE)
_LINE = re.compile(r'^#line (\d+)(?: "([^"\n]*)")?\n', re.MULTILINE)
_GENERATED = "generated/"
#: Folders of headers that stand in several namespaces of a source.
_REPEATED = ("ops/", "loops/")


def include(*names: str) -> str:
    """Return the lines by which a source includes headers, whether or not the text before them ends its line.

    Args:
        names: paths below this folder, with ``/``.
    """
    return "".join(f'\n#include "{name}"\n' for name in names)


def read_header(*names: str) -> str:
    """Return the texts of headers, each after its prelude, one after another.

    Args:
        names: paths below this folder, with ``/``.

    Raises:
        FileNotFoundError: no such header.
        ValueError: a header without ``#pragma once``.
    """
    return "".join(map(_find_text, names))


@cache
def _find_text(name: str) -> str:
    return _read_file(name)[len(_find_prelude(name)) :]


def expand(source: str, name: str = "source.cu", after: str = "") -> str:
    """Return a source with headers in place of its includes, each once and after those that it includes.

    Args:
        source: CUDA C++; ``#line`` directives in it stay valid, and so do includes of other files.
        name: what messages call it up to its first ``#line`` directive.
        after: a source that precedes this one; its headers are not repeated.

    Raises:
        ValueError: as for ``read_header``.
    """
    included = {header for found in _INCLUDE.finditer(after) for header in _order_includes(found[1])}
    out, at, file, line = [], 0, name, 1
    for found in re.finditer(f"{_LINE.pattern}|{_INCLUDE.pattern}", source, re.MULTILINE):
        out.append(source[at : found.start()])
        line += source.count("\n", at, found.start())
        at = found.end()
        if found[1]:  # the number that a ``#line`` directive gives to the next line
            line, file = int(found[1]), found[2] or file
            out.append(found[0])
            continue
        line += 1
        if not _exists(found[3]):  # the compiler reports it
            out.append(found[0])
            continue
        new: tuple[str, ...] = (found[3],)
        if not found[3].startswith(_REPEATED):
            new = tuple(header for header in _order_includes(found[3]) if header not in included)
            included.update(new)
        out += [f'#line {_find_first_line(header)} "{header}"\n{read_header(header)}' for header in new]
        out.append(f'#line {line} "{file}"\n')
    return "".join([*out, source[at:]])


@cache
def _order_includes(name: str) -> tuple[str, ...]:
    """Return a header after all that it includes."""
    nested = (normpath(join(dirname(name), found[1])) for found in _INCLUDE.finditer(_find_prelude(name)))
    headers = (header for other in nested if _GENERATED not in other for header in _order_includes(other))
    return (*dict.fromkeys(headers), name)


@cache
def _exists(name: str) -> bool:
    try:
        return bool(_read_file(name))
    except OSError:
        return False


def _find_first_line(name: str) -> int:
    """Return the number of the first line after a header's prelude."""
    return _find_prelude(name).count("\n") + 1


@cache
def _find_prelude(name: str) -> str:
    found = _PRELUDE.match(_read_file(name))
    if found is None:
        raise ValueError(f"header {name} has no '#pragma once' after its first comment; add it")
    return found[0]


def _read_file(name: str) -> str:
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8")
