"""Small models of the Llama family for tests: as modules named as those of ``transformers``, and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from interlace.models.forward_numpy import compute_attention, compute_logits
from interlace.models.llama import LlamaShape
from interlace.nn import Decoder

SHAPE = LlamaShape(layers=2, hidden=32, ffn=48, heads=4, kv_heads=2, head_dim=16, vocabulary=61, eps=1e-6, tied=False)


class ToyRMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.variance_epsilon = eps


class Rotary(nn.Module):
    def __init__(self, head_dim: int, scaling: float) -> None:
        super().__init__()
        self.rope_type, self.attention_scaling = "default", scaling
        inv_freq = 50.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)


class Attention(nn.Module):
    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.q_proj = nn.Linear(s.hidden, queries, bias=s.qkv_bias)
        self.k_proj = nn.Linear(s.hidden, keys, bias=s.qkv_bias)
        self.v_proj = nn.Linear(s.hidden, keys, bias=s.qkv_bias)
        self.o_proj = nn.Linear(queries, s.hidden, bias=False)
        if s.qk_norm:
            self.q_norm, self.k_norm = (ToyRMSNorm(s.head_dim, s.eps) for _ in range(2))


class MLP(nn.Module):
    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(s.hidden, s.ffn, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(s.ffn, s.hidden, bias=False)
        self.act_fn = nn.SiLU()


class Layer(nn.Module):
    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(s), MLP(s)
        self.input_layernorm, self.post_attention_layernorm = (ToyRMSNorm(s.hidden, s.eps) for _ in range(2))


class Base(nn.Module):
    def __init__(self, s: LlamaShape, scaling: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocabulary, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = ToyRMSNorm(s.hidden, s.eps)
        self.rotary_emb = Rotary(s.head_dim, scaling)


class ToyForCausalLM(nn.Module):
    """Random weights; it cannot run, which a decoder does not need."""

    def __init__(self, s: LlamaShape = SHAPE, scaling: float = 1.0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.model = Base(s, scaling)
        self.lm_head = nn.Linear(s.hidden, s.vocabulary, bias=False)
        if s.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.config = SimpleNamespace(
            model_type="llama",
            hidden_act="silu",
            hidden_size=s.hidden,
            intermediate_size=s.ffn,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            head_dim=s.head_dim,
            rms_norm_eps=s.eps,
            max_position_embeddings=128,
            sliding_window=None,
            eos_token_id=None,
        )
        random = torch.Generator().manual_seed(0)
        for name, parameter in self.named_parameters():
            values = torch.randn(parameter.shape, generator=random)
            with torch.no_grad():
                parameter.copy_(1 + 0.2 * values if "norm" in name else values * 0.5)
        self.to(dtype)
        self.model.rotary_emb.float()


#: Names of a layer's modules by those of the decode step, written here again: the package's own list is under test.
_MODULES = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    **{name: f"self_attn.{name}_proj" for name in "qkvo"},
    **{name: f"self_attn.{name}" for name in ("q_norm", "k_norm")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def oracle(model: ToyForCausalLM, s: LlamaShape, ids: list[int]) -> np.ndarray:
    """Return the logits (length, vocabulary) of every position in float64, by NumPy's forward without a KV cache."""
    stored = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
    weights = {"embed": stored["model.embed_tokens.weight"], "norm": stored["model.norm.weight"]}
    weights["head"] = stored["lm_head.weight"]
    for layer, (name, module), (end, kind) in product(
        range(s.layers), _MODULES.items(), (("", "weight"), ("_bias", "bias"))
    ):
        if (value := stored.get(f"model.layers.{layer}.{module}.{kind}")) is not None:
            weights[f"layers.{layer}.{name}{end}"] = value
    rotary = model.model.rotary_emb
    angles = np.arange(len(ids))[:, None] * rotary.inv_freq.double().numpy()
    rope = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rotary.attention_scaling

    def attend(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        keys, values = k.swapaxes(0, 1), v.swapaxes(0, 1)
        return np.stack([compute_attention(row, keys[:, : at + 1], values[:, : at + 1]) for at, row in enumerate(q)])

    return compute_logits(s, weights, np.array(ids), rope, attend)


def greedy(model: ToyForCausalLM, s: LlamaShape, prompt: list[int], count: int) -> list[int]:
    """Return the tokens that the oracle generates after a prompt."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(oracle(model, s, ids)[-1].argmax()))
    return ids[len(prompt) :]


def step_slot(decoder: Decoder, slot: int, count: int) -> list[int]:
    """The next tokens of a slot, one a step."""
    tokens = []
    for _ in range(count):
        tokens.append(int(decoder.next[slot]))
        decoder.step()
    return tokens


def relative_error(found: torch.Tensor, right: np.ndarray) -> float:
    return float(np.linalg.norm(found.double().numpy() - right) / np.linalg.norm(right))


def stored_names(model: ToyForCausalLM) -> Mapping[str, np.ndarray]:
    """Its tensors as a folder has them."""
    return {name: value.detach().float().numpy() for name, value in model.state_dict().items()}
