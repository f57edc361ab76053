"""Special tokens of a GGUF file's vocabulary, with the defaults of llama.cpp for those that the file omits.

A file may name its special tokens by id (``tokenizer.ggml.eos_token_id``). Many omit the token that ends a turn.
Like llama.cpp, this module therefore also finds such tokens by their text:

    tokens ["a", "<|end_of_text|>", "<|eot_id|>"], eos_token_id 1   ->   generation ends at 1 and at 2

Source: llama-vocab.cpp of https://github.com/ggml-org/llama.cpp (``special_eog_ids``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.core.errors import ModelFileError
from interlace.models.pre_types import DEFAULT, find_pre_type

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type for tokens that match as a whole
_PREFIX = "tokenizer.ggml."
#: Texts of end-of-generation (EOG) tokens.
END_TEXTS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
        *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    )
)
#: End tokens that a file names by id; the fill-in-the-middle ones can also be found by their texts.
_NAMED_ENDS: Mapping[str, tuple[str, ...]] = {
    "eos": (),
    "eot": (),
    "eom": (),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
#: Default ids for SentencePiece vocabularies. The byte-level BPE defaults of llama.cpp (11 for both) suit one model
#: only, so a token that such a file omits is reported instead.
_PIECE_DEFAULTS = {"bos": 1, "eos": 2}


def list_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """Return the texts of all tokens; an empty list if the file has no valid vocabulary."""
    tokens = metadata.get(f"{_PREFIX}tokens")
    return tokens if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens) else []


def find_special_id(metadata: Mapping[str, Any], name: str, where: str) -> int | None:
    """Return the id of a special token (``"bos"``, ``"eos"``, ...): the file's, else the default, else None.

    Raises:
        ModelFileError: the file's value is not an integer.
    """
    tokens = list_tokens(metadata)
    id = metadata.get(f"{_PREFIX}{name}_token_id")
    if id is not None and type(id) is not int:
        raise ModelFileError(f"{where} has {_PREFIX}{name}_token_id {id!r}; it is the number of a token")
    if id is not None and (0 <= id < len(tokens) or not tokens):
        return id
    default = _PIECE_DEFAULTS.get(name) if metadata.get(f"{_PREFIX}model") == "llama" else None
    return default if default is not None and default < len(tokens) else None


def has_bos(metadata: Mapping[str, Any], where: str) -> bool:
    """Return True if every text begins with the BOS token.

    Raises:
        ModelFileError: the file's value is not a boolean.
    """
    stated = metadata.get(f"{_PREFIX}add_bos_token")
    if stated not in (None, 0, 1):
        raise ModelFileError(f"{where} has {_PREFIX}add_bos_token {stated!r}; it is true or false")
    _, pre = find_pre_type(metadata)
    pieces = metadata.get(f"{_PREFIX}model") == "llama"
    return bool(pieces or (pre is not None and pre.adds_bos) if stated is None else stated)


def find_end_ids(metadata: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Return the ids of all tokens that end generation: those that the file names, then those found by text.

    Raises:
        ModelFileError: the file names one by a value that is not an integer.
    """
    tokens = list_tokens(metadata)
    first: dict[str, int] = {}
    for id, token in enumerate(tokens):
        first.setdefault(token, id)
    ids: dict[int, None] = {}
    for name, texts in _NAMED_ENDS.items():
        number = find_special_id(metadata, name, where)
        if number is None:
            number = next((first[text] for text in texts if text in first), None)
        if number is not None:
            ids[number] = None
    ids |= dict.fromkeys(sorted(first[text] for text in END_TEXTS & first.keys()))
    ends = {tokens[id] for id in ids} if tokens else set()
    # Some vocabularies use these tokens otherwise: those of gpt-oss and Solar Open, and of Gemma 4.
    calls = bool({"<|call|>", "<|calls|>"} & ends)
    excluded = {"<|end|>"} if calls and {"<|return|>", "<|flush|>"} & ends else set()
    excluded |= {"</s>"} if "<|tool_response>" in ends else set()
    return tuple(id for id in ids if not tokens or tokens[id] not in excluded)


def list_missing(metadata: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return a line for each omitted setting that changes tokens; an empty tuple without a vocabulary."""
    tokens = list_tokens(metadata)
    if not tokens:
        return ()
    lines = []
    for name in ("bos", *_NAMED_ENDS):
        id = metadata.get(f"{_PREFIX}{name}_token_id")
        if type(id) is int and not 0 <= id < len(tokens):
            lines.append(f"{where} has {_PREFIX}{name}_token_id {id}, and {len(tokens)} tokens, so it is ignored")
    pairs = metadata.get(f"{_PREFIX}model") == "gpt2"
    if pairs and not metadata.get(f"{_PREFIX}pre"):
        lines.append(
            f"{where} names no {_PREFIX}pre, so texts are split by {DEFAULT!r}, as llama.cpp does; if the model was "
            "trained with another, convert it again"
        )
    if pairs and f"{_PREFIX}token_type" not in metadata:
        lines.append(f"{where} has no {_PREFIX}token_type, so special tokens in texts are read as plain text")
    if has_bos(metadata, where) and find_special_id(metadata, "bos", where) is None:
        lines.append(f"{where} names no token as {_PREFIX}bos_token_id, so none begins a text, although one should")
    if metadata.get(f"{_PREFIX}add_eos_token"):
        lines.append(f"{where} has {_PREFIX}add_eos_token, but no token ends a prompt: it is there to be continued")
    if not find_end_ids(metadata, where):
        lines.append(f"{where} names no token as {_PREFIX}eos_token_id, so none ends a text before max_new_tokens")
    return tuple(lines)
