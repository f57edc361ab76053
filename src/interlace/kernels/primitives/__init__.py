"""Device-side primitives. ``semaphore`` alone owns memory order; ``csrc/semaphore.cuh`` is its twin in CUDA C++."""
