"""Model families as data: shapes, weights, checkpoints, tokenizers, chat templates, and the graph of a step.

The forward pass is written once in NumPy, which defines it, and once in PyTorch.
"""
