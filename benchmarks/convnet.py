"""Whole networks for images as one launch, and through ``nn.ConvNet``, against PyTorch.

    python benchmarks/convnet.py benchmarks/results/convnet-h200.json
    python benchmarks/convnet.py convnet.json --case resnet18:1 --case vgg19:1 --quick

Needs a Hopper GPU and torchvision. A case is a network of torchvision and a number of 224 x 224 images. Weights and
statistics are random; batch norms are folded for all. Every variant runs in a CUDA graph in channels last: PyTorch
eager, torch.compile, max-autotune, the launch of all layers, and ``ConvNet`` with torch.compile as its library. Results
are checked against float64 first. ``--quick`` leaves max-autotune out and takes fewer rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from script import format_command, format_error, make_parser
from torch import fx, nn

import interlace as il
from interlace.bench.record import write_record
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.bench.workload import MODES
from interlace.deploy import current_device
from interlace.nn import ConvNet
from interlace.nn.convnet.graphs import build_segment_graph, list_inputs, list_weights
from interlace.nn.convnet.runs import build_launch
from interlace.nn.convnet.trace import trace_network

CASES = [
    *(f"{network}:{images}" for network in ("resnet18", "resnet50", "vgg19") for images in (1, 4, 8, 16, 32)),
    "resnet34:1",
]
MEASURES = (
    "csrc",
    "deploy",
    "executors",
    "kernels/abi",
    "kernels/avg_pool2d",
    "kernels/conv2d",
    "kernels/cuda",
    "kernels/cuda_body.py",
    "kernels/matmul",
    "kernels/max_pool2d",
    "kernels/primitives",
    "kernels/unfold_rows",
    "megakernel",
    "nn/convnet",
    "planner/build.py",
    "planner/waits.py",
    "policies",
)
REPEATS, QUICK_REPEATS = 15, 5
Network = Callable[[torch.Tensor], torch.Tensor]


def make_network(name: str) -> nn.Module:
    """Return a network in float32 with batch norms folded into its convolutions."""
    from torch.fx.experimental.optimization import fuse
    from torchvision import models

    torch.manual_seed(0)
    model = getattr(models, name)()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return fuse(model.eval()).eval().requires_grad_(False)  # its containers are new modules


def make_launch(model: fx.GraphModule, x: torch.Tensor) -> Network:
    """Return the launch of all layers of a network, which reads images at x and writes the same tensor each time."""
    trace = trace_network(model, x)
    if len(trace.segments) != 1 or trace.list_library_layers():
        raise il.GraphError(f"{len(trace.segments)} segments, and PyTorch runs {trace.list_library_layers()}")
    (segment,) = trace.segments
    graph = build_segment_graph(segment, trace.shapes, il.bf16, current_device().sms)
    (image,), (out,) = list_inputs(segment, is_channels_last=True), graph.outputs
    launch, shape = build_launch(graph, str(x.device)), graph.tensor(out).shape
    tensors = {**list_weights(segment), image.name: x.permute(0, 2, 3, 1), out: x.new_empty(shape)}

    def run(x: torch.Tensor) -> torch.Tensor:
        launch.run(tensors)
        return tensors[out].flatten(1)

    return run


def measure_case(case: str, *, is_quick: bool) -> dict[str, Any]:
    """Return times, errors and ratios of a network for a number of images."""
    name, _, images = case.partition(":")
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn((int(images), 3, 224, 224), generator=generator, device="cuda").bfloat16()
    x = x.to(memory_format=torch.channels_last)
    gold = make_network(name).cuda().double()(x.double())
    model = make_network(name).cuda().bfloat16().to(memory_format=torch.channels_last)
    torch.compiler.reset()
    modes = {label: mode for label, mode in MODES.items() if not (is_quick and label == "max-autotune")}
    functions: dict[str, Network] = {
        label: model if mode is None else torch.compile(model, mode=mode, dynamic=False)
        for label, mode in modes.items()
    }
    libraries, network = list(functions), ConvNet(model, library=functions["compile"])
    functions |= {"launch": make_launch(model, x), "ConvNet": network}
    errors = {}
    for label, function in functions.items():
        errors[label] = float((function(x).double() - gold).norm() / gold.norm())
        if not errors[label] <= 1.5 * errors["eager"] + 1e-3:
            raise il.InterlaceError(f"{label} has relative error {errors[label]:.4f}, PyTorch {errors['eager']:.4f}")
    calls = {label: (lambda function=function: function(x)) for label, function in functions.items()}
    rounds = time_rounds(calls, QUICK_REPEATS if is_quick else REPEATS)
    best = rounds.find_fastest(libraries)
    row: dict[str, Any] = {"network": name, "images": int(images), "library": best}
    row["us"] = {label: timing.median_us for label, timing in rounds.times.items()}
    row["ratio"] = {label: rounds.compute_ratio(best, label) for label in ("launch", "ConvNet")}
    row |= {"relative_error": errors, "explained": network.explain(x).splitlines()}
    times = ", ".join(f"{label} {us:.1f}" for label, us in row["us"].items())
    ratios = ", ".join(f"{label} {ratio:.2f}x" for label, ratio in row["ratio"].items())
    print(f"{case}: {times} us; {ratios} of {best}", *row["explained"], sep="\n    ", flush=True)
    return row


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path, help="path of the record")
    parser.add_argument("--case", action="append", help="network of torchvision and images, as resnet18:1")
    parser.add_argument("--quick", action="store_true", help="leave out max-autotune, take fewer rounds")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    chosen = [option for case in options.case or () for option in ("--case", case)]
    command = format_command(options.path, *chosen, *(["--quick"] if options.quick else []))
    protocol = f"bf16, channels last, batch norms folded for all, CUDA graphs, {describe_protocol(REPEATS)}"
    for case in options.case or CASES:
        try:
            rows.append(measure_case(case, is_quick=options.quick))
        except il.InterlaceError as error:
            rows.append({"case": case, "error": format_error(error)})
            print(f"{case}: {format_error(error)}", flush=True)
        write_record(options.path, command, protocol, MEASURES, {"rows": rows})


if __name__ == "__main__":
    main()
