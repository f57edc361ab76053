"""Which order of a grid of tiles loads least through a cache of a few panels: exact, or by beam search."""
