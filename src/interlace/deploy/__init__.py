"""Choose the executor and tiles that run a graph on this GPU, or PyTorch's own ops."""

from __future__ import annotations

from interlace.deploy.choose import Choice, choose
from interlace.deploy.launch_rows import choose_launch_rows
from interlace.deploy.library import predict_library_us
from interlace.deploy.planning import (
    autoplan,
    avoid_resident_workers,
    can_overlap,
    count_flops,
    current_device,
    make_executor,
    select_executor,
    select_schedule,
)

__all__ = [
    "Choice",
    "autoplan",
    "avoid_resident_workers",
    "can_overlap",
    "choose",
    "choose_launch_rows",
    "count_flops",
    "current_device",
    "make_executor",
    "predict_library_us",
    "select_executor",
    "select_schedule",
]
