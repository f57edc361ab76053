"""Study of tile orders: the order of a small grid with the fewest loads through a cache of a few panels, and the hits
of a cache of a given size over any stream of accesses."""
