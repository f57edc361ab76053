"""Proof that a rewritten kernel has no hazard and does the work of its source loops."""
