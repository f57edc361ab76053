"""The Hopper executor against the best that PyTorch does with cuBLAS and its compiler, on FFNs of several shapes.

The baseline of a shape is the fastest of eager PyTorch, ``torch.compile`` and ``torch.compile(mode="max-autotune")``,
each with weights as ``nn.Linear`` stores them and transposed, picked on other rounds than those reported. Each is
captured in our own CUDA graph, many runs to a graph, so that neither side pays for launches from Python; all variants
of a shape are replayed interleaved in one process.

Two figures are measured. *Back to back*, an FFN follows itself: under dependent launch our next run then loads its
first weights while the one before drains, which PyTorch's kernels do not. *In a model*, each FFN stands between a norm
and an add, as a layer has it: x + ffn(rms_norm(x)), both sides in one graph, where torch.compile may fuse what it
likes.

The floor of a shape is what a stream of bulk loads over the same weights takes, with no arithmetic
at all, or its FLOPs over the rate of a large cuBLAS matmul, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

from interlace.bench.compile import compile_launches
from interlace.bench.ffn import geometric_mean
from interlace.bench.problem import FFNProblem, in_a_model, transposed
from interlace.bench.timing import Timing, rounds_us
from interlace.core.dtypes import bf16
from interlace.deploy import Deployment, here
from interlace.executors.gpu import open_device
from interlace.executors.hopper import HopperExecutor
from interlace.executors.options import Options
from interlace.kernels.matmul import Activation
from interlace.policies.setting import Setting
from interlace.workloads.ffn import FFNShape, ffn

#: What decides how fast these launches are.
MEASURES = (
    "executors/hopper.py",
    "executors/table.py",
    "kernels/abi",
    "kernels/gluon",
    "kernels/matmul",
    "kernels/primitives",
    "planner/build.py",
    "planner/waits.py",
    "policies",
)
OPTIONS = Options(dependent_launch=True)
_MODES = {"eager": None, "compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
_BOX, _STAGES = 128, 6  # of the stream
_BOUND_BY_MEMORY = 64  # tokens up to which FLOPs never set the floor


@dataclass(frozen=True)
class Bar:
    """A speedup over the baseline that is asked for.

    Attributes:
        ratio: baseline time over ours, at least.
        ms: the numbers of tokens that it is asked of.
        mean: of their geometric mean rather than of each.
    """

    ratio: float
    ms: tuple[int, ...]
    mean: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the benchmark: one FFN at several numbers of tokens."""

    shape: FFNShape
    bars: tuple[Bar, ...]

    @property
    def ms(self) -> tuple[int, ...]:
        """Every number of tokens."""
        return tuple(sorted({m for bar in self.bars for m in bar.ms}))

    def bar(self, m: int) -> float | None:
        """What is asked of m tokens alone, None if they only count in a mean."""
        return next((bar.ratio for bar in self.bars if m in bar.ms and not bar.mean), None)


_LARGE = (512, 1024, 2048, 4096, 8192)
ROWS: Mapping[str, Row] = {
    "relu": Row(
        FFNShape(4096, 14336, Activation.RELU, False),
        (Bar(1.17, (1, 16, 64)), Bar(1.18, (128,)), Bar(1.12, (256,)), Bar(1.0, _LARGE), Bar(1.04, _LARGE, mean=True)),
    ),
    "swiglu": Row(
        FFNShape(4096, 14336, Activation.SILU, True),
        (Bar(1.13, (1, 16)), Bar(1.17, (128,)), Bar(1.03, (1024, 4096))),
    ),
    "gelu": Row(
        FFNShape(12288, 6144, Activation.GELU_TANH, False),
        (Bar(1.15, (1, 16, 64)), Bar(1.03, (256, 512, 1024, 2048), mean=True)),
    ),
    "swiglu-tp8": Row(FFNShape(8192, 3584, Activation.SILU, True), (Bar(1.15, (1, 16, 128)),)),
}


@dataclass(frozen=True)
class Result:
    """One row at one number of tokens.

    Attributes:
        row, m: which.
        setting: how the Hopper executor ran.
        ours: its time.
        libraries: times of what the baseline is chosen from.
        baseline: the fastest of them.
        layer, layer_libraries, layer_baseline: ours, theirs and the fastest, in a model.
        stream: time of the bulk-load stream over the weights.
        floor_us: the least time; see the module.
        error, pytorch_error: relative, against float64.
    """

    row: str
    m: int
    setting: Setting
    ours: Timing
    libraries: Mapping[str, Timing]
    baseline: str
    layer: Timing
    layer_libraries: Mapping[str, Timing]
    layer_baseline: str
    stream: Timing
    floor_us: float
    error: float
    pytorch_error: float

    @property
    def ratio(self) -> float:
        """Time of the baseline over ours: above 1 is faster."""
        return self.libraries[self.baseline].median_us / self.ours.median_us

    @property
    def layer_ratio(self) -> float:
        """The same, in a model."""
        return self.layer_libraries[self.layer_baseline].median_us / self.layer.median_us

    @property
    def bar(self) -> float | None:
        """The ratio asked for, None if only a mean is."""
        return ROWS[self.row].bar(self.m)

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "row": self.row,
            "m": self.m,
            "setting": self.setting.to_data(),
            "ours": asdict(self.ours),
            "libraries": {name: asdict(t) for name, t in self.libraries.items()},
            "baseline": self.baseline,
            "layer": asdict(self.layer),
            "layer_libraries": {name: asdict(t) for name, t in self.layer_libraries.items()},
            "layer_baseline": self.layer_baseline,
            "layer_ratio": self.layer_ratio,
            "stream": asdict(self.stream),
            "floor_us": self.floor_us,
            "ratio": self.ratio,
            "bar": self.bar,
            "relative_error": self.error,
            "pytorch_relative_error": self.pytorch_error,
        }


def means(ratios: Mapping[tuple[str, int], float]) -> Iterator[tuple[str, Bar, float]]:
    """(row, bar, geometric mean) for each bar on a mean all of whose ratios, by (row, m), are there."""
    for name, row in ROWS.items():
        for bar in row.bars:
            if bar.mean and all((name, m) in ratios for m in bar.ms):
                yield name, bar, geometric_mean([ratios[name, m] for m in bar.ms])


def measure(name: str, m: int, *, compiled: bool = True, repeats: int = 15, seed: int = 0) -> Result:
    """Measure one row at m tokens, in bf16, on the current CUDA device.

    Args:
        compiled: let torch.compile take part.
        repeats: rounds over all variants.

    Raises:
        NoDeviceError: there is no GPU of the Hopper generation.
        ResultError: a result is wrong, before or after the timed runs.
    """
    shape = ROWS[name].shape
    torch, _ = open_device("cuda")
    launch = _launch(m, shape)
    gpu, setting = launch.device, launch.default
    executor = launch.make(setting, OPTIONS)
    problem = FFNProblem(m, shape, seed=seed)
    error = problem.check(executor)
    problem.check_layers(executor)
    stored = {"": problem.weights, ", transposed weights": [transposed(weights) for weights in problem.weights]}
    modes = _MODES if compiled else {"eager": None}
    torch.compiler.reset()
    alone: dict[str, Callable[[], Any]] = {}
    layers: dict[str, Callable[[], Any]] = {}
    for (label, mode), (suffix, weights) in product(modes.items(), stored.items()):
        one, block = problem.pytorch, in_a_model(torch, problem.pytorch)
        if mode is not None:
            one, block = (torch.compile(f, mode=mode, dynamic=False) for f in (one, block))
        alone[label + suffix] = problem.every(partial(one, problem.x), weights)
        layers[label + suffix] = problem.every_layer(block, weights)
    ours = {"ours": problem.every(problem.run(executor)), "stream": _stream(problem, shape, gpu.sms)}
    rounds = rounds_us({**alone, **ours}, repeats, problem.runs)
    layer = problem.every_layer(in_a_model(torch, problem.ffn(executor)))
    layer_rounds = rounds_us({**layers, "ours": layer}, repeats, problem.runs)
    error = max(error, problem.check(executor))
    times = rounds.times
    floor = times["stream"].median_us
    if m > _BOUND_BY_MEMORY:
        flops = 2.0 * m * problem.weight_bytes / bf16.itemsize
        floor = max(floor, flops / gpu.flops_per_s(bf16) * 1e6)
    return Result(
        name,
        m,
        setting,
        times["ours"],
        {label: times[label] for label in alone},
        rounds.fastest(alone),
        layer_rounds.times["ours"],
        {label: layer_rounds.times[label] for label in layers},
        layer_rounds.fastest(layers),
        times["stream"],
        floor,
        error,
        problem.pytorch_error,
    )


def compile_all(
    jobs: Sequence[tuple[int, FFNShape]], processes: int | None = None
) -> Iterator[int]:
    """Compile the launch of every (m, shape) in parallel; see ``compile_launches``."""
    launches = [_launch(*job) for job in jobs]
    return compile_launches([partial(launch.make, launch.default, OPTIONS) for launch in launches], processes)


def _launch(m: int, shape: FFNShape) -> Deployment:
    return Deployment(ffn(m, shape), here(), HopperExecutor)


def _stream(problem: FFNProblem, shape: FFNShape, sms: int) -> Callable[[], None]:
    """A stream over each set of weights in turn, one after another without a gap."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from interlace.kernels.gluon.stream import stream_kernel

    box = [_BOX, _BOX]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    sources = [TensorDescriptor.from_tensor(buffer.view(-1, shape.hidden), box, layout) for buffer in problem.buffers]
    boxes = problem.buffers[0].numel() // _BOX**2

    def call() -> None:
        for n in range(problem.runs):
            stream_kernel[(sms,)](sources[n % len(sources)], boxes, _STAGES, num_warps=4, launch_pdl=True)

    return call
