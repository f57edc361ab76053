"""A mixture of experts as one launch under several dispatches, against PyTorch and against a launch for each expert.

    python benchmarks/moe.py benchmarks/results/moe-h200.json
    python benchmarks/moe.py benchmarks/results/moe-h200.json --case mixtral-8x7b:16:balanced

Needs a Hopper GPU. A case is a preset, tokens and how they spread over experts. PyTorch routes, sorts, multiplies by
``torch._grouped_mm`` with gate and up stored as one operand, and adds up on the device, eager and compiled. A launch
for each expert runs the same bodies on the rows of one expert at a time; how many these are the host knows ahead, for
nothing. See ``uneven.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import uneven
from uneven import REPEATS, Case, Rival, Way

from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.timing import describe_protocol
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import int32
from interlace.deploy import autoplan, current_device
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.experts import expert_matmul
from interlace.kernels.matmul import MatmulTile
from interlace.kernels.routing import select_experts
from interlace.workloads import MoE
from interlace.workloads.moe import Routing

PROTOCOL = (
    f"CUDA graphs of many runs each, {describe_protocol(REPEATS)}, random weights in bf16 "
    "rotated past twice the L2, logits drawn once; PyTorch sorts pairs by expert, multiplies by torch._grouped_mm with "
    "gate and up as one operand, and adds up; a launch for each expert is given how many rows there are; bytes: "
    "weights of experts that are hit over the rate of memory; products over that of the tensor cores"
)
#: Sources that a row depends on in addition to those of the launch: CUDA C++ and tiles of products.
MEASURES = "csrc/ops", "kernels/matmul", "workloads/moe.py"
PRESETS = "mixtral-8x7b", "deepseek-moe-16b"
TOKENS = 1, 16, 64, 4096
CASES = [
    Case(
        (("preset", preset), ("tokens", tokens), ("routing", routing.value)),
        MoE.from_fields({"tokens": tokens, "routing": routing}, True, preset),
    )
    for preset in PRESETS
    for tokens in TOKENS
    for routing in Routing
]
_TILE = "BM", "BN", "BK", "STAGES", "num_warps"


def make_grouped(problem: BenchProblem, *, compiled: bool) -> Way:
    """Return PyTorch's own mixture of experts."""
    import torch

    work = problem.workload
    assert isinstance(work, MoE)

    def one(t: Tensors) -> Tensors:
        return {"out": work.run_grouped(torch, t, t["both"])}

    return torch.compile(one, dynamic=False) if compiled else one


def join_weights(problem: BenchProblem) -> list[Tensors]:
    """Gate and up of an expert behind each other."""
    import torch

    return [{"both": torch.cat([t["gate"], t["up"]], dim=1), "down": t["down"]} for t in problem.weights]


def of_one_expert(work: MoE, device: DeviceSpec, tiles: int) -> Graph:
    """Both matmuls of one expert over so many tiles of rows, tiled as those of all experts."""
    whole = work.build_graph(device)
    up, down = (MatmulTile(*(int(whole.op(name).param(p)) for p in _TILE)) for name in ("up", "down"))
    shapes = {
        "rows": (tiles * up.m, work.hidden),
        **dict.fromkeys(("gate", "up"), (1, work.ffn, work.hidden)),
        "down": (1, work.hidden, work.ffn),
        "h": (tiles * up.m, work.ffn),
        "y": (tiles * up.m, work.hidden),
    }
    t = {name: Tensor(name, shape, work.dtype) for name, shape in shapes.items()}
    t["owner"] = Tensor("owner", (tiles,), int32)
    ops = (
        expert_matmul("up", t["rows"], t["owner"], t["up"], t["h"], gate=t["gate"], tile=up),
        expert_matmul("down", t["h"], t["owner"], t["down"], t["y"], tile=down),
    )
    return Graph("expert", tuple(t.values()), ops, ("rows", "owner", "gate", "up", "down"), ("y",))


def per_expert(problem: BenchProblem) -> Way:
    """The rows of an expert at a time, in one launch each; PyTorch puts them in place and adds them up."""
    import torch

    work, device = problem.workload, current_device()
    assert isinstance(work, MoE)
    height = int(work.build_graph(device).op("up").param("BM"))
    experts, shares, _ = select_experts(problem.rest["logits"].cpu().numpy(), work.chosen)
    tokens, weights, parts = [], [], []
    made: dict[int, MegakernelExecutor] = {}
    first = 0
    for expert in range(work.experts):
        token, which = np.nonzero(experts == expert)
        tiles = -(-len(token) // height)
        if not tiles:
            continue
        if tiles not in made:
            made[tiles] = MegakernelExecutor(autoplan(of_one_expert(work, device, tiles), device, MegakernelExecutor))
        idle = tiles * height - len(token)
        tokens.append(np.pad(token, (0, idle)))
        weights.append(np.pad(shares[token, which], (0, idle)))
        parts.append((expert, slice(first, first + tiles * height), made[tiles]))
        first += tiles * height
    x = problem.rest["x"]
    token = torch.from_numpy(np.concatenate(tokens)).to(x.device)
    share = torch.from_numpy(np.concatenate(weights)).to(x.device, x.dtype)[:, None]
    rows, y = (torch.empty((first, work.hidden), dtype=x.dtype, device=x.device) for _ in range(2))
    owner = torch.zeros(max(made), dtype=torch.int32, device=x.device)

    def run(t: Mapping[str, Any]) -> Tensors:
        torch.index_select(t["x"], 0, token, out=rows)
        for expert, own, executor in parts:
            tiles = (own.stop - own.start) // height
            of = {name: t[name][expert : expert + 1] for name in ("gate", "up", "down")}
            executor.run({**of, "rows": rows[own], "y": y[own], "owner": owner[:tiles]})
        return {"out": torch.zeros_like(x).index_add_(0, token, y * share)}

    return run


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    rivals = {
        "PyTorch": Rival(lambda p: make_grouped(p, compiled=False), join_weights),
        "PyTorch, compiled": Rival(lambda p: make_grouped(p, compiled=True), join_weights),
        "a launch for each expert": Rival(per_expert),
    }
    return uneven.measure_case(case, rivals)


if __name__ == "__main__":
    uneven.main(__doc__, PROTOCOL, CASES, measure, MEASURES)
