"""What a kernel computes and what its loops do, in NumPy, before and after the rewrite."""
