"""Small graphs, and every way to run them under the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

import interlace as il
from interlace.executors.device import DeviceExecutor

from .. import cases
from ..cases import Tensors, relative_error, split, workload

torch.set_num_threads(1)  # matrices are tiny, and idle threads that spin cost more than they bring

HIDDEN, FFN = 24, 40  # no multiples of a tile: 2 and 3 tiles wide
TILE = il.MatmulTile(16, 16, 16)
SWAPPED = il.MatmulTile(16, 16, 16, swap_ab=True)


@dataclass(frozen=True)
class Case(cases.Case):
    """A case that is run and judged under the interpreter."""

    def run(self, executor: DeviceExecutor, inputs: Tensors) -> torch.Tensor:
        """One run on fresh, poisoned outputs and intermediates."""
        out = self.make_poisoned_output()
        for name in self.graph.intermediates:
            executor.get_intermediate(name).fill_(float("nan"))
        executor.run({**inputs, self.output: out})
        return out

    def reference(self, plan: il.Plan, inputs: Tensors) -> torch.Tensor:
        """Run the same plan on the reference executor."""
        arrays = {name: value.double().numpy() for name, value in inputs.items()}
        return torch.from_numpy(il.ReferenceExecutor(plan, seed=0).run(arrays)[self.output])

    def check(self, out: torch.Tensor, inputs: Tensors) -> None:
        """No worse than 1.5 times unfused torch in the same dtype, and than a few roundings of fp32.

        Triton 3.6's interpreter truncates to bf16, which errs twice as much as rounding does.
        """
        gold = self.compute_exact(inputs)
        worse = 3 if out.dtype == torch.bfloat16 else 1.5
        limit = max(worse * relative_error(self.answer(inputs), gold), 1e-6)
        if out.numel() < 100:  # too few for errors to average out
            limit = max(limit, worse * self.graph.tensor(self.output).dtype.epsilon)
        error = relative_error(out, gold)
        assert error <= limit, f"error {error:.2e}, limit {limit:.2e}"


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integer = torch.int32 if a.element_size() == 4 else torch.int16
    return torch.equal(a.view(integer), b.view(integer))


def case(name: str, m: int, dtype: str = "bf16", tile: il.MatmulTile = TILE) -> Case:
    return Case(*workload(name, m, HIDDEN, FFN, dtype, tile, (tile.m, tile.n)))


def matmul_case(
    m: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    tile: il.MatmulTile = TILE,
    activation: il.Activation = il.Activation.NONE,
    gated: bool = False,
    bias: bool = False,
    residual: bool = False,
) -> Case:
    """One matmul with some of its options."""
    shapes = {"x": (m, k), "weight": (n, k), "gate": (n, k), "bias": (n,), "residual": (m, n), "out": (m, n)}
    wanted = {"gate": gated, "bias": bias, "residual": residual}
    t = {name: il.Tensor(name, s, il.dtype(dtype)) for name, s in shapes.items() if wanted.get(name, True)}
    options = {name: t[name] for name in wanted if name in t}
    op = il.matmul("mm", t["x"], t["weight"], t["out"], activation=activation, tile=tile, **options)
    graph = il.Graph("mm", tuple(t.values()), (op,), tuple(name for name in t if name != "out"), ("out",))
    apply = {
        il.Activation.NONE: lambda v: v,
        il.Activation.RELU: torch.relu,
        il.Activation.SILU: torch.nn.functional.silu,
        il.Activation.GELU_TANH: lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    }[activation]

    def answer(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        value = t["x"] @ t["weight"].T
        if bias:
            value = value + t["bias"]
        value = apply(t["x"] @ t["gate"].T) * value if gated else apply(value)
        return value + t["residual"] if residual else value

    return Case(graph, answer)


#: Executors by name: (class, schedule for a graph).
EXECUTORS: dict[str, tuple[type[DeviceExecutor], Callable[[il.Graph], il.Schedule]]] = {
    "serial": (il.SerialExecutor, lambda g: il.Schedule(1, policy=il.NoSync())),
    "serial-split": (il.SerialExecutor, lambda g: il.Schedule(4, split=split(g, il.SplitK(2)))),
    "cuda_graph": (il.CudaGraphExecutor, lambda g: il.Schedule(4)),
    "pdl": (il.PdlExecutor, lambda g: il.Schedule(4, split=split(g, il.StreamK(3)))),
    "streams": (il.StreamsExecutor, lambda g: il.Schedule(4, split=split(g, il.SplitK(2)))),
    "semaphore_streams": (il.SemaphoreStreamsExecutor, lambda g: il.Schedule(4, policy=il.RowSync())),
    "semaphore_streams-chunked": (
        il.SemaphoreStreamsExecutor,
        lambda g: il.Schedule(4, split=split(g, il.SplitK(2)), chunk_waits=True),
    ),
    "static": (
        il.PersistentExecutor,
        lambda g: il.Schedule(1, il.Dispatch.STATIC, il.Assignment.BALANCED, interleaving=il.RowPanels(1)),
    ),
    "ticket": (il.PersistentExecutor, lambda g: il.Schedule(3)),
    "ticket-split": (
        il.PersistentExecutor,
        lambda g: il.Schedule(3, policy=il.RowSync(), split=split(g, il.StreamK(5)), interleaving=il.HalfRowPanels()),
    ),
    "ticket-chunked": (
        il.PersistentExecutor,
        lambda g: il.Schedule(3, policy=il.StridedSync(2), chunk_waits=True, order=il.GroupedColumnMajor(2)),
    ),
}


def executor(name: str, graph: il.Graph) -> DeviceExecutor:
    cls, schedule = EXECUTORS[name]
    return cls(il.build(graph, schedule(graph)), il.RunOptions("cpu"))
