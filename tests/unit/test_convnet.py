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
from interlace.nn.convnet import convnet, runs  # noqa: E402
from interlace.nn.convnet.trace import trace_network  # noqa: E402

from ..networks import NETWORKS as WHOLE  # noqa: E402
from ..networks import VGG, Block, Bottleneck, ResNet, build_network_graph  # noqa: E402

nn = torch.nn


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


def make_residual() -> nn.Module:
    """Return a small ResNet: a first layer of 3 channels, pooling, two blocks, and a classifier of 5 classes."""
    return ResNet(Block, (1, 1), width=8, classes=5)


NETWORKS = {
    "bottleneck": (
        lambda: ResNet(Bottleneck, (1, 1), width=8, classes=5),
        (1, 3, 32, 32),
        [1, 8],
        ["maxpool", "avgpool", "flatten", "fc"],
    ),
    "vgg": (
        lambda: VGG((1, 2), width=8, hidden=24, classes=5),
        (2, 3, 28, 28),
        [1, 2],
        ["features.2", "features.7", "avgpool", "flatten", *(f"classifier.{n}" for n in range(7))],
    ),
    "vgg, larger images": (
        lambda: VGG((1, 1), width=8, hidden=24, classes=5),
        (1, 3, 56, 56),
        [1, 1],
        ["features.2", "features.5", "avgpool", "flatten", *(f"classifier.{n}" for n in range(7))],
    ),
    "residual": (make_residual, (2, 3, 32, 32), [1, 5], ["maxpool", "avgpool", "flatten", "fc"]),
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


class ReferenceLaunch:
    """Run of a graph on NumPy in place of a launch."""

    is_running = False

    def __init__(self, graph: il.Graph, device: str) -> None:
        self._graph, self._executor = graph, il.ReferenceExecutor(il.build(graph, il.Schedule(2)))

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        results = self._executor.run({name: tensors[name].numpy() for name in self._graph.inputs})
        for name in self._graph.outputs:
            tensors[name].copy_(torch.from_numpy(np.asarray(results[name])))

    def release(self) -> None:
        pass


@pytest.fixture
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "build_launch", ReferenceLaunch)
    monkeypatch.setattr(runs, "find_spec", lambda device: il.H200)
    monkeypatch.setattr(convnet, "device_fallback_reason", lambda device: None)
    monkeypatch.setattr(runs, "IMAGE_DTYPES", {torch.float64: il.fp32})


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
    trace = trace_network(model, x, joins_layers=False)
    assert [len(segment.steps) for segment in trace.segments] == NETWORKS[name][2]
    layers = trace.list_library_layers()
    assert len(layers) == len(NETWORKS[name][3])
    assert all(part in layer for part, layer in zip(NETWORKS[name][3], layers, strict=True))


def test_block_takes_norm_residual_and_relu() -> None:
    model, x = make("residual")
    steps = trace_network(model, x, joins_layers=False).segments[1].steps
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


@pytest.mark.parametrize(
    ("name", "steps"),
    [("residual", [9]), ("bottleneck", [12]), ("vgg", [8]), ("vgg, larger images", [8]), ("chain", [4])],
)
def test_pooling_and_linear_layers_join_the_convolutions(name: str, steps: list[int]) -> None:
    trace = trace_network(*make(name))
    assert [len(segment.steps) for segment in trace.segments] == steps
    assert trace.list_library_layers() == []


def test_poolings_that_no_kernel_computes_run_by_pytorch() -> None:
    layers = nn.Conv2d(8, 8, 1), nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(8, 8, 1), nn.MaxPool2d(3, dilation=2)
    trace = trace_network(nn.Sequential(*layers).eval(), torch.zeros(1, 8, 16, 16))
    assert trace.list_library_layers() == ["1 (MaxPool2d)", "3 (MaxPool2d)"]


@pytest.mark.parametrize(
    ("layer", "is_step"),
    [
        (nn.AvgPool2d(2), True),
        (nn.AvgPool2d(3, 2, padding=1), False),
        (nn.AvgPool2d(2, divisor_override=3), False),
        (nn.AdaptiveAvgPool2d((4, 2)), True),
        (nn.AdaptiveAvgPool2d(3), False),
        (nn.Sequential(nn.Flatten(2), nn.Linear(16, 3)), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(128, 3), nn.ReLU()), True),
    ],
)
def test_layer_after_a_convolution_joins_it_if_a_kernel_computes_it(
    layer: nn.Module, is_step: bool, on_reference: None
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 1), layer).double().eval().requires_grad_(False)
    network, x = ConvNet(model), torch.randn(2, 8, 4, 4, dtype=torch.float64)
    assert torch.allclose(network(x), model(x), rtol=1e-9, atol=1e-9)
    assert network.explain(x).endswith("no layer by PyTorch") == is_step


def test_value_that_is_read_before_and_after_flattening_stays_right(on_reference: None) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc, self.drop = nn.Conv2d(8, 8, 1), nn.Linear(32, 8), nn.Dropout()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            rows = torch.flatten(self.drop(y), 1)
            return self.fc(rows)[:, :, None, None] + y.tanh() + rows.sum()

    torch.manual_seed(0)
    model = Both().double().eval().requires_grad_(False)
    network, x = ConvNet(model), torch.randn(2, 8, 2, 2, dtype=torch.float64)
    assert torch.allclose(network(x), model(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_network_is_one_graph_whose_convolutions_fill_the_gpu(name: str) -> None:
    graph = build_network_graph(name, 1)
    convolutions = {"resnet18": 21, "resnet34": 37, "resnet50": 54, "vgg19": 19}[name]
    assert sum(op.kernel == "conv2d" for op in graph.ops) == convolutions
    assert [graph.inputs[0], *graph.outputs] == ["x.image", graph.ops[-1].writes[0].tensor]
    schedule = il.MegakernelExecutor.select_default(graph, il.H200)
    plan = il.build(graph, schedule)
    assert il.verify(plan)
    items = np.bincount(plan.items.op)
    assert np.median(items) >= 112
    assert items.min() >= 16


def test_layouts_have_launches_of_their_own(on_reference: None) -> None:
    model, x = make("chain")
    network = ConvNet(model)
    for given in (
        x,
        x.contiguous(memory_format=torch.channels_last),
        x.mT,
    ):
        assert torch.allclose(network(given), model(given), rtol=1e-9, atol=1e-9)
    shapes = {run.inputs[0].is_channels_last for each in network._prepared.values() for run in each.runs.values()}
    assert shapes == {True, False}


def test_least_recently_used_shapes_are_dropped(on_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convnet, "_MAX_SHAPES", 2)
    model, x = make("chain")
    network = ConvNet(model)

    def list_shapes() -> list[int]:
        return [key.images.shape[0] for key in network._prepared]

    for images in (1, 2, 1):
        network(x[:1].repeat(images, 1, 1, 1))
    assert list_shapes() == [1, 2]
    network(x[:1].repeat(3, 1, 1, 1))
    assert list_shapes() == [1, 3]
    monkeypatch.setattr(convnet, "_get_stream", lambda device: (0, 7))
    network(x[:1])
    monkeypatch.setattr(convnet, "_get_stream", lambda device: (0, 0))
    for images in (4, 5):
        network(x[:1].repeat(images, 1, 1, 1))
    assert list_shapes() == [1, 4, 5]  # one image in a captured graph, which may be replayed
    monkeypatch.setattr(ReferenceLaunch, "is_running", True)
    network(x[:1].repeat(6, 1, 1, 1))
    assert list_shapes() == [1, 4, 5, 6]


def test_captured_launch_reads_the_callers_images_and_writes_new_tensors(
    on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = make("residual")
    network = ConvNet(model)
    network.prepare(x)
    bound = []
    run = ReferenceLaunch.run
    monkeypatch.setattr(ReferenceLaunch, "run", lambda self, tensors: bound.append(dict(tensors)) or run(self, tensors))
    monkeypatch.setattr(runs, "_is_captured", lambda value: True)
    first, second = network(x), network(x)
    assert torch.allclose(first, model(x), rtol=1e-9, atol=1e-9)
    assert first.data_ptr() != second.data_ptr()
    (out,) = {name for name in bound[0] if bound[0][name].data_ptr() == first.data_ptr()}
    assert [each["x.image"].data_ptr() for each in bound] == [x.data_ptr()] * 2
    assert bound[1][out].data_ptr() == second.data_ptr()


@pytest.mark.parametrize("fastest", [0, 1])
def test_pooling_runs_in_the_launch_only_where_that_is_faster(
    fastest: int, on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {f"parts {fastest}": 1.0, f"parts {1 - fastest}": 2.0, "library": 3.0, "launch": 1.0}
    monkeypatch.setattr(runs, "time_functions", lambda functions, device: {n: times.get(n, 3.0) for n in functions})
    model, x = make("chain")
    network = ConvNet(model)
    network(x)
    assert torch.allclose(network(x), model(x), rtol=1e-9, atol=1e-9)
    assert ("MaxPool2d" in network.explain(x)) == bool(fastest)


def test_launch_that_cannot_be_built_is_explained_and_pytorch_runs(
    on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: il.Graph, device: str) -> object:
        raise ShapeError("no tile fits")

    monkeypatch.setattr(runs, "build_launch", fail)
    model, x = make("residual")
    network = ConvNet(model)
    assert torch.allclose(network(x), model(x), rtol=1e-9, atol=1e-9)
    assert "PyTorch; no tile fits" in network.explain(x)


@pytest.mark.parametrize("library_us", [1.0, 3.0])
def test_faster_of_parts_and_library_runs(
    library_us: float, on_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"parts 0": 2.0, "parts 1": 2.5, "library": library_us, "launch": 0.5}
    monkeypatch.setattr(runs, "time_functions", lambda functions, device: {name: times[name] for name in functions})
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
        ConvNet(make_residual().double().requires_grad_(False))(x)
    with pytest.raises(GraphError, match=r"ResNet fails on \(2, 4, 32, 32\)"):
        ConvNet(model)(torch.zeros(2, 4, 32, 32, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"x has shape \(3, 32, 32\); pass \(images, channels, H, W\)"):
        ConvNet(model)(x[0])
    with pytest.raises(ArgumentError, match=r"x is a ndarray; pass a tensor \(images, channels, H, W\)"):
        ConvNet(model)(x.numpy())
    with pytest.warns(FallbackWarning, match=r"images of shape \(0, 3, 32, 32\) are empty"):
        assert ConvNet(model)(x[:0]).shape == (0, 5)
    with pytest.raises(ArgumentError, match="model"):
        ConvNet(print)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="library is 3; pass a function of images"):
        ConvNet(model, 3)  # type: ignore[arg-type]


def test_mixed_dtypes_name_the_layer(on_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "IMAGE_DTYPES", {torch.float64: il.fp32, torch.float32: il.fp32})

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.double())

    with pytest.raises(DTypeError, match=r"conv has torch\.float64 weights and x is torch\.float32; convert one"):
        ConvNet(Cast().eval().requires_grad_(False))(torch.zeros(1, 8, 2, 2))
