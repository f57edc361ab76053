"""PyTorch modules on a Hopper GPU: right results eagerly, compiled, captured, and on several streams at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from interlace.nn import FFN, FallbackWarning, SwiGLU, op
from interlace.nn.instances import Instances

from ..cases import relative_error

HIDDEN, WIDTH = 512, 1424  # no multiples of any tile

Module = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def _hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")


@pytest.fixture(autouse=True)
def _no_fallback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that falls back would pass every test here; and each test builds instances of its own."""
    monkeypatch.setattr(op, "_warned", set())
    monkeypatch.setattr(op, "_instances", Instances(op._make))
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error", FallbackWarning)
        yield
        torch.cuda.synchronize()


def case(
    name: str, dtype: torch.dtype, seed: int = 0, hidden: int = HIDDEN, device: str = "cuda"
) -> tuple[Module, Module]:
    """A module, and the same in plain PyTorch, in the dtype of its input."""
    torch.manual_seed(seed)

    def linear(inputs: int, outputs: int) -> nn.Linear:
        layer = nn.Linear(inputs, outputs, bias=name == "ffn-bias", device=device, dtype=dtype)
        for parameter in layer.parameters():
            parameter.normal_()
        layer.weight /= inputs**0.5
        return layer

    up, gate, down = linear(hidden, WIDTH), linear(hidden, WIDTH), linear(WIDTH, hidden)

    def apply(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))

    def gated(x: torch.Tensor) -> torch.Tensor:
        return apply(down, nn.functional.silu(apply(gate, x)) * apply(up, x))

    def plain(x: torch.Tensor) -> torch.Tensor:
        return apply(down, nn.functional.gelu(apply(up, x), approximate="tanh"))

    if name == "swiglu":
        return SwiGLU.from_linears(gate, up, down), gated
    return FFN.from_linears(up, down, "gelu-tanh"), plain


def inputs(m: int, dtype: torch.dtype, seed: int = 0, hidden: int = HIDDEN) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(m, hidden, generator=generator, device="cuda").to(dtype)


def assert_as_good_as_pytorch(out: torch.Tensor, plain: Module, x: torch.Tensor) -> None:
    gold = plain(x.double())
    error, unfused = relative_error(out, gold), relative_error(plain(x), gold)
    assert error <= 1.5 * unfused, f"{error:.2e}, unfused {unfused:.2e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("m", [1, 16, 100, 300])
@pytest.mark.parametrize("name", ["ffn", "ffn-bias", "swiglu"])
def test_a_module_matches_float64_as_well_as_pytorch(name: str, m: int, dtype: torch.dtype) -> None:
    module, plain = case(name, dtype)
    for seed in range(3):  # later runs count on from earlier ones
        x = inputs(m, dtype, seed)
        assert_as_good_as_pytorch(module(x), plain, x)
    assert len(op._instances) == 1
    assert torch.equal(module(x.view(1, m, HIDDEN)), module(x).view(1, m, HIDDEN))


def test_layers_share_an_instance() -> None:
    layers = [case("swiglu", torch.bfloat16, seed) for seed in range(4)]
    x = y = inputs(16, torch.bfloat16)
    for module, plain in layers:
        y = module(x)
        assert_as_good_as_pytorch(y, plain, x)
        x = y / y.std()
    assert len(op._instances) == 1


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("m", [16, 300])
def test_a_captured_graph_replays(m: int, warm: bool, mode: str) -> None:
    """Even if the capture is the first use: the instance is built beside it."""
    layers = [case("swiglu", torch.bfloat16, seed) for seed in range(2)]
    x = inputs(m, torch.bfloat16)
    if warm:
        for module, _ in layers:
            module(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        middle = layers[0][0](x)
        out = layers[1][0](middle)
    for seed in range(4):
        x.copy_(inputs(m, torch.bfloat16, seed))
        middle.fill_(float("nan"))
        out.fill_(float("nan"))
        graph.replay()
        assert_as_good_as_pytorch(middle, layers[0][1], x)
        assert_as_good_as_pytorch(out, layers[1][1], middle)
        layers[0][0](x)  # eager calls in between use an instance of their own
    assert len(op._instances) == 2


def test_graphs_replay_at_the_same_time() -> None:
    module, plain = case("swiglu", torch.bfloat16)
    xs = [inputs(100, torch.bfloat16, seed) for seed in range(3)]
    graphs, outs = [], []
    for x in xs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                out = module(x)
        graphs.append(graph)
        outs.append(out)
    assert len(op._instances) == 3
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(10):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for x, out in zip(xs, outs, strict=True):
        assert_as_good_as_pytorch(out, plain, x)


def test_two_streams_at_once() -> None:
    module, plain = case("ffn-bias", torch.bfloat16)
    xs = [inputs(100, torch.bfloat16, seed) for seed in range(2)]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    outs: list[list[torch.Tensor]] = [[], []]
    for _ in range(100):
        for x, stream, results in zip(xs, streams, outs, strict=True):
            with torch.cuda.stream(stream):
                results.append(module(x))
    torch.cuda.synchronize()
    assert len(op._instances) == 2
    for x, results in zip(xs, outs, strict=True):
        assert_as_good_as_pytorch(results[0], plain, x)
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compile_finds_one_graph(mode: str) -> None:
    """With ``reduce-overhead``, PyTorch captures, and insists that nothing else lives in its memory pool."""
    torch.compiler.reset()
    module, plain = case("swiglu", torch.bfloat16)
    compiled = torch.compile(lambda x: module(x + 1) * 2, fullgraph=True, mode=mode)
    for seed in range(5):
        x = inputs(16, torch.bfloat16, seed)
        torch.compiler.cudagraph_mark_step_begin()
        gold = 2 * plain((x + 1).double())
        assert relative_error(compiled(x), gold) <= 1.5 * relative_error(2 * plain(x + 1), gold)


def test_many_numbers_of_tokens_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "_instances", Instances(op._make, limit=3))
    module, plain = case("ffn", torch.bfloat16, hidden=64)
    outs = [(x, module(x)) for m in range(1, 9) for x in [inputs(m, torch.bfloat16, m, hidden=64)]]
    for x, out in outs:
        assert_as_good_as_pytorch(out, plain, x)
    torch.cuda.synchronize()
    module(inputs(9, torch.bfloat16, hidden=64))
    assert len(op._instances) == 3


def test_no_tensor_outlives_its_call() -> None:
    module, _ = case("swiglu", torch.bfloat16)
    x = inputs(16, torch.bfloat16)
    module(x)
    before = torch.cuda.memory_allocated()
    out = module(x)
    assert torch.cuda.memory_allocated() > before
    del out
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpus(2)
def test_the_device_of_the_tensors_counts_not_the_current_one() -> None:
    module, plain = case("swiglu", torch.bfloat16, device="cuda:1")
    x = inputs(100, torch.bfloat16).to("cuda:1")
    out = module(x)
    assert out.device == torch.device("cuda", 1)
    assert_as_good_as_pytorch(out, plain, x)


def test_training_falls_back() -> None:
    with torch.inference_mode(False), torch.enable_grad():
        linears = [nn.Linear(64, 128), nn.Linear(128, 64)]
        up, down = (linear.to("cuda", torch.bfloat16) for linear in linears)
        module = FFN.from_linears(up, down, "relu")
        x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
        with pytest.warns(FallbackWarning, match="gradients are wanted"):
            module(x).sum().backward()
    assert up.weight.grad is not None
