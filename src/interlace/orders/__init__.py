"""Study of tile orders: the order of a small grid with the fewest loads, and the hits of a cache over any stream."""
