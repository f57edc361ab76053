"""One run of the fastest single launch on a row of the benchmark, for a profiler to count.

    ncu --clock-control none --cache-control none -k regex:one_launch --launch-skip 3 --launch-count 1 \
        --metrics dram__bytes_read.sum,dram__bytes_write.sum,lts__t_bytes.sum,lts__t_sector_hit_rate.pct \
        python benchmarks/counters.py relu 16
"""

from __future__ import annotations

import torch
from arguments import given

from interlace.deploy import current_device, deploy_graph
from interlace.workloads import FeedForward


def main(row: str, m: int) -> None:
    """Four runs on random data; the last is the one to count."""
    device = current_device()
    launch = deploy_graph(FeedForward.of({"m": m}, True, row).build_graph(device), device)
    executor = launch.make_executor(launch.default_setting)
    graph = executor.plan.graph
    tensors = {name: executor.allocate_tensor(name) for name in (*graph.inputs, *graph.outputs)}
    for name in graph.inputs:
        tensors[name].normal_(0, graph.tensor(name).shape[-1] ** -0.5)
    for _ in range(4):
        executor.run(tensors)
    executor.synchronize()
    assert torch.isfinite(tensors["out"]).all()


if __name__ == "__main__":
    network, tokens = given(__doc__, "network", "tokens")
    main(network, int(tokens))
