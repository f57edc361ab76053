"""Benchmarks: timing protocol, baselines and records."""
