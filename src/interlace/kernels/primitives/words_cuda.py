"""Words that say themselves whether they are there, as CUDA C++: data that are polled in place of a semaphore.

A word is 32 bits of global memory, *empty* or a value. Who writes it stores the value, who reads it loads it until it
is not empty, and then stores that it is empty again, all in relaxed order. Neither a fence nor a release stands between
the stores of the data and those who wait for them: a fence ends only when the loads do that are under way in its SM.

    writer    store_words                                       each word is there by itself
    reader    load_words; await_words; empty_words; ...; post   what is not there yet is loaded again

An access of 16 bytes is one relaxed access for each of its words, so a reader may find some of them and not others. No
order is needed beyond that of one word, since a word carries all that its reader wants:

- Each word has one writer and one reader between two times that it is empty. The writer has waited for whatever stands
  behind the reader's post of the last value; so its store comes behind that of the empty word, and the reader of its
  value, who has waited too, does not find an older one.
- A reader loads a word before it empties it. Accesses of a thread to one word stay in order.
- What the writer has read itself is over, as its values have gone into the word.

``protocols/emptied`` is this under weak memory. Memory of words is empty at first, and made so again after a hang.
"""

from __future__ import annotations

from interlace.csrc import read_header

#: Each byte of an empty word. As a float32 that is a NaN, in place of which the usual NaN is stored.
EMPTY_BYTE = 0xFF

SENTINEL_WORDS = f"\nconstexpr unsigned EMPTY_WORD = {EMPTY_BYTE}u * 0x01010101u;" + read_header("sentinel.cuh")
