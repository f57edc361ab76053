"""Base layer: errors, dtypes, device specs and files. Imports nothing else of the package."""
