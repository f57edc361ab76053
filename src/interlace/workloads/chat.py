"""A prompt in the form that a model which follows instructions was trained on: what its chat template makes of it.

Templates are texts of Jinja, of which models bring one: tokenizer.chat_template of a GGUF file; chat_template.jinja, or
chat_template in tokenizer_config.json, of a folder. They know what those of ``transformers`` know: ``messages``,
``add_generation_prompt``, the model's special tokens, ``raise_exception``, ``strftime_now`` and ``{% generation %}``.
They come with the weights, from anywhere, so they run in Jinja's sandbox, where they reach nothing but that.

Source: https://huggingface.co/docs/transformers/chat_templating
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from interlace.core.errors import ModelFileError
from interlace.workloads.folder import json_object
from interlace.workloads.gguf import GGUF

_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_OF_GGUF = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_CONFIG = "tokenizer_config.json"
_MOST = 1 << 20  # characters of a prompt, far more than positions of any model here


def chat_prompt(path: Path, file: GGUF | None, message: str) -> str:
    """The text of a chat in which a user has said one message and the model is to answer.

    Special tokens stand in it as text, the one before every text too if the template has it.

    Args:
        path, file: of a model, see ``Trained``.

    Raises:
        ModelFileError: the model has no chat template, or one that is damaged, reaches for what is not its own, or
            writes without end; or the package ``jinja2`` is missing.
    """
    template, tokens = _of_folder(path) if file is None else _of_gguf(file)
    if template is None:
        where = f"tokenizer.chat_template in {str(path)!r}" if file is not None else f"chat_template in {_CONFIG}"
        raise ModelFileError(f"there is no {where}: this model was not made for chats; leave out --chat")
    return _rendered(template, tokens, message, path)


def _rendered(template: str, tokens: Mapping[str, str], message: str, path: Path) -> str:
    try:
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ModelFileError(f"chat templates need jinja2: {error}; `pip install 'interlace[generate]'`") from None

    class Generation(Extension):
        """``{% generation %}`` marks what a model was trained to write, for training alone."""

        tags = {"generation"}  # noqa: RUF012  # as its base has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(text: object) -> NoReturn:
        raise ValueError(text)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    extensions = ["jinja2.ext.loopcontrols", Generation]
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    env.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    messages = [{"role": "user", "content": message}]
    written = ""
    try:
        # Those that there are none of too: some templates ask whether they are none, which what is not there is not.
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        pieces = env.from_string(template).generate(given, **tokens)
        for piece in pieces:
            written += piece
            if len(written) > _MOST:
                raise ValueError(f"it writes more than {_MOST} characters")
    except Exception as error:  # noqa: BLE001  # a template may raise anything
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelFileError(
            f"the chat template of {str(path)!r} fails ({told}); write the prompt in the form that the model was "
            "trained on, and leave out --chat"
        ) from None
    return written


def _of_gguf(file: GGUF) -> tuple[str | None, dict[str, str]]:
    """The template, if there is one, and the special tokens."""
    data = file.metadata
    template, tokens = data.get("tokenizer.chat_template"), data.get("tokenizer.ggml.tokens")
    known = {}
    for name, of in _OF_GGUF.items():
        id = data.get(f"tokenizer.ggml.{of}_token_id")
        if isinstance(tokens, list) and type(id) is int and 0 <= id < len(tokens):
            known[name] = str(tokens[id])
    return template if isinstance(template, str) else None, known


def _of_folder(path: Path) -> tuple[str | None, dict[str, str]]:
    config = json_object(path / _CONFIG) if (path / _CONFIG).is_file() else {}
    known = {}
    for name in _TOKENS:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            known[name] = token
    own = path / "chat_template.jinja"
    if own.is_file():
        try:
            return own.read_text(encoding="utf-8"), known
        except (OSError, ValueError) as error:
            raise ModelFileError(f"cannot read {str(own)!r}: {error}") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by names
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None, known
