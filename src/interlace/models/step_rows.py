"""The rows of a step with a chunk of prompts: which token of which sequence each row is, as the graph's inputs.

A step has a row for each of B sequences, which decodes one of its tokens, and C rows of prompts. Segments of prompts
follow one another; the rest is padding. With B = 3, C = 6, sequence 1 at position 41, 3 tokens of sequence 2 from
position 70 on, with more to come, and the whole prompt of sequence 0, which has 2 tokens:

    row         0  1  2   3  4  5  6  7  8
    tokens      0  t  0   a  b  c  d  e  0
    sequence   -1  1 -1   2  2  2  0  0 -1
    position    0 41  0  70 71 72  0  1  0
    first                 0  0  0  3  3  6      rows of the chunk; a row of padding has C
    wanted      7  1  2                         row whose logits each sequence gets

Only the last token of a prompt, and a token that is decoded, has logits that anybody reads; the logits of sequence 2
above mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_int
from interlace.core.errors import ShapeError

#: Rows of prompts for which steps are planned; a step takes the smallest that suffices.
CHUNKS = (0, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class PromptSegment:
    """Consecutive tokens of a prompt that a step reads.

    Attributes:
        sequence: sequence that they belong to.
        start: position of the first.
        tokens: token ids, at least one.
    """

    sequence: int
    start: int
    tokens: tuple[int, ...]


def select_chunk(tokens: int, chunks: Sequence[int] = CHUNKS) -> int:
    """Return the smallest of these chunks that has room for so many tokens of prompts.

    Raises:
        ShapeError: more tokens than the largest has.
    """
    enough = [chunk for chunk in chunks if chunk >= tokens]
    if not enough:
        raise ShapeError(f"a step with {tokens} tokens of prompts; chunks have at most {max(chunks)}, so read fewer")
    return min(enough)


def build_step_rows(
    batch: int, chunk: int, capacity: int, decoded: Mapping[int, tuple[int, int]], segments: Sequence[PromptSegment]
) -> dict[str, NDArray[np.int32]]:
    """Build the inputs ``tokens``, ``position``, ``sequence``, ``first``, ``wanted`` and ``wanted_position``.

    Args:
        batch, chunk: numbers of sequences and of rows of prompts.
        capacity: positions that a sequence may have.
        decoded: token and position of each sequence that decodes.
        segments: tokens of prompts, in any order of the sequences, of each at most one.

    Raises:
        ShapeError: no row at all, more tokens than the chunk has rows, a sequence out of range or named twice, or
            positions beyond the capacity.
    """
    taken = sum(len(segment.tokens) for segment in segments)
    if not decoded and not taken:
        raise ShapeError("a step without a token; give a sequence that decodes, or tokens of a prompt")
    if taken > chunk:
        raise ShapeError(
            f"a step with {taken} tokens of prompts has a chunk of {chunk}; read fewer, or use a larger one"
        )
    named = Counter([*decoded, *(segment.sequence for segment in segments)])
    spans = [(of, at, at + 1) for of, (_, at) in decoded.items()]
    spans += [(segment.sequence, segment.start, segment.start + len(segment.tokens)) for segment in segments]
    for of, start, end in spans:
        if not 0 <= check_int(of, "build_step_rows", "sequence") < batch or named[of] > 1:
            raise ShapeError(f"a step of {batch} sequences names {of}; name each from 0 to {batch - 1} at most once")
        if not 0 <= start < end <= capacity:
            raise ShapeError(
                f"a step has positions {start} to {end} of sequence {of}, which has {capacity}; give at least one "
                "token, and no more than fit"
            )
    rows = {name: np.zeros(batch + chunk, np.int32) for name in ("tokens", "position")}
    rows["sequence"] = np.full(batch + chunk, -1, np.int32)
    rows["first"] = np.full(chunk, chunk, np.int32)
    rows["wanted"] = np.arange(batch, dtype=np.int32)
    for of, (token, at) in decoded.items():
        rows["tokens"][of], rows["position"][of], rows["sequence"][of] = token, at, of
    begin = 0
    for segment in segments:
        end = begin + len(segment.tokens)
        own = slice(batch + begin, batch + end)
        rows["tokens"][own], rows["sequence"][own] = segment.tokens, segment.sequence
        rows["position"][own] = np.arange(segment.start, segment.start + end - begin)
        rows["first"][begin:end] = begin
        rows["wanted"][segment.sequence] = batch + end - 1
        begin = end
    rows["wanted_position"] = rows["position"][rows["wanted"]]
    return rows
