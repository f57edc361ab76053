"""Rules that a source kernel must satisfy, checked before any rewrite."""
