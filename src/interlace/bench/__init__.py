"""Measuring: the timing protocol, baselines, and records."""
