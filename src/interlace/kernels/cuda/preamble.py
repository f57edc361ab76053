"""Source that precedes kernels that wait for each other, after ``ptx.PTX``."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.abi import TABLES

#: Each byte of an empty word. As a float32 an empty word is a NaN; stores of this NaN store another NaN instead.
EMPTY_BYTE = 0xFF

#: CUDA source of semaphores in global memory.
SEMAPHORES = TABLES + include("semaphore.cuh")
#: CUDA source of polled data with a sentinel, the empty word.
WORDS = f"constexpr unsigned EMPTY_WORD = {EMPTY_BYTE}u * 0x01010101u;\n" + include("sentinel.cuh")
