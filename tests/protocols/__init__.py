"""Models of small synchronisation protocols, with a model checker for all interleavings (``check``)."""
