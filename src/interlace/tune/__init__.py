"""Tuning: time the settings that are predicted fastest on the current GPU; cache the winner."""

from __future__ import annotations

from interlace.tune.search import DEFAULT_TOP, TuningCandidate, TuningResult, tune

__all__ = ["DEFAULT_TOP", "TuningCandidate", "TuningResult", "tune"]
