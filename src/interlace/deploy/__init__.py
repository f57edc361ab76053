"""Deployment: choose the executor and tiles that run a graph on this GPU, or PyTorch's own ops."""

from __future__ import annotations

from interlace.deploy.choose import Choice, choose
from interlace.deploy.deployment import Deployment, deployment, here, overlaps
from interlace.deploy.library import library_us
from interlace.deploy.planning import plan_graph, prove_graph, runner
from interlace.deploy.rows import launched_rows

__all__ = [
    "Choice",
    "Deployment",
    "choose",
    "deployment",
    "here",
    "launched_rows",
    "library_us",
    "overlaps",
    "plan_graph",
    "prove_graph",
    "runner",
]
