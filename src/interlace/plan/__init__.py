"""Plans and their proofs: every decision about a run as plain arrays, and what makes it safe."""
