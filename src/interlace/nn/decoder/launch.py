"""A decode step as launches: the graph of ``workloads.llama``, planned, proved, and captured once in a CUDA graph.

A plan depends on the slots and the capacity, never on lengths, so that one capture serves every step. Which executor
is fastest depends on the model and on the slots: a decoder times those that can run its step when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import torch

from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import InterlaceError, LaunchEndedError
from interlace.deploy.deployment import Deployment, overlaps
from interlace.executors import DeviceExecutor
from interlace.executors.capture import captured
from interlace.executors.gpu import spec_by_name
from interlace.executors.one_launch import OneLaunchExecutor
from interlace.executors.options import Options
from interlace.executors.serial import PdlExecutor
from interlace.graph.graph import Graph
from interlace.nn.op import obstacle_of_device
from interlace.workloads.llama import LlamaShape, decode_graph

#: Executors that may run a step. Where no GPU tells which is fastest, the first that can does.
RUNNERS: tuple[type[DeviceExecutor], ...] = (OneLaunchExecutor, PdlExecutor)
_DTYPES: Mapping[torch.dtype, DType] = {getattr(torch, known.torch): known for known in DTYPES}
_TIMED = 5  # steps


class StepLaunch:
    """One step on given tensors, enqueued by one call.

    Args:
        executor: of a decode step's plan.
        tensors: all inputs and outputs of its graph, which stay where they are.
        taken: (batch,) int32, what each step adds to the positions.

    Attributes:
        left_out: why the other executors were, of those that cannot run the step.

    Raises:
        InterlaceError: as running the executor does.
    """

    def __init__(
        self, executor: DeviceExecutor, tensors: Mapping[str, torch.Tensor], taken: torch.Tensor
    ) -> None:
        self.executor, self._tensors, self._taken = executor, tensors, taken
        self.left_out: tuple[str, ...] = ()
        self._captured: torch.cuda.CUDAGraph | None = None
        if taken.device.type == "cuda":
            self._enqueue()  # compiles, which a capture does not allow; it writes what the first step overwrites
            executor.synchronize()
            self._captured = torch.cuda.CUDAGraph()
            with torch.cuda.device(taken.device), captured(self._captured):
                self._enqueue()

    def run(self) -> None:
        """Enqueue the step on the current stream: caches and outputs are written, positions advanced.

        Raises:
            HangError: a wait of an earlier step ended by the watchdog.
            LaunchEndedError: an earlier step ended itself, and with it the CUDA context.
        """
        if self._captured is None:
            self._enqueue()
            return
        if self.executor.failed:
            self.executor.synchronize()  # raises
        self._captured.replay()

    def step_us(self) -> float:
        """Median time of a few captured steps at the positions that there are, in microseconds; 0 without a GPU.

        Waits for the device. What the steps write, later ones overwrite before they read it.

        Raises:
            HangError: a wait ended by the watchdog.
            LaunchEndedError: a step ended itself, and with it the CUDA context.
        """
        if self._captured is None:
            return 0.0
        times: list[float] = []
        with torch.cuda.device(self._taken.device):
            for _ in range(_TIMED):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record()
                self._captured.replay()
                end.record()
                self.executor.synchronize()
                times.append(begin.elapsed_time(end) * 1e3)
        return median(times)

    def _enqueue(self) -> None:
        self.executor.run(self._tensors)
        self._tensors["position"].add_(self._taken)


def describe_launch(launch: StepLaunch | str) -> tuple[str | None, str]:
    """Return the executor's name and why it runs the step; for a reason against launches no name and that reason."""
    if isinstance(launch, str):
        return None, launch
    executor = type(launch.executor)
    return executor.name, "; without ".join((executor.what, *launch.left_out))


def step_launch(
    shape: LlamaShape,
    batch: int,
    capacity: int,
    tensors: Mapping[str, torch.Tensor],
    taken: torch.Tensor,
    drawn: bool = False,
    pages: int | None = None,
) -> StepLaunch | str:
    """The launches that run a step on these tensors fastest, or why there are none.

    A few steps are timed with half of the caches full; what they write is put back.

    Args:
        tensors: inputs and outputs by the names of ``decode_graph``, and maybe more.
        taken: see ``StepLaunch``.
        drawn, pages: see ``decode_graph``.

    Raises:
        LaunchEndedError: one of them ended itself, and with it the CUDA context.
    """
    embed = tensors["embed"]
    reason = obstacle_of_device(embed.device)
    if reason is not None:
        return reason
    if embed.dtype not in _DTYPES:
        return f"the dtype is {embed.dtype}, the launches take {', '.join(map(str, _DTYPES.values()))}"
    device = str(embed.device)
    try:
        dtype = _DTYPES[embed.dtype]
        graph = decode_graph(shape, batch, capacity, spec_by_name(device), dtype=dtype, drawn=drawn, pages=pages)
    except InterlaceError as error:
        return str(error)
    given = {name: tensors[name] for name in (*graph.inputs, *graph.outputs)}
    able: list[tuple[float, StepLaunch]] = []
    reasons = []
    with _half_full(given, taken, capacity // 2):
        for runner in RUNNERS:
            try:
                runner.check(graph, spec_by_name(device))
                launch = StepLaunch(made(graph, runner, device), given, taken)
                able.append((launch.step_us(), launch))
            except LaunchEndedError:  # no other runs in this process any more
                raise
            except (InterlaceError, torch.OutOfMemoryError) as error:  # there may be room for one, and not for both
                reasons.append(f"{runner.name}: {error}")
    if not able:
        return "; ".join(reasons)
    _, fastest = min(able, key=lambda timed: timed[0])
    fastest.left_out = tuple(reasons)
    return fastest


@contextmanager
def _half_full(tensors: Mapping[str, torch.Tensor], taken: torch.Tensor, half: int) -> Iterator[None]:
    """Every sequence at this position, at which it stays; afterwards everything is as it was before."""
    written = [tensors["position"], tensors["logits"], tensors["next"], taken]
    # In pages, this row of any of them.
    caches = [tensor for name, tensor in tensors.items() if name.endswith("_cache")]
    written += [cache[:, :, half % cache.shape[2]] for cache in caches]
    table = tensors.get("table")
    written += [] if table is None else [table]
    before = [tensor.clone() for tensor in written]
    if table is not None:
        table.copy_(torch.arange(table.numel(), device=table.device).view_as(table) % len(caches[0]))
    tensors["position"].fill_(half)
    taken.zero_()
    try:
        yield
    finally:
        for tensor, value in zip(written, before, strict=True):
            tensor.copy_(value)


def made(graph: Graph, runner: type[DeviceExecutor], device: str) -> DeviceExecutor:
    """An executor of a step, planned for a device by its rules, and verified; once for all processes.

    Raises:
        InterlaceError: as planning and making an executor do.
    """
    found = Deployment(graph, spec_by_name(device), runner)
    proof = found.proof(found.setting())
    options = Options(device=device, dependent_launch=overlaps(runner, proof.plan, found.device))
    return runner(proof, options)
