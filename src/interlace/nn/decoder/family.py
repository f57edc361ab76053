"""Parts of a ``transformers`` causal model, found by the names of its modules; that library is never imported.

Everything that a decode step would drop or compute differently is refused by name: modules that are not listed here,
subclasses of linears and embeddings (adapters, quantised layers), hooks, forward methods from outside the library,
biases where the family has none, other activations and attention scales, windows, and frequencies that change with the
length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from interlace.core.errors import UnsupportedModelError
from interlace.models.config_fields import SILU, check_fields, check_rope, list_fields
from interlace.models.families import FAMILIES
from interlace.models.generation_settings import GENERATION_FIELDS, list_ignored
from interlace.models.llama import LlamaShape
from interlace.models.stops import read_stop_tokens
from interlace.models.windows import find_window
from interlace.nn.hooks import list_hooks

_CHANGING = ("dynamic", "longrope")  # kinds of RoPE whose frequencies depend on the length
_LINEARS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}
_FFN = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_HEAD_NORMS = ("q_norm", "k_norm")
_SILU = ("SiLU", "SiLUActivation")  # of torch, and of transformers
_NORMS = {"input_layernorm": "input_norm", "post_attention_layernorm": "post_norm"}


@dataclass(frozen=True)
class ModelParts:
    """Parts of a model that a decoder uses.

    Attributes:
        shape: dimensions of the model.
        weights: the model's own tensors, by the names of ``wanted``.
        inv_freq: (head_dim / 2,), rotation frequencies in radians per position.
        scaling: factor of cosines and sines.
        max_positions: maximum length in tokens, from the model's config.
        window: attention window in tokens, None if unlimited.
        stop_token_ids: token ids that end a sequence, from the model's config.
        notices: one line for each missing setting that changes tokens.
    """

    shape: LlamaShape
    weights: Mapping[str, torch.Tensor]
    inv_freq: torch.Tensor
    scaling: float
    max_positions: int
    window: int | None
    stop_token_ids: tuple[int, ...]
    notices: tuple[str, ...]


def find_parts(model: nn.Module) -> ModelParts:
    """Return the parts of a model that ``AutoModelForCausalLM.from_pretrained`` built.

    Raises:
        UnsupportedModelError: the model is of another family, or has a part that a decoder would drop; the message
            names it.
    """
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if not isinstance(model, nn.Module) or config is None or not isinstance(kind, str) or kind not in FAMILIES:
        what = f"of type {kind!r}" if kind else f"a {type(model).__name__} without config.model_type"
        raise UnsupportedModelError(f"the model is {what}; a decoder takes those of type {', '.join(FAMILIES)}")
    activation = getattr(config, "hidden_act", "silu")
    if activation not in SILU:
        raise UnsupportedModelError(f"config.hidden_act is {activation!r}; a decoder has 'silu' alone")
    settings = list_fields(config)
    rope = settings.get("rope_scaling") or settings.get("rope_parameters")
    check_fields(settings, "the model's config")
    check_rope(rope if isinstance(rope, Mapping) else {}, "the model's config", is_computed=True)
    base, head = _find_children("the model", model, ("model", "lm_head"))
    embed, layers, norm, rotary = _find_children("model", base, ("embed_tokens", "layers", "norm", "rotary_emb"))
    eps = float(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = {
        "embed": _find_embedding_weight("model.embed_tokens", embed),
        "norm": _find_norm_weight("model.norm", norm, eps),
    }
    _check_untouched("model.layers", layers)
    for l, layer in enumerate(layers.children()):
        weights |= {
            f"layers.{l}.{name}": tensor
            for name, tensor in _find_layer_weights(f"model.layers.{l}", layer, eps, head_dim)
        }
    lm_head = _find_linear_weight("lm_head", head)
    if head.bias is not None:
        raise UnsupportedModelError("lm_head has a bias, which a decode step has no place for")
    tied = _is_same(lm_head, weights["embed"])
    if not tied:
        weights["head"] = lm_head
    shape = LlamaShape(
        layers=len([*layers.children()]),
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocabulary=len(weights["embed"]),
        eps=eps,
        qkv_bias="layers.0.q_bias" in weights,
        qk_norm="layers.0.q_norm" in weights,
        tied=tied,
    )
    _check_untouched("model.rotary_emb", rotary)
    inv_freq, scaling = _find_frequencies(rotary, head_dim)
    positions = int(config.max_position_embeddings)
    if positions < 1:
        raise UnsupportedModelError(f"the model's config has max_position_embeddings {positions}; it must be positive")
    window = find_window(settings, shape.layers, "the model's config")
    generation = _read_generation_config(model)
    stops = read_stop_tokens(settings, generation, "the model's config")
    notices = (*stops.notices, *list_ignored(generation, "the model"))
    return ModelParts(shape, weights, inv_freq, scaling, positions, window, stops.ids, notices)


def _find_layer_weights(name: str, layer: nn.Module, eps: float, head_dim: int) -> Iterator[tuple[str, torch.Tensor]]:
    attention, mlp, *norms = _find_children(name, layer, ("self_attn", "mlp", *_NORMS))
    for (part, ours), norm in zip(_NORMS.items(), norms, strict=True):
        yield ours, _find_norm_weight(f"{name}.{part}", norm, eps)
    where = f"{name}.self_attn"
    _find_children(where, attention, _LINEARS, (*_HEAD_NORMS, "rotary_emb"))
    scaling = getattr(attention, "scaling", None)
    if scaling is not None and not math.isclose(scaling, head_dim**-0.5, rel_tol=1e-6):
        raise UnsupportedModelError(f"{where} scales scores by {scaling:g}; a decoder does so by {head_dim**-0.5:g}")
    if not getattr(attention, "is_causal", True):
        raise UnsupportedModelError(f"{where} is not causal, which a decoder is")
    for part, ours in _LINEARS.items():
        linear = getattr(attention, part)
        yield ours, _find_linear_weight(f"{where}.{part}", linear)
        if linear.bias is not None:
            if ours == "o":
                raise UnsupportedModelError(f"{where}.{part} has a bias, which a decode step has no place for")
            yield f"{ours}_bias", linear.bias
    for part in _HEAD_NORMS:
        if part in attention._modules:
            yield part, _find_norm_weight(f"{where}.{part}", getattr(attention, part), eps)
    where = f"{name}.mlp"
    _find_children(where, mlp, _FFN, ("act_fn",))
    if "act_fn" in mlp._modules:
        act = mlp.get_submodule("act_fn")
        if type(act).__name__ not in _SILU:
            raise UnsupportedModelError(f"{where}.act_fn is a {type(act).__name__}; a decoder has SiLU alone")
        _check_untouched(f"{where}.act_fn", act)
    for part, ours in _FFN.items():
        linear = getattr(mlp, part)
        yield ours, _find_linear_weight(f"{where}.{part}", linear)
        if linear.bias is not None:
            raise UnsupportedModelError(f"{where}.{part} has a bias, which a decode step has no place for")


def _find_children(
    name: str, module: nn.Module, needed: Iterable[str], optional: Iterable[str] = ()
) -> list[nn.Module]:
    """Return the needed parts of a module in order; refuse other parts, except optional ones."""
    _check_untouched(name, module)
    parts = {**module._modules, **module._parameters, **module._buffers}
    lacking = [part for part in needed if part not in parts]
    more = sorted(parts.keys() - {*needed, *optional})
    if lacking or more:
        told = [f"{what} {', '.join(those)}" for what, those in (("lacks", lacking), ("has", more)) if those]
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) {' and '.join(told)}; a decoder takes models of the Llama family as "
            "transformers makes them: merge adapters and undo other changes first"
        )
    return [getattr(module, part) for part in needed]


def _check_untouched(name: str, module: nn.Module) -> None:
    hooks = list_hooks(module)
    if hooks or "forward" in vars(module):
        what = " and ".join(hooks) or "a forward of its own"
        raise UnsupportedModelError(f"{name} has {what}, which a decoder would drop; remove that first")
    if _is_overridden(type(module)):
        raise UnsupportedModelError(
            f"{name} is a {_format_class(type(module))}, whose forward is not one of transformers and would be "
            "dropped; merge adapters, or pass the plain model"
        )


def _is_overridden(kind: type[nn.Module]) -> bool:
    """Return True if a class of ``transformers``, or a subclass, has a forward method from elsewhere."""
    known = ("transformers", "torch")
    return any(_find_package(base) == known[0] for base in kind.__mro__) and _find_package(kind.forward) not in known


def _find_package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _format_class(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _find_plain_weight(name: str, module: nn.Module, kind: type[nn.Module], tensors: set[str]) -> torch.Tensor:
    """Return the weight of a module of exactly this class, which has no tensors except these."""
    if type(module) is not kind:
        raise UnsupportedModelError(
            f"{name} is a {_format_class(type(module))}, no plain nn.{kind.__name__}; merge adapters and dequantise "
            "first"
        )
    return _find_weight(name, module, tensors)


def _find_weight(name: str, module: nn.Module, tensors: set[str]) -> torch.Tensor:
    _check_untouched(name, module)
    more = sorted({**module._modules, **module._parameters, **module._buffers}.keys() - tensors)
    if more:
        raise UnsupportedModelError(f"{name} holds {', '.join(more)} in addition to its weight; merge adapters first")
    for part in tensors:
        tensor = getattr(module, part, None)
        if type(tensor) is not nn.Parameter and not (part == "bias" and tensor is None):
            raise UnsupportedModelError(
                f"the {part} of {name} is a {type(tensor).__name__}, not a plain nn.Parameter; dequantise or gather it"
            )
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _find_linear_weight(name: str, module: nn.Module) -> torch.Tensor:
    return _find_plain_weight(name, module, nn.Linear, {"weight", "bias"})


def _find_embedding_weight(name: str, module: nn.Module) -> torch.Tensor:
    weight = _find_plain_weight(name, module, nn.Embedding, {"weight"})
    if getattr(module, "max_norm", None) is not None:
        raise UnsupportedModelError(f"{name} has max_norm, which a decoder would drop")
    return weight


def _find_norm_weight(name: str, module: nn.Module, eps: float) -> torch.Tensor:
    if not type(module).__name__.endswith("RMSNorm"):
        raise UnsupportedModelError(f"{name} is a {type(module).__name__}; a decoder has RMSNorm alone")
    own = getattr(module, "variance_epsilon", getattr(module, "eps", eps))
    if own != eps:
        raise UnsupportedModelError(f"{name} adds {own} to the mean square, the config says {eps}; use one for all")
    return _find_weight(name, module, {"weight"})


def _find_frequencies(rotary: nn.Module, head_dim: int) -> tuple[torch.Tensor, float]:
    kind = getattr(rotary, "rope_type", "default")
    if kind in _CHANGING:
        raise UnsupportedModelError(
            f"RoPE is of type {kind!r}, whose frequencies change with the length; a decoder takes fixed ones"
        )
    inv_freq = getattr(rotary, "inv_freq", None)
    if not isinstance(inv_freq, torch.Tensor) or inv_freq.shape != (head_dim // 2,):
        got = "none" if not isinstance(inv_freq, torch.Tensor) else f"{len(inv_freq)}"
        raise UnsupportedModelError(
            f"model.rotary_emb.inv_freq has {got} frequencies; heads of width {head_dim} turn by {head_dim // 2}"
        )
    return inv_freq, float(getattr(rotary, "attention_scaling", 1.0))


def _read_generation_config(model: nn.Module) -> Mapping[str, Any] | None:
    """Return the fields of a model's generation config that affect tokens, None without such a config."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return None
    ids = getattr(config, "eos_token_id", None)
    fields = {name: getattr(config, name, None) for name in GENERATION_FIELDS}
    return {**fields, "eos_token_id": ids.tolist() if isinstance(ids, torch.Tensor) else ids}


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.device.type != "meta" and a.data_ptr() == b.data_ptr() and a.shape == b.shape)
