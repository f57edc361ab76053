"""Megakernel: from a proved plan to one launch of CUDA C++ on a Hopper GPU."""
