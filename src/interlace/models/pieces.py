"""The tokenizer of SentencePiece's BPE, as Llama 2 and Mistral have it, of the vocabulary and scores in a GGUF file.

A space is a piece of its own sign, and so is the beginning of a text. The two neighbours whose joint piece has the
highest score are joined, until no two are a piece; a character that is none becomes its bytes:

    scores      ▁h -1   el -2   lo -3   ▁hel -4
    hello é     ▁ h e l l o ▁ é      ▁h el lo ▁ é      ▁hel lo ▁ <0xC3> <0xA9>

The package ``tokenizers`` joins pairs by rank, so ranks are those of the scores of what pairs join to.
Source: Kudo and Richardson, SentencePiece, 2018; of the format, llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NORMAL = 1  # of tokenizer.ggml.token_type: others are matched as a whole or not at all
_SPACE = "\u2581"


def build_piece_tokenizer(
    tokenizers: Any, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], unknown: int, prefix: bool
) -> Any:
    """What the package makes of a vocabulary; texts come back with the space that they were begun with.

    Args:
        tokenizers: the package.
        tokens, scores, kinds: of each id.
        unknown: the id of what has neither a piece nor bytes.
        prefix: texts are begun with a space.

    Raises:
        Exception: the package takes no such vocabulary.
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
    """Pairs of pieces that are a piece together, those of the highest score first."""
    found = [
        (-scores[i], i, (token[:at], token[at:]))
        for token, i in vocabulary.items()
        if kinds[i] == _NORMAL
        for at in range(1, len(token))
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    return [pair for _, _, pair in sorted(found)]
