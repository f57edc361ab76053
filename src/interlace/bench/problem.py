"""A workload on a GPU, ready to measure: its tensors, the expected outputs in float64, and PyTorch's versions of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from interlace.bench.gpu_lock import hold_gpu
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import fp32
from interlace.core.errors import DeviceError, InterlaceError, ResultError
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import get_torch_dtype, open_device
from interlace.workloads.base import Workload

#: Tensors by name.
Tensors = Mapping[str, Any]

_CHECKED_RUNS = 3  # a race need not show in the first run
_MAX_ERROR = 1.5  # maximum error relative to PyTorch's own (docs/performance.md)
_FP32_ERROR = 1e-5  # in float32 the order of a long sum matters more than the rounding that PyTorch shares
_GRAPH_US, _MAX_RUNS, _MIN_RUNS = 1000.0, 16, 4  # launching a captured graph costs microseconds
_MAX_SETS = 64  # a problem that needs more sets is so small that it stays in the L2 in any case
_ALIGNED = 256  # alignment of each weight in bytes


class BenchProblem:
    """Tensors of a workload on the current CUDA device.

    The weights come in sets that together exceed twice the L2. Runs rotate over the sets, so that no run finds its
    weights in the cache. The first set comes from the workload (``Workload.make_host_inputs``) or is drawn at random.
    In the other sets, each weight is rolled by a few rows.

    Args:
        workload: workload to measure.
        device: spec of the current CUDA device.
        seed: seed of the random inputs.

    Attributes:
        buffers: for each set, the bytes of all its weights as one flat tensor.
        weights: for each set, its weights by name, as views of the buffer.
        rest: other inputs by name.
        outputs: outputs by name; the same tensors in every run.
        runs: number of runs of one ``make_rotation``: whole rounds over the sets, enough that the cost of launching a
            captured graph of them is negligible.
        weight_bytes: bytes of one set.
        bytes_us, flops_us: microseconds of a run's weight reads at the rate of memory, and of its FLOPs at the rate of
            matmuls.
        pytorch_error: relative error of PyTorch against float64, on the first set.
        pytorch_layers_error: relative error of PyTorch in consecutive layers, one per set; None if the workload is not
            part of a layer.

    Raises:
        NoDeviceError: there is no CUDA device.
    """

    def __init__(self, workload: Workload, device: DeviceSpec, *, seed: int = 0) -> None:
        torch, place = open_device("cuda")
        self.workload, self._torch = workload, torch
        graph = workload.build_graph(device)
        kinds = {t.name: get_torch_dtype(torch, t.dtype.name) for t in graph.tensors}
        given = workload.make_host_inputs(seed)
        drawn = {n: torch.from_numpy(np.ascontiguousarray(given[n])).to(kinds[n]) for n in graph.inputs if n in given}
        names = [name for name in workload.weights if name in graph.inputs]
        self.weight_bytes = sum(graph.tensor(name).nbytes for name in names)
        self.bytes_us = self.weight_bytes * workload.read_share / device.dram_bytes_per_s * 1e6
        self.flops_us = workload.flops / device.flops_per_s(graph.tensor(names[0]).dtype) * 1e6
        sets = min(_MAX_SETS, 2 + 2 * device.l2_bytes // max(1, self.weight_bytes))
        least_us = max(self.bytes_us, self.flops_us, 1.0)
        least = min(_MAX_RUNS, max(_MIN_RUNS, int(_GRAPH_US / least_us)))
        self.runs = -(-least // sets) * sets
        self.buffers: list[Any] = []
        self.weights: list[dict[str, Any]] = []
        self._most = _FP32_ERROR if all(t.dtype is fp32 for t in graph.tensors) else 0.0
        self.pytorch_layers_error: float | None = None
        with hold_gpu():
            random = torch.Generator(place).manual_seed(seed)
            for tensor in (graph.tensor(name) for name in graph.inputs if name not in drawn):
                empty = torch.empty(tensor.shape, dtype=kinds[tensor.name], device=place)
                drawn[tensor.name] = empty.normal_(0.0, workload.get_deviation(tensor), generator=random)
            self.rest = {n: drawn[n].to(place) for n in graph.inputs if n not in names}
            self.outputs = {n: torch.empty(graph.tensor(n).shape, dtype=kinds[n], device=place) for n in graph.outputs}
            self._allocate_sets({name: drawn.pop(name).to(place) for name in names}, sets)
            self._compute_expected()
            torch.cuda.empty_cache()  # free the float64 tensors, whose memory other processes may need

    @property
    def read_buffers(self) -> list[Any]:
        """Bytes of each set of weights, as many as a run reads of it."""
        return [buffer[: int(len(buffer) * self.workload.read_share)] for buffer in self.buffers]

    def _allocate_sets(self, first: Tensors, sets: int) -> None:
        """Allocate and fill the sets of weights."""
        place = next(iter(self.outputs.values())).device
        for n in range(sets):
            buffer, views = _allocate_packed(self._torch, place, first)
            for name, value in first.items():
                views[name].copy_(value.roll(n, 0))
            self.buffers.append(buffer)
            self.weights.append(views)

    def _compute_expected(self) -> None:
        """Compute the expected outputs in float64, and PyTorch's error against them."""
        self._gold = self.run_pytorch(_convert_to_double(self._list_inputs(self.weights[0])))
        self.pytorch_error = _compute_relative_error(self.run_pytorch(self._list_inputs(self.weights[0])), self._gold)
        if self.workload.layer_ports is not None:
            self._gold_layers = self._run_layers(self.make_layer(self.run_pytorch), doubled=True)
            self.pytorch_layers_error = _compute_relative_error(
                self._run_layers(self.make_layer(self.run_pytorch)), self._gold_layers
            )

    # ---------------------------------------------------------------- functions to run

    def run_pytorch(self, tensors: Tensors) -> Tensors:
        """Compute the outputs as a user of PyTorch writes it."""
        return self.workload.run_dense(self._torch, tensors)

    @property
    def alternatives(self) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """Alternative PyTorch implementations, by name."""
        return self.workload.list_alternatives(self._torch)

    def run_fused(self, tensors: Tensors) -> Tensors:
        """Compute the outputs with PyTorch's matmuls and the package's kernels between them."""
        return self.workload.run_fused(self._torch, tensors)

    def make_layer(self, function: Callable[[Tensors], Tensors]) -> Callable[[Any, Tensors], Any]:
        """Return a function from x and the other inputs to the output of a model layer that contains ``function``."""
        taken, given = self._carried

        def block(x: Any, tensors: Tensors) -> Any:
            return self.workload.apply_layer(self._torch, x, lambda y: function({**tensors, taken: y})[given])

        return block

    def make_whole_layer(self, executor: DeviceExecutor) -> Callable[[Any, Tensors], Any]:
        """Return such a function for an executor of ``Workload.layer_workload``; it returns a new tensor."""
        taken, given = self._carried
        known, device = self._list_inputs(self.weights[0]), self.outputs[given].device
        graph, gains = executor.plan.graph, {}
        for tensor in (graph.tensor(name) for name in graph.inputs if name not in known):
            dtype = get_torch_dtype(self._torch, tensor.dtype.name)
            gains[tensor.name] = self._torch.ones(tensor.shape, dtype=dtype, device=device)

        def block(x: Any, tensors: Tensors) -> Any:
            out = self._torch.empty_like(x)
            executor.run({**tensors, **gains, taken: x, given: out})
            return out

        return block

    def make_run(self, executor: DeviceExecutor) -> Callable[[Tensors], Tensors]:
        """Return a function that enqueues one run of an executor on given inputs and returns ``outputs``."""

        def call(tensors: Tensors) -> Tensors:
            executor.run({**tensors, **self.outputs})
            return self.outputs

        return call

    def run_once(self, run: Callable[[Tensors], object], weights: Sequence[Tensors] | None = None) -> None:
        """Run once on the first set of weights, which compiles whatever is not compiled yet."""
        run(self._list_inputs((weights or self.weights)[0]))

    def run_layer_once(self, block: Callable[[Any, Tensors], Any], weights: Sequence[Tensors] | None = None) -> None:
        """Run one layer on the first set of weights."""
        block(self.rest[self._carried[0]], self._list_inputs((weights or self.weights)[0]))

    def make_rotation(
        self, run: Callable[[Tensors], object], weights: Sequence[Tensors] | None = None
    ) -> Callable[[], None]:
        """Return a function that enqueues ``runs`` runs and rotates over the sets of weights."""
        sets = [self._list_inputs(each) for each in weights or self.weights]

        def call() -> None:
            for n in range(self.runs):
                run(sets[n % len(sets)])

        return call

    def make_layer_rotation(
        self, block: Callable[[Any, Tensors], Any], weights: Sequence[Tensors] | None = None
    ) -> Callable[[], Any]:
        """Return a function that enqueues ``runs`` chained layers and rotates over the sets of weights."""
        sets = [self._list_inputs(each) for each in weights or self.weights]

        def call() -> Any:
            x = self.rest[self._carried[0]]
            for n in range(self.runs):
                x = block(x, sets[n % len(sets)])
            return x

        return call

    def transpose_weights(self) -> list[Tensors]:
        """Return the sets of weights with matrices stored transposed; an empty list if no weight is a matrix."""
        if not any(value.dim() == 2 for value in self.weights[0].values()):
            return []
        return [{name: v.T.contiguous().T if v.dim() == 2 else v for name, v in each.items()} for each in self.weights]

    # ---------------------------------------------------------------- expected results

    def compute_error(self, outputs: Tensors) -> float:
        """Return the relative error of the outputs of a run on the first set of weights."""
        return _compute_relative_error(outputs, self._gold)

    def check(self, executor: DeviceExecutor) -> float:
        """Return the maximum relative error of a few runs over memory that is poisoned with NaN.

        Raises:
            ResultError: the error is more than 1.5 times PyTorch's, and in fp32 also more than 1e-5.
        """
        errors = []
        for _ in range(_CHECKED_RUNS):
            with hold_gpu():
                errors.append(self._compute_error(executor))
            self._check_error(f"executor {executor.name!r}", errors[-1], self.pytorch_error)
        return max(errors)

    def check_function(
        self, function: Callable[[Tensors], Tensors], what: str, weights: Sequence[Tensors] | None = None
    ) -> float:
        """Return the relative error of a function on the first set of weights.

        Args:
            function: function from the inputs to the outputs.
            what: description of the function, for the error.
            weights: sets of weights in the form that the function takes; the problem's if None.

        Raises:
            ResultError: the error is more than 1.5 times PyTorch's, and in fp32 also more than 1e-5.
        """
        with hold_gpu():
            error = self.compute_error(function(self._list_inputs((weights or self.weights)[0])))
        self._check_error(what, error, self.pytorch_error)
        return error

    def _check_error(self, what: str, error: float, pytorch: float) -> None:
        if not error <= max(_MAX_ERROR * pytorch, self._most):
            raise ResultError(f"{what} is wrong: relative error {error:.1e}, where PyTorch has {pytorch:.1e}")

    def _compute_error(self, executor: DeviceExecutor) -> float:
        """Return the relative error of one run over poisoned memory."""
        written = (*self.outputs.values(), *map(executor.get_intermediate, executor.plan.graph.intermediates))
        for value in written:
            if value.is_floating_point():
                value.fill_(float("nan"))
        self.make_run(executor)(self._list_inputs(self.weights[0]))
        executor.synchronize()
        return self.compute_error(self.outputs)

    def check_layers(self, block: Callable[[Any, Tensors], Any], executor: DeviceExecutor) -> None:
        """Check consecutive model layers that an executor runs.

        Raises:
            ResultError: the relative error is more than 1.5 times PyTorch's, and in fp32 also more than 1e-5.
        """
        assert self.pytorch_layers_error is not None
        with hold_gpu():
            layers = self._run_layers(block)
            executor.synchronize()
            error = _compute_relative_error(layers, self._gold_layers)
        self._check_error(f"executor {executor.name!r}", error, self.pytorch_layers_error)

    @property
    def _carried(self) -> tuple[str, str]:
        assert self.workload.layer_ports is not None
        return self.workload.layer_ports

    def _list_inputs(self, weights: Tensors) -> dict[str, Any]:
        return {**self.rest, **weights}

    def _run_layers(self, block: Callable[[Any, Tensors], Any], doubled: bool = False) -> Tensors:
        """Return the output of consecutive layers, one for each set of weights."""
        taken, given = self._carried
        x = self.rest[taken].double() if doubled else self.rest[taken]
        for weights in self.weights:
            tensors = self._list_inputs(weights)
            x = block(x, _convert_to_double(tensors) if doubled else tensors)
        return {given: x}


def _allocate_packed(torch: Any, device: Any, like: Tensors) -> tuple[Any, dict[str, Any]]:
    """Allocate one flat tensor of bytes; return it and a view for each given tensor, of its shape and dtype."""
    starts, end = {}, 0
    for name, value in like.items():
        starts[name] = end
        end += -(-value.nbytes // _ALIGNED) * _ALIGNED
    buffer = torch.zeros(end, dtype=torch.uint8, device=device)
    views = {}
    for name, value in like.items():
        part = buffer[starts[name] : starts[name] + value.nbytes]
        views[name] = part.view(value.dtype).view(value.shape)
    return buffer, views


def _convert_to_double(tensors: Tensors) -> dict[str, Any]:
    return {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}


def _compute_relative_error(found: Tensors, right: Tensors) -> float:
    """Return the maximum of ||found - right|| / ||right|| (Frobenius norm) over all expected tensors.

    NaN counts as the largest. Integer tensors are ignored: near-ties below rounding error may select different tokens.
    """
    errors = [
        float((found[name].double() - value.double()).norm() / (value.double().norm() or 1.0))
        for name, value in right.items()
        if value.is_floating_point()
    ]
    return float(np.max(errors))


@contextmanager
def translate_errors(workload: Workload, device: DeviceSpec) -> Iterator[None]:
    """Turn errors of torch, Triton and the operating system into one line.

    Raises:
        DeviceError: replaces any of those errors.
    """
    try:
        yield
    except InterlaceError:
        raise
    except _list_failures() as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DeviceError(
            f"{workload.name} of {workload.size_text} cannot be run on {device.name}: {reason}; if memory is short, "
            "free some or use a smaller one"
        ) from error


def _list_failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of launches that do not compile or run; out of memory is a RuntimeError."""
    from triton.runtime.errors import TritonError

    return TritonError, RuntimeError, OSError
