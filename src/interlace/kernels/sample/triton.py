"""The Triton bodies of sampling. Rows of NaN also yield a valid index, so that readers stay inside their table."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.sample.segments import SEGMENT as COLUMNS

SEGMENT = tl.constexpr(COLUMNS)
CHUNK = tl.constexpr(32 * COLUMNS)  # columns of a tile that are processed at a time


@triton.jit
def invert_temperature(temperature):
    """Return the factor for differences of logits; 0 at temperature 0, where nothing is sampled."""
    return tl.where(temperature > 0, 1.0 / tl.where(temperature > 0, temperature, 1.0), 0.0)


@triton.jit
def outline_tile(tile, x, temperature, peak, weight, N, BN: tl.constexpr, SEGMENTS):
    inverse = invert_temperature(tl.load(temperature + tile.i))
    for start in range(0, BN, CHUNK):
        first = tile.j * BN + start
        segment = first // SEGMENT + tl.arange(0, CHUNK // SEGMENT)
        at = tile.i * SEGMENTS + segment
        largest = tl.full((CHUNK // SEGMENT,), float("-inf"), tl.float32)
        total = tl.zeros((CHUNK // SEGMENT,), tl.float32)
        if inverse > 0:  # a greedy row is not read
            column = first + tl.arange(0, CHUNK)
            value = tl.load(x + tile.i.to(tl.int64) * N + column, mask=column < N, other=float("-inf")).to(tl.float32)
            value = tl.reshape(value, (CHUNK // SEGMENT, SEGMENT))
            largest = tl.max(value, 1)
            real = value > float("-inf")
            above = tl.where(real, value - largest[:, None], 0.0)
            total = tl.sum(tl.where(real, tl.exp(above * inverse), 0.0), 1)
        tl.store(peak + at, largest, mask=segment < SEGMENTS)
        tl.store(weight + at, total, mask=segment < SEGMENTS)


@triton.jit
def encode_ordered(value, LOW: tl.constexpr):
    """Map floats to integers in the same order, one for each number of x's dtype."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> LOW


@triton.jit
def decode_ordered(number, LOW: tl.constexpr):
    return tl.where(number < 0, (~number << LOW) ^ -0x80000000, number << LOW).to(tl.float32, bitcast=True)


@triton.jit
def sum_above(row, peaks, least, most, inverse, N):
    """Return count and weight of logits of at least ``least``; reads only segments that have such logits."""
    count, weight = 0.0, 0.0
    for first in range(0, N, CHUNK):
        segment = first // SEGMENT + tl.arange(0, CHUNK // SEGMENT)
        highest = tl.load(peaks + segment, mask=segment * SEGMENT < N, other=float("-inf"))
        if tl.max(highest) >= least:
            column = first + tl.arange(0, CHUNK)
            value = tl.load(row + column, mask=column < N, other=float("-inf")).to(tl.float32)
            found = (column < N) & (value >= least)
            count += tl.sum(found.to(tl.float32))
            weight += tl.sum(tl.where(found, tl.exp((value - most) * inverse), 0.0))
    return count, weight


@triton.jit
def search_cutoff(row, peaks, low, count, weight, most, inverse, N, SEGMENTS, BLOCK, LOW: tl.constexpr):
    """Return the largest number, from ``low`` on, that keeps ``count`` logits or ``weight``; ``low`` if none does."""
    segment = tl.arange(0, BLOCK)
    peak = tl.load(peaks + segment, mask=segment < SEGMENTS, other=float("-inf"))
    high = encode_ordered(most, LOW) + 1
    for _ in range(32 - LOW):
        middle = (low & high) + ((low ^ high) >> 1)  # low + high may exceed 31 bits
        if middle != low:
            least = decode_ordered(middle, LOW)
            # Lower bound of count and weight: the maximum of every segment.
            found = peak >= least
            counted = tl.sum(found.to(tl.float32))
            weighed = tl.sum(tl.where(found, tl.exp((peak - most) * inverse), 0.0))
            if (counted < count) | (weighed < weight):
                counted, weighed = sum_above(row, peaks, least, most, inverse, N)
            enough = (counted >= count) & (weighed >= weight)
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    return low


@triton.jit
def cutoff_tile(
    tile, x, peak, weight, temperature, top_k, top_p, least, N, SEGMENTS, BLOCK: tl.constexpr, LOW: tl.constexpr
):
    inverse = invert_temperature(tl.load(temperature + tile.i))
    kept = tl.load(top_k + tile.i)
    share = tl.load(top_p + tile.i)
    row = x + tile.i.to(tl.int64) * N
    peaks = peak + tile.i.to(tl.int64) * SEGMENTS
    counted = (kept > 0) & (kept < N)
    lowest = tl.full((), float("-inf"), tl.float32)
    found = lowest
    if (inverse > 0) & (counted | (share < 1.0)):
        segment = tl.arange(0, BLOCK)
        inside = segment < SEGMENTS
        highest = tl.load(peaks + segment, mask=inside, other=float("-inf"))
        most = tl.max(highest)
        at = encode_ordered(lowest, LOW)
        if counted:
            at = search_cutoff(row, peaks, at, kept.to(tl.float32), 0.0, most, inverse, N, SEGMENTS, BLOCK, LOW)
        if share < 1.0:
            weights = tl.load(weight + tile.i.to(tl.int64) * SEGMENTS + segment, mask=inside, other=0.0)
            whole = tl.sum(weights * tl.exp((highest - most) * inverse))
            if counted:
                _, whole = sum_above(row, peaks, decode_ordered(at, LOW), most, inverse, N)
            at = search_cutoff(row, peaks, at, 0.0, share * whole, most, inverse, N, SEGMENTS, BLOCK, LOW)
        found = decode_ordered(at, LOW)
    tl.store(least + tile.i, found)


@triton.jit
def compute_gumbel_noise(word):
    """Return -log(E) with E = -log(1 - u), u uniform; by its series where 1 - u would lose precision of u."""
    u = tl.minimum(word.to(tl.float32) * 2.0**-32 + 2.0**-33, 1.0 - 2.0**-24)
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0)))
    return -tl.log(tl.where(u < 2.0**-8, series, -tl.log(1.0 - u)))


@triton.jit
def noisy_tile(tile, x, least, temperature, position, key, best, at, N, BN: tl.constexpr, TILES):
    heat = tl.load(temperature + tile.i)
    lowest = tl.load(least + tile.i)
    seed = tl.load(key + 2 * tile.i).to(tl.uint32, bitcast=True)
    sequence = tl.load(key + 2 * tile.i + 1).to(tl.uint32, bitcast=True)
    where = tl.load(position + tile.i).to(tl.uint32, bitcast=True)
    found = tl.full((), float("-inf"), tl.float32)
    place = tl.minimum(tile.j * BN, N - 1)
    for start in range(0, BN, CHUNK):
        first = tile.j * BN + start
        column = first + tl.arange(0, CHUNK)
        inside = column < N
        value = tl.load(x + tile.i.to(tl.int64) * N + column, mask=inside, other=float("-inf")).to(tl.float32)
        score = value
        if heat > 0:
            quad = (first // 4 + tl.arange(0, CHUNK // 4)).to(tl.uint32)
            zero = tl.zeros_like(quad)
            a, b, c, d = tl.philox((sequence.to(tl.uint64) << 32) | seed, quad, zero + where, zero, zero)
            word = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
            score = value * invert_temperature(heat) + compute_gumbel_noise(word)
        score = tl.where(inside & (value >= lowest), score, float("-inf"))
        largest = tl.max(score)
        # The first of equal scores.
        place = tl.where(largest > found, tl.min(tl.where(score == largest, column, N)), place)
        found = tl.maximum(found, largest)
    tl.store(best + tile.i * TILES + tile.j, found)
    tl.store(at + tile.i * TILES + tile.j, place)
