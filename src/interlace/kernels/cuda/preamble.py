"""What stands before kernels that wait for each other, after ``ptx.PTX``."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.abi import TABLES

#: Each byte of an empty word; as a float32, such a word is a NaN, in place of which another NaN is stored.
EMPTY_BYTE = 0xFF

#: Semaphores in global memory.
SEMAPHORES = TABLES + include("semaphore.cuh")
#: Data polled for an empty word.
WORDS = f"constexpr unsigned EMPTY_WORD = {EMPTY_BYTE}u * 0x01010101u;\n" + include("sentinel.cuh")
