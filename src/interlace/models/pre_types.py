"""Pre-tokenizers of GGUF files (``tokenizer.ggml.pre``), which split texts before pairs are merged.

Patterns apply in sequence, each to the pieces that the previous one produced; unmatched text stays a piece:

    default     "ab, 12345"  ->  "ab" "," " 12345"  ->  "ab" "," " " "123" "45"
    llama-bpe   "ab, 12345"  ->  "ab" "," " " "123" "45"
    smollm      "ab, 12345"  ->  "ab" "," " " "1" "2" "3" "4" "5"

Sources: llama-vocab.cpp of https://github.com/ggml-org/llama.cpp; for ``tekken``, the pattern of its tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

#: The pre-tokenizer of files that name none (those before May 2024), as in llama.cpp.
DEFAULT = "default"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreType:
    """A pre-tokenizer.

    Attributes:
        patterns: regular expressions, in the order in which they apply.
        ignores_merges: True if a piece that is a token becomes that token, whatever its merges produce.
        adds_bos: True if texts begin with the BOS token unless the file sets otherwise.
        composes: True if texts are first composed (Unicode NFC).
    """

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    composes: bool = False


_LLAMA3_TYPE = PreType((_LLAMA3,), ignores_merges=True, adds_bos=True)
_QWEN2_TYPE = PreType((_LLAMA3.replace("{1,3}", ""),), composes=True)
PRE_TYPES: Mapping[str, PreType] = {
    DEFAULT: PreType((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreType((_GPT2,)),
    "smollm": PreType((_DIGIT, _GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3_TYPE),
    "smaug-bpe": replace(_LLAMA3_TYPE, ignores_merges=False, adds_bos=False),
    "tekken": replace(_LLAMA3_TYPE, patterns=(_TEKKEN,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2_TYPE),
}


def find_pre_type(metadata: Mapping[str, Any]) -> tuple[object, PreType | None]:
    """Return the name of a file's pre-tokenizer and its definition, None for an unknown one."""
    name = metadata.get("tokenizer.ggml.pre") or DEFAULT
    return name, PRE_TYPES.get(name) if isinstance(name, str) else None
