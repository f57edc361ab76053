"""Kernels: a NumPy reference that defines the result of each op, and the device bodies that compute it.

Importing this package needs neither torch nor triton. Bodies are imported when an executor asks for them.
"""
