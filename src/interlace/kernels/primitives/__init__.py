"""Device-side primitives. Only ``semaphore`` handles memory order (in CUDA C++: ``csrc/semaphore.cuh``)."""
