"""Two matmuls with a fused RMS normalisation between them, shared by both, and the answer in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import interlace as il

EPS = 1e-2  # large enough to matter


def build_folded(
    m: int,
    first: il.MatmulTile,
    second: il.MatmulTile,
    *,
    dtype: il.DType = il.bf16,
    gated: bool = False,
    depth: int = 64,
    width: int = 136,
    columns: int = 64,
    kept: bool = True,
) -> il.Graph:
    """Build ``middle = x @ w_first.T + residual``, normalised, times ``w_second``; with silu(gate) * up, or a bias.

    Args:
        columns: number of columns in each sum of squares.
        kept: True if ``middle`` itself is an output.
    """
    shapes = {"x": (m, depth), "residual": (m, width), "w_first": (width, depth), "scale": (width,)}
    shapes |= {"w_second": (72, width)} | ({"w_gate": (72, width)} if gated else {"bias": (72,)})
    t = {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}
    made = {name: il.Tensor(name, (m, width), dtype) for name in (("middle", "scaled") if kept else ("scaled",))}
    made["squares"] = il.Tensor("squares", (m, -(-width // columns)), il.fp32)
    made["out"] = il.Tensor("out", (m, 72), dtype)
    left = {"scale": t["scale"], "scaled": made["scaled"], "squares": made["squares"]}
    norm = {"x_squares": made["squares"], "eps": EPS}
    extras = {"gate": t["w_gate"], "activation": il.Activation.SILU} if gated else {"bias": t["bias"]}
    ops = (
        il.matmul("first", t["x"], t["w_first"], made.get("middle"), residual=t["residual"], **left, tile=first),
        il.matmul("second", made["scaled"], t["w_second"], made["out"], **extras, **norm, tile=second),
    )
    outputs = ("out", "middle", "squares") if kept else ("out", "squares")
    return il.Graph("folded", (*t.values(), *made.values()), ops, tuple(t), outputs)


def compute_exact(t: Mapping[str, torch.Tensor], columns: int = 64) -> dict[str, torch.Tensor]:
    """Compute the outputs in float64 from the given tensors; squares are those of ``middle`` if it is given."""
    d = {name: value.double() for name, value in t.items()}
    middle = d["x"] @ d["w_first"].T + d["residual"]
    normed = middle / (middle.square().mean(1, keepdim=True) + EPS).sqrt() * d["scale"]
    out = normed @ d["w_second"].T
    out = torch.nn.functional.silu(normed @ d["w_gate"].T) * out if "w_gate" in d else out + d["bias"]
    stored = d.get("middle", middle)
    padded = torch.nn.functional.pad(stored, (0, -stored.shape[1] % columns))
    return {"out": out, "middle": middle, "squares": padded.square().unflatten(1, (-1, columns)).sum(2)}
