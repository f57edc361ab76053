"""CUDA back end of rewritten kernels: CUDA source, binaries and launches."""
