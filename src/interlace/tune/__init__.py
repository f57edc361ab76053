"""Measured search: the settings that are predicted best, timed on the GPU at hand; the winner goes to the cache."""

from __future__ import annotations

from interlace.tune.search import TOP, Candidate, Tuned, tune

__all__ = ["TOP", "Candidate", "Tuned", "tune"]
