"""LL words as CUDA C++: data that say themselves whether they are there, for texts of the one launch.

A word is 32 bits of data and, above them, the number of their publication, stored and loaded as one in relaxed order.
Who reads polls the word itself until it has the number that is wanted. So nothing is released, and nobody waits for a
fence, which waits for all bulk loads that are under way in its SM (docs/memory-order.md).

    words of q, of a launch of 20 ops      run 0, op 1: number 2      run 0, op 11: 12      run 1, op 1: 22
    attend of run 0, behind op 11          polls until it finds 12, and takes what stands beside it

Which tensors are handed over so, what numbers they have, and why no word is overwritten before all have read it, is for
``megakernel/ll_edges``. ``protocols/tagged`` is its model, ``protocols/kept`` that of words that a block polls once.
"""

from __future__ import annotations

from interlace.csrc import read_header

#: What a wait for words records as its semaphore, beside the number that it wanted and the one that it found.
LL_WAIT = -3

LL_PROTOCOL = rf"""
constexpr int AWAITED_WORDS = {LL_WAIT};
""" + read_header("ll.cuh")
