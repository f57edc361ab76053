"""Settings of models on disk and in memory that change tokens: defaults, ends of texts, windows, unknown fields."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlace.core.errors import DecodeError, ModelFileError, UnsupportedModelError
from interlace.models.gguf import GGUF
from interlace.models.notices import MissingSettingWarning
from interlace.models.pretrained import load_model, load_model_quietly
from interlace.models.special_tokens import find_end_ids
from interlace.models.tokenizer import open_tokenizer

from .model_files import config, gguf_bytes, gguf_metadata, gguf_tensors, write_folder

torch = pytest.importorskip("torch")

from interlace.nn import Decoder  # noqa: E402

from .llama import SHAPE, ToyForCausalLM, stored_names  # noqa: E402

BYTES = [*"!\"#$%&'()*+,-./0123456789:;<=>?@", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", *"ABCD"]
DIGITS = ["12", "123", "1234", "12345"]
MERGES = ["1 2", "12 3", "123 4", "1234 5", "a b", "A B", ", ,", ",, /", "Ġ a", "Ġa b", "Ġ 12", "Ġ ,,"]
TOKENS = [*BYTES, *DIGITS, "ab", "AB", ",,", ",,/", "Ġa", "Ġab", "Ġ12", "Ġ,,", "CDc"]


def vocabulary(*special: str, **more: Any) -> dict[str, Any]:
    """A byte-level BPE with these control tokens at its end; ``pre`` and others are named without their prefix."""
    tokens = [*TOKENS, *special]
    settings = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": MERGES}
    settings |= {"token_type": [1] * len(TOKENS) + [3] * len(special), **more}
    return {f"tokenizer.ggml.{name}": value for name, value in settings.items() if value is not None}


def collect_missing(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a result, and the settings that warnings at this file call missing."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = run()
    missing = [warning for warning in found if warning.category is MissingSettingWarning]
    assert all(warning.filename == __file__ for warning in missing)
    return result, [str(warning.message) for warning in missing]


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
        ("default", "a ,,", ["a", "Ġ", ",,"]),
        ("gpt-2", "12345", ["12345"]),
        ("gpt-2", "a 12 ,,", ["a", "Ġ12", "Ġ,,"]),
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


@pytest.mark.parametrize("types", [[1, 1], ["a"] * (len(TOKENS) + 1), [1] * (len(TOKENS) + 2)])
def test_types_of_another_number_than_tokens_are_refused(tmp_path: Path, types: list[Any]) -> None:
    pytest.importorskip("tokenizers")
    path = write_gguf(tmp_path / "model.gguf", vocabulary("<|x|>", token_type=types))
    with pytest.raises(ModelFileError, match=rf"it has {len(TOKENS) + 1} tokens, and \d+ types of tokens"):
        open_tokenizer(path, GGUF.open(path))


def test_what_begins_a_text_is_told_by_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.add_bos_token 'false'; it is true or false"):
        pieces(tmp_path / "model.gguf", "a", bos_token_id=0, add_bos_token="false")


@pytest.fixture
def stored_tensors() -> dict[str, np.ndarray]:
    return dict(stored_names(ToyForCausalLM(dtype=torch.float32)))


@pytest.mark.parametrize(
    ("special", "settings", "lines"),
    [
        (["<|eot_id|>"], {}, []),
        (["<|eot_id|>"], {"pre": None}, [r"names no tokenizer\.ggml\.pre, so texts are split by 'default'"]),
        (["<|eot_id|>"], {"pre": "llama-bpe"}, [r"names no token as tokenizer\.ggml\.bos_token_id, so no"]),
        (["<|eot_id|>"], {"token_type": None}, [r"has no tokenizer\.ggml\.token_type"]),
        (["<|eot_id|>"], {"eos_token_id": 9999}, [r"eos_token_id 9999, and \d+ tokens, so it is ignored"]),
        (["<|eot_id|>"], {"bos_token_id": 9999}, [r"bos_token_id 9999, and \d+ tokens, so it is ignored"]),
        (["<|eot_id|>"], {"add_eos_token": True}, [r"no token ends a prompt"]),
        ([], {}, [r"names no token as tokenizer\.ggml\.eos_token_id, so no"]),
    ],
)
def test_what_a_file_leaves_out_is_reported_once(
    tmp_path: Path,
    stored_tensors: dict[str, np.ndarray],
    special: list[str],
    settings: dict[str, Any],
    lines: list[str],
) -> None:
    path = tmp_path / "model.gguf"
    metadata = {**gguf_metadata(SHAPE), **vocabulary(*special, **settings)}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored_tensors, SHAPE)))
    for run in (load_model, lambda path: Decoder.from_pretrained(path, max_seq_len=8, device="cpu")):
        _, texts = collect_missing(lambda run=run: run(path))
        assert len(texts) == len(lines)
        for text, right in zip(texts, lines, strict=True):
            assert "\n" not in text
            assert re.search(right, text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Decoder.from_pretrained(load_model_quietly(path), max_seq_len=8, device="cpu")


# ---------------------------------------------------------------- fields of configs


def _change(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partial_rotary_factor", 0.5),
        ("logit_scale", 0.0625),
        ("logits_scaling", 8.0),
        ("attention_multiplier", 0.015),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 50.0),
        ("clip_qkv", 8.0),
        ("mlp_bias", True),
        ("is_causal", False),
        ("use_mrope", True),
        ("an_unknown_field", 3),
        ("an_unknown_field", False),
    ],
)
def test_a_field_that_may_change_the_arithmetic_is_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], name: str, value: object
) -> None:
    folder = write_folder(tmp_path / "model", stored_tensors, config(SHAPE, **{name: value}))
    with pytest.raises(UnsupportedModelError, match=rf"{name} {value!r}, which a decoder would drop"):
        load_model_quietly(folder)
    model = ToyForCausalLM()
    setattr(model.config, name, value)
    with pytest.raises(UnsupportedModelError, match=rf"{name} {value!r}, which a decoder would drop"):
        Decoder.from_model(model, max_seq_len=8)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        {"full_attention": {"rope_type": "linear", "factor": 2.0}},
        {"type": "default", "mrope_section": [2, 3, 3]},
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_parameter_of_rope_that_is_not_followed_is_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], rope: dict[str, Any], name: str
) -> None:
    folder = write_folder(tmp_path / "model", stored_tensors, config(SHAPE, **{name: rope}))
    with pytest.raises(UnsupportedModelError, match=r"of RoPE .*, which a decoder would drop"):
        load_model_quietly(folder)
    if "partial_rotary_factor" in rope:
        model = ToyForCausalLM()
        setattr(model.config, name, rope)
        with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor of RoPE 0\.5"):
            Decoder.from_model(model, max_seq_len=8)


HARMLESS = {
    "attention_dropout": 0.0,
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "clip_qkv": None,
    "initializer_range": 0.02,
    "is_causal": True,
    "logit_scale": 1.0,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
    "rope_interleaved": False,
    "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 1.0},
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"dtype": "q4"},
    "pruned_heads": {},
    "unsloth_version": "2025.1",
    "use_cache": True,
    "_name_or_path": "a/b",
}


def test_fields_that_change_nothing_are_taken(tmp_path: Path, stored_tensors: dict[str, np.ndarray]) -> None:
    load_model_quietly(write_folder(tmp_path / "model", stored_tensors, config(SHAPE, **HARMLESS)))
    model = ToyForCausalLM()
    model.config.__dict__.update(HARMLESS)
    Decoder.from_model(model, max_seq_len=8)


@pytest.mark.parametrize(("stated", "biases"), [(True, "no biases"), (False, "biases")])
def test_attention_bias_agrees_with_the_weights(tmp_path: Path, stated: bool, biases: str) -> None:
    shape = replace(SHAPE, qkv_bias=not stated)
    weights = dict(stored_names(ToyForCausalLM(shape, dtype=torch.float32)))
    folder = write_folder(tmp_path / "model", weights, config(shape, attention_bias=stated))
    with pytest.raises(ModelFileError, match=f"attention_bias {stated}, and the weights have {biases}"):
        load_model_quietly(folder)


def test_a_field_that_a_kind_does_not_read_may_have_any_value(tmp_path: Path) -> None:
    shape = replace(SHAPE, qkv_bias=True)
    weights = dict(stored_names(ToyForCausalLM(shape, dtype=torch.float32)))
    settings = config(shape, model_type="qwen2", attention_bias=False)  # Qwen 2 has biases always
    assert load_model_quietly(write_folder(tmp_path / "model", weights, settings)).shape.qkv_bias


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("attention.causal", False, False),
        ("attention.causal", True, True),
        ("attention.output_scale", 2.0, False),
        ("attention.temperature_scale", 0.0, True),
        ("attention.value_length", SHAPE.head_dim, True),
        ("rope.scaling.yarn_log_multiplier", 0.1, False),
        ("rope.scaling.original_context_length", 64, True),
        ("rope.dimension_sections", [4, 2, 2], False),
        ("a_name_of_tomorrow", 1, False),
        ("a_name_of_tomorrow", 0, True),
        ("vocab_size", SHAPE.vocabulary, True),
    ],
)
def test_numbers_of_a_file_that_may_change_the_arithmetic_are_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], name: str, value: object, taken: bool
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({**gguf_metadata(SHAPE), f"llama.{name}": value}, gguf_tensors(stored_tensors, SHAPE)))
    if taken:
        load_model_quietly(path)
    else:
        with pytest.raises(UnsupportedModelError, match=rf"llama\.{name} .*, which a decoder would drop"):
            load_model_quietly(path)


def test_a_file_names_its_context_length(tmp_path: Path, stored_tensors: dict[str, np.ndarray]) -> None:
    metadata = gguf_metadata(SHAPE)
    del metadata["llama.context_length"]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored_tensors, SHAPE)))
    with pytest.raises(ModelFileError, match=r"llama\.context_length None; it must be a positive number"):
        load_model_quietly(path)


def test_names_of_a_base_model_load_as_those_of_a_causal_one(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray]
) -> None:
    base = {name.removeprefix("model."): values for name, values in stored_tensors.items()}
    right, found = (
        load_model_quietly(write_folder(tmp_path / name, weights, config(SHAPE)))
        for name, weights in (("causal", stored_tensors), ("base", base))
    )
    assert found.names == right.names
    for name in right.names:
        np.testing.assert_array_equal(found.read(name), right.read(name))
    twice = write_folder(
        tmp_path / "twice", {**stored_tensors, "norm.weight": stored_tensors["model.norm.weight"]}, config(SHAPE)
    )
    with pytest.raises(UnsupportedModelError, match=r"no place for: norm\.weight"):
        load_model_quietly(twice)


# ---------------------------------------------------------------- against transformers

KINDS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 61,
    "max_position_embeddings": 96,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


ABSENT = object()
MIXED = ["full_attention", "sliding_attention"]


def make_model(kind: str, **settings: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    of_config, of_model = KINDS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, of_model)(getattr(transformers, of_config)(**{**SMALL, **settings})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter.ndim == 1))
    return model


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def from_file(folder: Path) -> Decoder:
    return Decoder.from_pretrained(folder, device="cpu")


def decode_both(model: Any, folder: Path, **more: Any) -> list[Decoder]:
    model.save_pretrained(folder)
    return [Decoder.from_model(model, **more), Decoder.from_pretrained(folder, device="cpu", **more)]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"sliding_window": 8}),
        ("llama", {"sliding_window": 8, "layer_types": ["sliding_attention"] * 2}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 8}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"] * 2}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 7}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}),
    ],
)
def test_a_window_that_no_layer_uses_is_taken(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = make_model(kind, **settings)
    ids = np.random.default_rng(0).integers(0, 61, 40).tolist()
    with torch.no_grad():
        right = model(torch.tensor([ids])).logits[0, -1]
    for decoder in decode_both(model, tmp_path / "model"):
        assert decoder.max_seq_len == 96
        torch.testing.assert_close(decoder.logits[decoder.add(ids)], right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mistral", {"sliding_window": 8}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED}),
    ],
)
def test_a_window_in_force_bounds_the_capacity_of_files_and_models_alike(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    model = make_model(kind, **settings)
    assert [decoder.max_seq_len for decoder in decode_both(model, tmp_path / "model")] == [8, 8]
    for make in (
        Decoder.from_model,
        lambda _, **more: Decoder.from_pretrained(tmp_path / "model", device="cpu", **more),
    ):
        with pytest.raises(UnsupportedModelError, match="sliding window of 8 positions"):
            make(model, max_seq_len=9)


@pytest.mark.parametrize(("kinds", "window"), [(["full_attention"] * 2, None), (MIXED, 8)])
def test_a_mistral_with_kinds_of_layers_is_the_ministral_that_transformers_makes_of_it(
    tmp_path: Path, kinds: list[str], window: int | None
) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    make_model("mistral", sliding_window=8).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", _change(layer_types=kinds))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for decoder in (Decoder.from_model(loaded), from_file(tmp_path)):
        assert (decoder.window, decoder.max_seq_len) == (window, window or 96)
        ids = list(range(min(decoder.max_seq_len, 40)))
        with torch.no_grad():
            right = loaded(torch.tensor([ids])).logits[0, -1]
        torch.testing.assert_close(decoder.logits[decoder.add(ids)], right, rtol=1e-4, atol=1e-4)
    itself = transformers.MistralForCausalLM.from_pretrained(tmp_path)  # which has the window in every layer
    assert Decoder.from_model(itself).window == 8


def test_sliding_layers_without_a_window_are_refused(tmp_path: Path) -> None:
    shape = replace(SHAPE, qkv_bias=True)
    stored = dict(stored_names(ToyForCausalLM(shape, dtype=torch.float32)))
    settings = config(shape, model_type="qwen2", sliding_window=8, layer_types=["sliding_attention"] * SHAPE.layers)
    with pytest.raises(UnsupportedModelError, match="has layers of sliding_attention and no window"):
        load_model_quietly(write_folder(tmp_path / "model", stored, settings))
    with pytest.raises(ModelFileError, match=f"has 1 layer_types for {SHAPE.layers} layers; name one for each"):
        load_model_quietly(write_folder(tmp_path / "model", stored, settings | {"layer_types": ["full_attention"]}))


@pytest.mark.parametrize(
    ("kind", "generation", "stated"),
    [
        *(("llama", None, stated) for stated in (ABSENT, None, 7, [7, 8])),
        *(("llama", {}, stated) for stated in (ABSENT, 7)),
        ("qwen2", {}, None),
        ("llama", {"eos_token_id": None}, 7),
        ("qwen2", {"eos_token_id": 5}, 7),
        ("llama", {"eos_token_id": [5, 6]}, None),
    ],
)
def test_files_and_models_end_texts_as_transformers_does(
    tmp_path: Path, kind: str, generation: dict[str, Any] | None, stated: object
) -> None:
    """Its ``generate`` ends texts by the generation config of a loaded model alone."""
    transformers = pytest.importorskip("transformers")
    folder, change = tmp_path / "model", {} if stated is ABSENT else {"eos_token_id": stated}
    make_model(kind).save_pretrained(folder)

    def edit(found: dict[str, Any]) -> None:
        found.pop("eos_token_id", None)
        found |= change

    edit_json(folder / "config.json", edit)
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text("{}")
        edit_json(folder / "generation_config.json", _change(**generation))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = loaded.generation_config.eos_token_id
    right = () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
    of_file = collect_missing(lambda: load_model(folder))
    of_model = collect_missing(lambda: Decoder.from_model(loaded, max_seq_len=8))
    assert of_file[0].stop_token_ids == of_model[0].stop_token_ids == right
    unnamed = stated is ABSENT and not generation
    assert len(of_file[1]) == (not right and (stated in (7, [7, 8]) or unnamed))
    assert len(of_model[1]) == (not right and loaded.config.eos_token_id is not None)
    assert all("no token ends a text; pass stop_token_ids= to end it" in text for text in (*of_file[1], *of_model[1]))


@pytest.mark.parametrize("kind", KINDS)
def test_configs_of_transformers_have_harmless_fields_alone(tmp_path: Path, kind: str) -> None:
    model = make_model(kind, sliding_window=None, rope_parameters={"rope_type": "linear", "factor": 2.0})
    ids = [1, 2, 3, 4]
    with torch.no_grad():
        right = model(torch.tensor([ids])).logits[0, -1]
    for decoder in decode_both(model, tmp_path / "model", max_seq_len=8):
        torch.testing.assert_close(decoder.logits[decoder.add(ids)], right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"num_key_value_heads": 4}),
        ("mistral", {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 2}),
        ("qwen2", {"num_attention_heads": 64, "num_key_value_heads": 32, "head_dim": 2, "hidden_size": 128}),
        ("qwen3", {"num_attention_heads": 64, "num_key_value_heads": 32, "head_dim": 128}),
    ],
)
def test_fields_that_a_folder_leaves_out_have_the_defaults_of_transformers(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    absent = ["rms_norm_eps", "rope_parameters", "max_position_embeddings", "sliding_window", "hidden_act", "head_dim"]
    absent += ["num_key_value_heads", "layer_types", "max_window_layers", "use_sliding_window"]
    make_model(kind, **settings).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", lambda found: [found.pop(name, None) for name in absent] and None)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    of_model, of_file = Decoder.from_model(loaded), from_file(tmp_path)
    assert of_file.shape == of_model.shape
    assert of_file.max_seq_len == of_model.max_seq_len
    torch.testing.assert_close(of_file._rope[:64], of_model._rope[:64], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("first", "window"), [(0, 8), (1, 8), (2, 96), (28, 96), (ABSENT, 96)])
def test_layers_slide_from_max_window_layers_on_where_a_folder_names_no_kinds(
    tmp_path: Path, first: object, window: int
) -> None:
    make_model("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0).save_pretrained(tmp_path)

    def edit(found: dict[str, Any]) -> None:
        for name in ("layer_types", "max_window_layers"):
            found.pop(name)
        found |= {} if first is ABSENT else {"max_window_layers": first}

    edit_json(tmp_path / "config.json", edit)
    assert from_file(tmp_path).max_seq_len == window


def test_parameters_of_rope_that_a_model_has_computed_are_taken() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "beta_fast": 16.0}
    model = make_model("llama", rope_parameters=yarn | {"rope_theta": 10000.0})
    with torch.no_grad():
        right = model(torch.tensor([[1, 2, 3]])).logits[0, -1]
    decoder = Decoder.from_model(model, max_seq_len=8)
    torch.testing.assert_close(decoder.logits[decoder.add([1, 2, 3])], right, rtol=1e-4, atol=1e-4)


def test_llama3_frequencies_take_the_length_of_the_config_by_default(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    make_model("llama").save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", _change(rope_parameters={**scaled, "rope_theta": 10000.0}))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    np.testing.assert_allclose(
        load_model_quietly(tmp_path).inv_freq, loaded.model.rotary_emb.inv_freq.numpy(), rtol=1e-6
    )


def test_a_base_model_of_transformers_loads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = make_model("llama", tie_word_embeddings=True)
    model.model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    right, found = (
        Decoder.from_model(loaded, max_seq_len=16),
        Decoder.from_pretrained(tmp_path, max_seq_len=16, device="cpu"),
    )
    assert found.generate([1, 2, 3], 6, stop_token_ids=[]) == right.generate([1, 2, 3], 6, stop_token_ids=[])


def test_stops_of_another_kind_than_numbers_are_refused_by_files_as_by_models(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray]
) -> None:
    with pytest.raises(DecodeError, match=r"eos_token_id is '2'; it is an id, or a list of ids"):
        load_model_quietly(write_folder(tmp_path / "model", stored_tensors, config(SHAPE, eos_token_id="2")))


@pytest.mark.parametrize(
    ("kind", "right", "stored", "error", "message"),
    [
        ("llama", {}, {"qkv_bias": True}, ModelFileError, "attention_bias False, and the weights have biases"),
        ("qwen3", {"qk_norm": True}, {"qkv_bias": True}, ModelFileError, "attention_bias False, and the weights have"),
        ("mistral", {}, {"qkv_bias": True}, UnsupportedModelError, "biases of queries, keys and values, which that"),
        ("ministral", {}, {"qkv_bias": True}, UnsupportedModelError, "biases of queries, keys and values, which that"),
        ("qwen2", {"qkv_bias": True}, {"qkv_bias": False}, ModelFileError, "the weights lack biases of queries"),
        ("llama", {}, {"qk_norm": True}, UnsupportedModelError, r"norms of heads \(q_norm, k_norm\), which that type"),
        ("mistral", {}, {"qk_norm": True}, UnsupportedModelError, "norms of heads"),
        ("qwen2", {"qkv_bias": True}, {"qk_norm": True}, UnsupportedModelError, "norms of heads"),
        ("qwen3", {"qk_norm": True}, {"qk_norm": False}, ModelFileError, "the weights lack norms of heads"),
    ],
)
def test_weights_have_the_parts_that_transformers_makes_of_their_kind(
    tmp_path: Path,
    kind: str,
    right: dict[str, Any],
    stored: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    def write(**parts: Any) -> Path:
        shape = replace(SHAPE, **parts)
        weights = dict(stored_names(ToyForCausalLM(shape, dtype=torch.float32)))
        return write_folder(tmp_path / "model", weights, config(shape, model_type=kind))

    load_model_quietly(write(**right))
    with pytest.raises(error, match=message):
        load_model_quietly(write(**{**right, **stored}))


@pytest.mark.parametrize(("kind", "has_norms"), [("llama", True), ("qwen2", True), ("qwen3", False)])
def test_norms_of_heads_in_a_file_are_those_of_its_architecture(tmp_path: Path, kind: str, has_norms: bool) -> None:
    shape, path = replace(SHAPE, qk_norm=has_norms), tmp_path / "model.gguf"
    weights = dict(stored_names(ToyForCausalLM(shape, dtype=torch.float32)))
    path.write_bytes(gguf_bytes(gguf_metadata(shape, kind), gguf_tensors(weights, shape, kind)))
    with pytest.raises((ModelFileError, UnsupportedModelError), match="norms of heads"):
        load_model_quietly(path)


def test_keys_and_values_of_different_widths_are_refused(tmp_path: Path, stored_tensors: dict[str, np.ndarray]) -> None:
    path = tmp_path / "model.gguf"
    metadata = {**gguf_metadata(SHAPE), "llama.attention.value_length": SHAPE.head_dim // 2}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored_tensors, SHAPE)))
    with pytest.raises(UnsupportedModelError, match="keys and values of different widths"):
        load_model_quietly(path)


@pytest.mark.parametrize("kind", ["mistral", "ministral"])
def test_architectures_that_llama_cpp_does_not_have_are_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], kind: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(gguf_metadata(SHAPE, kind), gguf_tensors(stored_tensors, SHAPE, kind)))
    with pytest.raises(UnsupportedModelError, match=f"type '{kind}'; a decoder takes llama, qwen2, qwen3"):
        load_model_quietly(path)


def test_a_vocabulary_of_another_size_than_the_embeddings_is_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray]
) -> None:
    rows = SHAPE.vocabulary
    load_model_quietly(write_folder(tmp_path / "model", stored_tensors, config(SHAPE, vocab_size=rows)))
    with pytest.raises(ModelFileError, match=f"has vocab_size {rows + 1}, and the embeddings have {rows} rows"):
        load_model_quietly(write_folder(tmp_path / "model", stored_tensors, config(SHAPE, vocab_size=rows + 1)))


@pytest.mark.parametrize(
    ("rope", "scale", "lines"),
    [
        ({"rope_type": None, "type": "linear", "factor": 4.0}, 4.0, 0),
        ({"factor": 4.0}, 1.0, 1),
        ({"rope_type": None, "factor": 4.0}, 1.0, 1),
        ({"factor": 1.0}, 1.0, 0),
        ({"rope_type": "default", "factor": 4.0}, 1.0, 0),
    ],
)
def test_a_factor_of_rope_scales_or_is_reported(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], rope: dict[str, Any], scale: float, lines: int
) -> None:
    plain = load_model_quietly(write_folder(tmp_path / "plain", stored_tensors, config(SHAPE)))
    scaled = load_model_quietly(write_folder(tmp_path / "scaled", stored_tensors, config(SHAPE, rope_scaling=rope)))
    np.testing.assert_allclose(scaled.inv_freq * scale, plain.inv_freq, rtol=1e-6)
    assert len(scaled.notices) == lines
    assert all("a factor of RoPE 4.0 and no rope_type, so it scales nothing" in notice for notice in scaled.notices)


def test_swish_and_older_names_of_layers_are_taken(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    make_model("qwen2").save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", _change(hidden_act="swish", layer_types=["attention"] * 2))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        right = loaded(torch.tensor([[1, 2, 3]])).logits[0, -1]
    for decoder in (Decoder.from_model(loaded, max_seq_len=8), from_file(tmp_path)):
        torch.testing.assert_close(decoder.logits[decoder.add([1, 2, 3])], right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("generation", "line"),
    [
        ({"repetition_penalty": 1.1}, "has repetition_penalty 1.1, which a decoder does not follow"),
        ({"repetition_penalty": 1.1, "suppress_tokens": [3]}, "repetition_penalty 1.1, suppress_tokens [3], which"),
        ({"num_beams": 4}, "has num_beams 4,"),
        ({"min_new_tokens": 2}, "has min_new_tokens 2,"),
        ({"repetition_penalty": 1.0, "num_beams": 1, "min_length": 0, "suppress_tokens": None}, None),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, None),
    ],
)
def test_settings_of_generation_that_are_not_followed_are_reported_by_files_as_by_models(
    tmp_path: Path, generation: dict[str, Any], line: str | None
) -> None:
    transformers = pytest.importorskip("transformers")
    make_model("llama").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **generation}))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for run in (lambda: load_model(tmp_path), lambda: Decoder.from_model(loaded, max_seq_len=8)):
        _, lines = collect_missing(run)
        assert len(lines) == (line is not None)
        assert all("\n" not in found and line in found for found in lines)


def test_a_model_without_positions_is_refused() -> None:
    model = ToyForCausalLM()
    model.config.max_position_embeddings = -1
    with pytest.raises(UnsupportedModelError, match="max_position_embeddings -1; it must be positive"):
        Decoder.from_model(model)
