"""One kernel launch as a value: it can be run, or compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import GraphError, ResourceError
from interlace.graph.op import Op
from interlace.kernels.bodies import CudaLaunch


class AnyLaunch(Protocol):
    """Interface of a launch for executors."""

    def run(self) -> None:
        """Enqueue on the current stream."""

    def compile(self) -> Any:
        """Compile for the current device without launching."""

    def load(self) -> None:
        """Compile and load for the current device, so that ``run`` only launches, as a capture requires."""


def make_not_interpreted_error(op: Op) -> GraphError:
    """Return the error for an op whose only device body is a ``CudaSourceLaunch``, where CUDA C++ cannot run."""
    return GraphError(
        f"op {op.name!r}: kernel {op.kernel!r} is CUDA C++, which the Triton interpreter does not run; "
        "use the reference executor"
    )


@dataclass(frozen=True)
class CudaSourceLaunch:
    """A launch of CUDA source."""

    launch: CudaLaunch

    def run(self) -> None:
        """Enqueue on the current stream."""
        import torch

        # PyTorch takes long to find the current device if none is passed.
        self.launch(torch.cuda.current_stream(torch.cuda.current_device()).cuda_stream)

    def compile(self) -> Any:
        """Compile without launching; needs no GPU."""
        return self.launch.compile()

    def load(self) -> None:
        """Compile and load, so that ``run`` only launches."""
        self.launch.load()


@dataclass(frozen=True)
class TritonLaunch:
    """A Triton kernel with its grid, positional arguments and launch options; ``ops`` are those that it computes.

    Arguments, and the addresses of tensors among them, stay the same. So the first run inspects them and compiles the
    kernel or finds it compiled, which takes longer than to enqueue it; later runs enqueue at once.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    _launchers: list[Callable[..., None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def run(self) -> None:
        """Enqueue on the current stream; under the interpreter, run.

        Raises:
            ResourceError: the device has too little for one block.
        """
        if self._launchers:
            self._launchers[0](*self.arguments)
            return
        # The interpreter computes in NumPy, which would warn about padding that is masked later and about exponentials
        # that saturate; a GPU does not.
        try:
            with np.errstate(all="ignore"):
                compiled = self.kernel[self.grid](*self.arguments, **self.options)
        except Exception as error:
            self._check_resources(error)
            raise
        if compiled is not None:  # None under the interpreter
            self._launchers.append(compiled[(*self.grid, 1, 1)[:3]])

    def compile(self) -> Any:
        """Compile for the current device without launching."""
        return self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)

    def load(self) -> None:
        """Compile and load for the current device, so that ``run`` only launches, as a capture requires.

        Raises:
            ResourceError: the device has too little for one block.
        """
        try:
            self.compile()._init_handles()
        except Exception as error:
            self._check_resources(error)
            raise

    def _check_resources(self, error: Exception) -> None:
        """Raise ResourceError for limits that Triton detects only when it loads a kernel."""
        if type(error).__name__ != "OutOfResources":  # Triton's, which is imported only where a kernel is
            return
        required, limit, what = error.required, error.limit, error.name  # type: ignore[attr-defined]
        who = "a launch" if not self.ops else f"the launch of op {' and '.join(map(repr, self.ops))}"
        if what == "shared memory":
            needs = f"{required} bytes of shared memory for a block, and the device has {limit}"
            change = "a smaller tile or fewer stages"
        elif what == "threads":
            needs = f"{required} threads for a block, and with the registers that each takes the device runs {limit}"
            change = "a smaller tile or fewer warps"
        else:
            needs = f"{required} of {what} for a block, and the device has {limit}"
            change = "a smaller tile"
        raise ResourceError(f"{who} needs {needs}; give it {change}") from error

    def compile_ahead(self, device: DeviceSpec = DEFAULT_GPU) -> Any:
        """Compile for a GPU; needs neither GPU nor driver.

        Returns Triton's compiled kernel, whose ``asm`` holds PTX and cubin.
        """
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

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
        return triton.compile(
            ASTSource(self.kernel, signature, constants, attributes),
            target=target,
            options=dict(self.options),
        )


def _specialise(value: Any, path: tuple[int, ...], constants: dict[Any, Any], attributes: dict[Any, Any]) -> Any:
    """Return the signature of an argument as the launcher would specialise it."""
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
