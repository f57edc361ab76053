"""A feed-forward layer of experts (mixture of experts), routed on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32, int32
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.assign import MAX_TOKENS, assign
from interlace.kernels.experts import expert_matmul
from interlace.kernels.gather import gather
from interlace.kernels.matmul import MatmulTile
from interlace.kernels.matmul.tile import TileShape
from interlace.kernels.merge import merge
from interlace.kernels.routing import BLOCK, compute_max_tiles, fill, place, route
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload, sample_inputs

_EXPERTS = "Experts"
_EXPONENT = 1.2  # exponent of Zipf's law
_SPREAD = 1.5  # most experts have at most this multiple of the mean number of tokens


class Routing(Enum):
    """Distribution of tokens over experts: even, or by Zipf's law, where expert n has a share of (n + 1)^-1.2."""

    BALANCED = "balanced"
    SKEWED = "skewed"


def moe(
    tokens: int,
    hidden: int,
    ffn: int,
    experts: int,
    chosen: int,
    dtype: DType = bf16,
    *,
    tile: MatmulTile | None = None,
    down: MatmulTile | None = None,
) -> Graph:
    """Build ``out[t] = sum_e p[t, e] * ((silu(x[t] @ gate[e].T) * (x[t] @ up[e].T)) @ down[e].T)`` over t's experts e.

    A token's experts are those of its largest logits, and p is the softmax of these. Inputs are x (tokens, hidden),
    logits (tokens, experts) in float32, gate and up (experts, ffn, hidden), and down (experts, hidden, ffn). The device
    assigns rows to experts: the grids have enough tiles for any routing, and surplus tiles do nothing. One op routes
        few
    tokens, three ops route more.

    Args:
        tokens: number of tokens.
        hidden, ffn: model width, and inner width of an expert.
        experts: number of experts.
        chosen: number of experts per token.
        dtype: dtype of all tensors except the logits.
        tile: tile of the experts' matmuls.
        down: tile of the second of these, of the same height; by default ``tile``.

    Raises:
        ArgumentError, ShapeError: invalid or inconsistent extents.
    """
    if not 1 <= chosen <= experts:
        raise ShapeError(f"each token goes to {chosen} of {experts} experts; use 1 to {experts}")
    tile = tile or MatmulTile()
    down = down or tile
    if down.m != tile.m:
        raise ShapeError(f"rows of both matmuls lie in the same tiles, but one has tiles of {tile.m}, one of {down.m}")
    tiles = compute_max_tiles(tokens, chosen, experts, tile.m)
    rows = tiles * tile.m
    t = {
        "x": Tensor("x", (tokens, hidden), dtype),
        "logits": Tensor("logits", (tokens, experts), fp32),
        "gate": Tensor("gate", (experts, ffn, hidden), dtype),
        "up": Tensor("up", (experts, ffn, hidden), dtype),
        "down": Tensor("down", (experts, hidden, ffn), dtype),
        "experts": Tensor("experts", (tokens, chosen), int32),
        "weights": Tensor("weights", (tokens, chosen), fp32),
        "counts": Tensor("counts", (-(-tokens // BLOCK), experts), int32),
        "place": Tensor("place", (tokens, chosen), int32),
        "token": Tensor("token", (rows,), int32),
        "owner": Tensor("owner", (tiles,), int32),
        "rows": Tensor("rows", (rows, hidden), dtype),
        "h": Tensor("h", (rows, ffn), dtype),
        "y": Tensor("y", (rows, hidden), dtype),
        "out": Tensor("out", (tokens, hidden), dtype),
    }
    routing: tuple[Op, ...]
    if tokens <= MAX_TOKENS:
        del t["experts"], t["counts"]
        routing = (assign("assign", t["logits"], t["weights"], t["place"], t["token"], t["owner"]),)
    else:
        routing = (
            route("route", t["logits"], t["experts"], t["weights"], t["counts"]),
            place("place", t["experts"], t["counts"], t["place"], tile.m),
            fill("fill", t["place"], t["counts"], t["token"], t["owner"]),
        )
    ops = (
        *routing,
        gather("gather", t["x"], t["token"], t["rows"]),
        expert_matmul("up", t["rows"], t["owner"], t["up"], t["h"], gate=t["gate"], tile=tile),
        expert_matmul("down", t["h"], t["owner"], t["down"], t["y"], tile=down),
        merge("merge", t["y"], t["place"], t["weights"], t["out"]),
    )
    return Graph("moe", tuple(t.values()), ops, ("x", "logits", "gate", "up", "down"), ("out",))


@dataclass(frozen=True)
class MoE(Workload):
    """A feed-forward layer of gated experts, a few for each token, as the router's logits say.

    Raises:
        ShapeError: a token has more experts than the layer.
    """

    name: ClassVar[str] = "moe"
    presets: ClassVar[Presets] = {
        "mixtral-8x7b": {"hidden": 4096, "ffn": 14336, "experts": 8, "chosen": 2},
        "deepseek-moe-16b": {"hidden": 2048, "ffn": 1408, "experts": 64, "chosen": 6},
        "small": {"hidden": 64, "ffn": 96, "experts": 5, "chosen": 2},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "mixtral-8x7b"
    size: ClassVar[str] = "tokens"
    sizes: ClassVar[tuple[int, ...]] = (1, 16, 64, 1024, 4096)
    weights: ClassVar[tuple[str, ...]] = ("gate", "up", "down")

    hidden: Annotated[int, Option("Width of the model.", least=1)]
    ffn: Annotated[int, Option("Width of an expert's hidden layer.", least=1)]
    experts: Annotated[int, Option("Experts.", least=1, group=_EXPERTS)]
    chosen: Annotated[int, Option("Experts of each token.", least=1, group=_EXPERTS)]
    tokens: Annotated[int, Option("Tokens.", least=1)] = 64
    routing: Annotated[
        Routing, Option("How tokens spread over experts", names={r.value: r for r in Routing}, group=_EXPERTS)
    ] = Routing.BALANCED
    dtype: DTypeField = bf16

    def __post_init__(self) -> None:
        if self.chosen > self.experts:
            raise ShapeError(f"each token goes to {self.chosen} of {self.experts} experts; use at most as many")

    @property
    def title(self) -> str:
        what = f"{self.chosen} of {self.experts} experts of {self.hidden} x {self.ffn}, {self.routing.value}"
        return f"mixture of experts, {self.tokens} tokens, {what}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 6.0 * self.tokens * self.chosen * self.hidden * self.ffn

    @property
    def read_share(self) -> float:
        """Fraction of the experts that any token selects, by the logits of seed 0."""
        best = np.argpartition(-self.make_logits(0), self.chosen - 1, axis=1)[:, : self.chosen]
        return len(np.unique(best)) / self.experts

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        own, down = _select_tiles(self, device)
        if tile is not None:
            own = down = MatmulTile(tile.m, tile.n, tile.k)
        return moe(self.tokens, self.hidden, self.ffn, self.experts, self.chosen, self.dtype, tile=own, down=down)

    def make_inputs(self, seed: int) -> Inputs:
        return {**sample_inputs(self.build_graph(CPU), seed), **self.make_host_inputs(seed)}

    def make_host_inputs(self, seed: int) -> Inputs:
        return {"logits": self.make_logits(seed)}

    def make_logits(self, seed: int) -> NDArray[np.float32]:
        """Return logarithms of the experts' shares plus Gumbel noise, so that experts are selected in these shares."""
        shares = np.arange(1.0, self.experts + 1) ** (-_EXPONENT if self.routing is Routing.SKEWED else 0.0)
        noise = np.random.default_rng((seed, self.experts)).gumbel(size=(self.tokens, self.experts))
        logits: NDArray[np.float32] = (np.log(shares) + noise).astype(np.float32)
        return logits

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        if xp is np:
            return {"out": self._run_in_numpy(tensors)}
        if tensors["x"].dtype is xp.bfloat16 and tensors["x"].is_cuda:
            return {"out": self.run_grouped(xp, tensors)}
        return {"out": self._run_masked(xp, tensors)}

    def _run_in_numpy(self, t: Mapping[str, Any]) -> Any:
        best = np.argsort(-t["logits"], axis=1, kind="stable")[:, : self.chosen]
        weights = np.exp(np.take_along_axis(t["logits"], best, axis=1))
        weights = weights / weights.sum(axis=1, keepdims=True)
        out = np.zeros_like(t["x"])
        for e in range(self.experts):
            token, which = np.nonzero(best == e)
            gated = t["x"][token] @ t["gate"][e].T
            h = gated / (1 + np.exp(-gated)) * (t["x"][token] @ t["up"][e].T)
            out[token] += weights[token, which][:, None] * (h @ t["down"][e].T)
        return out

    def _route(self, torch: Any, t: Mapping[str, Any]) -> Any:
        """Return the experts and weights of each token."""
        best, experts = torch.topk(t["logits"], self.chosen, dim=1)
        return experts, torch.softmax(best, dim=1)

    def run_grouped(self, torch: Any, t: Mapping[str, Any], both: Any = None) -> Any:
        """Sort token-expert pairs by expert and run PyTorch's grouped matmuls, without a round trip to the host.

        Args:
            torch: the module ``torch``.
            t: input tensors by name.
            both: gate and up concatenated per expert (experts, 2 * ffn, hidden), to run both as one matmul.
        """
        experts, weights = self._route(torch, t)
        order = torch.argsort(experts.reshape(-1), stable=True)
        ends = torch.searchsorted(
            experts.reshape(-1)[order], torch.arange(self.experts, device=order.device), right=True
        ).to(torch.int32)
        x = t["x"][order // self.chosen]
        if both is None:
            gated, up = (torch._grouped_mm(x, t[name].transpose(1, 2), offs=ends) for name in ("gate", "up"))
        else:
            gated, up = torch._grouped_mm(x, both.transpose(1, 2), offs=ends).split(self.ffn, dim=1)
        y = torch._grouped_mm(torch.nn.functional.silu(gated) * up, t["down"].transpose(1, 2), offs=ends)
        shares = weights.reshape(-1)[order].to(y.dtype)[:, None]
        return torch.zeros_like(t["x"]).index_add(0, order // self.chosen, y * shares)

    def _run_masked(self, torch: Any, t: Mapping[str, Any]) -> Any:
        """Run every expert on every token, for devices and dtypes without grouped matmuls."""
        experts, weights = self._route(torch, t)
        out = torch.zeros_like(t["x"])
        for e in range(self.experts):
            h = torch.nn.functional.silu(t["x"] @ t["gate"][e].T) * (t["x"] @ t["up"][e].T)
            share = torch.where(experts == e, weights, 0.0).sum(dim=1, keepdim=True)
            out = out + (h @ t["down"][e].T) * share.to(h.dtype)
        return out


def _select_tiles(problem: MoE, device: DeviceSpec) -> tuple[MatmulTile, MatmulTile]:
    """Select tiles tall enough that most experts need only one, and as wide as keeps all SMs busy.

    The second matmul has one weight matrix where the first has two. So its tiles are twice as wide; for few rows, where
    reading weights takes all the time, they are twice as deep instead. Both keep the bytes of weights per stage. For
    the tallest tiles, doubling the depth would take too many bytes of tokens.
    """
    if not device.architecture:
        return (MatmulTile(16, 32, 32),) * 2
    mean = -(-problem.tokens * problem.chosen // problem.experts)
    m = next((m for m in (16, 32, 64) if _SPREAD * mean <= m), 128)
    tiles = compute_max_tiles(problem.tokens, problem.chosen, problem.experts, m)
    n, k = (128, 64) if tiles * (problem.ffn // 128) >= 2 * device.sms else (64, 128)
    stage = k * (m + 2 * n) * problem.dtype.itemsize  # bytes per stage of a gated matmul
    up = MatmulTile(m, n, k, max(1, min(4, device.smem_bytes // stage)), 8 if m == 128 else 4)
    wide = m == 128 or (m > 32 and n == 128)
    return up, replace(up, n=2 * n) if wide else replace(up, k=2 * k, stages=max(1, up.stages // 2))
