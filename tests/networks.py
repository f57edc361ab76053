"""ResNet and VGG in PyTorch, written as torchvision writes them, with any number of channels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

import interlace as il
from interlace.nn.convnet.graphs import build_segment_graph
from interlace.nn.convnet.trace import trace_network


class Block(nn.Module):
    """A basic block of ResNet."""

    widening = 1

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = make_downsample(channels, out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    widening = 4

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv3, self.bn3 = nn.Conv2d(out, 4 * out, 1, bias=False), nn.BatchNorm2d(4 * out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = make_downsample(channels, 4 * out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


def make_downsample(channels: int, out: int, stride: int) -> nn.Module | None:
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """A ResNet: blocks of each of its stages, channels of the first."""

    def __init__(self, block: type[Block | Bottleneck], blocks: Sequence[int], width: int = 64, classes: int = 1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for n in range(count):
                out = width << stage
                layers.append(block(channels, out, 2 if stage and not n else 1))
                channels = block.widening * out
        self.layers = nn.Sequential(*layers)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    """A VGG: convolutions of each of its stages, channels of the first."""

    def __init__(self, convolutions: Sequence[int], width: int = 64, hidden: int = 4096, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, count in enumerate(convolutions):
            for _ in range(count):
                out = width << min(stage, 3)
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)]
                channels = out
            layers.append(nn.MaxPool2d(2, 2))
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((7, 7))
        rows = nn.Linear(channels * 49, hidden), nn.ReLU(True), nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(True)
        self.classifier = nn.Sequential(*rows, nn.Dropout(), nn.Linear(hidden, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


#: Networks at their own size by name.
NETWORKS = {
    "resnet18": partial(ResNet, Block, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, Block, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "vgg19": partial(VGG, (2, 2, 4, 4, 4)),
}


def build_network_graph(name: str, images: int) -> il.Graph:
    """Build the graph of a network's only segment for 224 x 224 images; no weights are allocated."""
    with torch.device("meta"):
        trace = trace_network(NETWORKS[name]().eval(), torch.zeros(images, 3, 224, 224))
    (segment,) = trace.segments
    return build_segment_graph(segment, trace.shapes, il.bf16, il.H200.sms)
