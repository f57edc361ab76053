"""Process data on a device in chunks, with upload, computation and download overlapped on CUDA streams."""

from __future__ import annotations

from interlace.streams.pipeline import pipeline

__all__ = ["pipeline"]
