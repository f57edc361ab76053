"""The ground floor: errors, dtypes, device specs and files. Imports nothing of the package."""
