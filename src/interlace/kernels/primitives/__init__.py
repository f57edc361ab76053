"""Device-side primitives. ``semaphore`` alone owns memory order; ``semaphore_cuda`` is its twin in CUDA C++."""
