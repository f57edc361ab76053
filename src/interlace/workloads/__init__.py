"""Graphs that people run."""

from __future__ import annotations

from interlace.workloads.chains import one_matmul, two_copies, two_matmuls
from interlace.workloads.ffn import MODELS, FFNShape, ffn

__all__ = ["MODELS", "FFNShape", "ffn", "one_matmul", "two_copies", "two_matmuls"]
