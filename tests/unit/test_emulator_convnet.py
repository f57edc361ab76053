"""Small whole networks for images in one launch on the emulator, in the tiles that a GPU would run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.nn.convnet.graphs import build_segment_graph, list_inputs, list_weights  # noqa: E402
from interlace.nn.convnet.trace import trace_network  # noqa: E402

from ..cases import relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned  # noqa: E402
from ..networks import VGG, Block, Bottleneck, ResNet  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: Network, shape of the images, whether they are channels last.
CASES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, int, int, int], bool]] = {
    "resnet": (partial(ResNet, Block, (1, 1), width=16, classes=12), (1, 3, 40, 24), True),
    "bottleneck": (partial(ResNet, Bottleneck, (1, 1), width=8, classes=8), (2, 3, 24, 24), False),
    "vgg": (partial(VGG, (1, 1), width=16, hidden=72, classes=12), (2, 3, 28, 28), False),
}


class Built:
    """A network in bf16, and the launch of its only segment with its weights."""

    def __init__(self, name: str) -> None:
        make, self.shape, self.is_channels_last = CASES[name]
        torch.manual_seed(0)
        self.model = make().bfloat16().eval().requires_grad_(False)
        trace = trace_network(self.model, torch.zeros(self.shape).bfloat16())
        (segment,) = trace.segments
        layout = {"is_channels_last": self.is_channels_last}
        graph = build_segment_graph(segment, trace.shapes, il.bf16, il.H200.sms, **layout)
        (self.image,) = list_inputs(segment, **layout)
        self.weights = list_weights(segment)
        schedule = replace(il.MegakernelExecutor.select_default(graph, il.H200), workers=1)
        self.launch = EmulatedLaunch(il.build(graph, schedule), stages=3)

    def run(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        """Return the result of the launch for images."""
        view = (x.permute(0, 2, 3, 1) if self.is_channels_last else x).contiguous()
        return run_poisoned(self.launch, {**self.weights, self.image.name: view}, seed).flatten(1)


@cache
def build_all() -> dict[str, Built]:
    made = {name: Built(name) for name in CASES}
    prepare([each.launch for each in made.values()])
    return made


@pytest.mark.parametrize("name", CASES)
def test_whole_network_is_as_right_as_pytorch(name: str) -> None:
    built = build_all()[name]
    exact = built.model.double()
    for seed in range(2):
        x = torch.randn(built.shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
        out, gold = built.run(x, seed), exact(x.double())
        assert [str(fault) for fault in built.launch.faults] == []
        classes = gold.shape[1]
        assert relative_error(out[:, :classes], gold) < 3 * il.bf16.epsilon
        assert not out[:, classes:].any()
    built.model.bfloat16()
