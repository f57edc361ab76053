"""Kernels: what they compute (a NumPy reference) beside how (a Triton tile body).

Importing this package needs neither torch nor triton; bodies are imported when an executor asks for them.
"""
