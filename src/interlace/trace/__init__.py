"""Traces: worker, SM and times of each item that ran, on one clock."""
