"""A rewritten kernel as CUDA C++: its text, its binary, its launches."""
