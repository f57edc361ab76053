"""Semantics of kernels in NumPy before and after the rewrite: results, and the steps of their loops."""
