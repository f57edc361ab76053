"""Build a library for the CPU from emitted kernels: many kernels in one C++ source, with a hook at every access.

The preamble and the sources are those that NVRTC gets, with inline PTX replaced (``translate.py``) and CUDA's keywords
defined as macros (``cuda.h``). ``-fsanitize=thread`` makes the compiler call a function before each memory access. The
emulator defines these functions (``machine.cpp``); the sanitizer's library is not linked.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from interlace.core.files import write_atomic
from interlace.csrc import expand
from interlace.loops.cuda.preamble import PREAMBLE
from interlace.loops.ir.smem import SharedLayout

from .translate import translate

HERE = Path(__file__).parent
#: Reason why the emulator is unavailable, or "". On other systems ``g++`` may be a compiler without the hooks.
MISSING = (
    "" if sys.platform == "linux" and shutil.which("g++") else "the emulator compiles kernels with GCC on Linux: no g++"
)
_COMMON = ("-std=c++20", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fvisibility=hidden", f"-I{HERE}")
_RUNTIME = ("-O2", "-g0", "-march=native", "-ftree-vectorize", "-fvect-cost-model=dynamic")
#: Functions of a source are not inlined, because inlining doubles the compile time. Those of the preamble are inlined,
#: so that an access is attributed to the line of the source that makes it.
_CALLED = "#undef __forceinline__\n#define __forceinline__ inline\n"
_KERNELS = ("-g1", "-w", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0")
#: Bytes after all memory of a kernel, so that an access past the end stays in the array.
_SLACK_BYTES = 1024


@cache
def _folder() -> TemporaryDirectory[str]:
    """Return the folder of what this process builds; it is deleted when the process ends."""
    return TemporaryDirectory(prefix="emulator-")


@cache
def _runtime() -> Path:
    """Compile the emulator itself, once for all processes that share the cache of a test run."""
    sources = [*sorted(HERE.glob("*.cpp")), *sorted(HERE.glob("*.h"))]
    native = subprocess.run(["g++", *_RUNTIME, "-Q", "--help=target"], capture_output=True, check=True).stdout
    told = [*(source.read_bytes() for source in sources), *map(str.encode, _RUNTIME), native]
    hashed = hashlib.sha256(b"\0".join(told))
    out = Path(os.environ.get("INTERLACE_CACHE_DIR") or _folder().name) / f"emulator-{hashed.hexdigest()}.o"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        whole, made = Path(_folder().name) / "runtime.cpp", Path(_folder().name) / "runtime.o"
        whole.write_text("".join(f'#include "{source}"\n' for source in sources if source.suffix == ".cpp"))
        _compile(*_COMMON, *_RUNTIME, "-c", str(whole), "-o", str(made))
        write_atomic(out, made.read_bytes())
    return out


def _compile(*arguments: str) -> None:
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"g++ {' '.join(arguments)}:\n{done.stderr[:4000]}")


class Text(Protocol):
    """CUDA source of a kernel, with the layout of its shared memory."""

    @property
    def cuda_source(self) -> str:
        """CUDA source that follows a preamble."""

    @property
    def layout(self) -> SharedLayout:
        """Layout of shared memory, to attribute faults."""


@dataclass(frozen=True)
class Library:
    """Kernels that run on the CPU, by number."""

    texts: tuple[Text, ...]
    path: Path

    @cached_property
    def handle(self) -> ctypes.CDLL:
        """Loaded library."""
        return ctypes.CDLL(str(self.path))

    def find_shared_memory(self, kernel: int) -> int:
        """Return the address of a kernel's shared memory."""
        return (ctypes.c_void_p * len(self.texts)).in_dll(self.handle, "shared_of")[kernel] or 0

    def again(self) -> Library:
        """Return a copy of the library in another file, with its own memory, for blocks that run concurrently."""
        path = self.path.with_name(f"{self.path.stem}-{len(list(self.path.parent.iterdir()))}.so")
        return Library(self.texts, Path(shutil.copy(self.path, path)))

    @cached_property
    def image(self) -> int:
        """Address at which the library is loaded."""
        begin = ctypes.addressof(ctypes.c_char.in_dll(self.handle, "kernels"))
        maps = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
        return min(int(m[0].split("-")[0], 16) for m in maps if m[-1] == str(self.path)) if begin else 0

    @cache  # noqa: B019
    def line(self, address: int) -> tuple[int, str]:
        """Return number and text of the source line that an address of the library belongs to, or (0, "").

        Among inlined functions, it is the line of the innermost one that is more than an instruction.
        """
        if not address or not shutil.which("addr2line"):
            return 0, ""
        command = ["addr2line", "-i", "-e", str(self.path), hex(address - 1)]
        frames = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        kernel = re.findall(r"kernel(\d+)\.cu:(\d+)", frames)
        if not kernel:
            return 0, ""
        found = [(int(line), self.texts[int(n)].cuda_source.splitlines()[int(line) - 1].strip()) for n, line in kernel]
        return next((one for one in found if not one[1].startswith("asm")), found[-1])


def build(texts: Sequence[Text], preamble: str = PREAMBLE, level: str = "-Og") -> Library:
    """Compile ``texts`` after their preamble; ten or more at a time amortise the start of the compiler.

    Args:
        texts: kernels.
        preamble: source that they depend on.
        level: optimisation level. Without optimisation a fault has fewer lines, and long sources compile in a third
            less time.

    Raises:
        RuntimeError: g++ rejects the source: it is no C++, or has an instruction that ``cuda.h`` lacks.
    """
    parts = ['#include "cuda.h"\n', '#line 1 "preamble"\n', translate(expand(preamble, "preamble")), _CALLED]
    for number, one in enumerate(texts):
        # Without C++ linkage, names of functions would collide across namespaces.
        text = translate(one.cuda_source).replace('extern "C" ', "")
        total = one.layout.total_bytes + _SLACK_BYTES
        parts += [f"namespace kernel{number} {{\n__align__(1024) unsigned char {_find_shared_name(one)}[{total}];\n"]
        parts += [f'#line 1 "kernel{number}.cu"\n{text}}}\n']
    names = [f"kernel{i}::{_function(one)}" for i, one in enumerate(texts)]
    entries = ", ".join(f"[](void** arguments) {{ call({name}, arguments); }}" for name in names)
    parts += ['#line 1 "entries"\n#pragma GCC visibility push(default)\nextern "C" {\n']
    parts += [f"extern void (*const kernels[])(void**);\nvoid (*const kernels[])(void**) = {{{entries}}};\n"]
    shared = ", ".join(f"kernel{i}::{_find_shared_name(one)}" for i, one in enumerate(texts))
    parts += [f"extern void* const shared_of[];\nvoid* const shared_of[] = {{{shared}}};\n}}\n"]
    folder = Path(_folder().name)
    name = f"kernels-{len(list(folder.glob('kernels-*.cpp')))}"
    source, path = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text("".join(parts))
    _compile(*_COMMON, level, *_KERNELS, "-c", str(source), "-o", f"{path}.o")
    _compile("-shared", "-Wl,-Bsymbolic", f"{path}.o", str(_runtime()), "-o", str(path))
    return Library(tuple(texts), path)


def _function(one: Text) -> str:
    found = re.search(r"__launch_bounds__\([^)]*\)\s*(\w+)\(", one.cuda_source)
    assert found is not None
    return found[1]


def _find_shared_name(one: Text) -> str:
    """Return the name of the shared memory in the source."""
    found = re.search(r"extern __shared__ .*\b(\w+)\[\]", one.cuda_source)
    return found[1] if found is not None else "shared"
