"""Chat prompts: messages rendered by the chat template that a model brings.

A template is Jinja text. GGUF files have it under tokenizer.chat_template; folders have it in chat_template.jinja, or
under chat_template in tokenizer_config.json. Templates see the names that ``transformers`` defines: ``messages``,
``add_generation_prompt``, the model's special tokens, ``raise_exception``, ``strftime_now`` and ``{% generation %}``.
Templates come with the weights and are untrusted, so they run in Jinja's sandbox, in a separate process with limits.

Source: https://huggingface.co/docs/transformers/chat_templating
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlace.core.errors import ModelFileError
from interlace.core.files import check_regular
from interlace.models.folder import read_json
from interlace.models.folder_tokens import CONFIG, read_special_tokens
from interlace.models.gguf import GGUF
from interlace.models.templates import TemplateError, render

_FILE = "chat_template.jinja"
#: Part of the name under which a GGUF file stores the id of each token; "seperator" is the spelling of the format.
_GGUF_TOKEN_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


@dataclass(frozen=True)
class ChatTemplate:
    """Chat template of a model.

    Attributes:
        path: file or folder of the model.
        text: Jinja text.
        tokens: texts of special tokens by name, such as ``bos_token``.
    """

    path: Path
    text: str
    tokens: Mapping[str, str]

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Render the prompt of a chat that awaits the model's answer.

        Special tokens appear in the prompt as text, including the BOS token if the template writes it.

        Args:
            messages: messages with ``role`` and ``content``, of JSON types only.
            tools: JSON schemas of functions that the model may call.

        Raises:
            ModelFileError: the template is damaged, raises, or accesses a forbidden attribute; it takes more time,
                memory or characters than ``Limits``; or the package ``jinja2`` is missing.
        """
        # None for absent values: some templates test `is none`, which is false for an undefined name.
        chat = {"messages": [*messages], "tools": None if tools is None else [*tools], "documents": None}
        try:
            return render(self.text, {**self.tokens, **chat, "add_generation_prompt": True})
        except TemplateError as error:
            raise ModelFileError(
                f"the chat template of {self.path.name!r} fails ({error}); change the messages, or write the prompt in "
                "the form that the model was trained on"
            ) from None


def read_chat_template(path: Path, file: GGUF | None) -> ChatTemplate:
    """Read the chat template of a model.

    Args:
        path: file or folder of the model.
        file: the model's GGUF file, None for a folder; see ``PretrainedModel``.

    Raises:
        ModelFileError: the model has no chat template.
    """
    template, tokens = _read_folder_template(path) if file is None else _read_gguf_template(file)
    if template is None:
        where = f"tokenizer.chat_template in {str(path)!r}" if file is not None else f"chat_template in {CONFIG}"
        raise ModelFileError(f"there is no {where}: this model was not made for chats; leave out --chat")
    return ChatTemplate(path, template, tokens)


def render_chat_prompt(path: Path, file: GGUF | None, message: str) -> str:
    """Render the prompt of a chat that has one user message; see ``read_chat_template`` and ``ChatTemplate.render``.

    Raises:
        ModelFileError: the model has no chat template, or rendering it fails.
    """
    return read_chat_template(path, file).render([{"role": "user", "content": message}])


def _read_gguf_template(file: GGUF) -> tuple[str | None, dict[str, str]]:
    """Return the template (None if absent) and the special tokens by name."""
    data = file.metadata
    template, tokens = data.get("tokenizer.chat_template"), data.get("tokenizer.ggml.tokens")
    known = {}
    for name, of in _GGUF_TOKEN_NAMES.items():
        id = data.get(f"tokenizer.ggml.{of}_token_id")
        if isinstance(tokens, list) and type(id) is int and 0 <= id < len(tokens):
            known[name] = str(tokens[id])
    return template if isinstance(template, str) else None, known


def _read_folder_template(path: Path) -> tuple[str | None, dict[str, str]]:
    """Return the template (None if absent) and the special tokens by name."""
    tokens = read_special_tokens(path).list_texts()
    several = path / "additional_chat_templates"
    files = {file.stem: file for file in sorted(several.glob("*.jinja"))} if several.is_dir() else {}
    if (path / _FILE).is_file():
        files["default"] = path / _FILE
    if files:
        return _read_text(files["default"]) if "default" in files else None, tokens
    template = read_json(path / CONFIG).get("chat_template") if (path / CONFIG).is_file() else None
    if isinstance(template, list):
        template = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None, tokens


def _read_text(path: Path) -> str:
    try:
        check_regular(path)
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {str(path)!r}: {error}") from None
