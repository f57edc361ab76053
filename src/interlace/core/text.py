"""Formatting of numbers in sentences."""

from __future__ import annotations


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 item``, ``12,345 items``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
