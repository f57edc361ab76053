"""The study of tile orders: which order of a small grid loads least through a cache of a few panels, and how a cache
of a given size takes any stream of accesses."""
