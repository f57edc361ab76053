"""A rewritten kernel as CUDA C++: its text, its binary for sm_90a, its launches."""
