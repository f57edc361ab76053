"""Counter-based random numbers: Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011).

A counter of four words and a key of two yield four words. The counter is (column / 4, position, 0, 0), the key is a
seed and the index of the sequence, and a column uses word ``column % 4``. A random number therefore depends only on
its column, position, seed and sequence. Functions accept int64 NumPy arrays and PyTorch tensors.
"""

from __future__ import annotations

from typing import Any

#: Mask of a word of a counter or a key.
WORD_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85


def generate_words(column: Any, position: Any, seed: Any, sequence: Any) -> Any:
    """Return the word of each column, from 0 to 2^32 - 1; arguments are int64 and broadcast."""
    counter = [column // 4, position & WORD_MASK, column * 0, column * 0]
    key = [seed & WORD_MASK, sequence & WORD_MASK]
    for _ in range(_ROUNDS):
        # A product of two words may exceed 2^63; its bits are still correct.
        first, second = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
        counter = [
            (second >> 32 & WORD_MASK) ^ counter[1] ^ key[0],
            second & WORD_MASK,
            (first >> 32 & WORD_MASK) ^ counter[3] ^ key[1],
            first & WORD_MASK,
        ]
        key = [word + more & WORD_MASK for word, more in zip(key, _WEYL, strict=True)]
    which = column % 4
    return sum((which == n) * word for n, word in enumerate(counter))


def to_uniform(words: Any) -> Any:
    """Map words to float64 numbers strictly between 0 and 1: fine near 0, and at most 1 - 2^-24 as in float32."""
    return ((words + 0.5) * 2.0**-32).clip(None, 1 - 2.0**-24)
