"""Which executor and which tiles run a graph on this GPU, or whether a library does."""

from __future__ import annotations

from interlace.deploy.deployment import Deployment, deployment, here
from interlace.deploy.planning import plan_graph, runner

__all__ = ["Deployment", "deployment", "here", "plan_graph", "runner"]
