"""PTX of CUDA C++ text, for the lint. ``cuda.core`` gives PTX only where there is a driver."""

from __future__ import annotations

from typing import Any

from cuda.bindings import nvrtc

from interlace.core.devices import DEFAULT_GPU
from interlace.loops.cuda.preamble import PREAMBLE


def ptx_of(text: str, preamble: str = PREAMBLE) -> str:
    """PTX of a text behind the preamble."""
    program = _checked(nvrtc.nvrtcCreateProgram((preamble + text).encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture={DEFAULT_GPU.architecture.replace('sm', 'compute')}".encode(), b"--std=c++17"]
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    ptx = b" " * _checked(nvrtc.nvrtcGetPTXSize(program))
    _checked(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx.rstrip(b"\0").decode()


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    assert not int(status), status
    return values[0] if values else None
