"""Swap the feed-forward networks of a Llama for modules that run as one launch where that is faster; compare logits.

    python examples/05_swap_into_llama.py

The model is small and its weights are random. It comes from ``transformers`` if that is installed, else from the few
lines below. Without a Hopper GPU, the swapped modules fall back to plain PyTorch and say why.
"""

from __future__ import annotations

import warnings

from machine import find_device

HIDDEN, FFN, LAYERS, VOCABULARY = 256, 512, 2, 1000

if (DEVICE := find_device()) is not None:
    import torch
    from torch import nn

    from interlace.nn import SwiGLU

    class MLP(nn.Module):
        """Named as in ``transformers``."""

        def __init__(self) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
            self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
            self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
            self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
            self.mlp = MLP()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.mlp(self.norms[1](x))


def make_model() -> nn.Module:
    """Tokens (batch, length) to logits (batch, length, VOCABULARY)."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("transformers is not installed, so the model is a block in the style of Llama")
        blocks = [Block() for _ in range(LAYERS)]
        return nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), *blocks, nn.Linear(HIDDEN, VOCABULARY, bias=False))
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def swap(model: nn.Module) -> list[SwiGLU]:
    """Replaces every gated FFN, on the weights that it has; returns the new modules."""
    networks = [(layer, layer.mlp) for layer in model.modules() if hasattr(layer, "mlp")]
    for layer, mlp in networks:
        layer.mlp = SwiGLU.from_linears(mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return [layer.mlp for layer, _ in networks]


def main() -> None:
    print(f"a Llama with hidden width {HIDDEN}, FFN width {FFN}, {LAYERS} layers")
    if DEVICE is None:
        print("modules need torch and triton")
        return
    torch.manual_seed(0)
    model = make_model().to(DEVICE, torch.bfloat16).eval()
    tokens = torch.randint(VOCABULARY, (2, 24), device=DEVICE)

    def logits() -> torch.Tensor:
        out = model(tokens)
        return getattr(out, "logits", out).double()

    with torch.inference_mode(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = logits()
        modules = swap(model)
        print(f"swapped {len(modules)} feed-forward networks")
        print(f"{tokens.numel()} tokens run in {modules[0].explain(tokens.numel())}")
        after = logits()
    for warning in caught:
        print(f"{warning.category.__name__}: {warning.message}")
    error = ((after - before).norm() / before.norm()).item()
    print(f"on {DEVICE}, logits differ by {error:.1e}, relative to their norm")
    assert error < 2e-2


if __name__ == "__main__":
    main()
