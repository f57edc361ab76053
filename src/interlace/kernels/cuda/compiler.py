"""From CUDA C++ text to a cubin, with NVRTC through ``cuda.core``. Needs no GPU and no driver.

    text = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    binary = compile_source(text, "twice", preamble=PTX)
    binary.resources      # Resources(registers=8, spill_bytes=0, stack_bytes=0, code_bytes=384)

What has been compiled once is kept on disk (``cache``), for the next process too.
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
from interlace.kernels.cuda import cache

_OPTIONS = {"std": "c++17", "ptxas_options": ["-v"]}


@dataclass(frozen=True)
class KernelResources:
    """What a kernel uses: a thread of it, as ptxas reports that, and its code.

    Attributes:
        registers: 32-bit registers of a thread.
        spill_bytes: that a thread stores to plus loads from local memory because registers ran out.
        stack_bytes: of a thread's local memory, spilled or indexed.
        code_bytes: of machine instructions, which all threads share.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    code_bytes: int


@dataclass(frozen=True)
class CudaBinary:
    """A compiled kernel.

    Attributes:
        name: what messages call the kernel.
        function: what the text, and so the driver, calls it.
        cubin: for one architecture.
        ptx: what the cubin was made from, for the lint.
        resources: of a thread, and its code.
        warnings: the lines in which the compiler warned.
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
    """Compile the kernel of a text behind a preamble.

    Args:
        source: CUDA C++ with one kernel, ``extern "C"``.
        name: of that kernel for messages; its function may be called otherwise.
        architecture: what to compile for, as ``DeviceSpec`` has it.
        preamble: what the text builds on, such as ``ptx.PTX``; messages count its lines apart from the text's.

    Raises:
        CompileError: if NVRTC refuses the text; the message holds its log.
        NoDeviceError: if ``cuda.core`` is not installed.
    """
    try:
        import cuda.core  # noqa: F401
    except ImportError as error:
        raise NoDeviceError("cuda.core is not installed; pip install 'interlace[gpu]'") from error
    whole = f'#line 1 "preamble"\n{preamble}#line 1 "{name}.cu"\n{source}'
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
    """What the compiler says of a text, as JSON data, and the binary."""
    from cuda.core import Program, ProgramOptions

    # A binary from NVRTC's own cache comes without the log that tells its resources.
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
    """What NVRTC made of a text, whether or not ptxas takes it; cuda.core asks for it only where there is a driver."""
    from cuda.bindings import nvrtc

    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program.handle, ptx)
    return ptx.rstrip(b"\0").decode()


def _quote_ptx_lines(log: str, program: Any) -> str:
    """A log in which ptxas names lines of PTX, which nobody else sees, with these lines."""
    numbered = re.compile(r"^ptxas .*, line (\d+);.*$", re.MULTILINE)
    lines = _read_ptx(program).split("\n") if numbered.search(log) else []

    def with_line(found: re.Match[str]) -> str:
        line = "".join(lines[int(found[1]) - 1 : int(found[1])]).strip()
        return f"{found[0]}, in {line!r}" if line else found[0]

    return numbered.sub(with_line, log)


@once
def _find_versions() -> dict[str, str]:
    """Of all that turns text into a binary."""
    from cuda.bindings import nvrtc

    found = {"nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:]))}
    for distribution in distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        if name.startswith(("nvidia-cuda-nvrtc", "cuda-core", "cuda-bindings")):
            found[name] = distribution.version
    return found


def _parse_function(log: str, name: str) -> str:
    """Which kernel the report of ptxas -v is on."""
    found = re.findall(r"Compiling entry function '(\w+)'", log)
    if len(found) != 1:
        raise CompileError(f"the text of kernel {name} has kernels {found}; it must have one; the log: {log!r}")
    return str(found[0])


def _parse_resources(log: str, name: str, code_bytes: int) -> KernelResources:
    """Read the report of ptxas -v."""
    used = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or stack is None:
        raise CompileError(f"ptxas reports no resources of kernel {name}; its log: {log!r}")
    return KernelResources(int(used[1]), int(stack[2]) + int(stack[3]), int(stack[1]), code_bytes)


def _find_code_bytes(cubin: bytes, function: str) -> int:
    """The size of section ``.text.<function>`` of a binary, which is an ELF file of 64 bits.

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
