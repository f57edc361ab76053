"""Device-side primitives. Memory order is written down in ``semaphore`` and nowhere else."""
