"""Measured search: settings of the Hopper executor, timed on the GPU at hand and kept in the user's cache."""

from __future__ import annotations

from interlace.tune.search import Tuned, candidates, tune

__all__ = ["Tuned", "candidates", "tune"]
