"""Deployment: choose the executor and tiles that run a graph on this GPU, or PyTorch's own ops."""

from __future__ import annotations

from interlace.deploy.choose import Choice, choose
from interlace.deploy.deployment import Deployment, can_overlap, current_device, deploy_graph
from interlace.deploy.launch_rows import choose_launch_rows
from interlace.deploy.library import predict_library_us
from interlace.deploy.planning import autoplan, prove_graph, select_executor

__all__ = [
    "Choice",
    "Deployment",
    "autoplan",
    "can_overlap",
    "choose",
    "choose_launch_rows",
    "current_device",
    "deploy_graph",
    "predict_library_us",
    "prove_graph",
    "select_executor",
]
