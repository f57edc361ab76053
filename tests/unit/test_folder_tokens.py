"""Special and added tokens of tokenizers in folders: those that ``AutoTokenizer`` of ``transformers`` has."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers", minversion="5")  # releases before read fewer of these files

from interlace.core.errors import ModelFileError  # noqa: E402
from interlace.models.chat import render_chat_prompt  # noqa: E402
from interlace.models.folder_tokens import read_special_tokens  # noqa: E402
from interlace.models.tokenizer import open_tokenizer  # noqa: E402

from ..thorough import some  # noqa: E402

TOOL = {"content": "<tool>", "lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
TYPED = {"__type": "AddedToken", **TOOL}
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token")
TEXTS = ("a<tool> b<s>ab</s> x", "<s>a<mask>b [SEP]<S><extra>", "</s></s>ab  <tool><tool> <other> <OTHER>")
#: Files of a folder beside tokenizer.json, by name without ".json".
FOLDERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "map": {"special_tokens_map": {"bos_token": "<s>", "sep_token": TOOL, "mask_token": "<mask>"}},
    "map over config": {"tokenizer_config": {"bos_token": "</s>"}, "special_tokens_map": {"bos_token": "<s>"}},
    "no map behind a decoder": {
        "tokenizer_config": {"bos_token": "</s>", "added_tokens_decoder": {"260": {**TOOL, "special": True}}},
        "special_tokens_map": {"bos_token": "<s>"},
        "added_tokens": {"<other>": 261},
    },
    "decoder out of order": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                "261": {**TOOL, "content": "<other>", "special": False},
                "260": {**TOOL, "special": True},
            }
        }
    },
    "added": {"added_tokens": {"<other>": 261, "<tool>": 260}, "special_tokens_map": {"eos_token": "<other>"}},
    "id of another": {"added_tokens": {"<other>": 257, "<tool>": 260}},
    "all names": {"tokenizer_config": {name: f"<{name}>" for name in NAMES}},
    "typed": {"tokenizer_config": {"cls_token": TYPED, "image_token": TYPED, "pad_token": None}},
    "list": {"tokenizer_config": {"additional_special_tokens": ["<extra>", TYPED]}},
    "both lists": {
        "tokenizer_config": {"extra_special_tokens": ["<extra>"], "additional_special_tokens": ["<tool>"]},
        "special_tokens_map": {"extra_special_tokens": ["<other>", "<extra>"]},
    },
    "list of map": {"special_tokens_map": {"additional_special_tokens": ["<tool>", "<extra>"]}},
    "extra by name": {"tokenizer_config": {"extra_special_tokens": {"tool": "<tool>", "boi_token": "<extra>"}}},
    "split": {"tokenizer_config": {"bos_token": "<s>", "split_special_tokens": True}},
    "class of Llama": {"tokenizer_config": {"tokenizer_class": "LlamaTokenizerFast"}},
    "class of GPT-2": {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "unk_token": None}},
    "class of Qwen 2": {"tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer"}, "config": {"model_type": "qwen2"}},
    "Mistral": {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer"}, "config": {"model_type": "mistral"}},
}


def save(
    folder: Path, files: dict[str, Any], *, padded: bool = False, byte_level: bool = True, lowered: bool = False
) -> Path:
    """A folder with a tokenizer.json whose vocabulary has bytes, "ab", and two added tokens."""
    pre = tokenizers.pre_tokenizers
    letters = sorted(pre.ByteLevel.alphabet()) if byte_level else "▁abxé<>/s"
    vocabulary = {letter: id for id, letter in enumerate(letters)}
    vocabulary["ab"] = len(vocabulary)
    of = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    of.pre_tokenizer = pre.ByteLevel(add_prefix_space=False) if byte_level else pre.Metaspace()
    of.decoder = tokenizers.decoders.ByteLevel() if byte_level else tokenizers.decoders.Metaspace()
    of.add_special_tokens(["<s>", "</s>"])
    if lowered:
        of.normalizer = tokenizers.normalizers.Lowercase()
    if padded:
        of.enable_padding(pad_token="<other>")
    of.save(str(folder / "tokenizer.json"))
    for name, content in {"config": {"model_type": "llama"}, "tokenizer_config": {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def check(folder: Path) -> None:
    """Compare names, ids and decoded texts with those of ``transformers``."""
    right, ours = transformers.AutoTokenizer.from_pretrained(folder), open_tokenizer(folder, None)
    assert read_special_tokens(folder).list_texts() == right.special_tokens_map
    for text in TEXTS:
        ids = right(text).input_ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == right.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_tokens_are_those_of_auto_tokenizer(name: str, tmp_path: Path) -> None:
    check(save(tmp_path, FOLDERS[name]))


def test_added_tokens_are_found_in_normalized_texts_and_special_ones_are_not(tmp_path: Path) -> None:
    check(save(tmp_path, {"added_tokens": {"<other>": 259}}, lowered=True))
    assert open_tokenizer(tmp_path, None).encode("<OTHER>") == [259]
    check(save(tmp_path, FOLDERS["added"], lowered=True))
    assert open_tokenizer(tmp_path, None).encode("<OTHER>") != [259]


def test_padding_names_a_token_and_pads_nothing(tmp_path: Path) -> None:
    check(save(tmp_path, {}, padded=True))
    assert read_special_tokens(tmp_path).list_texts() == {"pad_token": "<other>"}


def test_classes_add_their_tokens_to_tokenizers_of_their_kind_alone(tmp_path: Path) -> None:
    save(tmp_path, FOLDERS["class of Llama"], byte_level=False)
    assert read_special_tokens(tmp_path).list_texts() == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert read_special_tokens(tmp_path).list_texts() == (
        transformers.AutoTokenizer.from_pretrained(tmp_path).special_tokens_map
    )
    for folder, byte_level in (("class of Llama", True), ("Mistral", False)):
        save(tmp_path, FOLDERS[folder], byte_level=byte_level)
        assert read_special_tokens(tmp_path).list_texts() == {}


@pytest.mark.parametrize("seed", some(range(200), lambda seed: seed < 12))
def test_random_folders_are_read_as_auto_tokenizer_reads_them(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    words = ("<tool>", "<other>", "<extra>", "<s>", "<mask>", "[SEP]", "ab")

    def flags() -> dict[str, bool]:
        return {name: draw.random() < 0.5 for name in ("lstrip", "rstrip", "single_word", "normalized")}

    config = {name: draw.choice([None, draw.choice(words)]) for name in draw.sample(NAMES, 3)}
    if draw.random() < 0.5:
        chosen = draw.sample(words, 3)
        config["added_tokens_decoder"] = {
            str(draw.randrange(250, 290)): {"content": word, "special": draw.random() < 0.5, **flags()}
            for word in chosen
        }
    overriding = {name: {"content": draw.choice(words), **flags()} for name in draw.sample(NAMES, 2)}
    added = {word: 260 + n for n, word in enumerate(draw.sample(words, 3))}
    check(save(tmp_path, {"tokenizer_config": config, "special_tokens_map": overriding, "added_tokens": added}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", {"bos_token": 5}, "has bos_token 5; a token is a text, or an object with its text as"),
        ("tokenizer_config", {"added_tokens_decoder": [3]}, "is .3.; it is an object of tokens by id"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": TOOL}}, "has the id 'x'; ids are whole numbers"),
        ("tokenizer_config", {"added_tokens_decoder": {"9" * 5000: TOOL}}, "; ids are whole numbers"),
        ("tokenizer_config", {"added_tokens_decoder": {"5": "<a>"}}, "has 5: '<a>'; a token is an object"),
        ("tokenizer_config", {"added_tokens_decoder": {"5": {**TOOL, "lstrip": 3}}}, "flags of a token are true or"),
        ("tokenizer_config", {"extra_special_tokens": 7}, "has extra_special_tokens 7; it is a list of tokens"),
        ("special_tokens_map", {"eos_token": ["</s>"]}, r"has eos_token \['</s>'\]; a token is a text"),
        ("special_tokens_map", [], "is no JSON object"),
        ("added_tokens", {"<tool>": "260"}, "has '<tool>': '260'; ids are whole numbers"),
    ],
)
def test_names_of_no_token_are_refused(name: str, content: object, message: str, tmp_path: Path) -> None:
    save(tmp_path, {name: content})
    with pytest.raises(ModelFileError, match=message) as failed:
        open_tokenizer(tmp_path, None)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    "template",
    [
        "{% for name in ['a', 'b'] %}{{ bos_token ~ name ~ sep_token ~ cls_token ~ mask_token }}{% endfor %}",
        "{{ image_token }}{{ pad_token is defined }}{{ unk_token is none }}{{ eos_token }}",
        "{{ {'b': [1, 'é'], 'a': '<'} | tojson }}{{ ['é'] | tojson(ensure_ascii=True) }}",
        "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=True) }}{{ {'b': 1} | tojson(indent=4) }}",
        "{{ {'b': 1, 'a': [2]} | tojson(true, 2, (';', '='), true) }}",
        "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        "{{ dict(a=1) }}{{ dict.fromkeys(['a'], 2) }}{{ messages[0] | tojson }}",
    ],
)
def test_templates_write_what_apply_chat_template_writes(template: str, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    overriding = {"bos_token": "<s>", "sep_token": TOOL, "cls_token": "[CLS]", "image_token": "<extra>"}
    save(tmp_path, {"special_tokens_map": overriding, "tokenizer_config": {"mask_token": TYPED, "unk_token": None}})
    (tmp_path / "chat_template.jinja").write_text(template)
    right = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "é <1>"}]
    assert render_chat_prompt(tmp_path, None, "é <1>") == right.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_templates_of_their_own_folder_come_before_the_config(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    save(tmp_path, {"tokenizer_config": {"chat_template": {"default": "config", "tool_use": "no"}}})
    assert render_chat_prompt(tmp_path, None, "x") == "config"
    several = tmp_path / "additional_chat_templates"
    several.mkdir()
    (several / "default.jinja").write_text("several")
    assert render_chat_prompt(tmp_path, None, "x") == "several"
    right = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert right.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "several"
