"""The studio: a local page to play with tile orders, on the package's own replays and searches."""
