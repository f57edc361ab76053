"""Chat templates of models on disk: what they make of a message, and what they cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")

from interlace.core.errors import ModelFileError
from interlace.models.chat import render_chat_prompt
from interlace.models.gguf import GGUF

from .model_files import VOCABULARY, gguf_bytes

#: That of SmolLM2, but for its system message.
IM = (
    "{% for message in messages %}\n{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\\n' }}{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ANSWER = "<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n"


def of_gguf(folder: Path, **metadata: Any) -> str:
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes({**VOCABULARY, **{f"tokenizer.{k}": v for k, v in metadata.items()}}, {}))
    return render_chat_prompt(path, GGUF.open(path), "1 < 2?")


def of_folder(folder: Path, config: object) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return render_chat_prompt(folder, None, "1 < 2?")


def test_a_message_takes_the_form_of_the_template_wherever_that_is(tmp_path: Path) -> None:
    assert of_gguf(tmp_path, chat_template=IM) == ANSWER
    assert of_folder(tmp_path, {"chat_template": IM}) == ANSWER
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": IM}]
    assert of_folder(tmp_path, {"chat_template": named}) == ANSWER
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content | tojson }}")
    assert of_folder(tmp_path, {"chat_template": "no", "bos_token": {"content": "<s>"}}) == '<s>"1 < 2?"'


def test_there_are_no_tools_and_what_marks_training_is_only_a_mark(tmp_path: Path) -> None:
    asked = "{% if tools is not none or documents is not none %}TOOLS{% endif %}"
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert of_gguf(tmp_path, chat_template=asked + marked) == "1 < 2?"


def test_templates_know_the_special_tokens_and_the_date(tmp_path: Path) -> None:
    told = "{{ bos_token }}|{{ pad_token }}|{{ strftime_now('%Y') | length }}"
    template = f"{{% for n in range(9) %}}{told}{{% break %}}{{% endfor %}}"
    tokens = VOCABULARY["tokenizer.ggml.tokens"]
    ids = {"ggml.bos_token_id": 1, "ggml.padding_token_id": 5}
    assert of_gguf(tmp_path, chat_template=template, **ids) == f"{tokens[1]}|{tokens[5]}|4"
    assert of_gguf(tmp_path, chat_template=template, **{"ggml.bos_token_id": 10**6}) == "||4"
    others = {"ggml.seperator_token_id": 2, "ggml.cls_token_id": 3, "ggml.mask_token_id": 4}
    written = of_gguf(tmp_path, chat_template="{{ sep_token }}|{{ cls_token }}|{{ mask_token }}", **others)
    assert written == "|".join(tokens[2:5])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "ValueError: roles must alternate"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception.__globals__['json'] }}", "SecurityError"),
        ("{% for n in range(10 ** 9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% for n in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "it writes more than 1048576 characters"),
        ("{% include 'a' %}", "TypeError: no loader"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_one_line(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as failed:
        of_gguf(tmp_path, chat_template=template)
    assert "\n" not in str(failed.value)
    assert "the chat template of 'model.gguf' fails (" in str(failed.value)


@pytest.mark.parametrize("config", [{}, {"chat_template": 3}, {"chat_template": [3, {"name": "rag"}]}])
def test_a_model_without_a_template_says_so(tmp_path: Path, config: object) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.chat_template in .*: this model was not made for chats"):
        of_gguf(tmp_path)
    with pytest.raises(ModelFileError, match=r"no chat_template in tokenizer_config\.json"):
        of_folder(tmp_path, config)
