"""The package with other table layouts: all structs of ``abi`` have reversed fields and a larger row stride."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

import interlace

_ROOT = Path(__file__).parents[1]
_IMPORT = "from interlace.kernels.abi.struct import Struct, generate_row_load, generate_structs\n"
_REVERSED = f"""{_IMPORT}
_Struct = Struct


def Struct(name, fields, align=1):
    return _Struct(name, fields[::-1], 8 * align)
"""


@cache
def _package() -> TemporaryDirectory[str]:
    """Return the folder of a copy of the package with another table layout."""
    folder = TemporaryDirectory(prefix="permuted-")
    copy = Path(folder.name) / "interlace"
    copytree(Path(interlace.__file__).parent, copy, ignore=ignore_patterns("*.nb?"))
    table = copy / "kernels" / "abi" / "__init__.py"
    text = table.read_text()
    assert _IMPORT in text
    table.write_text(text.replace(_IMPORT, _REVERSED))
    return folder


def run_permuted(code: str, **environment: str) -> str:
    """Return what ``code`` prints in a new process with that package; it can import the tests' modules."""
    proof = "from interlace.kernels.abi import ITEM; assert ITEM.names[0] == 'code' and ITEM.columns == 32\n"
    path = os.pathsep.join([_package().name, str(_ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", proof + code],
        cwd=_package().name,
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
