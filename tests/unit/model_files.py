"""Small models on disk, for tests: GGUF files and folders."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from interlace.models.llama import LlamaShape

_F32, _F16, _BF16 = 0, 1, 30


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray], version: int = 3) -> bytes:
    """A GGUF file: float32 and float16 tensors are such, uint16 ones bf16."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for name, value in metadata.items():
        head += _text(name) + _value(value)
    data = b""
    for name, values in tensors.items():
        kind = {"float32": _F32, "float16": _F16, "uint16": _BF16}[values.dtype.name]
        extents = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, len(data))
        data += values.tobytes()
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 6 if isinstance(value[0], float) else 5
        items = b"".join(_text(v) if kind == 8 else struct.pack("<f" if kind == 6 else "<i", v) for v in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + items
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def gguf_metadata(s: LlamaShape, kind: str = "llama") -> dict[str, Any]:
    """Return the metadata of a shape in a GGUF file."""
    return {
        "general.architecture": kind,
        f"{kind}.block_count": s.layers,
        f"{kind}.context_length": 128,
        f"{kind}.embedding_length": s.hidden,
        f"{kind}.feed_forward_length": s.ffn,
        f"{kind}.attention.head_count": s.heads,
        f"{kind}.attention.head_count_kv": s.kv_heads,
        f"{kind}.attention.key_length": s.head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": s.eps,
        f"{kind}.rope.freq_base": 50.0,
        f"{kind}.rope.dimension_count": s.head_dim,
    }


#: Parts of names in a folder, and in a GGUF file.
_NAMES = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    *((f"self_attn.{n}_proj", f"attn_{n}") for n in "qkv"),
    *((f"mlp.{n}_proj", f"ffn_{n}") for n in ("gate", "up", "down")),
)


def gguf_tensors(stored: Mapping[str, np.ndarray], s: LlamaShape, kind: str = "llama") -> dict[str, np.ndarray]:
    """A folder's tensors as a GGUF file has them: of the Llama architecture with pairs that turn side by side."""
    found = {}
    for name, values in stored.items():
        part = name.split(".")[-2]
        if kind == "llama" and part in ("q_proj", "k_proj"):
            heads = s.heads if part == "q_proj" else s.kv_heads
            half = s.head_dim // 2
            order = [h * s.head_dim + i + side * half for h in range(heads) for i in range(half) for side in (0, 1)]
            values = values[order]
        for theirs, ours in _NAMES:
            name = name.replace(theirs, ours)
        found[name] = values
    if s.tied:
        found.pop("output.weight", None)
    return found


def config(s: LlamaShape, **more: Any) -> dict[str, Any]:
    """Return config.json of a shape."""
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "rms_norm_eps": s.eps,
        "max_position_embeddings": 128,
        "tie_word_embeddings": s.tied,
        "rope_theta": 50.0,
        "eos_token_id": 2,
        **more,
    }


def write_folder(path: Path, stored: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Path:
    """A folder with its weights in two files."""
    from safetensors.numpy import save_file

    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings))
    names = sorted(stored)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: np.ascontiguousarray(stored[name]) for name in part}, path / f"model-{number}.safetensors")
    return path


#: Bytes as GPT-2 writes them in vocabularies, space as "Ġ", and a few merges.
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o"]
TOKENS = ["<|end|>", "<|start|>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", "1", "2", "Ã", "©", "!", "."]
TOKENS += [merge.replace(" ", "") for merge in MERGES]
VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.eos_token_id": 0,
}
