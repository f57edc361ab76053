"""An FFN to measure on a GPU: its tensors, what is right in float64, and the same FFN in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from interlace.core.dtypes import DType, bf16, fp32
from interlace.core.errors import ResultError
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import open_device, torch_dtype
from interlace.kernels.matmul import Activation
from interlace.workloads.ffn import FFNShape

_CHECKED_RUNS = 3  # a race need not show in the first
_MOST_ERROR = 1.5  # of PyTorch's own, from the laws of measuring (docs/performance.md)
_FP32_ERROR = 1e-5  # in float32 the order of a long sum matters more than the rounding that PyTorch shares
_FEW_TOKENS, _RUNS, _RUNS_OF_MANY = 256, 16, 4  # launching a graph costs microseconds


class FFNProblem:
    """Tensors of an FFN over m tokens on the current CUDA device.

    The weights come in sets that together exceed twice the L2, to rotate over, so that no run finds its weights
    in the cache. x is drawn from N(0, 1) and weights from N(0, 1 / fan-in).

    Args:
        m, shape, dtype: which FFN.
        seed: of the random numbers.

    Attributes:
        buffers: for each set, all its weights as one flat tensor.
        weights: the same, by name.
        x, out: activations.
        runs: runs of one ``every``: whole rounds over the sets, enough that launching a captured graph of them is
            nothing beside them.
        pytorch: (x, weights) -> out, the FFN as a user writes it.
        pytorch_error: relative error of PyTorch against float64, on the first set.
        pytorch_layers_error: the same of ``every_layer``, over all sets.

    Raises:
        NoDeviceError: there is no CUDA device.
    """

    def __init__(self, m: int, shape: FFNShape, dtype: DType = bf16, *, seed: int = 0) -> None:
        torch, device = open_device("cuda")
        self._torch = torch
        torch.manual_seed(seed)
        up, down = (shape.ffn, shape.hidden), (shape.hidden, shape.ffn)
        extents = {"w_up": up, **({"w_gate": up} if shape.gated else {}), "w_down": down}
        each = shape.ffn * shape.hidden
        self.weight_bytes = len(extents) * each * dtype.itemsize
        sets = 2 + 2 * torch.cuda.get_device_properties(device).L2_cache_size // self.weight_bytes
        least = _RUNS if m <= _FEW_TOKENS else _RUNS_OF_MANY
        self.runs = -(-least // sets) * sets
        kind = {"dtype": torch_dtype(torch, dtype.name), "device": device}
        self.buffers = [torch.empty(len(extents) * each, **kind) for _ in range(sets)]
        self.weights: list[dict[str, Any]] = []
        for buffer in self.buffers:
            parts = zip(extents, buffer.split(each), strict=True)
            self.weights.append({name: part.view(extents[name]) for name, part in parts})
            for value in self.weights[-1].values():
                value.normal_(0, value.shape[1] ** -0.5)
        self.x = torch.randn(m, shape.hidden, device=device).to(kind["dtype"])
        self.out = torch.empty_like(self.x)
        self.pytorch = pytorch_ffn(torch, shape)
        right = {name: value.double() for name, value in self.weights[0].items()}
        self._gold = self.pytorch(self.x.double(), right)
        self.pytorch_error = _relative(self.pytorch(self.x, self.weights[0]), self._gold)
        block = in_a_model(torch, self.pytorch)
        self._gold_layers = self._layers(block, torch.float64)
        self.pytorch_layers_error = _relative(self._layers(block, kind["dtype"]), self._gold_layers)
        self._most_error = max(_MOST_ERROR * self.pytorch_error, _FP32_ERROR if dtype is fp32 else 0.0)

    def every(
        self, run: Callable[[Mapping[str, Any]], object], weights: list[dict[str, Any]] | None = None
    ) -> Callable[[], None]:
        """A function that enqueues ``runs`` runs, rotating over the sets of weights."""
        sets = self.weights if weights is None else weights

        def call() -> None:
            for n in range(self.runs):
                run(sets[n % len(sets)])

        return call

    def every_layer(
        self, block: Callable[[Any, Mapping[str, Any]], Any], weights: list[dict[str, Any]] | None = None
    ) -> Callable[[], Any]:
        """A function that enqueues ``runs`` blocks, each on what the one before gives, rotating over the weights."""
        sets = self.weights if weights is None else weights

        def call() -> Any:
            x = self.x
            for n in range(self.runs):
                x = block(x, sets[n % len(sets)])
            return x

        return call

    def run(self, executor: DeviceExecutor) -> Callable[[Mapping[str, Any]], None]:
        """A function that enqueues one run of an executor on a set of weights."""
        return lambda weights: executor.run({"x": self.x, "out": self.out, **weights})

    def ffn(self, executor: DeviceExecutor) -> Callable[[Any, Mapping[str, Any]], Any]:
        """(x, weights) -> out, one run of an executor; ``out`` is the same tensor each time."""

        def run(x: Any, weights: Mapping[str, Any]) -> Any:
            executor.run({"x": x, "out": self.out, **weights})
            return self.out

        return run

    def check(self, executor: DeviceExecutor) -> float:
        """Largest relative error of a few runs over poisoned memory.

        Raises:
            ResultError: it is more than 1.5 times that of PyTorch, and in fp32 also more than 1e-5.
        """
        errors = []
        for _ in range(_CHECKED_RUNS):
            for value in (self.out, *map(executor.intermediate, executor.plan.graph.intermediates)):
                value.fill_(float("nan"))
            self.run(executor)(self.weights[0])
            executor.synchronize()
            errors.append(_relative(self.out, self._gold))
            if not errors[-1] < self._most_error:
                raise _wrong(executor, errors[-1], self.pytorch_error)
        return max(errors)

    def check_layers(self, executor: DeviceExecutor) -> None:
        """The same for an executor in a model's layers, one behind the other.

        Raises:
            ResultError: the relative error is more than 1.5 times that of PyTorch.
        """
        layers = self._layers(in_a_model(self._torch, self.ffn(executor)), self.x.dtype)
        executor.synchronize()
        error = _relative(layers, self._gold_layers)
        if not error < _MOST_ERROR * self.pytorch_layers_error:
            raise _wrong(executor, error, self.pytorch_layers_error)

    def _layers(self, block: Callable[[Any, Mapping[str, Any]], Any], dtype: Any) -> Any:
        """What a block gives for x, once for each set of weights, in a dtype."""
        x = self.x.to(dtype)
        for weights in self.weights:
            x = block(x, {name: value.to(dtype) for name, value in weights.items()})
        return x


def _relative(out: Any, gold: Any) -> float:
    return float((out.double() - gold).norm() / gold.norm())


def _wrong(executor: DeviceExecutor, error: float, pytorch: float) -> ResultError:
    return ResultError(
        f"executor {executor.name!r} is wrong: relative error {error:.1e}, where PyTorch has {pytorch:.1e}"
    )


def in_a_model(
    torch: Any, ffn: Callable[[Any, Mapping[str, Any]], Any]
) -> Callable[[Any, Mapping[str, Any]], Any]:
    """An FFN as a layer of a model has it: (x, weights) -> x + ffn(rms_norm(x))."""

    def block(x: Any, weights: Mapping[str, Any]) -> Any:
        return x + ffn(torch.nn.functional.rms_norm(x, x.shape[-1:]), weights)

    return block


def transposed(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The same matrices, stored the other way round than ``nn.Linear`` does."""
    return {name: w.T.contiguous().T for name, w in weights.items()}


def pytorch_ffn(torch: Any, shape: FFNShape, fused: bool = False) -> Callable[[Any, Mapping[str, Any]], Any]:
    """The FFN as a user of PyTorch writes it: (x, weights by name) -> out; ``fused``, with its gate as one kernel."""
    functional = torch.nn.functional
    activation = {
        Activation.NONE: lambda x: x,
        Activation.RELU: functional.relu,
        Activation.SILU: functional.silu,
        Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    }[shape.activation]

    def with_fused_gate(x: Any, w: Mapping[str, Any]) -> Any:
        from interlace.kernels.gated import silu_times

        return silu_times(x @ w["w_gate"].T, x @ w["w_up"].T) @ w["w_down"].T

    def gated(x: Any, w: Mapping[str, Any]) -> Any:
        return (functional.silu(x @ w["w_gate"].T) * (x @ w["w_up"].T)) @ w["w_down"].T

    def plain(x: Any, w: Mapping[str, Any]) -> Any:
        return activation(x @ w["w_up"].T) @ w["w_down"].T

    if not shape.gated:
        return plain
    return with_fused_gate if fused else gated
