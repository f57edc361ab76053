"""A plan on a simulated machine: what it touches, what the caches make of that, and when each item runs."""
