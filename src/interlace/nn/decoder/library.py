"""PyTorch's own ops that read prompts: op by op on a CPU, and on a GPU as CUDA graphs by bucket of tokens.

The shapes in a graph are fixed; which tokens it reads is data on the device. 40 tokens of slot 2, whose first 100
tokens are cached, run in the graph of 64 tokens that attends to 256 positions:

    inputs    2   100   39   t0 t1 ... t39  x ... x        slot, start, last row, and 64 ids of which 24 are padding
    cache row   100 101 ... 139  139 ... 139               padding repeats the last token's row

Tokens that begin a sequence attend to themselves alone: their graphs read no cache. Graphs are captured when they are
first needed. They share their memory: it is that of the largest where this comes first, but where each is a little
larger than those before, some three times as much. If that is more than there is, the graphs before are given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from interlace.kernels.base import next_power_of_2
from interlace.megakernel.capture import capture_graph
from interlace.models.llama import LlamaShape
from interlace.nn.decoder import step as plain
from interlace.nn.decoder.cache import KVCache
from interlace.nn.plain import has_triton

#: Numbers of tokens for which graphs are captured. About as many as 128 take no longer than reading the weights; from
#: there on each octave has four, so at most a quarter is padding. More tokens are read in pieces of the last.
BUCKETS = (32, 64, *(octave * n // 4 for octave in (128, 256, 512, 1024) for n in range(4, 8)), 2048)
_LEAST_REACH = 256  # positions
_MAX_GRAPHS = 48
_HEAD = 3  # inputs before the ids
_LONG_US = 5e3  # of calls that are timed, after which there are no more


class Bucket(NamedTuple):
    """Shapes of a graph.

    Attributes:
        tokens: number of tokens, padding included.
        reach: number of cached positions that attention reads, these tokens included; 0 if they begin a sequence.
    """

    tokens: int
    reach: int


def find_bucket(tokens: int, start: int, capacity: int) -> Bucket:
    """Return the smallest bucket for so many tokens, at most the largest of ``BUCKETS``, from a position on."""
    reach = min(max(next_power_of_2(start + tokens), _LEAST_REACH), capacity) if start else 0
    return Bucket(min(size for size in BUCKETS if size >= tokens), reach)


class LibraryReader:
    """Reader of prompts into a decoder's tensors.

    Args:
        logits, following: (batch, vocabulary) and (batch,) int32, of which the slot's row gets the logits and the
            greedy next token.

    Attributes:
        times_us: microseconds of the buckets that were measured.
    """

    def __init__(
        self,
        shape: LlamaShape,
        weights: Mapping[str, torch.Tensor],
        rope: torch.Tensor,
        cache: KVCache,
        logits: torch.Tensor,
        following: torch.Tensor,
    ) -> None:
        self.times_us: dict[Bucket, float] = {}
        self._shape, self._weights, self._rope, self._cache = shape, weights, rope, cache
        self._logits, self._next, self._capacity = logits, following, len(rope)
        self._prefill = _select_prefill(shape, weights)
        self._inputs = torch.zeros(_HEAD + BUCKETS[-1], dtype=torch.long, device=logits.device)
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}  # most recently used last
        self._pool: object = None

    def read(self, tokens: Sequence[int], slot: int, start: int) -> None:
        """Append tokens to the first ``start`` of a slot; write its logits and greedy next token.

        On a GPU the call does not wait for the device, unless a graph is captured.
        """
        if not self._inputs.is_cuda:
            ids = torch.tensor(tokens, device=self._inputs.device)
            logits = plain.prefill(self._shape, self._weights, self._rope, self._cache, ids, slot, start)
            self._logits[slot].copy_(logits)
            self._next[slot : slot + 1].copy_(logits.argmax())
            return
        for bucket in self._write_pieces(tokens, slot, start):
            self._run(bucket)

    def measure_us(self, tokens: Sequence[int], slot: int, start: int) -> float:
        """Read tokens on a GPU as ``read`` does, and return the microseconds that the device takes for them.

        Buckets that were not measured yet are read a few times, which changes nothing that the first time has written.
        """
        total = 0.0
        for bucket in self._write_pieces(tokens, slot, start):
            self._run(bucket)
            if bucket not in self.times_us:
                self.times_us[bucket] = measure_us(self._inputs.device, self._graphs[bucket].replay)
            total += self.times_us[bucket]
        return total

    def find_us(self, tokens: int, start: int) -> float | None:
        """Return the microseconds of a read; None if one of its buckets is not measured."""
        times = [self.times_us.get(self._find_bucket(*piece)) for piece in _cut(tokens, start)]
        known = [us for us in times if us is not None]
        return sum(known) if len(known) == len(times) else None

    def write_inputs(self, tokens: Sequence[int], slot: int, start: int) -> None:
        """Enqueue the copy of a graph's inputs, without waiting for the device."""
        host = torch.empty(_HEAD + len(tokens), dtype=torch.long, pin_memory=self._inputs.is_cuda)
        values = host.numpy()  # PyTorch takes ten times as long for a list
        values[:_HEAD] = slot, start, len(tokens) - 1
        values[_HEAD:] = tokens
        self._inputs[: len(host)].copy_(host, non_blocking=True)

    def enqueue(self, bucket: Bucket) -> None:
        """Enqueue the ops of a bucket on the inputs."""
        slot, start, last = self._inputs[:_HEAD, None]
        ids = self._inputs[_HEAD : _HEAD + bucket.tokens]
        model = self._shape, self._weights, self._rope, self._cache
        logits = self._prefill(*model, ids, slot, start, last, bucket.reach)
        self._logits.index_copy_(0, slot, logits)
        self._next.index_copy_(0, slot, logits.argmax(-1).int())

    def _find_bucket(self, tokens: int, start: int) -> Bucket:
        return find_bucket(tokens, start, self._capacity)

    def _write_pieces(self, tokens: Sequence[int], slot: int, start: int) -> Iterator[Bucket]:
        """Yield the bucket of each piece of some tokens, after its inputs are written."""
        for count, at in _cut(len(tokens), start):
            self.write_inputs(tokens[at - start : at - start + count], slot, at)
            yield self._find_bucket(count, at)

    def _run(self, bucket: Bucket) -> None:
        graph = self._graphs.pop(bucket, None) or self._make_room_and_capture(bucket)
        self._graphs[bucket] = graph
        graph.replay()

    def _make_room_and_capture(self, bucket: Bucket) -> torch.cuda.CUDAGraph:
        try:
            return self._capture(bucket)
        except torch.OutOfMemoryError:
            if not self._graphs:
                raise
        # After the error is gone: it holds all tensors of the attempt.
        self._graphs, self._pool = {}, None
        torch.cuda.empty_cache()
        return self._capture(bucket)

    def _capture(self, bucket: Bucket) -> torch.cuda.CUDAGraph:
        for oldest in [*self._graphs][: max(len(self._graphs) + 1 - _MAX_GRAPHS, 0)]:
            del self._graphs[oldest]
        with torch.cuda.device(self._inputs.device):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self.enqueue(bucket)  # loads kernels, which a capture may forbid
            graph = torch.cuda.CUDAGraph()
            with capture_graph(graph, self._pool):
                self.enqueue(bucket)
        return graph


def _select_prefill(shape: LlamaShape, weights: Mapping[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the prefill that graphs capture: with fused ops where their kernels run."""
    if weights["embed"].is_cuda and torch.version.cuda is not None and has_triton():
        from interlace.nn.decoder import fused

        if fused.is_supported(shape, weights):
            return fused.prefill_padded
    return plain.prefill_padded


def _cut(tokens: int, start: int) -> list[tuple[int, int]]:
    """Return number of tokens and first position of the pieces of a read, each of the largest bucket but the last."""
    most = BUCKETS[-1]
    return [(min(most, tokens - done), start + done) for done in range(0, tokens, most)]


def measure_us(device: torch.device, enqueue: Callable[[], object], times: int = 3) -> float:
    """Return the shortest time of a few calls that enqueue work on a GPU, in microseconds.

    After a first one there are as many calls as ``times``, or fewer when they take long: sequences wait meanwhile.
    """
    found: list[float] = []
    with torch.cuda.device(device):
        while len(found) <= times and sum(found[1:]) < _LONG_US:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            enqueue()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3)
    return min(found[1:])
