"""Tensors, access maps, ops, the graph, and the dependencies between its tiles."""
