"""Writing kernels as plain loops."""
