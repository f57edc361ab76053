"""SentencePiece BPE tokenizer, as in Llama 2 and Mistral, from the vocabulary and scores in a GGUF file.

A space is encoded as the character ▁, and every text begins with one. The two neighbours whose merged piece has the
highest score are merged, until no two neighbours form a piece; a character that is no piece is encoded as its bytes:

    scores      ▁h -1   el -2   lo -3   ▁hel -4
    hello é     ▁ h e l l o ▁ é      ▁h el lo ▁ é      ▁hel lo ▁ <0xC3> <0xA9>

The package ``tokenizers`` merges pairs by rank, so the rank of a pair is that of the score of its merged piece.
Sources: Kudo and Richardson, SentencePiece, 2018; for the format, llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NORMAL = 1  # value of tokenizer.ggml.token_type for ordinary pieces; other tokens match as a whole or not at all
_SPACE = "\u2581"


def build_piece_tokenizer(
    tokenizers: Any, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], unknown: int, prefix: bool
) -> Any:
    """Build a tokenizer from a vocabulary; decoded texts keep the space that was prepended to them.

    Args:
        tokenizers: the package ``tokenizers``.
        tokens, scores, kinds: text, score and token type of each id.
        unknown: id of characters that have neither a piece nor bytes.
        prefix: True to prepend a space to every text.

    Raises:
        Exception: the package rejects the vocabulary.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model = tokenizers.models.BPE(
        vocabulary,
        _find_merges(vocabulary, scores, kinds),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    of = tokenizers.Tokenizer(model)
    begun = [tokenizers.normalizers.Prepend(_SPACE)] if prefix else []
    of.normalizer = tokenizers.normalizers.Sequence([*begun, tokenizers.normalizers.Replace(" ", _SPACE)])
    decoders = tokenizers.decoders
    of.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return of


def _find_merges(vocabulary: dict[str, int], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Return the pairs of pieces whose concatenation is a piece, highest score first."""
    found = [
        (-scores[i], i, (token[:at], token[at:]))
        for token, i in vocabulary.items()
        if kinds[i] == _NORMAL
        for at in range(1, len(token))
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    return [pair for _, _, pair in sorted(found)]
