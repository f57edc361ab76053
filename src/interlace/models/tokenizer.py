"""Encode and decode texts with the package ``tokenizers``, from tokenizer.json or from a GGUF file's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlace.core.errors import ModelFileError, PromptError
from interlace.models.folder_tokens import add_special_tokens, read_special_tokens
from interlace.models.gguf import GGUF
from interlace.models.pre_types import PRE_TYPES, PreType, find_pre_type
from interlace.models.sentencepiece import build_piece_tokenizer
from interlace.models.special_tokens import CONTROL, END_TEXTS, USER_DEFINED, find_special_id, has_bos


@dataclass(frozen=True)
class TextTokenizer:
    """Tokenizer of a model.

    Attributes:
        begin: id prepended to every text, None for no id (or if tokenizer.json prepends it).
    """

    begin: int | None
    _tokenizer: Any

    def encode(self, text: str, whole: bool = False) -> list[int]:
        """Return the ids of a text; special tokens in it, such as ``<|im_start|>``, are encoded as special tokens.

        Args:
            text: text to encode.
            whole: True if the text already has all its special tokens, so that none is added at its begin or end.

        Raises:
            PromptError: the text has a lone surrogate, as invalid UTF-8 bytes on a command line produce.
            ModelFileError: the tokenizer fails on the text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt is no UTF-8 at its character {error.start}; write it as UTF-8") from None
        with _convert_failures("the model's tokenizer fails at the prompt"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=not whole).ids
        return ids if self.begin is None or whole else [self.begin, *ids]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids, by default without special tokens.

        Raises:
            ModelFileError: the tokenizer fails on the ids.
        """
        with _convert_failures("the model's tokenizer fails at the text"):
            text: str = self._tokenizer.decode([*ids], skip_special_tokens=skip_special_tokens)
        return text

    def to_json(self) -> str:
        """Return the tokenizer in the format of tokenizer.json."""
        text: str = self._tokenizer.to_str()
        return text


class IncrementalDecoder:
    """Text of ids that arrive one by one; a character of several tokens is returned with its last token.

    Args:
        tokenizer: tokenizer of the model.
        skip_special_tokens: True to leave special tokens out of the text.
    """

    def __init__(self, tokenizer: TextTokenizer, skip_special_tokens: bool = True) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._stream: Any = DecodeStream(skip_special_tokens=skip_special_tokens)
        # Keep the ids of the last returned piece, because the text of an id can depend on those before it. Keep the ids
        # after them until their characters are complete: one incomplete character can hide all others of its run of
        # bytes.
        self._last: list[int] = []
        self._more: list[int] = []

    def push(self, id: int) -> str:
        """Return the text that an id completes, empty if there is none. Raises ModelFileError as ``decode`` does."""
        self._more.append(id)
        piece = self._step(id) if self._stream is not None else self._decode_more()
        if not piece or piece.endswith("\ufffd"):
            return ""
        self._last, self._more = self._more, []
        return piece

    def finish(self) -> str:
        """Return the text of the remaining ids, with replacement characters for incomplete ones."""
        piece, self._more = self._decode_more(), []
        return piece

    def _step(self, id: int) -> str:
        try:
            return self._stream.step(self._tokenizer._tokenizer, id) or ""
        except Exception:  # noqa: BLE001  # of texts that change as they grow, as some with invalid bytes do
            self._stream = None
            return self._decode_more()

    def _decode_more(self) -> str:
        decode, skips = self._tokenizer.decode, self._skips
        given, text = decode(self._last, skips), decode(self._last + self._more, skips)
        return text[len(given) :] if text.startswith(given) else decode(self._more, skips)


def open_tokenizer(path: Path, file: GGUF | None) -> TextTokenizer:
    """Open the tokenizer of a model in a folder or in a GGUF file.

    Raises:
        ModelFileError: no readable tokenizer was found, or the package ``tokenizers`` is missing.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ModelFileError(f"texts need a tokenizer: {error}; `pip install -e '.[generate]'`") from None
    if file is not None:
        return _build_from_gguf(tokenizers, file)
    own = path / "tokenizer.json"
    if not own.is_file():
        raise ModelFileError(f"folder {str(path)!r} has no tokenizer.json; save the model's fast tokenizer there")
    with _convert_failures(f"{str(own)!r} is damaged or no tokenizer"):
        of = tokenizers.Tokenizer.from_file(str(own))
    tokens = read_special_tokens(path)
    with _convert_failures(f"the tokens that the files of {str(path)!r} name do not fit its tokenizer.json"):
        add_special_tokens(tokenizers, of, tokens)
    # Training saves these batch settings with the tokenizer; transformers applies neither unless asked to.
    of.no_truncation()
    of.no_padding()
    return TextTokenizer(None, of)


@contextmanager
def _convert_failures(what: str) -> Iterator[None]:
    """Convert all failures to ModelFileError: the package raises plain Exception, and Rust panics outside of it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001
        raise ModelFileError(f"{what}: {error}") from None


def _build_from_gguf(tokenizers: Any, file: GGUF) -> TextTokenizer:
    """Build a byte-level BPE tokenizer, as in GPT-2 and most later models, or the SentencePiece one of Llama 2."""
    where, data = repr(str(file.path)), file.metadata
    model, (name, pre) = data.get("tokenizer.ggml.model"), find_pre_type(data)
    tokens = _as_texts(data.get("tokenizer.ggml.tokens"))
    if model == "llama":
        of = _build_piece_tokenizer(tokenizers, where, data, tokens)
    elif model == "gpt2" and pre is not None:
        of = _build_bpe_tokenizer(tokenizers, where, data, tokens, pre)
    else:
        raise ModelFileError(
            f"{where} has a vocabulary of kind {model!r}, cut by {name!r}; a tokenizer is made of 'llama', and of "
            f"'gpt2' cut by {', '.join(PRE_TYPES)}, so use a folder with tokenizer.json"
        )
    kinds = data.get("tokenizer.ggml.token_type", [0] * len(tokens))
    if len(_as_numbers(kinds)) != len(tokens):
        raise ModelFileError(
            f"{where} is damaged: it has {len(tokens)} tokens, and {len(_as_numbers(kinds))} types of tokens"
        )
    for i, kind in enumerate(kinds):
        ends = tokens[i] in END_TEXTS  # control tokens regardless of their type
        if ends or kind in (CONTROL, USER_DEFINED):
            special = ends or kind == CONTROL
            added = tokenizers.AddedToken(tokens[i], special=special, normalized=False)
            of.add_special_tokens([added]) if special else of.add_tokens([added])
    return TextTokenizer(find_special_id(data, "bos", where) if has_bos(data, where) else None, of)


def _build_piece_tokenizer(tokenizers: Any, where: str, data: Mapping[str, Any], tokens: list[str]) -> Any:
    scores, kinds = (_as_numbers(data.get(f"tokenizer.ggml.{name}")) for name in ("scores", "token_type"))
    unknown = data.get("tokenizer.ggml.unknown_token_id", 0)
    if not len(tokens) == len(scores) == len(kinds) or unknown not in range(len(tokens)):
        raise ModelFileError(
            f"{where} is damaged: it has {len(tokens)} tokens, {len(scores)} scores and {len(kinds)} types of tokens, "
            f"and the unknown token is {unknown!r}"
        )
    prefix = data.get("tokenizer.ggml.add_space_prefix", True)
    with _convert_failures(f"{where} is damaged: its tokens make no tokenizer"):
        return build_piece_tokenizer(tokenizers, tokens, scores, kinds, unknown, bool(prefix))


def _build_bpe_tokenizer(tokenizers: Any, where: str, data: Mapping[str, Any], tokens: list[str], pre: PreType) -> Any:
    merges = _as_texts(data.get("tokenizer.ggml.merges"))
    if not tokens or not merges:
        raise ModelFileError(f"{where} is damaged: it has no tokens or no merges")
    with _convert_failures(f"{where} is damaged: its merges do not fit its tokens"):
        vocabulary = {token: i for i, token in enumerate(tokens)}
        pairs = [_split_pair(merge) for merge in merges]
        of = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs, ignore_merges=pre.ignores_merges))
    split, ahead = tokenizers.pre_tokenizers, [tokenizers.Regex(pattern) for pattern in pre.patterns]
    byte_level = split.ByteLevel(add_prefix_space=False, use_regex=False)
    of.pre_tokenizer = split.Sequence([*(split.Split(pattern, "isolated") for pattern in ahead), byte_level])
    if pre.composes:
        of.normalizer = tokenizers.normalizers.NFC()
    of.decoder = tokenizers.decoders.ByteLevel()
    return of


def _split_pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _as_numbers(value: object) -> list[Any]:
    """Return a list of numbers unchanged, an empty list for any other value."""
    return value if isinstance(value, list) and all(type(entry) in (int, float) for entry in value) else []


def _as_texts(value: object) -> list[str]:
    """Return a list of texts unchanged, an empty list for any other value."""
    return value if isinstance(value, list) and all(isinstance(entry, str) for entry in value) else []
