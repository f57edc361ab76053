"""Common interface of executors for the commands: run once and compare, time, trace."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from interlace.bench.timing import Timing, time_medians
from interlace.cli.machine import BLAS_THREADS, HostMachine
from interlace.cli.problem import RunProblem, count_input_bytes
from interlace.deploy import can_overlap
from interlace.executors import DeviceExecutor, Executor
from interlace.executors.gpu import get_torch_dtype, open_device
from interlace.executors.reference import RandomReferenceExecutor, ReferenceExecutor
from interlace.executors.serial import SerialExecutor
from interlace.graph.graph import Graph
from interlace.megakernel.options import RunOptions
from interlace.plan.verify import Proof
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.sync import NoSync
from interlace.trace.events import Trace
from interlace.workloads.base import Inputs

_ROUNDS = 20
_CPU_ROUNDS, _CPU_BUDGET_S = 5, 1.0
_MAX_COPIES = 64  # sets of inputs to rotate over; a graph that needs more fits the L2 in any case


class Runner(ABC):
    """Executor with its plan and its tensors.

    Attributes:
        executor: class of the executor.
        plan: plan of the executor.
    """

    def __init__(self, executor: type[Executor], proof: Proof) -> None:
        self.executor, self.plan = executor, proof.plan

    @abstractmethod
    def compute_outputs(self) -> dict[str, NDArray[np.float64]]:
        """Return the outputs of one run over poisoned memory."""

    @abstractmethod
    def run_once(self) -> None:
        """Run once and wait for the end."""

    @abstractmethod
    def trace(self) -> Trace:
        """Return the trace of one run."""


class ReferenceRunner(Runner):
    """Reference executor, which poisons its memory itself."""

    def __init__(self, executor: type[Executor], proof: Proof, inputs: Inputs, seed: int) -> None:
        super().__init__(executor, proof)
        drawn = executor is RandomReferenceExecutor
        self._executor = ReferenceExecutor(proof, seed=seed if drawn else None)
        self._inputs = inputs

    def compute_outputs(self) -> dict[str, NDArray[np.float64]]:
        return self._executor.run(self._inputs)

    def run_once(self) -> None:
        self._executor.run(self._inputs)

    def trace(self) -> Trace:
        self._executor.run(self._inputs)
        assert self._executor.trace is not None
        return self._executor.trace


class DeviceTensors:
    """Inputs on a device, with one copy for each set that the timing rotates over, and the outputs."""

    def __init__(self, machine: HostMachine, graph: Graph, inputs: Inputs) -> None:
        torch, device = (machine.torch, machine.device) if machine.cuda else open_device("cpu")
        # If the cache still held the weights of the previous run, every executor would seem too fast.
        copies = -(-2 * machine.spec.l2_bytes // count_input_bytes(graph)) if machine.cuda else 1

        def upload(name: str) -> Any:
            values = torch.from_numpy(np.ascontiguousarray(inputs[name]))
            return values.to(device=device, dtype=get_torch_dtype(torch, graph.tensor(name).dtype.name))

        def empty(name: str) -> Any:
            tensor = graph.tensor(name)
            return torch.empty(tensor.shape, dtype=get_torch_dtype(torch, tensor.dtype.name), device=device)

        first = {name: upload(name) for name in graph.inputs}
        self.results = {name: empty(name) for name in graph.outputs}
        self.sets: list[dict[str, Any]] = [first | self.results]
        for _ in range(min(copies, _MAX_COPIES) - 1):
            self.sets.append({name: value.clone() for name, value in first.items()} | self.results)


class DeviceRunner(Runner):
    """Device executor, on a GPU or under the interpreter.

    Single launches start while the previous launch drains if the GPU supports it, as between layers of a model.
    """

    def __init__(
        self, executor: type[DeviceExecutor], proof: Proof, machine: HostMachine, tensors: DeviceTensors
    ) -> None:
        super().__init__(executor, proof)
        self._machine, self._tensors = machine, tensors
        self._make = partial(executor, proof)
        dependent = can_overlap(executor, proof.plan, machine.spec)
        self._executor = self._make(RunOptions(device=machine.device_name, dependent_launch=dependent))

    def compute_outputs(self) -> dict[str, NDArray[np.float64]]:
        owned = map(self._executor.get_intermediate, self.plan.graph.intermediates)
        for value in (*self._tensors.results.values(), *owned):
            value.fill_(float("nan") if value.is_floating_point() else 0)
        self.run_once()
        return {name: value.double().cpu().numpy() for name, value in self._tensors.results.items()}

    def run_once(self) -> None:
        self._executor.run(self._tensors.sets[0])
        self._executor.synchronize()

    @property
    def runs_per_round(self) -> int:
        """Runs of one ``run_each_set``."""
        return len(self._tensors.sets)

    def run_each_set(self) -> None:
        """Enqueue one run on every set of tensors."""
        for tensors in self._tensors.sets:
            self._executor.run(tensors)

    def synchronize(self) -> None:
        """Wait for all runs, and raise the watchdog's error if there is one."""
        self._executor.synchronize()

    def time_eager(self) -> Timing:
        """Return the times of runs that Python enqueues one by one, between two events on the GPU."""
        cuda = self._machine.torch.cuda
        samples: list[float] = []
        for _ in range(_ROUNDS):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            self._executor.run(self._tensors.sets[0])
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3)
        return Timing.from_samples(samples)

    def trace(self) -> Trace:
        executor = self._make(RunOptions(device=self._machine.device_name, trace=True))
        for _ in range(3 if self._machine.cuda else 1):  # the first run compiles, the second finds cold caches
            executor.run(self._tensors.sets[0])
        return executor.read_trace()


class RunnerFactory:
    """Factory of runners on the same inputs."""

    def __init__(self, inputs: Inputs, machine: HostMachine, seed: int) -> None:
        self._inputs, self._machine, self._seed = inputs, machine, seed
        self._tensors: DeviceTensors | None = None

    def make(self, executor: type[Executor], proof: Proof) -> Runner:
        """Return a runner of a plan.

        Raises:
            PlanError, GraphError: the executor does not support the plan.
            DeviceError: the executor cannot run on this machine.
        """
        if not issubclass(executor, DeviceExecutor):
            return ReferenceRunner(executor, proof, self._inputs, self._seed)
        self._tensors = self._tensors or DeviceTensors(self._machine, proof.plan.graph, self._inputs)
        return DeviceRunner(executor, proof, self._machine, self._tensors)


def compute_expected(problem: RunProblem, inputs: Inputs, machine: HostMachine) -> dict[str, NDArray[Any]]:
    """Compute the outputs in float64, with ids as integers.

    If the problem has a dense function, this uses no tiling, and the GPU if there is one. Otherwise it runs tile by
    tile, op after op.
    """
    graph = problem.graph
    if problem.dense is None:
        found = ReferenceExecutor(build(graph, Schedule(1, policy=NoSync()))).run(inputs)
        return {
            name: v if graph.tensor(name).dtype.is_floating_point else v.astype(np.int64) for name, v in found.items()
        }
    if not machine.cuda:
        return dict(problem.dense(np, {n: v.astype(np.float64) for n, v in inputs.items()}))
    torch = machine.torch
    values = {n: torch.from_numpy(np.ascontiguousarray(v)).to(machine.device).double() for n, v in inputs.items()}
    return {name: value.cpu().numpy() for name, value in problem.dense(torch, values).items()}


def compute_relative_error(found: Mapping[str, NDArray[np.float64]], right: Mapping[str, NDArray[Any]]) -> float:
    """Return the maximum of ||found - right|| / ||right|| (Frobenius norm) over the floating-point outputs.

    Integer outputs are ignored: near-ties below rounding error may select different tokens.
    """
    errors = [
        np.linalg.norm(found[name] - value) / (np.linalg.norm(value) or 1.0)
        for name, value in right.items()
        if np.issubdtype(value.dtype, np.floating)
    ]
    return float(np.max(errors))  # a NaN counts as the largest


def time_all(runners: Sequence[Runner], machine: HostMachine) -> list[Timing]:
    """Time each runner: on a GPU by the benchmark's protocol, otherwise by the wall clock.

    On the GPU all except ``serial`` are captured in CUDA graphs, because ``serial`` is compared with these.
    """
    captured: dict[int, Callable[[], None]] = {}
    for i, runner in enumerate(runners):
        if machine.cuda and isinstance(runner, DeviceRunner) and runner.executor is not SerialExecutor:
            captured[i] = runner.run_each_set
    by_graph: dict[int, Timing] = {}
    if captured:
        calls = next(r.runs_per_round for r in runners if isinstance(r, DeviceRunner))
        timings = time_medians({str(i): f for i, f in captured.items()}, _ROUNDS, calls)
        for i in captured:
            by_graph[i] = timings[str(i)]
    out: list[Timing] = []
    for i, runner in enumerate(runners):
        if i in by_graph:
            out.append(by_graph[i])
        elif machine.cuda and isinstance(runner, DeviceRunner):
            out.append(runner.time_eager())
        else:
            out.append(_time_wall_clock(runner.run_once))
    for runner in runners:
        if isinstance(runner, DeviceRunner):
            runner.synchronize()
    return out


def _time_wall_clock(run: Callable[[], None]) -> Timing:
    samples: list[float] = []
    with threadpool_limits(BLAS_THREADS, "blas"):
        while len(samples) < _CPU_ROUNDS and sum(samples) < _CPU_BUDGET_S * 1e6:
            begin = time.perf_counter_ns()
            run()
            samples.append((time.perf_counter_ns() - begin) * 1e-3)
    return Timing.from_samples(samples)
