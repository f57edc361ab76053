"""Decode step as launches: the graph of ``workloads.llama``, planned, proved, and captured once in a CUDA graph.

A plan depends on the slots and the capacity, never on the lengths, so that one capture serves every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import torch

from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import InterlaceError, LaunchEndedError
from interlace.deploy import can_overlap, select_schedule
from interlace.executors import DeviceExecutor
from interlace.executors.gpu import find_spec
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.serial import PdlExecutor
from interlace.graph.graph import Graph
from interlace.megakernel.capture import capture_graph
from interlace.megakernel.options import RunOptions
from interlace.models.llama import LlamaShape
from interlace.nn.decoder.ahead import StepKey
from interlace.nn.devices import device_fallback_reason
from interlace.planner.proof_cache import prove_schedule

#: Executors that may run a step, of which the first that can does: the megakernel takes 0.32 to 0.74 of the time of the
#: other in all steps that were measured (``decode-*.json``), on an H100 and an H200.
STEP_EXECUTORS: tuple[type[DeviceExecutor], ...] = (MegakernelExecutor, PdlExecutor)
#: Dtypes that launches may have, by those of PyTorch.
TORCH_DTYPES: Mapping[torch.dtype, DType] = {getattr(torch, known.torch): known for known in DTYPES}
_TIMED_STEPS = 5  # steps


class StepLaunch:
    """Decode step on fixed tensors, enqueued by one call.

    Args:
        executor: executor of a decode step's plan.
        tensors: all inputs and outputs of its graph, at fixed addresses.
        advance: (batch,) int32, increment of the positions in each step.

    Attributes:
        rejections: reasons why executors that are preferred cannot run the step.
        step_us: measured time of a step in microseconds; 0 where it was not measured.

    Raises:
        InterlaceError: the executor fails to run.
    """

    def __init__(self, executor: DeviceExecutor, tensors: Mapping[str, torch.Tensor], advance: torch.Tensor) -> None:
        self.executor, self._tensors, self._advance = executor, tensors, advance
        self.rejections: tuple[str, ...] = ()
        self.step_us = 0.0
        self._captured: torch.cuda.CUDAGraph | None = None
        if advance.device.type == "cuda":
            self._enqueue()  # compiles, which a capture forbids; the first step overwrites its results
            executor.synchronize()
            self._captured = torch.cuda.CUDAGraph()
            with torch.cuda.device(advance.device), capture_graph(self._captured):
                self._enqueue()

    def run(self) -> None:
        """Enqueue the step on the current stream: it writes caches and outputs, and advances the positions.

        Raises:
            HangError: the watchdog ended a wait of an earlier step.
            LaunchEndedError: an earlier step ended itself, and with it the CUDA context.
        """
        if self._captured is None:
            self._enqueue()
            return
        if self.executor.has_failed:
            self.executor.synchronize()  # raises
        self._captured.replay()

    def measure_step_us(self) -> float:
        """Return the median time of a few captured steps at the current positions, in microseconds; 0 without a GPU.

        The call waits for the device. Later steps overwrite the results of these steps before they read them.

        Raises:
            HangError: the watchdog ended a wait.
            LaunchEndedError: a step ended itself, and with it the CUDA context.
        """
        if self._captured is None:
            return 0.0
        times: list[float] = []
        with torch.cuda.device(self._advance.device):
            for _ in range(_TIMED_STEPS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record()
                self._captured.replay()
                end.record()
                self.executor.synchronize()
                times.append(begin.elapsed_time(end) * 1e3)
        return median(times)

    def _enqueue(self) -> None:
        self.executor.run(self._tensors)
        self._tensors["position"].add_(self._advance)


def describe_launch(launch: StepLaunch | str) -> tuple[str | None, str]:
    """Return the executor's name and why it runs the step; given a reason against launches, return None and it."""
    if isinstance(launch, str):
        return None, launch
    executor = type(launch.executor)
    return executor.name, "; without ".join((executor.description, *launch.rejections))


def build_step_launch(
    shape: LlamaShape,
    batch: int,
    capacity: int,
    tensors: Mapping[str, torch.Tensor],
    advance: torch.Tensor,
    pages: int | None = None,
    chunk: int = 0,
) -> StepLaunch | str:
    """Return the launches of a step on these tensors, or the reason why no launches can run it.

    A few steps are timed with half-full caches; everything that they write is restored.

    Args:
        tensors: inputs and outputs by the names of ``build_decode_graph``; may include others.
        advance: see ``StepLaunch``.
        pages, chunk: see ``build_decode_graph``. Launches sample, and take the likeliest token at temperature 0.

    Raises:
        LaunchEndedError: a launch ended itself, and with it the CUDA context.
    """
    embed = tensors["embed"]
    reason = device_fallback_reason(embed.device)
    if reason is not None:
        return reason
    if embed.dtype not in TORCH_DTYPES:
        return f"the dtype is {embed.dtype}, the launches take {', '.join(map(str, TORCH_DTYPES.values()))}"
    device = str(embed.device)
    try:
        key = StepKey(shape, capacity, find_spec(device), TORCH_DTYPES[embed.dtype], pages, batch, chunk)
        graph = key.build_graph()
    except InterlaceError as error:
        return str(error)
    given = {name: tensors[name] for name in (*graph.inputs, *graph.outputs)}
    reasons: list[str] = []
    with _hold_half_full(given, advance, capacity // 2):
        for runner in STEP_EXECUTORS:
            try:
                runner.check(graph, find_spec(device))
                launch = StepLaunch(build_executor(graph, runner, device), given, advance)
                launch.step_us = launch.measure_step_us()
            except LaunchEndedError:  # no other launch can run in this process
                raise
            except (InterlaceError, torch.OutOfMemoryError) as error:  # memory may suffice for another one only
                reasons.append(f"{runner.name}: {error}")
            else:
                launch.rejections = tuple(reasons)
                return launch
    return "; ".join(reasons)


@contextmanager
def _hold_half_full(tensors: Mapping[str, torch.Tensor], advance: torch.Tensor, half: int) -> Iterator[None]:
    """Hold every sequence at position ``half``, and restore all tensors afterwards."""
    written = [tensors["position"], tensors["logits"], tensors["next"], advance]
    # With pages, save this row of every page.
    caches = [tensor for name, tensor in tensors.items() if name.endswith("_cache")]
    written += [cache[:, :, half % cache.shape[2]] for cache in caches]
    table = tensors.get("table")
    written += [] if table is None else [table]
    before = [tensor.clone() for tensor in written]
    if table is not None:
        table.copy_(torch.arange(table.numel(), device=table.device).view_as(table) % len(caches[0]))
    tensors["position"].fill_(half)
    advance.zero_()
    try:
        yield
    finally:
        for tensor, value in zip(written, before, strict=True):
            tensor.copy_(value)


def build_executor(graph: Graph, executor: type[DeviceExecutor], device: str) -> DeviceExecutor:
    """Build the executor of a step, with a plan by the device's rules, verified once for all processes.

    Raises:
        InterlaceError: planning or building the executor fails.
    """
    spec = find_spec(device)
    proof = prove_schedule(graph, select_schedule(graph, spec, executor))
    options = RunOptions(device=device, dependent_launch=can_overlap(executor, proof.plan, spec))
    return executor(proof, options)
