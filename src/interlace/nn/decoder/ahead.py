"""Launches of steps that are planned and compiled side by side, each in a process of its own, for the cache on disk.

Each takes seconds of one core. A decoder that is about to build several starts a process for each, and then builds them
one after the other, from the cache:

    process 1    plan, prove, compile
    process 2    plan, prove, compile
    decoder                            wait for 1, load     wait for 2, load

A process that fails, or a folder that cannot be written, costs time only: the decoder then compiles by itself.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType
from interlace.deploy import can_overlap, select_schedule
from interlace.executors.megakernel import MegakernelExecutor, compile_lowered
from interlace.graph.graph import Graph
from interlace.kernels.cuda import cache
from interlace.megakernel.lower import lower
from interlace.megakernel.options import RunOptions
from interlace.models.llama import LlamaShape, build_decode_graph
from interlace.planner.proof_cache import hash_folder, prove_schedule

_PACKAGE = Path(__file__).parents[2]
_COMMAND = f"from {__name__} import main; main()"


@dataclass(frozen=True)
class StepKey:
    """All that the launch of a step depends on.

    Attributes:
        shape: shape of the model.
        capacity: positions of each slot.
        device: device of the launch.
        dtype: dtype of weights, caches and logits.
        pages: see ``build_decode_graph``.
        batch: number of slots.
        chunk: see ``build_decode_graph``.
    """

    shape: LlamaShape
    capacity: int
    device: DeviceSpec
    dtype: DType
    pages: int | None
    batch: int
    chunk: int

    def build_graph(self) -> Graph:
        """Build the graph of the step, which samples.

        Raises:
            InterlaceError: see ``build_decode_graph``.
        """
        return build_decode_graph(
            self.shape,
            self.batch,
            self.capacity,
            self.device,
            dtype=self.dtype,
            has_sampling=True,
            pages=self.pages,
            chunk=self.chunk,
        )

    def compute_marker(self) -> str | None:
        """Return the key of the cache's entry that says that it has this launch; None if no entry can say so."""
        sources = hash_folder(_PACKAGE)
        facts = {**asdict(self), "device": repr(self.device), "dtype": self.dtype.name}
        return None if sources is None else cache.compute_key(step=facts, versions=[sys.version, sources])


def compile_step(key: StepKey) -> None:
    """Plan, prove and compile the launch of a step, for the cache on disk. Needs no GPU.

    Raises:
        InterlaceError: the megakernel cannot run the step.
    """
    graph = key.build_graph()
    MegakernelExecutor.check(graph, key.device)
    proof = prove_schedule(graph, select_schedule(graph, key.device, MegakernelExecutor))
    overlaps = can_overlap(MegakernelExecutor, proof.plan, key.device)
    compile_lowered(lower(proof, key.device, RunOptions("meta", dependent_launch=overlaps)))
    marker = key.compute_marker()
    if marker is not None:
        cache.store(marker, {}, b"")


class CompilingProcesses:
    """Processes that compile launches, as many at once as this process may use cores.

    Args:
        keys: launches that are not in the cache.
    """

    def __init__(self, keys: Iterable[StepKey]) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False
        self._threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self._ended: dict[StepKey, Future[None]] = {key: self._threads.submit(self._run, key) for key in keys}

    def wait(self, key: StepKey) -> None:
        """Wait for the process of a launch, if it has one."""
        if key in self._ended:
            self._ended[key].result()

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in [*self._running]:
            process.kill()

    def _run(self, key: StepKey) -> None:
        folders = [str(_PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        try:
            with subprocess.Popen(
                [sys.executable, "-c", _COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends the process
            ) as process:
                self._running.add(process)
                if self._is_closed:
                    process.kill()
                process.communicate(pickle.dumps(key))
                self._running.discard(process)
        except OSError:
            return


@contextmanager
def compile_side_by_side(keys: Iterable[StepKey]) -> Iterator[CompilingProcesses]:
    """Compile launches that the cache lacks in processes, which end with the block; a single one needs none."""
    missing = [key for key in dict.fromkeys(keys) if not _is_cached(key)]
    processes = CompilingProcesses(missing if len(missing) > 1 else ())
    try:
        yield processes
    finally:
        processes.close()


def _is_cached(key: StepKey) -> bool:
    marker = key.compute_marker()
    return marker is not None and cache.lookup(marker) is not None


def main() -> None:
    """Compile the launch whose key comes on standard input."""
    compile_step(pickle.load(sys.stdin.buffer))
