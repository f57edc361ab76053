"""Cost model of the megakernel's convolutions: seconds of an op with a tile, in a number of parts along channels.

An item runs one stage for each tap and chunk of channels. A stage takes as long as the slowest of

    products    at the tensor cores' rate, for as many pixels as they pad to
    operands    which the tensor cores read from shared memory, each 64-row operand with all columns
    loads       weights and pixels, at the rate of an SM through the L2
    a stage     of the ring, by its depth

Items run one after another, one per wave. After its stages an item has an epilogue, which its warpgroups share and
which depends on the float32 sums of a tile. The parts of a split tile store and load partials. All items together load
weights and pixels from memory at least once, each SM at its share of its rate.

The constants are fitted to 384 tilings of ResNet's pairs and VGG's chains of convolutions on an H200, of 1 to 32 images
(benchmarks/results/explored-conv2d-h200.json): the error is 10 % (root mean square), and the cheapest tiling is on
average 2.4 % slower than the fastest measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16
from interlace.kernels.bodies import PANEL
from interlace.kernels.conv2d.tile import Conv2DTile, ConvExtents
from interlace.kernels.matmul.tilings import compute_share

_SMEM_BYTES_PER_CLOCK = 128
_PRODUCTS, _LOADS = 0.81, 0.68  # time of products and of loads over that at the rates of a large matmul
_STAGE_NS, _EACH_STAGE_NS = 66.0, 44.0  # shortest stage of 64 channels; additional cost of each stage
_EPILOGUE_BYTES_PER_S, _TURNED = 29e9, 0.94  # sums of a warpgroup; factor on their time with swap-AB
_WAVE_NS, _OP_NS = 230.0, 2550.0  # of an item; of an op, hand-off and first loads included
# A fix-up by the last part, and a cooperative one: cost, and its rate over that of partial sums.
_SERIAL_NS, _COOPERATIVE_NS, _COOPERATIVE_RATE = 540.0, 790.0, 1.4
_TALL = 64


@dataclass(frozen=True)
class ConvCandidate:
    """A tile and its number of parts along channels."""

    tile: Conv2DTile
    parts: int

    def count_items(self, extents: ConvExtents) -> int:
        """Return the number of items."""
        tile, e = self.tile, extents
        images, rows, features = -(-e.images // tile.images), -(-e.out_rows // tile.rows), -(-e.out_channels // tile.n)
        return images * rows * features * self.parts


def estimate_seconds(extents: ConvExtents, candidate: ConvCandidate, device: DeviceSpec) -> float:
    """Estimate the seconds of a convolution with a tiling candidate."""
    tile, e = candidate.tile, extents
    pixels, padded = tile.count_pixels(e), tile.pad_pixels(e)
    waves = -(-candidate.count_items(e) // device.sms)
    chunks = -(-e.channels // tile.k)
    stages = -(-chunks // candidate.parts) * e.taps
    tall, wide = (tile.n, padded) if tile.swap_ab else (padded, tile.n)
    products = 2.0 * padded * tile.n * tile.k * device.sms / device.flops_per_s(bf16) * _PRODUCTS
    operands = 2.0 * tile.k * (tall + tall // _TALL * wide) / (_SMEM_BYTES_PER_CLOCK * device.clock_hz)
    loads = 2.0 * tile.k * (pixels + tile.n) / device.sm_l2_bytes_per_s * _LOADS
    least = _STAGE_NS * 1e-9 * tile.k / PANEL
    stage = max(products, operands, loads, least) + _EACH_STAGE_NS * 1e-9
    sums = 4.0 * padded * tile.n
    epilogue = sums / _EPILOGUE_BYTES_PER_S * (_TURNED if tile.swap_ab else 1.0) / max(1, tile.num_warps // 4)
    fix_up = _estimate_fix_up(candidate.parts, sums, wide, candidate.count_items(e) <= device.sms, device)
    nbytes = 2.0 * (e.out_channels * e.taps * e.channels + e.images * e.height * e.width * e.channels)
    filled = candidate.count_items(e) / (waves * device.sms)  # share of the SMs that have an item
    memory = nbytes / (filled * device.dram_bytes_per_s)
    items = max(waves * stages * stage, memory) + waves * (epilogue + _WAVE_NS * 1e-9)
    return items + fix_up + _OP_NS * 1e-9


def _estimate_fix_up(parts: int, sums: float, wide: int, is_resident: bool, device: DeviceSpec) -> float:
    """Estimate the seconds of a fix-up, given the bytes of a tile's sums and its columns of products."""
    if parts == 1:
        return 0.0
    if is_resident and compute_share(wide, parts):
        others = (parts - 1) / parts * sums
        return _COOPERATIVE_NS * 1e-9 + others / (_COOPERATIVE_RATE * device.sm_sum_bytes_per_s)
    return _SERIAL_NS * 1e-9 + (parts - 1) * sums / device.sm_sum_bytes_per_s
