"""Cost model of the megakernel's matmuls: time of an op with a tiling candidate, for 17 tokens or more.

An op's weights stream at the rate of memory, if most SMs have an item and enough bytes in flight. An item is a tile
or a part of one along k. It is also limited by the slowest of

    products    at the chip's rate, for as many tokens as the tensor core pads to
    loads       weights and tokens, at the rate of an SM through the L2; if deep stages have more tokens than
                weights, these and memory slow each other down
    stages      of the ring, each with its barriers
    scaling     of normalised rows, a panel at a time: with one warpgroup, products follow it, but it is mostly hidden
                for an SM's only item; with more, it overlaps with a part of the products

and items run one after another, one per wave. The slowest of these counts. Added to it, for each wave, are a constant
per stage, a constant per panel that more than one warpgroup scales, and the epilogue, which depends on the float32
sums of a tile. For a split tile, the partials of other parts are stored and loaded, several at a time.

Six constants of a chip are fitted (``StageCosts``). Those of an H200 are fitted to 236 candidates of 43 FFNs, gated
and not, over 17 to 4,096 tokens (``walk-cost-h200.json``). The constants of scaling were chosen per layer (below),
and everything else was measured separately. The model distinguishes candidates of one FFN: its error is 2.1 % (root
mean square) if each FFN has its own factor for the clocks of its run and the other costs of a launch, and 8 %
without. The cheapest candidate is on average 0.3 % slower than the fastest of those measured.
``benchmarks/fit_matmul_cost.py`` repeats the fit and reports its error. Few candidates have rings of three stages: the
factor of 1.35 for their loads comes from gated FFNs of 160 to 320 tokens (``explored-launch-h200.json``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16
from interlace.kernels.bodies import PANEL
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import compute_token_bytes
from interlace.policies.tiling import OpTiling

_ENOUGH_BYTES, _MAX_BYTES = 80 << 10, 96 << 10  # bytes of weights in flight per SM: enough; upper bound
# Stages with which two are multiplied while two are in flight; factor on loads if only one is in flight.
_ENOUGH_STAGES, _SERIAL_LOAD_FACTOR = 4, 1.35
_OVERLAP_EXPONENT = 6  # two equal times combine to 2^(1/6) times one of them (benchmarks/notes/tiling.md)
# Scaling a panel of normalised rows with a single warpgroup, in ns (benchmarks/notes/norms.md for all constants).
_SCALED_NS = 120.0
# With more warpgroups: ns per warpgroup, and the fraction of products that adds to it. Extra ns per panel if few row
# tiles share the same weights, and if more do.
_OVERLAPPED_SCALE_NS, _OVERLAPPED_PRODUCTS = 90.0, 0.7
_EXTRA_SCALE_NS, _FEW_ROW_TILES, _EXTRA_SCALE_MANY_TILES_NS = 45.0, 2, 110.0
# Rate in bytes per second at which an SM reads such rows for an op that only normalises.
_NORMED_BYTES_PER_S = 7e9
_THREE_WARPGROUPS_FACTOR = 1.035  # factor on the modelled time with three warpgroups (benchmarks/notes/ffn.md)
# Bytes of shared memory outside the ring: scratch and messages; additional bytes for a third warpgroup.
_FIXED_BYTES, _THIRD_BYTES = 20 << 10, 9 << 10


@dataclass(frozen=True)
class MatmulExtents:
    """Extents of ops that multiply the same tokens, m x k: each has n x k weights, twice that with a gate.

    Attributes:
        m: number of tokens.
        widths: n of each op.
        k: extent of the reduction.
        sums: weight matrices of each op.
        has_own_norm: True if the ops normalise their rows themselves.
    """

    m: int
    widths: tuple[int, ...]
    k: int
    sums: int
    has_own_norm: bool = False


@dataclass(frozen=True, eq=False)
class TilingCandidate:
    """A tiling candidate: a tile, its number of parts along k, and the weight rows of all its matrices.

    Attributes:
        tile: tile whose m is 64 padded tokens per warpgroup, or with swap-AB the actual number.
        parts: parts along k.
        sums: number of weight matrices.
        loaded_rows: token rows that are loaded.
        has_gains: True if the gains of its k are loaded with the tokens.
    """

    tile: MatmulTile
    parts: int
    sums: int
    loaded_rows: int
    has_gains: bool = False

    @cached_property
    def weight_rows(self) -> int:
        """Weight rows of a tile, over all matrices."""
        return self.tile.n * self.sums

    @cached_property
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of weights and of tokens of a stage."""
        return self.weight_rows * self.tile.k * 2, compute_token_bytes(self.loaded_rows, self.tile.k, self.has_gains)

    @cached_property
    def sum_bytes(self) -> int:
        """Bytes of the float32 sums of a tile."""
        return self.tile.m * self.weight_rows * 4

    def to_tiling(self, group: int) -> OpTiling:
        """Return the candidate as an op's tiling."""
        return OpTiling(self.tile.params, self.parts, group=group)


def count_ring_stages(candidates: Sequence[TilingCandidate], smem_bytes: int) -> int:
    """Return the number of stages of a ring shared by ops with these candidates."""
    most_weights, most_tokens, fixed = 0, 0, _FIXED_BYTES
    for way in candidates:  # a loop: a search calls this for hundreds of combinations
        weights, tokens = way.stage_bytes
        if weights > most_weights:
            most_weights = weights
        if tokens > most_tokens:
            most_tokens = tokens
        if way.tile.num_warps > 8:
            fixed = _FIXED_BYTES + _THIRD_BYTES
    return (smem_bytes - fixed) // (most_weights + most_tokens)


def count_loaded_bytes(extents: MatmulExtents, candidate: TilingCandidate) -> int:
    """Return the bytes of weights and tokens loaded through the L2."""
    items = -(-extents.m // candidate.tile.m) * sum(-(-width // candidate.tile.n) for width in extents.widths)
    return items * (candidate.loaded_rows + candidate.weight_rows) * extents.k * 2


def estimate_norm_seconds(m: int, k: int, device: DeviceSpec) -> float:
    """Return the seconds that consumers wait for an op that normalises m rows of k 2-byte elements."""
    first = (device.latencies.hand_off_ns + device.latencies.fill_ns) * 1e-9
    return first + -(-m // device.sms) * k * 2 / _NORMED_BYTES_PER_S


def estimate_seconds(extents: MatmulExtents, candidate: TilingCandidate, stages: int, device: DeviceSpec) -> float:
    """Estimate the seconds of ops of these extents with a candidate, in a ring of ``stages`` stages."""
    stage = device.stages
    columns = sum([-(-width // candidate.tile.n) for width in extents.widths])
    row_tiles = -(-extents.m // candidate.tile.m)
    items = row_tiles * columns * candidate.parts
    waves = -(-items // device.sms)
    k = extents.k / candidate.parts
    products = 2 * candidate.tile.m * candidate.weight_rows * k * device.sms / device.flops_per_s(bf16)
    loads = (
        (candidate.loaded_rows + candidate.weight_rows)
        * k
        * 2
        / device.sm_l2_bytes_per_s
        * (_SERIAL_LOAD_FACTOR if stages < _ENOUGH_STAGES else 1.0)
    )
    chunks = k / candidate.tile.k
    item = max(products, loads, chunks * stage.least_ns * 1e-9)
    each, panels = chunks * stage.each_ns, k / PANEL
    if candidate.has_gains and candidate.tile.num_warps > 4:
        item = max(
            item,
            _OVERLAPPED_PRODUCTS * products + panels * (candidate.tile.num_warps // 4) * _OVERLAPPED_SCALE_NS * 1e-9,
        )
        each += panels * (_EXTRA_SCALE_NS if row_tiles <= _FEW_ROW_TILES else _EXTRA_SCALE_MANY_TILES_NS)
    elif candidate.has_gains and waves > 1:  # scaling by one warpgroup is hidden for an SM's only item
        item = max(item, products + panels * _SCALED_NS * 1e-9)
    weights = sum(extents.widths) * extents.sums * extents.k * 2 / device.dram_bytes_per_s
    weights *= max(1.0, stage.saturating * device.sms / items)
    under_way = min(_MAX_BYTES, stages * candidate.stage_bytes[0])
    weights *= 1 + stage.shallow * max(0.0, 1 - under_way / _ENOUGH_BYTES)
    epilogue = candidate.sum_bytes / stage.epilogue_bytes_per_s * (stage.turned if candidate.tile.swap_ab else 1.0)
    fix_up = (candidate.parts - 1) ** 0.5 * candidate.sum_bytes / device.sm_sum_bytes_per_s
    if candidate.tile.num_warps > 4 and candidate.tile.k > PANEL and candidate.loaded_rows > candidate.weight_rows:
        weights = (weights**_OVERLAP_EXPONENT + (waves * loads) ** _OVERLAP_EXPONENT) ** (1 / _OVERLAP_EXPONENT)
    found = max(waves * item, weights) + waves * (epilogue + each * 1e-9) + fix_up
    return found * (_THREE_WARPGROUPS_FACTOR if candidate.tile.num_warps > 8 else 1.0)
