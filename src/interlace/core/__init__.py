"""The ground floor: errors, dtypes and device specs. Imports nothing of the package."""
