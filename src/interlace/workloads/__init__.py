"""Graphs that people run."""

from __future__ import annotations

from interlace.workloads.base import Workload
from interlace.workloads.chains import OneMatmul, TwoCopies, TwoMatmuls, one_matmul, two_copies, two_matmuls
from interlace.workloads.ffn import FFN, MODELS, FFNShape, ffn

#: Every workload that the commands take, one line each.
WORKLOADS: tuple[type[Workload], ...] = (
    FFN,
    TwoMatmuls,
    OneMatmul,
    TwoCopies,
)

__all__ = [
    "FFN",
    "MODELS",
    "WORKLOADS",
    "FFNShape",
    "OneMatmul",
    "TwoCopies",
    "TwoMatmuls",
    "Workload",
    "ffn",
    "one_matmul",
    "two_copies",
    "two_matmuls",
]
