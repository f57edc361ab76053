"""PyTorch modules on a Hopper GPU: right results eagerly, compiled, captured, and on several streams at once.

Launches run whatever is chosen, unless a test is of the choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from interlace.deploy import Choice, choose_launch_rows, current_device
from interlace.executors.megakernel import MegakernelExecutor
from interlace.kernels.cuda import launcher
from interlace.kernels.gated import _silu_and_mul
from interlace.nn import FFN, FallbackWarning, SwiGLU, op
from interlace.nn import plain as plain_ops
from interlace.nn.instances import Instance, Instances, Key, Tensors
from interlace.nn.plain import run_fused as fused_ffn
from interlace.nn.plain import run_plain as plain_ffn
from interlace.workloads import FFNShape

from ..cases import relative_error

HIDDEN, WIDTH = 512, 1472  # no multiples of any tile

Module = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def _hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")


LAUNCH = Choice(MegakernelExecutor, None, None, None, "every test but those of the choice wants it")


@pytest.fixture(autouse=True)
def _no_fallback(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that falls back would pass every test here; and each test builds instances of its own."""
    monkeypatch.setattr(op, "_warned", set())
    if "as_chosen" not in request.fixturenames:
        monkeypatch.setattr(op, "choose_ffn", lambda *of: LAUNCH)
    monkeypatch.setattr(op, "_instances", Instances(op._make))
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error", FallbackWarning)
        yield
        torch.cuda.synchronize()


@pytest.fixture
def as_chosen() -> None:
    """Run the executor that is chosen."""


def built_for(module: Any, tokens: int) -> int:
    """Rows of the launch that a module runs for some tokens."""
    width, hidden = module.w_up.shape
    shape = FFNShape(hidden, width, module.activation, isinstance(module, SwiGLU), module.norm)
    return choose_launch_rows(tokens, shape, current_device())


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

    def run_gated(x: torch.Tensor) -> torch.Tensor:
        return apply(down, nn.functional.silu(apply(gate, x)) * apply(up, x))

    def run_plain(x: torch.Tensor) -> torch.Tensor:
        return apply(down, nn.functional.gelu(apply(up, x), approximate="tanh"))

    norm = nn.RMSNorm(hidden, eps=1e-5, device=device, dtype=dtype)
    norm.weight.normal_()

    def run_norm(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (hidden,), norm.weight.to(x.dtype), norm.eps)

    if name == "swiglu":
        return SwiGLU.from_linears(gate, up, down), run_gated
    if name == "swiglu-norm":
        return SwiGLU.from_linears(gate, up, down, norm=norm), lambda x: x + run_gated(run_norm(x))
    if name == "ffn-norm":
        return FFN.from_linears(up, down, "gelu-tanh", norm=norm), lambda x: x + run_plain(run_norm(x))
    return FFN.from_linears(up, down, "gelu-tanh"), run_plain


def inputs(m: int, dtype: torch.dtype, seed: int = 0, hidden: int = HIDDEN) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(m, hidden, generator=generator, device="cuda").to(dtype)


def assert_as_good_as_pytorch(out: torch.Tensor, plain: Module, x: torch.Tensor) -> None:
    gold = plain(x.double())
    error, unfused = relative_error(out, gold), relative_error(plain(x), gold)
    assert error <= 1.5 * unfused, f"{error:.2e}, unfused {unfused:.2e}"


# An odd number of tokens of each bucket up to 384, and of a large one.
@pytest.mark.parametrize(
    ("m", "dtype"),
    [(m, torch.bfloat16) for m in (1, 17, 47, 97, 129, 301, 1031)] + [(m, torch.float16) for m in (16, 301)],
)
@pytest.mark.parametrize("name", ["ffn", "ffn-bias", "swiglu", "ffn-norm", "swiglu-norm"])
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
@pytest.mark.parametrize(("name", "m"), [("swiglu", 16), ("swiglu", 300), ("swiglu-norm", 16)])
def test_a_captured_graph_replays(name: str, m: int, warm: bool, mode: str) -> None:
    """Even if the capture is the first use: the instance is built beside it."""
    layers = [case(name, torch.bfloat16, seed) for seed in range(2)]
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


@pytest.mark.parametrize(("name", "m"), [("swiglu", 100), ("swiglu-norm", 60)])
def test_graphs_replay_at_the_same_time(name: str, m: int) -> None:
    module, plain = case(name, torch.bfloat16)
    xs = [inputs(m, torch.bfloat16, seed) for seed in range(3)]
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


def test_a_call_is_right_wherever_its_tensors_lie() -> None:
    """Launches on tensors that lie as others did are taken again, also between replays of a graph that has some."""
    module, plain = case("swiglu", torch.bfloat16)
    static = inputs(48, torch.bfloat16)
    module(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module(module(static))
    kept = []
    for seed in range(12):
        x = inputs(40 + seed % 5, torch.bfloat16, seed)
        assert_as_good_as_pytorch(module(x), plain, x)
        kept += [x] if seed % 2 else []  # else the next may lie there
        static.copy_(inputs(48, torch.bfloat16, 100 + seed))
        graph.replay()
        assert torch.equal(captured, module(module(static)))
    assert_as_good_as_pytorch(module(static.view(2, 24, HIDDEN)).view(48, HIDDEN), plain, static)


def test_known_launches_keep_no_tensor_alive() -> None:
    module, _ = case("swiglu", torch.bfloat16)
    x = inputs(48, torch.bfloat16)
    module(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for n in range(8):
        module(torch.zeros(48, HIDDEN, device="cuda", dtype=torch.bfloat16) if n % 2 else x.clone())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_many_numbers_of_tokens_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "_instances", Instances(op._make, limit=3))
    module, plain = case("ffn", torch.bfloat16, hidden=64)
    outs = [(x, module(x)) for m in (1, 17, 33, 65) for x in [inputs(m, torch.bfloat16, m, 64)]]
    for x, out in outs:
        assert_as_good_as_pytorch(out, plain, x)
    torch.cuda.synchronize()
    module(inputs(1, torch.bfloat16, hidden=64))
    assert len(op._instances) == 3


def test_a_hundred_numbers_of_tokens_share_the_launches_of_their_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def make(key: Key, tensors: Tensors) -> Instance:
        built.append(key.rows)
        return op._make(key, tensors)

    monkeypatch.setattr(op, "_instances", Instances(make))
    module, plain = case("swiglu", torch.bfloat16, hidden=64)
    some = range(1, 300, 3)
    rows = sorted({built_for(module, m) for m in some})
    assert len(rows) < 20
    module.prepare(*rows)
    assert built == rows
    loaded = launcher._load_cached.cache_info().currsize
    for m in some:
        x = inputs(m, torch.bfloat16, m, hidden=64)
        assert_as_good_as_pytorch(module(x), plain, x)
    assert built == rows
    assert launcher._load_cached.cache_info().currsize == loaded


@pytest.mark.parametrize("name", ["ffn-bias", "swiglu", "ffn-norm", "swiglu-norm"])
def test_launches_serve_fewer_rows_than_they_have(name: str) -> None:
    module, plain = case(name, torch.bfloat16)
    for m in (1, 9, 16, 17, 33, 47, 65, 97, 127, 129, 200, 300, 513):
        x = inputs(m, torch.bfloat16, m)
        assert_as_good_as_pytorch(module(x), plain, x)


@pytest.mark.parametrize("name", ["ffn-bias", "swiglu"])
def test_what_explain_says_is_what_ran(as_chosen: None, name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    module, plain = case(name, torch.bfloat16)
    found = {m: module.explain(m).executor for m in (1, 16, 40, 100, 1000)}
    for m, executor in found.items():
        before = len(op._instances)
        x = inputs(m, torch.bfloat16)
        assert_as_good_as_pytorch(module(x), plain, x)
        if executor is None:
            assert len(op._instances) == before
    rows = {built_for(module, m) for m, executor in found.items() if executor is not None}
    assert len(op._instances) == len(rows)


def test_a_gate_in_one_kernel_is_as_good_as_pytorch(as_chosen: None) -> None:
    gate, up = (torch.randn(1424, 1424, device="cuda", dtype=torch.bfloat16) / 1424**0.5 for _ in range(2))
    for m in (1, 5, 1000):
        x = inputs(m, torch.bfloat16, hidden=1424)
        arguments = (x, up, gate, up, None, None, "silu")
        gold = plain_ffn(*(a.double() if isinstance(a, torch.Tensor) else a for a in arguments))
        error, unfused = (relative_error(way(*arguments), gold) for way in (fused_ffn, plain_ffn))
        assert error <= 1.05 * unfused


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_gate_is_compiled_beside_the_capture_that_needs_it_first(as_chosen: None, mode: str) -> None:
    module, plain = case("swiglu", torch.bfloat16)
    x = inputs(1000, torch.bfloat16)
    plain(x)  # which sets cuBLAS up
    plain_ops._load_gate.cache_clear()
    _silu_and_mul.device_caches.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        out = module(x)
    out.fill_(float("nan"))
    graph.replay()
    assert_as_good_as_pytorch(out, plain, x)


def test_torch_compile_fuses_what_pytorch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "choose_ffn", lambda *of: Choice(None, None, None, None, "PyTorch is to run"))
    torch.compiler.reset()
    module, plain = case("swiglu", torch.bfloat16)
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    x = inputs(1000, torch.bfloat16)
    assert_as_good_as_pytorch(compiled(x), plain, x)
    assert len(op._instances) == 0


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
