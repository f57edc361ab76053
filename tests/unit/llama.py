"""Small models of the Llama family for tests: as modules named as those of ``transformers``, and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

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


def oracle(model: ToyForCausalLM, s: LlamaShape, ids: list[int]) -> np.ndarray:
    """Logits (length, vocabulary) of every position, in float64, position by position and head by head."""
    w = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
    inv_freq = model.model.rotary_emb.inv_freq.double().numpy()
    scaling, half = model.model.rotary_emb.attention_scaling, s.head_dim // 2

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + s.eps) * weight

    def turned(x: np.ndarray, at: int) -> np.ndarray:
        out = np.empty_like(x)
        for i in range(half):
            c, r = np.cos(at * inv_freq[i]) * scaling, np.sin(at * inv_freq[i]) * scaling
            out[i], out[i + half] = x[i] * c - x[i + half] * r, x[i + half] * c + x[i] * r
        return out

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)

    cached: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []) for _ in range(s.layers)]
    found = []
    for at, id in enumerate(ids):
        x = w["model.embed_tokens.weight"][id]
        for l, (keys, values) in enumerate(cached):
            here = f"model.layers.{l}"
            h = norm(x, w[f"{here}.input_layernorm.weight"])
            q, k, v = (linear(h, f"{here}.self_attn.{n}_proj").reshape(-1, s.head_dim) for n in "qkv")
            if s.qk_norm:
                q = np.array([norm(head, w[f"{here}.self_attn.q_norm.weight"]) for head in q])
                k = np.array([norm(head, w[f"{here}.self_attn.k_norm.weight"]) for head in k])
            keys.append(np.array([turned(head, at) for head in k]))
            values.append(v)
            out = []
            for head in range(s.heads):
                shared = head // (s.heads // s.kv_heads)
                scores = np.array([key[shared] @ turned(q[head], at) for key in keys]) / np.sqrt(s.head_dim)
                shares = np.exp(scores - scores.max())
                out.append(sum(p * value[shared] for p, value in zip(shares / shares.sum(), values, strict=True)))
            x = x + linear(np.concatenate(out), f"{here}.self_attn.o_proj")
            h = norm(x, w[f"{here}.post_attention_layernorm.weight"])
            gate = linear(h, f"{here}.mlp.gate_proj")
            x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{here}.mlp.up_proj"), f"{here}.mlp.down_proj")
        found.append(linear(norm(x, w["model.norm.weight"]), "lm_head"))
    return np.array(found)


def greedy(model: ToyForCausalLM, s: LlamaShape, prompt: list[int], count: int) -> list[int]:
    """What the oracle writes behind a prompt."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(oracle(model, s, ids)[-1].argmax()))
    return ids[len(prompt) :]


def stepped(decoder: Decoder, slot: int, count: int) -> list[int]:
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
