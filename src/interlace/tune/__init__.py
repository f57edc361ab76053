"""Tuning: time the settings that are predicted fastest on the current GPU; cache the winner."""

from __future__ import annotations

from interlace.tune.search import TOP, Candidate, Tuned, tune

__all__ = ["TOP", "Candidate", "Tuned", "tune"]
