"""Random numbers without a state: Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011).

A counter of four words and a key of two give four words. Here the counter is (column / 4, position, 0, 0), the key a
seed and a number of the sequence, and word ``column % 4`` the column's: so a draw depends on nothing but what is drawn,
by whom and where. Functions take int64 arrays of NumPy or tensors of PyTorch alike.
"""

from __future__ import annotations

from typing import Any

#: Of a counter and of a key.
WORD_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85


def generate_words(column: Any, position: Any, seed: Any, sequence: Any) -> Any:
    """The word of each column, from 0 to 2^32 - 1; arguments are int64 and broadcast."""
    counter = [column // 4, position & WORD_MASK, column * 0, column * 0]
    key = [seed & WORD_MASK, sequence & WORD_MASK]
    for _ in range(_ROUNDS):
        # A product of two words may be beyond 2^63; its bits are right all the same.
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
    """Numbers between 0 and 1, neither of them, in float64: fine near 0, and at most 1 - 2^-24 as in float32."""
    return ((words + 0.5) * 2.0**-32).clip(None, 1 - 2.0**-24)
