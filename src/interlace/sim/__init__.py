"""A plan on a simulated machine: what it touches, what the cache makes of that, and when each item runs."""
