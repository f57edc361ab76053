"""Simulation of a plan: the units that it touches, their cache hits, and the times of each item."""
