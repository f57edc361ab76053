"""One kernel launch as a value: it can be run, or compiled ahead of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.kernels.bodies import CudaLaunch


class AnyLaunch(Protocol):
    """What executors do with a launch."""

    def run(self) -> None:
        """Enqueue on the current stream."""

    def compile(self) -> Any:
        """Compile for the current device without launching."""

    def load(self) -> None:
        """Compile and load for the current device, so that ``run`` only launches, as a capture demands."""


@dataclass(frozen=True)
class TextLaunch:
    """A launch of CUDA C++ text."""

    launch: CudaLaunch

    def run(self) -> None:
        """Enqueue on the current stream."""
        import torch

        self.launch(torch.cuda.current_stream().cuda_stream)

    def compile(self) -> Any:
        """Compile without launching; needs no GPU."""
        return self.launch.compile()

    def load(self) -> None:
        """Compile and load, so that ``run`` only launches."""
        self.launch.load()


@dataclass(frozen=True)
class Launch:
    """A Triton kernel with its grid, positional arguments and launch options."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Enqueue on the current stream; under the interpreter, run."""
        # The interpreter computes in NumPy, which would warn of padding that is masked later and of exponentials that
        # saturate, where a GPU says nothing.
        with np.errstate(all="ignore"):
            self.kernel[self.grid](*self.arguments, **self.options)

    def compile(self) -> Any:
        """Compile for the current device without launching."""
        return self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)

    def load(self) -> None:
        """Compile for the current device and load it there, so that ``run`` only launches, as a capture demands."""
        self.compile()._init_handles()

    def compile_ahead(self, device: DeviceSpec = DEFAULT_GPU) -> Any:
        """Compile for a GPU; needs neither GPU nor driver.

        Returns Triton's compiled kernel, whose ``asm`` holds PTX and cubin.
        """
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.experimental.gluon._runtime import GluonASTSource

        signature: dict[str, Any] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        for i, (parameter, value) in enumerate(zip(self.kernel.params, self.arguments, strict=True)):
            if parameter.is_constexpr:
                signature[parameter.name] = "constexpr"
                constants[i,] = value
            else:
                signature[parameter.name] = _specialise(value, (i,), constants, attributes)
        major, minor = device.capability
        target = GPUTarget("cuda", 10 * major + minor, 32)
        source = GluonASTSource if self.kernel.is_gluon() else ASTSource
        return triton.compile(
            source(self.kernel, signature, constants, attributes),
            target=target,
            options=dict(self.options),
        )


def _specialise(
    value: Any, path: tuple[int, ...], constants: dict[Any, Any], attributes: dict[Any, Any]
) -> Any:
    """The signature of an argument, as the launcher would specialise it."""
    from triton.language import constexpr
    from triton.runtime.jit import mangle_type

    if isinstance(value, tuple):
        parts = [_specialise(v, (*path, i), constants, attributes) for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if value is None or isinstance(value, constexpr) or (isinstance(value, int) and value == 1):
        constants[path] = value.value if isinstance(value, constexpr) else value
        return "constexpr"
    if hasattr(value, "data_ptr") or (isinstance(value, int) and value % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]
    return mangle_type(value)
