"""Proof that a rewritten kernel has no hazard and does what its loops do."""
