"""Compare the CUDA source of rewritten kernels on the emulator with their loops in the interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlace.core.devices import H200
from interlace.loops.cuda.emit import EmittedKernel, emit_kernel
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import LoopKernel, MemorySpace
from interlace.loops.meaning.interpret import interpret
from interlace.loops.rewrite.circular import lower

from .build import Library, build
from .launch import launch


@dataclass(frozen=True)
class Trial:
    """A kernel of loops with its marks, its form (warp-specialised or not), and extents to run it with."""

    name: str
    source: LoopKernel
    warp_specialised: bool
    sizes: Mapping[str, int]
    tolerance: float = 0.0

    def emit(self) -> EmittedKernel:
        """Return its CUDA source."""
        return emit_kernel(lower(self.source, warp_specialised=self.warp_specialised), H200)


def inputs_of(kernel: LoopKernel, sizes: Mapping[str, int]) -> dict[str, npt.NDArray[np.float32]]:
    """Return small integers for every input, so that sums are exact in any order."""
    random = np.random.default_rng(0)
    return {
        t.name: random.integers(-4, 5, [evaluate(n, sizes) for n in t.shape]).astype(np.float32)
        for t in kernel.tensors
        if t.memory is MemorySpace.GLOBAL and not t.is_written
    }


def troubles(trials: Iterable[Trial], seeds: int = 1) -> list[str]:
    """Compile all trials at once and return their failures: faults, or outputs that differ from the interpreter's."""
    every = tuple(trials)
    library = build([trial.emit() for trial in every])
    return [t for number, trial in enumerate(every) for t in troubles_of(library, number, trial, range(seeds))]


def troubles_of(library: Library, number: int, trial: Trial, seeds: Iterable[int]) -> Iterable[str]:
    """Yield the failures of kernel ``number`` of ``library``, which was built from ``trial``."""
    inputs = inputs_of(trial.source, trial.sizes)
    meant = interpret(trial.source, inputs, trial.sizes)
    for seed in seeds:
        run = launch(library, number, inputs, trial.sizes, seed=seed)
        where = f"{trial.name}, {dict(trial.sizes)}, seed {seed}"
        yield from (f"{where}: {fault}" for fault in run.faults)
        for name, values in run.outputs.items():
            if not np.allclose(values, meant[name], rtol=trial.tolerance, atol=trial.tolerance, equal_nan=True):
                wrong = ~np.isclose(values, meant[name], rtol=trial.tolerance, atol=trial.tolerance, equal_nan=True)
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                yield f"{where}: {name}{list(at)} is {values[at]}, not {meant[name][at]}; {wrong.sum()} are wrong"
