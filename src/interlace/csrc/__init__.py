"""CUDA C++ headers of the package, and their one reader.

A launch is one translation unit (``megakernel/compose``): generated constants and structs, then the texts of headers. A
header begins with a prelude, and ``read_header`` returns what follows:

    // LL protocol, as NCCL names it ...
    #pragma once
    #include "ptx.cuh"
                             <- the text begins with this line
    DEVICE ...

Includes make each header compile alone, for editors and tests. ``read_header`` drops them: the composition says what
precedes a text, because the texts of ops stand in a namespace for each dtype, and some in several of one launch. It
replaces includes of fragments (``.inc``), which hold members of a struct.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_PRELUDE = re.compile(r"(?:(?://[^\n]*)?\n)*#pragma once\n(?:#include [^\n]*\n)*")
_FRAGMENT = re.compile(r'^#include "([\w/]+\.inc)"\n', re.MULTILINE)
_COMMENT = re.compile(r"(?://[^\n]*\n)*")


@cache
def read_header(name: str) -> str:
    """Return the text of a header after its prelude, with its fragments in place.

    Args:
        name: path below this folder, with ``/``.

    Raises:
        FileNotFoundError: no such header or fragment.
        ValueError: a header without ``#pragma once``.
    """
    text = _read_file(name)
    prelude = _PRELUDE.match(text)
    if prelude is None:
        raise ValueError(f"header {name} has no '#pragma once' after its first comment; add it")
    folder = name.rpartition("/")[0]
    return _FRAGMENT.sub(
        lambda found: _COMMENT.sub("", _read_file(f"{folder}/{found[1]}"), count=1), text[prelude.end() :]
    )


def _read_file(name: str) -> str:
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8")
