"""What an op of the one launch takes in a way of tiling it, from 17 tokens on.

An op's weights stream at memory's rate, if most SMs have an item and enough of them under way. An item, which is a tile
or a part of one along k, is also no faster than

    products    at the chip's rate, of as many tokens as the tensor core pads to
    loads       weights and tokens, at the rate of an SM through the L2; where deep stages have more tokens than
                weights, these and memory are in each other's way
    stages      of the ring, each with its barriers
    scaling     of rows that are normalised, a panel at a time: by one warpgroup, and products behind it, but of an SM's
                only item that is mostly hidden; by more, at the same time as a part of products

and there are as many behind each other as there are waves. Whatever is longest counts. Then come, for each wave, what
every stage costs besides, and each panel that more than one warpgroup scales, and the epilogue, by the float32 sums of
a tile; and of a split tile the others' sums are stored and loaded, several at a time.

Six constants of a chip are fitted (``StageCosts``), those of an H200 to 236 ways of 43 FFNs, gated and not, over 17 to
4,096 tokens (``walk-cost-h200.json``); those of scaling were chosen by layers (below), and everything else was measured
by itself. It is ways of one FFN that they tell apart: to 2.1 % (root mean square), where each FFN has a factor of its
own, for its run's clocks and what a launch costs besides, and to 8 % without. The way that costs least is 0.3 % slower
in the mean than the fastest of those measured. ``benchmarks/fit_walk_cost.py`` repeats the fit and says what it comes
to. Few have rings of three stages: that loads take 1.35 times as long there is of gated FFNs of 160 to 320 tokens
(``explored-launch-h200.json``).
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
from interlace.policies.setting import OpSetting

_ENOUGH_BYTES, _MAX_BYTES = 80 << 10, 96 << 10  # of weights under way in an SM; that the launch has at most
# Stages with which two are multiplied and as many under way; how much longer loads take where only one is.
_ENOUGH_STAGES, _SERIAL_LOAD_FACTOR = 4, 1.35
_OVERLAP_EXPONENT = 6  # if both are alike, the sixth root of 2 times as long (benchmarks/notes/tiling.md)
# Scaling a panel of rows that are normalised, by a warpgroup that is alone (benchmarks/notes/norms.md for all).
_SCALED_NS = 120.0
# By more: for each, beside so much of their products; and besides, where few tiles have the same weights, or more.
_OVERLAPPED_SCALE_NS, _OVERLAPPED_PRODUCTS = 90.0, 0.7
_EXTRA_SCALE_NS, _FEW_ROW_TILES, _EXTRA_SCALE_MANY_TILES_NS = 45.0, 2, 110.0
# What an SM reads of such rows for an op that does nothing else.
_NORMED_BYTES_PER_S = 7e9
_THREE_WARPGROUPS_FACTOR = (
    1.035  # how much longer ops take with three warpgroups than all this says (benchmarks/notes/ffn.md)
)
_FIXED_BYTES, _THIRD_BYTES = 20 << 10, 9 << 10  # of shared memory beside the ring: scratch, messages; of warpgroup 3


@dataclass(frozen=True)
class MatmulExtents:
    """Of ops that multiply the same tokens, m x k: each has n x k weights, and as many again for a gate.

    Attributes:
        widths: n of each.
        sums: matrices of each.
        has_own_norm: they normalise their rows themselves.
    """

    m: int
    widths: tuple[int, ...]
    k: int
    sums: int
    has_own_norm: bool = False


@dataclass(frozen=True, eq=False)
class TilingCandidate:
    """A tile, how many parts it has along k, and the rows of weights of all its matrices.

    Attributes:
        tile: its tokens are those that are multiplied, 64 or 128, or, swapped, those that there are.
        parts: along k.
        sums: matrices of weights.
        loaded_rows: of its tokens.
        has_gains: whether those of its k come with tokens.
    """

    tile: MatmulTile
    parts: int
    sums: int
    loaded_rows: int
    has_gains: bool = False

    @cached_property
    def weight_rows(self) -> int:
        """Of weights, of a tile."""
        return self.tile.n * self.sums

    @cached_property
    def stage_bytes(self) -> tuple[int, int]:
        """Of weights and of tokens."""
        return self.weight_rows * self.tile.k * 2, compute_token_bytes(self.loaded_rows, self.tile.k, self.has_gains)

    @cached_property
    def sum_bytes(self) -> int:
        """float32 sums of a tile."""
        return self.tile.m * self.weight_rows * 4

    def to_setting(self, group: int) -> OpSetting:
        """As an op has it."""
        return OpSetting(self.tile.params, self.parts, group=group)


def count_ring_stages(candidates: Sequence[TilingCandidate], smem_bytes: int) -> int:
    """How many stages a ring has that ops in these ways share."""
    weights, tokens = map(max, zip(*[way.stage_bytes for way in candidates], strict=True))
    fixed = _FIXED_BYTES + _THIRD_BYTES * any(way.tile.num_warps > 8 for way in candidates)
    return (smem_bytes - fixed) // (weights + tokens)


def count_loaded_bytes(extents: MatmulExtents, candidate: TilingCandidate) -> int:
    """Of weights and tokens through the L2."""
    items = -(-extents.m // candidate.tile.m) * sum(-(-width // candidate.tile.n) for width in extents.widths)
    return items * (candidate.loaded_rows + candidate.weight_rows) * extents.k * 2


def estimate_norm_seconds(m: int, k: int, device: DeviceSpec) -> float:
    """How long others wait for an op that normalises m rows of k elements of 2 bytes, till they multiply."""
    first = (device.latencies.hand_off_ns + device.latencies.fill_ns) * 1e-9
    return first + -(-m // device.sms) * k * 2 / _NORMED_BYTES_PER_S


def estimate_seconds(extents: MatmulExtents, candidate: TilingCandidate, stages: int, device: DeviceSpec) -> float:
    """What ops of these extents take in a way, in a ring of so many stages."""
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
    elif candidate.has_gains and waves > 1:  # of an SM's only item a warpgroup's is hidden
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
