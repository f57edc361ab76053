"""Settings of models on disk that change tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from interlace.core.errors import ModelFileError
from interlace.workloads.gguf import GGUF
from interlace.workloads.special_tokens import find_end_ids
from interlace.workloads.tokenizer import open_tokenizer

from .model_files import gguf_bytes

BYTES = [*"!\"#$%&'()*+,-./0123456789:;<=>?@", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", *"ABCD"]
DIGITS = ["12", "123", "1234", "12345"]
MERGES = ["1 2", "12 3", "123 4", "1234 5", "a b", "A B", ", ,", ",, /", "Ġ a", "Ġa b"]
TOKENS = [*BYTES, *DIGITS, "ab", "AB", ",,", ",,/", "Ġa", "Ġab", "CDc"]


def vocabulary(*special: str, **more: Any) -> dict[str, Any]:
    """A byte-level BPE with these control tokens at its end; ``pre`` and others are named without their prefix."""
    tokens = [*TOKENS, *special]
    settings = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": MERGES}
    settings |= {"token_type": [1] * len(TOKENS) + [3] * len(special), **more}
    return {f"tokenizer.ggml.{name}": value for name, value in settings.items() if value is not None}


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> Path:
    path.write_bytes(gguf_bytes(metadata, {}))
    return path


def pieces(path: Path, text: str, **settings: Any) -> list[str]:
    pytest.importorskip("tokenizers")
    write_gguf(path, vocabulary(**settings))
    return [TOKENS[id] for id in open_tokenizer(path, GGUF.open(path)).encode(text)]


# ---------------------------------------------------------------- texts of GGUF files


@pytest.mark.parametrize(
    ("pre", "text", "right"),
    [
        (None, "12345", ["123", "4", "5"]),
        ("default", "12345", ["123", "4", "5"]),
        ("default", "a,, 12", ["a", ",,", "Ġ", "12"]),
        ("default", "12,,/ab", ["12", ",,/", "ab"]),
        ("gpt-2", "12345", ["12345"]),
        ("llama-bpe", "12345", ["123", "4", "5"]),
        ("smaug-bpe", "12345", ["123", "4", "5"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("deepseek-r1-qwen", "12345", ["1", "2", "3", "4", "5"]),
        ("tekken", "12345", ["1", "2", "3", "4", "5"]),
        ("tekken", "ABab,,/", ["AB", "ab", ",,/"]),
        ("tekken", "CDc", ["CDc"]),
        ("llama-bpe", "CDc", ["CDc"]),
        ("smaug-bpe", "CDc", ["C", "D", "c"]),
        ("qwen2", " ab", ["Ġ", "ab"]),
    ],
)
def test_pre_tokenizers_split_as_llama_cpp_does(tmp_path: Path, pre: str | None, text: str, right: list[str]) -> None:
    assert pieces(tmp_path / "model.gguf", text, pre=pre) == right


def test_tekken_begins_texts_with_a_token(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    assert pieces(path, "a", pre="tekken", bos_token_id=0) == ["!", "a"]
    assert pieces(path, "a", pre="tekken", bos_token_id=0, add_bos_token=False) == ["a"]
    assert pieces(path, "a", pre="qwen2", bos_token_id=0) == ["a"]


@pytest.mark.parametrize(
    ("special", "settings", "ends"),
    [
        (["<|end_of_text|>", "<|eot_id|>"], {"eos_token_id": 0}, [0, "<|end_of_text|>", "<|eot_id|>"]),
        (["<|x|>", "<|im_end|>"], {"eos_token_id": len(TOKENS)}, ["<|x|>", "<|im_end|>"]),
        (["<end_of_turn>"], {}, ["<end_of_turn>"]),
        (["<|end|>", "<|return|>", "<|call|>"], {}, ["<|return|>", "<|call|>"]),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, ["<|flush|>", "<|calls|>"]),
        (["<|end|>", "<|call|>"], {}, ["<|end|>", "<|call|>"]),
        (["</s>", "<|tool_response>"], {}, ["<|tool_response>"]),
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], {}, ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]),
        (["<|fim_pad|>"], {"fim_pad_token_id": 3}, [3]),
        (["<|eot_id|>"], {"eos_token_id": 9999}, ["<|eot_id|>"]),
        (["<|other|>"], {"eot_token_id": 1, "eom_token_id": 2}, [1, 2]),
    ],
)
def test_ends_are_found_by_number_and_by_text(
    special: list[str], settings: dict[str, Any], ends: list[int | str]
) -> None:
    metadata = vocabulary(*special, **settings)
    tokens = metadata["tokenizer.ggml.tokens"]
    right = {end if isinstance(end, int) else tokens.index(end) for end in ends}
    assert {*find_end_ids(metadata, "here")} == right


def test_an_end_by_text_is_one_token_of_a_prompt_whatever_its_type(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    metadata = vocabulary("<|im_end|>", token_type=[1] * (len(TOKENS) + 1))
    path = write_gguf(tmp_path / "model.gguf", metadata)
    of = open_tokenizer(path, GGUF.open(path))
    assert of.encode("a<|im_end|>") == [TOKENS.index("a"), len(TOKENS)]
    assert of.decode([TOKENS.index("a"), len(TOKENS)]) == "a"


def test_pieces_have_the_special_tokens_of_sentencepiece_by_default(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    tokens = ["<unk>", "<s>", "</s>", "▁", "a"]
    settings = {"model": "llama", "tokens": tokens, "scores": [0.0] * 5, "token_type": [2, 3, 3, 1, 1]}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in settings.items()}
    path = write_gguf(tmp_path / "model.gguf", metadata)
    assert open_tokenizer(path, GGUF.open(path)).encode("a") == [1, 3, 4]
    assert find_end_ids(metadata, "here") == (2,)


def test_a_special_token_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"here has tokenizer\.ggml\.eos_token_id 'x'; it is the number"):
        find_end_ids(vocabulary(eos_token_id="x"), "here")
