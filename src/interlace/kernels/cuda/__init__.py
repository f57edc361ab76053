"""CUDA C++ from source to launch: PTX instructions as functions, the compiler, the launcher."""
