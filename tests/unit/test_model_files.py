"""Models on disk: what is read of GGUF files and folders, and that anything else is one clear line."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from interlace.core.dtypes import bf16
from interlace.core.errors import (
    ArgumentError,
    DecodeError,
    ModelFileError,
    NoDeviceError,
    UnsupportedModelError,
)
from interlace.core.rounding import round_to
from interlace.models.checkpoint import Checkpoint
from interlace.models.gguf import GGUF
from interlace.models.pretrained import load_model
from interlace.models.rope import compute_frequencies
from interlace.models.tokenizer import IncrementalDecoder, TextTokenizer, open_tokenizer

from .model_files import VOCABULARY, config, gguf_bytes, gguf_metadata, gguf_tensors, write_folder

torch = pytest.importorskip("torch")

from interlace.nn import Decoder  # noqa: E402

from .llama import SHAPE, ToyForCausalLM, stored_names  # noqa: E402

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM(dtype=torch.float32)


@pytest.fixture
def stored_tensors(model: ToyForCausalLM) -> dict[str, np.ndarray]:
    return dict(stored_names(model))


def logits(decoder: Decoder) -> torch.Tensor:
    decoder.add(PROMPT)
    return decoder.step([9] + [0] * (decoder.batch - 1)).logits[0]


def decode_pieces(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    """Return the texts that ids complete as they arrive."""
    stream = IncrementalDecoder(tokenizer)
    pieces = [*map(stream.push, ids), stream.finish()]
    return [piece for piece in pieces if piece]


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (SHAPE, "llama"),
        (replace(SHAPE, tied=True, qkv_bias=True), "llama"),
        (replace(SHAPE, qkv_bias=True), "qwen2"),
        (replace(SHAPE, qk_norm=True, head_dim=8), "qwen3"),
    ],
    ids=["llama", "llama-bias-tied", "qwen2", "qwen3"],
)
def test_a_file_and_a_folder_decode_as_the_model_that_they_were_made_of(tmp_path: Path, shape, kind: str) -> None:
    model = ToyForCausalLM(shape, dtype=torch.float32)
    right = logits(Decoder.from_model(model, max_seq_len=8))
    stored = dict(stored_names(model))
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_bytes(gguf_metadata(shape, kind), gguf_tensors(stored, shape, kind)))
    settings = config(shape, model_type=kind, attention_bias=kind == "llama" and shape.qkv_bias)
    folder = write_folder(tmp_path / "model", stored, settings)
    for path in (file, folder):
        trained = load_model(path)
        assert replace(trained.shape, eps=SHAPE.eps) == shape
        assert trained.shape.eps == pytest.approx(shape.eps)
        found = logits(Decoder.from_pretrained(path, max_seq_len=8, device="cpu"))
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    assert (load_model(folder).stop_token_ids, load_model(folder).max_positions) == ((2,), 128)


def test_half_precision_is_widened_without_loss(tmp_path: Path) -> None:
    values = round_to(np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32), bf16)
    half = values.astype(np.float16)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    path = tmp_path / "halves"
    path.write_bytes(gguf_bytes({}, {"upper": upper, "half": half, "whole": values}))
    file = GGUF.open(path)
    np.testing.assert_array_equal(file.read("upper"), values)
    np.testing.assert_array_equal(file.read("half"), half.astype(np.float32))
    np.testing.assert_array_equal(file.read("whole"), values)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32"])
def test_what_the_package_gguf_writes_is_what_is_read(tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    of = gguf.GGMLQuantizationType[kind]
    blocks = gguf.quants.quantize(values, of)
    path = tmp_path / "written"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(7)
    writer.add_token_list(["a", "é"])
    writer.add_token_types([1, 3])
    writer.add_tensor("w", blocks, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUF.open(path)
    assert file.metadata["llama.block_count"] == 7
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "é"]
    assert file.metadata["tokenizer.ggml.token_type"] == [1, 3]
    assert file.tensors["w"].shape == (3, 64)
    found = file.read("w")
    np.testing.assert_array_equal(found, gguf.quants.dequantize(blocks, of).reshape(3, 64))
    bits = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}.get(kind, 9)
    assert np.abs(found - values).max() <= np.abs(values).max() * 2.0 ** -(bits - 1) * 1.3


def test_scaled_frequencies_are_those_of_their_authors() -> None:
    plain, one = compute_frequencies(64, 500000.0, {}, "here")
    assert one == 1.0
    np.testing.assert_allclose(plain, 500000.0 ** -(np.arange(32) / 32), rtol=1e-6)
    llama = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled, _ = compute_frequencies(64, 500000.0, llama, "here")
    for found, whole in zip(scaled, plain.astype(float), strict=True):
        wave = 2 * np.pi / whole  # apply_scaling of llama-models, line by line
        if wave < 8192 / 4:
            right = whole
        elif wave > 8192 / 1:
            right = whole / 32
        else:
            smooth = (8192 / wave - 1) / (4 - 1)
            right = (1 - smooth) * whole / 32 + smooth * whole
        assert found == pytest.approx(right, rel=1e-5)
    assert 0 < (scaled == plain).sum() < 32
    half, _ = compute_frequencies(64, 500000.0, {"type": "linear", "factor": 2}, "here")
    np.testing.assert_allclose(half, plain / 2, rtol=1e-6)
    with pytest.raises(UnsupportedModelError, match="here scales RoPE by 'yarn'"):
        compute_frequencies(64, 1e4, {"rope_type": "yarn"}, "here")
    for bad in ({"rope_type": "linear"}, {**llama, "factor": "x"}, {**llama, "high_freq_factor": 0.5}):
        with pytest.raises(ModelFileError, match="here has a"):
            compute_frequencies(64, 1e4, bad, "here")


def test_factors_of_a_file_divide_its_frequencies(tmp_path: Path, stored_tensors: dict[str, np.ndarray]) -> None:
    tensors = gguf_tensors(stored_tensors, SHAPE)
    tensors["rope_freqs.weight"] = np.arange(1, 9, dtype=np.float32)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(gguf_metadata(SHAPE), tensors))
    inv_freq = load_model(path).inv_freq
    np.testing.assert_allclose(inv_freq, 50.0 ** -(np.arange(8) / 8) / np.arange(1, 9), rtol=1e-6)


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(
    "said",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
    ],
)
def test_a_factor_of_a_file_counts_under_each_of_its_names(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], said: dict[str, Any]
) -> None:
    path = tmp_path / "model.gguf"
    plain, scaled = {}, {f"llama.{name}": value for name, value in said.items()}
    found = []
    for more in (plain, scaled, scaled | {"llama.rope.scaling.type": "none"}):
        path.write_bytes(gguf_bytes({**gguf_metadata(SHAPE), **more}, gguf_tensors(stored_tensors, SHAPE)))
        found.append(load_model(path).inv_freq)
    np.testing.assert_allclose(found[1], found[0] / 4, rtol=1e-6)
    np.testing.assert_array_equal(found[2], found[0])


def test_a_vocabulary_in_a_file_becomes_a_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(VOCABULARY, {}))
    tokens = VOCABULARY["tokenizer.ggml.tokens"]
    of = open_tokenizer(path, GGUF.open(path))
    ids = of.encode("<|start|>hello wow é12\n")
    assert [tokens[id] for id in ids] == ["<|start|>", "hello", "Ġwo", "w", "Ġ", "Ã", "©", "1", "2", "Ċ"]
    assert of.decode(ids) == "hello wow é12\n"
    assert decode_pieces(of, ids) == ["hello", " wo", "w", " ", "é", "1", "2", "\n"]
    assert decode_pieces(of, ids * 9) == decode_pieces(of, ids) * 9
    of._tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = open_tokenizer(tmp_path, None)
    assert (again.encode("hello wow"), again.decode(ids)) == (of.encode("hello wow"), of.decode(ids))
    begun = {**VOCABULARY, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1}
    of_llama3 = {**VOCABULARY, "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 1}
    for metadata in (begun, of_llama3):
        path.write_bytes(gguf_bytes(metadata, {}))
        assert open_tokenizer(path, GGUF.open(path)).encode("a") == [1, 2]
    unbegun = {**of_llama3, "tokenizer.ggml.add_bos_token": False}
    path.write_bytes(gguf_bytes(unbegun, {}))
    assert open_tokenizer(path, GGUF.open(path)).encode("a") == [2]


#: Of one character or more, and all bytes; the higher of two scores was joined earlier.
PIECES = [*"\u2581abehlo", "\u2581h", "el", "lo", "\u2581hel", "lob", "ab", "\u2581ab", "ba", "aba", "\u2581\u2581"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECE_TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, "b</s>"]
PIECE_SCORES = [0.0] * 259 + [-float(n) for n in range(len(PIECES))] + [-99.0]
PIECE_VOCABULARY: dict[str, Any] = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECE_TOKENS,
    "tokenizer.ggml.scores": PIECE_SCORES,
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) + 1),
    "tokenizer.ggml.bos_token_id": 1,
}


def join_pieces(text: str) -> list[str]:
    """Pieces of a text, as SentencePiece joins them: the neighbours of the highest score, the first of these."""
    score = dict(zip(PIECE_TOKENS, PIECE_SCORES, strict=True))
    pieces = [*("\u2581" + text.replace(" ", "\u2581"))] if text else []
    while True:
        pairs = [(score[a + b], -n) for n, (a, b) in enumerate(pairwise(pieces)) if a + b in score]
        if not pairs:
            break
        at = -max(pairs)[1]
        pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
    return [p for piece in pieces for p in ([piece] if piece in score else (BYTES[b] for b in piece.encode()))]


def test_pieces_of_a_file_are_joined_as_sentencepiece_joins_them(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(PIECE_VOCABULARY, {}))
    of = open_tokenizer(path, GGUF.open(path))
    random = np.random.default_rng(0)
    drawn = ["".join(random.choice([*"abehlo  \u00e9\n"], 12)) for _ in range(300)]
    for text in ["", "hello", "hello \u00e9", " a  b", *drawn]:
        ids = of.encode(text)
        assert ids[0] == 1
        assert [PIECE_TOKENS[id] for id in ids[1:]] == join_pieces(text), text
        assert of.decode(ids) == (" " + text if text else "")
        assert "".join(decode_pieces(of, ids)) == of.decode(ids)
    assert [PIECE_TOKENS[id] for id in of.encode("ab</s>hello", whole=True)] == [
        *("\u2581ab", "</s>", "\u2581hel", "lo")
    ]
    path.write_bytes(gguf_bytes({**PIECE_VOCABULARY, "tokenizer.ggml.add_space_prefix": False}, {}))
    plain = open_tokenizer(path, GGUF.open(path))
    assert plain.decode(plain.encode("hello lo")) == "hello lo"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokenizer.ggml.scores": [1.0]}, "is damaged: it has .* tokens, 1 scores"),
        ({"tokenizer.ggml.scores": None}, "is damaged: it has .* tokens, 0 scores"),
        ({"tokenizer.ggml.unknown_token_id": 9999}, "and the unknown token is 9999"),
    ],
)
def test_pieces_without_scores_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "model.gguf"
    found = {**PIECE_VOCABULARY, **changed}
    path.write_bytes(gguf_bytes({name: value for name, value in found.items() if value is not None}, {}))
    with pytest.raises(ModelFileError, match=message):
        open_tokenizer(path, GGUF.open(path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "a vocabulary of kind 't5'"),
        ({"tokenizer.ggml.pre": "poro-chat"}, "cut by 'poro-chat'"),
        ({"tokenizer.ggml.pre": ["smollm"]}, r"cut by \['smollm'\]"),
        ({"tokenizer.ggml.merges": ["q x"]}, "its merges do not fit its tokens"),
        ({"tokenizer.ggml.tokens": 3}, "it has no tokens or no merges"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({**VOCABULARY, **changed}, {}))
    with pytest.raises(ModelFileError, match=message):
        open_tokenizer(path, GGUF.open(path))


def test_a_folder_without_a_sound_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json"):
        open_tokenizer(tmp_path, None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match="is damaged or no tokenizer"):
        open_tokenizer(tmp_path, None)


def test_a_tokenizer_that_fails_at_a_text_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    of = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="absent"))
    of.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFileError, match="the model's tokenizer fails at the prompt: "):
        open_tokenizer(tmp_path, None).encode("b")


def test_batches_that_a_tokenizer_was_trained_in_change_no_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    of = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "pad": 1}, unk_token="pad"))
    of.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    of.enable_truncation(3)
    of.enable_padding(length=9, pad_id=1, pad_token="pad")
    of.save(str(tmp_path / "tokenizer.json"))
    assert open_tokenizer(tmp_path, None).encode("a a a a") == [0] * 4


def test_a_text_comes_in_the_pieces_of_its_characters_however_these_are_made_of_bytes() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz"]
    bytes_of = {name: number for number, name in enumerate(names)}
    of = tokenizers.Tokenizer(tokenizers.models.BPE(bytes_of, [], unk_token="<unk>", byte_fallback=True))
    of.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    d = tokenizers.decoders
    of.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    texts = TextTokenizer(None, of)
    for text in ("hello", "a 你好世界 b", "日本語の文章はここ。", "สวัสดีครับ abc", "😀 😀😀", " two  spaces "):
        pieces = decode_pieces(texts, texts.encode(text))
        assert "".join(pieces) == text
        assert len(pieces) == len(text) or text.startswith(" ")
    ids = [*texts.encode("日"), 1 + 0xFF, *texts.encode("a")]
    assert "".join(decode_pieces(texts, ids)) == "日\ufffd a", "what is no character is told as such, and nothing else"


# ---------------------------------------------------------------- what is refused


def _in(part: str, **changed: object) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    def change(settings: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        target: dict[str, Any] = settings if part == "settings" else tensors
        for name, value in changed.items():
            name = name.replace("__", ".")
            if value is None:
                target.pop(name)
            else:
                target[name] = value

    return change


WIDE = np.ones((3, 3), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_in("settings", model_type="gemma3"), "type 'gemma3'; a decoder takes llama, mistral, qwen2, qwen3"),
        (_in("settings", hidden_act="gelu"), "hidden_act 'gelu'"),
        (_in("settings", quantization_config={"bits": 4}), "quantised weights"),
        (_in("settings", hidden_size="32"), "hidden_size '32'; it must be a positive number"),
        (_in("settings", num_hidden_layers=0), "num_hidden_layers 0"),
        (_in("settings", num_hidden_layers=10**9), "says 1000000000 layers"),
        (_in("settings", num_hidden_layers=3), r"lacks weights: model\.layers\.2\.input_layernorm\.weight, .* more"),
        (_in("settings", num_hidden_layers=1), r"has no place for: model\.layers\.1\.input_layernorm\.weight"),
        (_in("settings", num_key_value_heads=3), "4 heads for 3 of keys"),
        (_in("settings", head_dim=15), "heads of width 15"),
        (_in("settings", rms_norm_eps="x"), "rms_norm_eps 'x'"),
        (_in("settings", hidden_size=64), r"embed_tokens.weight of shape \(61, 32\); by its other .* \(61, 64\)"),
        (_in("settings", rope_scaling={"rope_type": "longrope"}), "scales RoPE by 'longrope'"),
        (_in("settings", rope_scaling=3), "no parameters of RoPE but 3"),
        (_in("settings", model_type="mistral", sliding_window=4), "sliding window of 4 positions"),
        (_in("settings", layer_types=["linear_attention"]), "layers of .*linear_attention"),
        (_in("settings", model_type="mistral", sliding_window="4"), "sliding_window '4'; it is a positive number"),
        (_in("settings", model_type="mistral", sliding_window=-4), "sliding_window -4; it is a positive number"),
        (_in("settings", tie_word_embeddings=True), r"lm_head\.weight has other values; set tie_word_embeddings"),
        (_in("settings", rope_theta=1e-300), "positions turn infinitely far"),
        (_in("settings", rope_scaling={"rope_type": "linear", "factor": 1e-300}), "turn infinitely far"),
        (_in("settings", layer_types=5), "layer_types 5; they are a list of names"),
        (_in("settings", tie_word_embeddings="false"), "tie_word_embeddings 'false'; it is true or false"),
        (_in("tensors", model__norm__weight=None), r"lacks weights: model\.norm\.weight"),
        (_in("tensors", lm_head__weight=None), r"lacks weights: lm_head\.weight, as tie_word_embeddings is not true"),
        (_in("tensors", extra=WIDE), "has no place for: extra"),
        (_in("tensors", model__layers__0__mlp__up_proj__bias=WIDE), r"no place for: model\.layers\.0\.mlp\.up_proj\.b"),
        (_in("tensors", model__norm__weight=WIDE), r"has model\.norm\.weight of shape \(3, 3\)"),
        (_in("tensors", model__norm__weight=np.full(32, np.nan, np.float32)), "holds infinities or NaNs"),
        (_in("tensors", model__norm__weight=np.ones(32, np.int8)), "is I8; convert it"),
        (_in("tensors", model__layers__0__self_attn__q_proj__bias=WIDE), "in some layers and not in others"),
    ],
)
def test_a_folder_that_is_no_sound_model_is_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], change: Callable[..., None], message: str
) -> None:
    settings = config(SHAPE)
    change(settings, stored_tensors)
    write_folder(tmp_path, stored_tensors, settings)
    with pytest.raises(DecodeError, match=message) as caught:
        Decoder.from_pretrained(tmp_path, max_seq_len=8, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_in("settings", general__architecture="mamba"), "type 'mamba'"),
        (_in("settings", general__architecture=None), "type None"),
        (_in("settings", llama__expert_count=8), "mixture of experts"),
        (_in("settings", llama__block_count=None), "block_count None"),
        (_in("settings", llama__rope__dimension_count=8), "turns 8 of 16 elements"),
        (_in("settings", llama__rope__scaling__type="yarn"), "scales RoPE by 'yarn'"),
        (_in("settings", llama__attention__sliding_window=4), "sliding window of 4 positions"),
        (_in("settings", split__count=3), "one of 3 parts of a model; join them first"),
        (_in("settings", llama__attention__scale=0.5), r"llama\.attention\.scale 0\.5, which a decoder would drop"),
        (_in("settings", llama__rope__scaling__attn_factor=2.0), r"attn_factor 2\.0, which a decoder would drop"),
        (_in("tensors", output_norm__weight=None), r"lacks weights: output_norm\.weight"),
        (_in("tensors", blk__0__attn_sinks__weight=WIDE), r"no place for: blk\.0\.attn_sinks\.weight"),
        (_in("tensors", rope_freqs__weight=WIDE), "factors of RoPE"),
        (_in("tensors", rope_freqs__weight=np.zeros(8, np.float32)), "positions turn infinitely far"),
        (_in("tensors", output_norm__weight=np.full(32, np.inf, np.float32)), "holds infinities or NaNs"),
    ],
)
def test_a_file_that_is_no_sound_model_is_refused(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray], change: Callable[..., None], message: str
) -> None:
    settings, tensors = gguf_metadata(SHAPE), gguf_tensors(stored_tensors, SHAPE)
    change(settings, tensors)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(settings, tensors))
    with pytest.raises(DecodeError, match=message):
        Decoder.from_pretrained(path, max_seq_len=8, device="cpu")


def test_a_folder_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot read .*config\.json'.*name a GGUF file, or a folder with"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config(SHAPE)))
    with pytest.raises(ModelFileError, match=r"has no weights \(\*\.safetensors\)$"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin would have to be unpickled, which may run anything"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelFileError, match="is damaged or no safetensors file"):
        load_model(tmp_path)
    with pytest.raises(ModelFileError, match="is part of a model; name the folder"):
        load_model(tmp_path / "model.safetensors")
    for text in ("[]", "nonsense", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelFileError, match="is damaged: it is no"):
            load_model(tmp_path)


def test_what_lies_beside_the_weights_of_a_folder_is_not_looked_at(
    tmp_path: Path, model: ToyForCausalLM, stored_tensors: dict[str, np.ndarray]
) -> None:
    write_folder(tmp_path, stored_tensors, config(SHAPE))
    files = sorted(tmp_path.glob("*.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    named = {name: file.name for file in files for name in Checkpoint.open(file).tensors}
    index.write_text(json.dumps({"weight_map": named}))
    beside = tmp_path / "consolidated.safetensors"
    beside.write_bytes(files[0].read_bytes())
    right = logits(Decoder.from_model(model, max_seq_len=8))
    torch.testing.assert_close(logits(Decoder.from_pretrained(tmp_path, max_seq_len=8, device="cpu")), right)
    index.write_text(json.dumps({"weight_map": {**named, "lm_head.weight": "../else.safetensors"}}))
    with pytest.raises(ModelFileError, match="its weight_map does not name files of its folder"):
        load_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {**named, "lm_head.weight": "x" * 5000}}))
    with pytest.raises(ModelFileError, match="lacks xxx"):
        load_model(tmp_path)
    index.write_text(json.dumps({"weight_map": named}))
    files[1].unlink()
    with pytest.raises(ModelFileError, match=r"lacks model-1\.safetensors, one of 1 missing of the 2 files"):
        load_model(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match="has an adapter next to its weights"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no GGUF file: it ends at byte 0"),
        (b"PK\3\4" * 20, "no GGUF file: it does not begin with GGUF"),
        (gguf_bytes({}, {}, version=1), "its version is 1, and 2 and 3 are read"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "entries do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "entries do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62) + b"x" * 9, "do not fit"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"a", 9, 0, 1 << 62), "do not fit"),
        (b"GGUF" + struct.pack("<IQQQcIIQIQ", 3, 0, 1, 1, b"a", 9, 9, 1, 9, 0), "type 9"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"a", 77), "type 77"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"\xff", 0), "not UTF-8"),
        (gguf_bytes({"general.alignment": 0}, {}), "general.alignment is 0"),
        (gguf_bytes({}, {"a": np.ones((1, 1, 1, 1, 1), np.float32)}), "has 5 dimensions"),
        (gguf_bytes({}, {"a": np.ones((0, 4), np.float32)}), r"has extents \(4, 0\)"),
        (gguf_bytes({}, {"a": np.ones(64, np.float32)})[:-100], "ends at byte .*: it is truncated"),
        (gguf_bytes({}, {"a": np.ones(64, np.float32)})[:30], "in the middle of its header|do not fit"),
    ],
)
def test_a_file_that_is_damaged_or_foreign_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        GGUF.open(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot read .*absent'.*No such file"):
        load_model(tmp_path / "absent")
    with pytest.raises(ModelFileError, match=r"cannot read .*File name too long"):
        load_model("x" * 300)


def test_what_is_no_regular_file_is_refused_rather_than_waited_for(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray]
) -> None:
    """As a pipe that nobody writes to."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ModelFileError, match=r"cannot read .*pipe': it is no regular file"):
        load_model(pipe)
    folder = write_folder(tmp_path / "model", stored_tensors, config(SHAPE))
    for file in folder.glob("*.safetensors"):
        file.unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"cannot read checkpoint .*model\.safetensors': it is no regular file"):
        load_model(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ModelFileError, match=r"cannot read .*config\.json': it is no regular file"):
        load_model(folder)


def test_a_head_that_is_stored_again_is_that_of_the_embeddings(
    tmp_path: Path, stored_tensors: dict[str, np.ndarray]
) -> None:
    again = stored_tensors | {"lm_head.weight": stored_tensors["model.embed_tokens.weight"]}
    folder = write_folder(tmp_path, again, config(SHAPE, tie_word_embeddings=True))
    decoder = Decoder.from_pretrained(folder, max_seq_len=8, device="cpu")
    assert decoder.shape.tied


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": None}, ArgumentError, "Decoder.from_pretrained: model is None; write model='FOLDER_OR_GGUF'"),
        ({"device": "foo"}, NoDeviceError, "device is 'foo'; name one as PyTorch does"),
        ({"device": "meta"}, NoDeviceError, "device is 'meta'; PyTorch sees the CPU"),
        ({"device": "cuda:77"}, NoDeviceError, "device is 'cuda:77'; PyTorch sees the CPU and"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_by_name(
    tmp_path: Path,
    stored_tensors: dict[str, np.ndarray],
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    folder = write_folder(tmp_path, stored_tensors, config(SHAPE))
    with pytest.raises(error, match=message):
        Decoder.from_pretrained(**{"model": folder, "max_seq_len": 8, "device": "cpu", **arguments})


def test_no_damage_escapes_as_another_error(tmp_path: Path, stored_tensors: dict[str, np.ndarray]) -> None:
    good = gguf_bytes({**gguf_metadata(SHAPE), **VOCABULARY}, gguf_tensors(stored_tensors, SHAPE))
    header = good.index(b"blk.1.") + 200
    path, random = tmp_path / "bad", Random(0)
    for _ in range(150):
        data = bytearray(good)
        if random.random() < 0.3:
            del data[random.randrange(len(data)) :]
        for _ in range(random.randrange(4)):
            if data:
                data[random.randrange(min(header, len(data)))] = random.randrange(256)
        path.write_bytes(data)
        with suppress(DecodeError):
            found = load_model(path)
            for name in found.names[:4]:
                found.read(name)
