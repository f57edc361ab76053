"""Special and added tokens of a folder's tokenizer, as ``AutoTokenizer`` of ``transformers`` reads them.

Four files may name them:

    tokenizer.json           its own added tokens, which the package ``tokenizers`` reads itself
    tokenizer_config.json    named tokens (bos_token, ...), extra ones, and added_tokens_decoder
    special_tokens_map.json  the same names, which override; read only if there is no added_tokens_decoder
    added_tokens.json        ids by text; read only if there is no added_tokens_decoder

A token keeps the id that tokenizer.json has for its text. A text that tokenizer.json lacks gets the next free id, in
the order of the ids that the files state.

Source: tokenization_utils_base.py and tokenization_utils_tokenizers.py of transformers 5.23
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlace.core.arguments import format_value
from interlace.core.errors import ModelFileError
from interlace.models.families import FAMILIES, ModelFamily
from interlace.models.folder import read_json

CONFIG = "tokenizer_config.json"
_TOKENIZER, _MAP, _ADDED = "tokenizer.json", "special_tokens_map.json", "added_tokens.json"
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _EXTRA_BEFORE_5 = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_END = "<|endoftext|>"
#: Default tokens of each tokenizer class, used unless the folder sets them.
_CLASS_TOKENS: Mapping[str, Mapping[str, str]] = {
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
}


@dataclass(frozen=True)
class Token:
    """A text that a tokenizer matches as a whole.

    Attributes:
        content: the text.
        flags: keyword arguments of ``tokenizers.AddedToken``, including "special".
    """

    content: str
    flags: Mapping[str, bool]


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens that the files of a folder name, apart from tokenizer.json.

    Attributes:
        named_tokens: tokens by the names that chat templates use.
        extra_tokens: special tokens without a name.
        added_tokens: tokens by the id that the file states.
        is_legacy: True if added tokens of tokenizer.json override those of the same id.
        splits_special: True if special tokens in a text are tokenized as ordinary text.
    """

    named_tokens: Mapping[str, Token]
    extra_tokens: tuple[Token, ...]
    added_tokens: Mapping[int, Token]
    is_legacy: bool
    splits_special: bool

    def list_texts(self) -> dict[str, str]:
        """Return the variables of chat templates: token texts by token name."""
        return {name: token.content for name, token in self.named_tokens.items()}


def read_special_tokens(path: Path) -> SpecialTokens:
    """Read the tokens that a folder names.

    Raises:
        ModelFileError: a file is damaged, or has a value that is not a token.
    """
    config = _read(path, CONFIG)
    decoder = config.pop("added_tokens_decoder", None)
    overriding = _read(path, _MAP) if decoder is None else {}
    where = f"{CONFIG} or {_MAP} of {str(path)!r}" if overriding else f"{CONFIG} of {str(path)!r}"
    before = _take_own_names(config)
    texts = {key: value for key, value in config.items() if isinstance(value, str)} | overriding
    _override(config, overriding)
    by_name = {**_take_objects(config), **before, **_take_extra_object(config)}
    extra = tuple(_parse_tokens(config.get(_EXTRA) or [], f"{where} has {_EXTRA}"))
    if decoder is None:
        special = {_find_text(texts[key]) for key in _NAMES if key in texts} | {token.content for token in extra}
        added = dict(_parse_added_by_text(_read(path, _ADDED), special, f"{_ADDED} of {str(path)!r}"))
    else:
        added = dict(_parse_added_by_id(decoder, f"added_tokens_decoder in {where}"))
    if _EXTRA not in config and (several := config.get(_EXTRA_BEFORE_5)):
        extra = tuple(_parse_tokens(several, f"{where} has {_EXTRA_BEFORE_5}"))
    default = _find_default_texts(path, config)
    given = {name: config[name] if name in config else default.get(name) for name in _NAMES} | by_name
    named = {name: _parse_token(value, f"{where} has {name}") for name, value in given.items() if value is not None}
    flags = {token.content: token for token in added.values()}
    named |= {name: flags.get(named[name].content, named[name]) for name in _NAMES if name in named}
    return SpecialTokens(named, extra, added, decoder is None, config.get("split_special_tokens") is True)


def add_special_tokens(tokenizers: Any, tokenizer: Any, tokens: SpecialTokens) -> None:
    """Add the tokens that a folder names to its tokenizer.

    Args:
        tokenizers: the package ``tokenizers``.
        tokenizer: the ``tokenizers.Tokenizer`` built from tokenizer.json.
        tokens: the tokens to add.
    """
    own = {id: _convert_token(token) for id, token in tokenizer.get_added_tokens_decoder().items()}
    added = {**tokens.added_tokens, **own} if tokens.is_legacy else tokens.added_tokens
    chosen = [token for _, token in sorted(added.items())]
    known = {token.content for token in (*own.values(), *chosen)}
    # The list may hold a text twice: the last flags win.
    chosen += [token for token in (*tokens.named_tokens.values(), *tokens.extra_tokens) if token.content not in known]
    names = {token.content for token in tokens.named_tokens.values()}
    several = [{**token.flags, "special": token.flags["special"] or token.content in names} for token in chosen]
    tokenizer.add_tokens(
        [tokenizers.AddedToken(token.content, **flags) for token, flags in zip(chosen, several, strict=True)]
    )
    tokenizer.encode_special_tokens = tokens.splits_special


def _convert_token(token: Any) -> Token:
    """Convert a ``tokenizers.AddedToken``."""
    return Token(token.content, {name: getattr(token, name) for name in _FLAGS})


def _read(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON file of a folder; an absent file has no entries."""
    return read_json(path / name) if (path / name).is_file() else {}


def _is_own_name(key: str) -> bool:
    """Return True if a key names a model-specific token such as image_token, which most tokenizers lack."""
    return key.endswith("_token") and key not in _NAMES


def _find_text(value: Any) -> str:
    """Return the text of a token, empty if the value is not a token."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _take_own_names(config: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the model-specific token texts of tokenizer_config.json, which no other file overrides."""
    if not config.get(_EXTRA) and _EXTRA_BEFORE_5 in config:
        config[_EXTRA] = config.pop(_EXTRA_BEFORE_5)
    names = [key for key, value in config.items() if _is_own_name(key) and isinstance(value, str)]
    return {**{key: config.pop(key) for key in names}, **_take_extra_object(config)}


def _take_objects(config: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the other model-specific tokens."""
    return {key: config.pop(key) for key in [*config] if _is_own_name(key) and _find_text(config[key])}


def _take_extra_object(config: dict[str, Any]) -> dict[str, Any]:
    """Remove and return extra tokens stored as an object of tokens by name instead of a list."""
    return config.pop(_EXTRA) if isinstance(config.get(_EXTRA), dict) else {}


def _override(config: dict[str, Any], overriding: Mapping[str, Any]) -> None:
    """Override entries of tokenizer_config.json with those of special_tokens_map.json."""
    for key, value in overriding.items():
        several = [_as_special(each) for each in value] if isinstance(value, list) else []
        if key == _EXTRA and several:
            there = config[_EXTRA] if isinstance(config.get(_EXTRA), list) else []
            config[key] = [*there, *(token for token in several if token not in there)]
        elif several:
            config[key] = several
        else:
            config[key] = value if key == _EXTRA else _as_special(value)


def _as_special(value: Any) -> Any:
    return {**value, "special": True} if isinstance(value, dict) else value


def _find_default_texts(path: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the default token texts by name that ``transformers`` uses if the folder's files name none."""
    model = _read(path, "config.json")
    kind = model.get("model_type")
    chosen = config.get("tokenizer_class") or model.get("tokenizer_class")
    family = FAMILIES.get(kind, ModelFamily()) if isinstance(kind, str) else ModelFamily()
    if family.tokenizer_class and (chosen is None or family.replaces_tokenizer_class):
        chosen = family.tokenizer_class
    defaults = _CLASS_TOKENS.get(chosen.removesuffix("Fast"), {}) if isinstance(chosen, str) else {}
    if not family.has_default_tokens:
        defaults = {}
    stored: Mapping[str, Any] = {}
    if "pad_token" not in config or defaults is _CLASS_TOKENS["LlamaTokenizer"]:
        stored = _read(path, _TOKENIZER)
    if defaults is _CLASS_TOKENS["LlamaTokenizer"] and _is_byte_level(stored):
        defaults = {}
    padding = stored.get("padding")
    text = padding.get("pad_token") if isinstance(padding, dict) else None
    return {**defaults, "pad_token": text} if isinstance(text, str) else defaults


def _is_byte_level(stored: Mapping[str, Any]) -> bool:
    """Return True if a tokenizer.json splits texts into bytes; no tokenizer of the Llama 2 class does."""
    steps = stored.get("pre_tokenizer")
    several = steps.get("pretokenizers") if isinstance(steps, dict) else None
    each = several if isinstance(several, list) else [steps]
    return any(isinstance(step, dict) and step.get("type") == "ByteLevel" for step in each)


def _parse_token(value: Any, where: str) -> Token:
    if isinstance(value, str):
        return Token(value, {"special": True})
    flags = {key: value[key] for key in _FLAGS if key in value} if isinstance(value, dict) else {}
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise ModelFileError(f"{where} {format_value(value)}; a token is a text, or an object with its text as content")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ModelFileError(f"{where} {value['content']!r} with {flags}; flags of a token are true or false")
    return Token(value["content"], {"special": False, **flags})


def _parse_tokens(value: Any, where: str) -> Iterator[Token]:
    if not isinstance(value, list):
        raise ModelFileError(f"{where} {format_value(value)}; it is a list of tokens, or an object of tokens by name")
    for token in value:
        yield _parse_token(token, where)


def _parse_added_by_id(value: Any, where: str) -> Iterator[tuple[int, Token]]:
    """Parse added tokens by id, ``{"259": {"content": "<tool>", "special": true}}``."""
    if not isinstance(value, dict):
        raise ModelFileError(f"{where} is {format_value(value)}; it is an object of tokens by id")
    for key, token in value.items():
        if not key.isdecimal() or len(key) > 9:
            raise ModelFileError(f"{where} has the id {key!r}; ids are whole numbers")
        if not isinstance(token, dict):
            raise ModelFileError(
                f"{where} has {key}: {format_value(token)}; a token is an object with its text as content"
            )
        yield int(key), _parse_token(token, f"{where} has {key}:")


def _parse_added_by_text(value: Mapping[str, Any], special: set[str], where: str) -> Iterator[tuple[int, Token]]:
    """Parse added tokens by text, ``{"<tool>": 259}``.

    Args:
        special: texts of named and extra tokens, which are matched before a text is normalized.
    """
    for text, id in value.items():
        if type(id) is not int:
            raise ModelFileError(f"{where} has {text!r}: {format_value(id)}; ids are whole numbers")
        yield id, Token(text, {"special": text in special, "normalized": text not in special})
