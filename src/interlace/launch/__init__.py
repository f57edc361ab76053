"""The one launch: a persistent kernel in CUDA C++ that walks the items of a verified plan."""
