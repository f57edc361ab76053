"""From CUDA C++ text to a cubin, with NVRTC through ``cuda.core``. Needs no GPU and no driver.

    text = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    binary = compile_source(text, "twice", preamble=PTX)
    binary.resources      # Resources(registers=8, spill_bytes=0, stack_bytes=0, code_bytes=384)

Binaries are cached on disk (``cache``).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, fields
from functools import cache as once
from importlib.metadata import distributions
from io import StringIO
from typing import Any

from interlace.core.devices import DEFAULT_GPU
from interlace.core.errors import CompileError, NoDeviceError
from interlace.csrc import expand
from interlace.kernels.cuda import cache

_OPTIONS = {"std": "c++17", "ptxas_options": ["-v"]}


@dataclass(frozen=True)
class KernelResources:
    """Resources of a kernel, as ptxas reports them.

    Attributes:
        registers: 32-bit registers of a thread.
        spill_bytes: bytes that a thread stores to and loads from local memory because registers ran out.
        stack_bytes: bytes of a thread's local memory, spilled or indexed.
        code_bytes: bytes of machine instructions.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    code_bytes: int


@dataclass(frozen=True)
class CudaBinary:
    """A compiled kernel.

    Attributes:
        name: name of the kernel in messages.
        function: name of the kernel in the source, and so for the driver.
        cubin: machine code for one architecture.
        ptx: PTX that the cubin was made from, for the lint.
        resources: resources of a thread, and the size of its code.
        warnings: lines of the log in which the compiler warned.
    """

    name: str
    function: str
    cubin: bytes
    ptx: str
    resources: KernelResources
    warnings: tuple[str, ...]


def compile_source(
    source: str, name: str, architecture: str = DEFAULT_GPU.architecture, *, preamble: str
) -> CudaBinary:
    """Compile the kernel of a source.

    Args:
        source: CUDA C++ with one kernel, ``extern "C"``; it may include headers of ``csrc``.
        name: name of that kernel in messages; its function may have another name.
        architecture: architecture to compile for, as in ``DeviceSpec``.
        preamble: CUDA C++ that precedes the text, such as ``ptx.PTX``; messages count its lines separately.

    Raises:
        CompileError: NVRTC refuses the text; the message has its log.
        NoDeviceError: ``cuda.core`` is not installed.
    """
    try:
        import cuda.core  # noqa: F401
    except ImportError as error:
        raise NoDeviceError("cuda.core is not installed; pip install -e '.[gpu]'") from error
    whole = expand(f'#line 1 "preamble"\n{preamble}#line 1 "{name}.cu"\n{source}')
    key = cache.compute_key(text=whole, architecture=architecture, options=_OPTIONS, versions=_find_versions())
    kept = cache.lookup(key)
    if kept is None or not _is_binary(*kept):
        kept = _compile(whole, name, architecture)
        cache.store(key, *kept)
    facts, cubin = kept
    resources = KernelResources(*(facts[field.name] for field in fields(KernelResources)))
    return CudaBinary(name, facts["function"], cubin, facts["ptx"], resources, tuple(facts["warnings"]))


def _is_binary(facts: dict[str, Any], cubin: bytes) -> bool:
    """Return whether a cached entry has the form of what ``_compile`` returns."""
    texts, numbers = (
        [facts.get("function"), facts.get("ptx")],
        [facts.get(field.name) for field in fields(KernelResources)],
    )
    lines = facts.get("warnings")
    if not isinstance(lines, list) or not all(isinstance(text, str) for text in [*texts, *lines]):
        return False
    return all(type(number) is int and number >= 0 for number in numbers) and cubin.startswith(b"\x7fELF")


def _compile(source: str, name: str, architecture: str) -> tuple[dict[str, Any], bytes]:
    """Compile a source; return the compiler's report as JSON data, and the binary."""
    from cuda.core import Program, ProgramOptions

    # A binary from NVRTC's own cache comes without the log that reports its resources.
    options = ProgramOptions(arch=architecture, **_OPTIONS, no_cache=True)
    written = StringIO()
    program = Program(source, "c++", options)
    try:
        cubin = bytes(program.compile("cubin", logs=written).code)
    except Exception as error:
        if type(error).__name__ != "NVRTCError":  # a private class of cuda.core
            raise
        told = _quote_ptx_lines(str(error).replace("\0", "").rstrip(), program)  # the driver's texts end with NULs
        raise CompileError(f"kernel {name} does not compile for {architecture}: {told}") from error
    log = written.getvalue()
    # ptxas reports serialised wgmma and ignored setmaxnreg as information with a number, such as (C7510).
    warnings = [line for line in log.splitlines() if re.search(r"warning |\(C\d+\)", line)]
    function = _parse_function(log, name)
    resources = _parse_resources(log, name, _find_code_bytes(cubin, function))
    facts = {"function": function, "ptx": _read_ptx(program), "warnings": warnings}
    return {**facts, **vars(resources)}, cubin


def _read_ptx(program: Any) -> str:
    """Return the PTX of a program, whether or not ptxas accepts it; cuda.core returns it only if there is a driver."""
    from cuda.bindings import nvrtc

    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program.handle, ptx)
    return ptx.rstrip(b"\0").decode()


def _quote_ptx_lines(log: str, program: Any) -> str:
    """Return a log with the lines of PTX that ptxas names, since the PTX is written nowhere."""
    numbered = re.compile(r"^ptxas .*, line (\d+);.*$", re.MULTILINE)
    lines = _read_ptx(program).split("\n") if numbered.search(log) else []

    def with_line(found: re.Match[str]) -> str:
        line = "".join(lines[int(found[1]) - 1 : int(found[1])]).strip()
        return f"{found[0]}, in {line!r}" if line else found[0]

    return numbered.sub(with_line, log)


@once
def _find_versions() -> dict[str, str]:
    """Return the versions of everything that turns a source into a binary."""
    from cuda.bindings import nvrtc

    found = {"nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:]))}
    for distribution in distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        if name.startswith(("nvidia-cuda-nvrtc", "cuda-core", "cuda-bindings")):
            found[name] = distribution.version
    return found


def _parse_function(log: str, name: str) -> str:
    """Return the name of the kernel that the report of ptxas -v is about."""
    found = re.findall(r"Compiling entry function '(\w+)'", log)
    if len(found) != 1:
        raise CompileError(f"the text of kernel {name} has kernels {found}; it must have one; the log: {log!r}")
    return str(found[0])


def _parse_resources(log: str, name: str, code_bytes: int) -> KernelResources:
    """Parse the report of ptxas -v."""
    used = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or stack is None:
        raise CompileError(f"ptxas reports no resources of kernel {name}; its log: {log!r}")
    return KernelResources(int(used[1]), int(stack[2]) + int(stack[3]), int(stack[1]), code_bytes)


def _find_code_bytes(cubin: bytes, function: str) -> int:
    """Return the size of section ``.text.<function>`` of a binary, a 64-bit ELF file.

    Offsets are those of ``Elf64_Ehdr`` and ``Elf64_Shdr`` (man 5 elf).
    """
    (table,) = struct.unpack_from("<Q", cubin, 40)  # of section headers: e_shoff
    each, count, of_names = struct.unpack_from("<3H", cubin, 58)  # e_shentsize, e_shnum, e_shstrndx
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * each) for i in range(count)]  # sh_name to sh_size
    names = headers[of_names][4]
    wanted = f".text.{function}\0".encode()
    sizes = [header[5] for header in headers if cubin.startswith(wanted, names + header[0])]
    if len(sizes) != 1:
        raise CompileError(f"a binary has {len(sizes)} sections {wanted!r}; it must have one")
    return sizes[0]
