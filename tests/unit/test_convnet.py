"""Whole networks for images: what is one launch, what PyTorch runs, and that both give the model's result."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import ArgumentError, DTypeError, GraphError, ShapeError  # noqa: E402
from interlace.nn import ConvNet, FallbackWarning  # noqa: E402
from interlace.nn.convnet import convnet  # noqa: E402
from interlace.nn.convnet.trace import trace_network  # noqa: E402

nn = torch.nn


class Block(nn.Module):
    """A basic block of ResNet, as torchvision writes it."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Residual(nn.Module):
    """A small ResNet: a first layer of 3 channels, pooling, two blocks, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Odd(nn.Module):
    """Layers that the kernel does not compute, values that are read twice, and a convolution that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.last = nn.Conv2d(8, 8, (1, 3), (2, 1), (0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.conv(x)
        second = self.conv(torch.relu(first))
        both = torch.add(second, first)
        return self.last(nn.functional.gelu(self.grouped(both)) + x.mean())


class InPlace(nn.Module):
    """A layer that PyTorch runs changes what a convolution before it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(x)
        y = self.first(x)
        return self.second(y) * x.tanh_()


NETWORKS = {
    "residual": (Residual, (2, 3, 32, 32), [1, 5], ["maxpool", "avgpool", "flatten", "fc"]),
    "in place": (InPlace, (1, 8, 4, 4), [2], ["gelu", "tanh_", "mul"]),
    "odd": (Odd, (1, 8, 6, 6), [1, 1, 1], ["relu", "grouped", "gelu", "mean", "add"]),
    "chain": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Conv2d(16, 8, 1)),
        ),
        (2, 3, 8, 8),
        [2, 1],
        ["4 (MaxPool2d)"],
    ),
}


def make(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A network with statistics and gains of its own, in float64, and its input."""
    torch.manual_seed(0)
    model = NETWORKS[name][0]().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return model.eval().requires_grad_(False), torch.randn(NETWORKS[name][1], dtype=torch.float64)


def run_by_reference(graph: il.Graph, device: str) -> convnet.Launch:
    """Run a graph on NumPy in place of a launch."""
    executor = il.ReferenceExecutor(il.build(graph, il.Schedule(2)))

    def run(tensors: Mapping[str, torch.Tensor]) -> None:
        results = executor.run({name: tensors[name].numpy() for name in graph.inputs})
        for name in graph.outputs:
            tensors[name].copy_(torch.from_numpy(np.asarray(results[name])))

    return run


@pytest.fixture
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convnet, "build_launch", run_by_reference)
    monkeypatch.setattr(convnet, "find_spec", lambda device: il.H200)
    monkeypatch.setattr(convnet, "device_fallback_reason", lambda device: None)
    monkeypatch.setattr(convnet, "_DTYPES", {torch.float64: il.fp32})


@pytest.mark.parametrize("name", NETWORKS)
def test_network_gives_the_models_result(name: str, on_reference: None) -> None:
    model, x = make(name)
    network = ConvNet.from_model(model)
    for seed in range(2):
        given = x + seed
        assert torch.allclose(network(given), model(given), rtol=1e-9, atol=1e-9)
    told = network.explain(x).splitlines()
    assert all("one launch" in line for line in told[:-1])


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_that_follow_one_another_are_one_segment(name: str) -> None:
    model, x = make(name)
    trace = trace_network(model, x, joins_pools=False)
    assert [len(segment.steps) for segment in trace.segments] == NETWORKS[name][2]
    layers = trace.list_library_layers()
    assert len(layers) == len(NETWORKS[name][3])
    assert all(part in layer for part, layer in zip(NETWORKS[name][3], layers, strict=True))


def test_block_takes_norm_residual_and_relu() -> None:
    model, x = make("residual")
    steps = trace_network(model, x, joins_pools=False).segments[1].steps
    assert [(step.name, step.residual is not None, step.has_relu) for step in steps] == [
        ("layers.0.conv1", False, True),
        ("layers.0.conv2", True, True),
        ("layers.1.conv1", False, True),
        ("layers.1.downsample.0", False, False),
        ("layers.1.conv2", True, True),
    ]
    assert all(step.bias is not None for step in steps)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [((7, 7), 2, 3, 1), ((3, 2), (1, 3), (0, 2), (2, 1)), ((1, 3), 1, (0, 4), (1, 2)), ((2, 1), 2, 0, 1)],
)
def test_taps_of_a_row_of_few_channels_become_channels(
    kernel: tuple[int, int], stride: object, padding: object, dilation: object, on_reference: None
) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, kernel, stride, padding, dilation), nn.Conv2d(8, 8, 1)  # type: ignore[arg-type]
    model = nn.Sequential(*layers).double().eval().requires_grad_(False)
    network, x = ConvNet(model), torch.randn(2, 3, 9, 11, dtype=torch.float64)
    assert torch.allclose(network(x), model(x), rtol=1e-10, atol=1e-10)
    assert "one launch" in network.explain(x)


def test_result_is_the_callers_own(on_reference: None) -> None:
    model, x = make("chain")
    network = ConvNet(model)
    first = network(x)
    kept = first.clone()
    network(x + 1)
    assert torch.equal(first, kept)


def test_copy_makes_launches_of_its_own(on_reference: None) -> None:
    model, x = make("chain")
    network = ConvNet(model)
    network.prepare(x)
    copied = copy.deepcopy(network)
    assert not copied._prepared
    assert torch.allclose(copied(x), model(x))


def test_max_pooling_joins_the_convolutions_around_it() -> None:
    for name, expected in (("residual", [7]), ("chain", [4])):
        trace = trace_network(*make(name))
        assert [len(segment.steps) for segment in trace.segments] == expected
        assert not any("MaxPool2d" in layer for layer in trace.list_library_layers())
    layers = nn.Conv2d(8, 8, 1), nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(8, 8, 1), nn.MaxPool2d(3, dilation=2)
    trace = trace_network(nn.Sequential(*layers).eval(), torch.zeros(1, 8, 16, 16))
    assert trace.list_library_layers() == ["1 (MaxPool2d)", "3 (MaxPool2d)"]


@pytest.mark.parametrize("fastest", [0, 1])
def test_pooling_runs_in_the_launch_only_where_that_is_faster(
    fastest: int, on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {f"parts {fastest}": 1.0, f"parts {1 - fastest}": 2.0, "library": 3.0, "launch": 1.0}
    monkeypatch.setattr(convnet, "_time", lambda functions, device: {n: times.get(n, 3.0) for n in functions})
    model, x = make("chain")
    network = ConvNet(model)
    network(x)
    assert torch.allclose(network(x), model(x), rtol=1e-9, atol=1e-9)
    assert ("MaxPool2d" in network.explain(x)) == bool(fastest)


def test_launch_that_cannot_be_built_is_explained_and_pytorch_runs(
    on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: il.Graph, device: str) -> convnet.Launch:
        raise ShapeError("no tile fits")

    monkeypatch.setattr(convnet, "build_launch", fail)
    model, x = make("residual")
    network = ConvNet(model)
    assert torch.allclose(network(x), model(x), rtol=1e-9, atol=1e-9)
    assert "PyTorch; no tile fits" in network.explain(x)


@pytest.mark.parametrize("library_us", [1.0, 3.0])
def test_faster_of_parts_and_library_runs(
    library_us: float, on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"parts 0": 2.0, "parts 1": 2.5, "library": library_us, "launch": 0.5}
    monkeypatch.setattr(convnet, "_time", lambda functions, device: {name: times[name] for name in functions})
    model, x = make("chain")
    network = ConvNet.from_model(model, library=lambda images: model(images) + 1)
    is_library = library_us < 2
    assert torch.allclose(network(x), model(x) + is_library)
    runner = "the library" if is_library else "these parts"
    assert network.explain(x).startswith(f"all: {runner}; the parts take 2.0 us, the library {library_us} us")


def test_new_images_in_a_capture_say_what_to_call(on_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make("chain")
    network = ConvNet(model)
    network.prepare(x)
    monkeypatch.setattr(convnet, "_get_stream", lambda device: (0, 7))
    assert torch.allclose(network(x), model(x))  # a capture has launches of its own
    with pytest.raises(GraphError, match=r"images \(1, 3, 8, 8\) are new in a capture; call prepare\(x\) before it"):
        network(x[:1])


def test_without_a_gpu_pytorch_runs_all_and_says_so() -> None:
    model, x = make("residual")
    network = ConvNet(model)
    with pytest.warns(FallbackWarning, match="plain PyTorch: tensors are on a device of type 'cpu'"):
        assert torch.equal(network(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(x)  # a reason is told once
    assert network.explain(x).startswith("all layers: PyTorch")


def test_gradients_run_by_pytorch() -> None:
    model, x = make("chain")
    network = ConvNet(model.requires_grad_())
    with pytest.warns(FallbackWarning, match="gradients are wanted"):
        assert network(x).requires_grad


def test_autocast_runs_by_pytorch(on_reference: None) -> None:
    model, x = make("chain")
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(FallbackWarning, match="autocast is on"):
        ConvNet(model.float())(x.float())


def test_bad_networks_and_inputs_give_one_clear_line(on_reference: None) -> None:
    model, x = make("residual")

    class Loop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(GraphError, match=r"Loop cannot be traced: .*; run it by PyTorch"):
        ConvNet(Loop().eval())(x)
    with pytest.raises(GraphError, match=r"is in training mode; call model\.eval"):
        ConvNet(Residual().double().requires_grad_(False))(x)
    with pytest.raises(GraphError, match=r"Residual fails on \(2, 4, 32, 32\)"):
        ConvNet(model)(torch.zeros(2, 4, 32, 32, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"x has shape \(3, 32, 32\); pass \(images, channels, H, W\)"):
        ConvNet(model)(x[0])
    with pytest.raises(ArgumentError, match="model"):
        ConvNet(print)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="library is 3; pass a function of images"):
        ConvNet(model, 3)  # type: ignore[arg-type]


def test_mixed_dtypes_name_the_layer(on_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convnet, "_DTYPES", {torch.float64: il.fp32, torch.float32: il.fp32})

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.double())

    with pytest.raises(DTypeError, match=r"conv has torch\.float64 weights and x is torch\.float32; convert one"):
        ConvNet(Cast().eval().requires_grad_(False))(torch.zeros(1, 8, 2, 2))
