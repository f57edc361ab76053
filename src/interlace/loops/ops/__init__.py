"""Kernels of loops as ops of a graph."""
