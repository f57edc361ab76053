"""Simulated caches: what of a stream of accesses hits, at tile and at line granularity."""
