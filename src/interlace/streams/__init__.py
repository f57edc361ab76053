"""Data that goes through a device in chunks: to it, through a computation and back, all at once on streams."""

from __future__ import annotations

from interlace.streams.pipeline import pipeline

__all__ = ["pipeline"]
