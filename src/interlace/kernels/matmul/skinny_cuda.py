"""Tiles of few weight rows in CUDA C++, for few tokens: 8 to 56 rows and all of k, without parts.

A step of one to sixteen tokens is over when the last of a chain of products is, and each is short. Tiles of 64 rows,
what the tensor core takes at a time from shared memory, are then too few for all SMs, and their parts have to meet.
So here the warps share the reduction: each multiplies 16 of each 64 elements of k, by ``mma`` out of registers, and
their sums meet in shared memory. Weights are the operand of 16 rows, tokens the other, 8 at a time:

    k of a panel      0 .. 15    16 .. 31    32 .. 47    48 .. 63
    warp                 0           1           2           3        (of each warpgroup; those take stages in turn)

A stage is one bulk load of a box of three dimensions: elements of a panel, rows, panels. So both operands lie as they
do for the other tiles, in panels of 64 elements with the 128-byte swizzle. Of the tokens only those are loaded that
there are; products of others are of whatever lies there, and nobody stores them.

Weights of some stages are taken into registers, and their slots handed back, before the tokens are there: a block's
registers hold as much as two large ones, and while an item waits for what it depends on the ring fills with what comes
behind it.

Tokens that are words are polled, by whom depends on how many they are:

    elements of a tile      polled by                         where they go
    2048 a warpgroup        all consumers, all at once        beside the ring, for the block's next item of the op too
    more                    the warp that loads, by stages    slots of the ring, where a bulk load would bring them

Rows that are normalised here (``x_scale``) are scaled in registers, by a line of gains for each panel of a stage, and
multiplied by themselves: a row's product with itself is its sum of squares, there when the others are.
"""

from __future__ import annotations

from interlace.csrc import include

#: Words of tokens that a lane of the warp that loads asks for at once.
MAX_POLLED_WORDS = 32
#: Elements of a tile's tokens that are words and are polled by a warpgroup of consumers, at most: of more, which come
#: piece by piece, those of later stages had better come while products of earlier ones are under way
#: (benchmarks/notes/decode.md).
MAX_CONSUMER_POLLS = 2048
#: A tile of fewer stages has a text made for so many; of more, all even counts share one, and all odd ones.
MAX_UNROLLED_TURNS = 4

_LIMITS = f"constexpr int POLLED_WORDS = {MAX_POLLED_WORDS}, FEW_TURNS = {MAX_UNROLLED_TURNS};"
SKINNY = include("ops/matmul/load_pair.cuh") + _LIMITS + include("ops/matmul/skinny.cuh")
