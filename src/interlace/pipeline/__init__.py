"""Circular buffering for Hopper GPUs: CUDA C++ text, compiled with NVRTC and launched on the device.

Nothing here imports the CUDA bindings before it compiles or launches.
"""
