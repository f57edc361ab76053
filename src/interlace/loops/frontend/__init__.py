"""Front end: builder and example library for kernels as plain loops."""
