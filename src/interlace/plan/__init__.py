"""Plans and their proofs: every decision about a run as plain arrays, and the proof that these are safe."""
