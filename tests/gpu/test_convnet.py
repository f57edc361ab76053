"""Networks for images on a GPU: as right as PyTorch in one launch, eagerly, on streams and captured."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import nn

import interlace as il
from interlace.graph.op import Op
from interlace.kernels.avg_pool2d import avg_pool2d
from interlace.kernels.unfold_rows import unfold_rows
from interlace.nn import ConvNet
from interlace.nn.convnet import runs

from ..cases import TORCH, relative_error
from ..networks import NETWORKS


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all launches that can be built, whether or not they are faster."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    monkeypatch.setattr(runs, "time_functions", lambda functions, device: {})


def build_network(name: str) -> nn.Module:
    """Return a network with statistics of its own."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1), nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.cuda().bfloat16().eval().requires_grad_(False)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").bfloat16()


def count_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Return the nodes of a captured graph."""
    count = ctypes.c_size_t()
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    assert ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(raw, None, ctypes.byref(count)) == 0
    return count.value


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (1, 3, 224, 224)),
        ("resnet18", (8, 3, 224, 224)),
        ("resnet34", (1, 3, 224, 224)),
        ("resnet50", (3, 3, 224, 160)),
        ("vgg19", (1, 3, 224, 224)),
        ("vgg19", (2, 3, 448, 224)),
    ],
)
@torch.inference_mode()
def test_whole_network_is_as_right_as_pytorch(name: str, shape: tuple[int, ...]) -> None:
    model = build_network(name)
    network = ConvNet(model)
    exact = build_network(name).double()
    for seed in range(2):
        x = draw(*shape, seed=seed)
        gold = exact(x.double())
        limit = 1.5 * relative_error(model(x), gold) + 1e-3
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            assert relative_error(network(given), gold) <= limit
    told = network.explain(x).splitlines()
    assert "one launch" in told[0]
    assert told[1:] == ["no layer by PyTorch"]


@torch.inference_mode()
def test_network_is_right_on_streams_and_captured_as_one_node() -> None:
    model, x = build_network("resnet18"), draw(2, 3, 96, 96)
    network = ConvNet(model)
    network.prepare(x)
    exact = build_network("resnet18").double()
    gold = exact(x.double())
    limit = 1.5 * relative_error(model(x), gold) + 1e-3
    first = network(x)
    network(draw(2, 3, 96, 96, seed=1))
    assert relative_error(first, gold) <= limit
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert relative_error(network(x), gold) <= limit
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        out = network(x)
    graph.instantiate()
    assert count_nodes(graph) == 1
    for seed in range(3):
        x.copy_(draw(2, 3, 96, 96, seed=seed))
        out.fill_(float("nan"))
        graph.replay()
        assert relative_error(out, exact(x.double())) <= limit + 1e-3


@torch.inference_mode()
def test_two_calls_in_a_captured_graph_have_results_of_their_own() -> None:
    model, x, y = build_network("resnet18"), draw(1, 3, 64, 64), draw(1, 3, 64, 64, seed=1)
    network = ConvNet(model)
    network.prepare(x)
    expected = network(x), network(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = network(x), network(y)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))


def run_layer(op: Op, x: torch.Tensor, tensors: tuple[il.Tensor, il.Tensor], dispatch: il.Dispatch) -> torch.Tensor:
    graph = il.Graph("layer", tensors, (op,), ("x",), ("out",))
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(132, dispatch)), il.RunOptions(timeout_s=10.0))
    out = torch.full(tensors[1].shape, float("nan"), dtype=x.dtype, device="cuda")
    for _ in range(3):
        run.run({"x": x, "out": out.fill_(float("nan"))})
        run.synchronize()
    return out


@pytest.mark.parametrize("dispatch", [il.Dispatch.STATIC, il.Dispatch.TICKET])
@pytest.mark.parametrize("dtype", [il.bf16, il.fp16, il.fp32], ids=str)
@pytest.mark.parametrize(("shape", "window", "tile"), [((8, 7, 7, 512), 7, (1, 16)), ((2, 28, 14, 72), 2, (2, 64))])
def test_average_pooling_is_right(
    shape: tuple[int, ...], window: int, tile: tuple[int, int], dtype: il.DType, dispatch: il.Dispatch
) -> None:
    x = torch.randn(shape, device="cuda").to(TORCH[dtype.name])
    gold = torch.nn.functional.avg_pool2d(x.double().permute(0, 3, 1, 2), window).permute(0, 2, 3, 1)
    tensors = il.Tensor("x", shape, dtype), il.Tensor("out", tuple(gold.shape), dtype)
    out = run_layer(avg_pool2d("pool", *tensors, window=window, tile=tile), x, tensors, dispatch)
    assert relative_error(out, gold) <= torch.finfo(x.dtype).eps


@pytest.mark.parametrize("dispatch", [il.Dispatch.STATIC, il.Dispatch.TICKET])
@pytest.mark.parametrize("dtype", [il.bf16, il.fp32], ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("taps", "stride"), [(7, 2), (3, 1)])
def test_taps_become_channels_exactly(
    taps: int, stride: int, channels_last: bool, dtype: il.DType, dispatch: il.Dispatch
) -> None:
    x = torch.randn((2, 3, 224, 224), device="cuda").to(TORCH[dtype.name])
    unfold: Callable[..., torch.Tensor] = torch.nn.functional.unfold
    columns = unfold(x.double(), (1, taps), 1, (0, taps // 2), (1, stride)).view(2, 3, taps, 224, -1)
    columns = columns.permute(0, 3, 4, 2, 1).flatten(3)
    gold = torch.nn.functional.pad(columns, (0, -columns.shape[3] % 8)).to(x.dtype)
    given = x.permute(0, 2, 3, 1).contiguous() if channels_last else x
    tensors = il.Tensor("x", tuple(given.shape), dtype), il.Tensor("out", tuple(gold.shape), dtype)
    options = {"taps": taps, "stride": stride, "padding": taps // 2, "channels_last": channels_last, "rows": 2}
    out = run_layer(unfold_rows("unfold", *tensors, **options), given, tensors, dispatch)  # type: ignore[arg-type]
    assert torch.equal(out, gold)
