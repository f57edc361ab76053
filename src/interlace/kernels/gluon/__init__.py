"""Warp-specialised Gluon kernels for Hopper GPUs: ring, template, names that moved between Triton releases."""
