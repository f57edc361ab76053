"""CUDA C++ from text to a launch: PTX instructions as functions, the compiler, the launcher."""
