"""Least traffic of tilings of convolutions against the size of one buffer; see ``mappings`` for the method.

Images are channels-last and padded to equal extents. A tile of the output is some whole rows of one image, or some
whole images, by some output channels; it reads its rows and ``taps - stride`` more (the halo), of some input channels.

    innermost        input            filters         output                buffer
    input channels   in + halos * O   w * P           out                   tile of the output, one channel of its input
    output channels  in + halos       w * P           out * (2 C - 1)       tile of the input, one channel of its output
    rows             in * O           w               out * (2 C - 1)       tile of the filters, one row of images

P, O and C are steps over rows, output channels and input channels. With rows innermost the halo stays in the buffer.

Example, one image of 4 x 4, one channel in and out, 3 x 3 taps: with rows innermost, the buffer holds 9 weights, 3 rows
of input and one of output, 25 elements. 16 + 9 + 16 = 41 elements are moved, which is the least.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from interlace.core.errors import ModelError
from interlace.planner.bounds import Convolution
from interlace.planner.mappings import Elements, TrafficCurve, list_tiles


@dataclass(frozen=True, eq=False)
class _RowTiles:
    """Tiles of whole rows or images, for one channel.

    Attributes:
        outputs, inputs: elements of a tile of the output, and of what it reads.
        steps: number of tiles.
        read: elements of the input that all tiles read, halos as often as they are read.
    """

    outputs: Elements
    inputs: Elements
    steps: Elements
    read: Elements

    @staticmethod
    def from_convolution(conv: Convolution, ahead: int = 0) -> _RowTiles:
        """Return all tiles; the first tile of an image has ``ahead`` rows more, and the last one fewer."""
        # A larger tile with as many steps may read fewer rows, because its last step is at the edge.
        rows = np.arange(1, conv.out_rows + 1)
        per_image = -(-conv.out_rows // rows)
        reach, read = np.array([_measure_rows(conv, int(size), ahead) for size in rows], np.int64).T
        images, steps = list_tiles(conv.images)
        return _RowTiles(
            np.r_[rows, images * conv.out_rows] * conv.out_columns,
            np.r_[reach, images * conv.rows] * conv.columns,
            np.r_[per_image * conv.images, steps],
            np.r_[read * conv.images, np.full_like(images, conv.images * conv.rows)] * conv.columns,
        )


def _measure_rows(conv: Convolution, size: int, ahead: int = 0) -> tuple[int, int]:
    """Return the most rows of the input that a tile of so many rows reads, and the sum over all tiles of an image."""
    first = np.r_[0, np.arange(size + ahead, conv.out_rows, size)]
    last = np.r_[first[1:], conv.out_rows] - 1
    lo = np.maximum(first * conv.stride - conv.taps // 2, 0)
    reach = np.minimum(last * conv.stride + conv.taps // 2 + 1, conv.rows) - lo
    return int(reach.max()), int(reach.sum())


def map_convolution(conv: Convolution) -> TrafficCurve:
    """Return the least accesses of a convolution against the size of the buffer, over all tiles and loop orders."""
    rows = _RowTiles.from_convolution(conv)
    pixels, inputs, steps, read = (column[:, None] for column in vars(rows).values())
    (to, steps_o), (tc, steps_c) = list_tiles(conv.out_channels), list_tiles(conv.channels)
    taps, spilled = conv.taps**2, conv.outputs * (2 * steps_c - 1)
    row = _measure_rows(conv, 1)[0] * conv.columns
    return TrafficCurve.from_mappings(
        (
            (
                pixels * to + inputs + to,
                read * conv.channels * steps_o + conv.weights * steps + conv.outputs,
            ),
            (
                inputs * tc + pixels + taps * tc,
                read * conv.channels + conv.weights * steps + spilled,
            ),
            (
                taps * to[:, None] * tc + row * tc + conv.out_columns * to[:, None],
                conv.inputs * steps_o[:, None] + conv.weights + spilled,
            ),
        )
    )


def map_conv_pair(first: Convolution, second: Convolution) -> TrafficCurve:
    """Return the least accesses of two convolutions, the second of which reads the output of the first.

    Mappings are those of each convolution alone, with the intermediate stored and loaded, and fused ones: tiles of rows
    pass through both convolutions, with all channels of the intermediate. Its halo stays in the buffer, so that
    nothing is computed twice. The input's halo and the filters of each convolution stay or are moved again.

    Raises:
        ModelError: the second convolution cannot read the first one's output, or a stride is not 1.
    """
    made = first.images, first.out_rows, first.out_columns, first.out_channels
    if made != (second.images, second.rows, second.columns, second.channels):
        raise ModelError(f"{second} cannot read the output of {first}, {' x '.join(map(str, made))}")
    if first.stride != 1 or second.stride != 1:
        raise ModelError(f"strides {first.stride} and {second.stride}; fused convolutions have a stride of 1")
    apart = map_convolution(first) + map_convolution(second)
    # Steps are over rows of the second convolution; the first one runs ahead by half of the second's halo.
    rows, over = _RowTiles.from_convolution(second), _RowTiles.from_convolution(first, second.taps // 2)
    between = rows.inputs * second.channels
    listed = [(apart.buffer, apart.accesses)]
    for x_stays, w_stays, v_stays in product((True, False), repeat=3):
        up = over.inputs * (not x_stays) + first.out_channels * (not w_stays)
        down = rows.outputs + (not v_stays) * second.channels
        buffer = between + over.inputs * first.channels * x_stays + first.weights * w_stays + second.weights * v_stays
        moved = (
            (first.inputs if x_stays else over.read * first.channels)
            + first.weights * (1 if w_stays else rows.steps)
            + second.weights * (1 if v_stays else rows.steps)
            + second.outputs
        )
        listed.append((buffer + np.maximum(up, down), moved + np.zeros_like(rows.steps)))
    return TrafficCurve.from_mappings(listed)
