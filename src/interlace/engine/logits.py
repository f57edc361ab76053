"""Sampling for the requests that ask for more than the steps do themselves, in PyTorch's ops on the device.

Logits of these rows alone are gathered after a step, changed, and sampled; the tokens replace those that the step has
sampled before the next step reads them. In this order:

    min_tokens, penalties, logit_bias, structured output, min_p, then temperature, top_k and top_p

All other rows keep the tokens of the step. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.engine.params import SamplingParams
from interlace.engine.request import EngineSequence
from interlace.nn.decoder.mirror import MirroredTensors
from interlace.nn.decoder.sampling import SamplingState, SlotSampling, sample_tokens
from interlace.nn.decoder.session import DecoderSession

#: Sequences that get a token, with their slots.
Rows = Sequence[tuple[int, EngineSequence]]


class _RowTensors(NamedTuple):
    """Parameters of rows on the device.

    Attributes:
        key: identity of the rows and of what applies to them.
        slots: (rows,), slot of each row.
        sampling: rows of ``SamplingState.tensors``.
        is_random: True if any row is sampled.
        penalties: (3, rows, 1) presence, frequency and repetition penalty; None if no row has any.
        bias: row, token and number for each entry of ``logit_bias``; None if there are none.
        banned: row and token for each token that must not come yet; None if there are none.
        min_p: (rows, 1), logarithm of ``min_p`` times the temperature; None if no row has one.
    """

    key: tuple[Any, ...]
    slots: torch.Tensor
    sampling: dict[str, torch.Tensor]
    is_random: bool
    penalties: torch.Tensor | None
    bias: tuple[torch.Tensor, ...] | None
    banned: tuple[torch.Tensor, ...] | None
    min_p: torch.Tensor | None


class LogitsSampler:
    """Sampler of the rows that ask for more than a step's own sampling.

    Args:
        session: session of the decoder whose ``logits`` are read and whose ``next`` is written.
    """

    def __init__(self, session: DecoderSession) -> None:
        decoder = session.decoder
        self._session, self._logits, self._next = session, decoder.logits, decoder.next
        self._device, self._batch, self._vocabulary = decoder.device, decoder.batch, decoder.shape.vocabulary
        self._rows: _RowTensors | None = None
        self._counts: torch.Tensor | None = None  # (batch, vocabulary), occurrences in the text
        self._is_in_prompt: torch.Tensor | None = None
        self._counted: dict[int, EngineSequence] = {}  # sequence whose tokens are counted, by slot

    def sample(self, rows: Rows) -> None:
        """Replace the tokens of the rows that ask for more."""
        rows = [row for row in rows if row[1].request.params.changes_logits and not row[1].is_finished]
        if not rows:
            return
        key = tuple((slot, sequence.arrival, sequence.can_end) for slot, sequence in rows)
        if self._rows is None or self._rows.key != key:
            self._rows = self._build_rows(key, rows)
        own = self._rows
        x = self._logits.index_select(0, own.slots).float()
        if own.banned is not None:
            x = x.index_put(own.banned, x.new_full((), -torch.inf))
        if own.penalties is not None:
            self._count(rows)
            x = self._apply_penalties(x, own)
        if own.bias is not None:
            row, token, value = own.bias
            x = x.index_put((row, token), value, accumulate=True)
        x = self._mask_grammars(x, rows)
        if own.min_p is not None:
            x = x.masked_fill(x < x.amax(-1, keepdim=True) + own.min_p, -torch.inf)
        position = self._session.read_positions().index_select(0, own.slots) - 1
        tokens = sample_tokens(x, position, own.sampling) if own.is_random else x.argmax(-1)
        self._next.index_copy_(0, own.slots, tokens.to(self._next.dtype))
        if own.penalties is not None and self._counts is not None:
            ones = torch.ones_like(tokens, dtype=self._counts.dtype)
            self._counts.index_put_((own.slots, tokens), ones, accumulate=True)

    def _build_rows(self, key: tuple[Any, ...], rows: Rows) -> _RowTensors:
        each = [sequence.request.params for _, sequence in rows]
        mirror = MirroredTensors(SamplingState.list_fields(len(rows)), self._device)
        state = SamplingState(mirror)
        for row, (_, sequence) in enumerate(rows):
            state.set(row, make_sampling(sequence))
        mirror.upload()
        penalties = np.array(
            [(p.presence_penalty, p.frequency_penalty, p.repetition_penalty) for p in each], np.float32
        )
        bias = [(row, *pair) for row, p in enumerate(each) for pair in (p.logit_bias or {}).items()]
        banned = [
            (row, token)
            for row, (_, sequence) in enumerate(rows)
            if not sequence.can_end
            for token in sequence.request.stop_token_ids
            if token < self._vocabulary
        ]
        min_p = np.array([[_scale_min_p(params)] for params in each], np.float32)
        upload = self._upload
        return _RowTensors(
            key,
            upload(np.array([slot for slot, _ in rows])),
            dict(state.tensors),
            any(not params.is_greedy for params in each),
            upload(penalties.T[:, :, None].copy()) if any(params.has_penalties for params in each) else None,
            tuple(upload(np.array(part, kind)) for part, kind in zip(zip(*bias, strict=True), "llf", strict=True))
            if bias
            else None,
            tuple(upload(np.array(part)) for part in zip(*banned, strict=True)) if banned else None,
            upload(min_p) if np.isfinite(min_p).any() else None,
        )

    def _upload(self, values: NDArray[Any]) -> torch.Tensor:
        """Return a copy on the device, without waiting for it."""
        tensor = torch.from_numpy(values)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _count(self, rows: Rows) -> None:
        """Count the tokens of sequences that are new in their slots."""
        if self._counts is None or self._is_in_prompt is None:
            extents = self._batch, self._vocabulary
            self._counts = torch.zeros(extents, dtype=torch.int32, device=self._device)
            self._is_in_prompt = torch.zeros(extents, dtype=torch.bool, device=self._device)
        for slot, sequence in rows:
            if self._counted.get(slot) is sequence:
                continue
            # After a preemption a sequence may come back to a slot that it had, with tokens from another one.
            self._counted = {slot: counted for slot, counted in self._counted.items() if counted is not sequence}
            self._counted[slot] = sequence
            prompt = len(sequence.request.prompt)
            tokens = self._upload(np.array(sequence.tokens))
            self._is_in_prompt[slot].zero_().index_fill_(0, tokens[:prompt], True)
            made = tokens[prompt:]
            self._counts[slot].zero_().index_add_(0, made, torch.ones_like(made, dtype=torch.int32))

    def _apply_penalties(self, x: torch.Tensor, own: _RowTensors) -> torch.Tensor:
        if own.penalties is None or self._counts is None or self._is_in_prompt is None:
            return x
        presence, frequency, repetition = own.penalties
        counts = self._counts.index_select(0, own.slots)
        is_in_text = counts > 0
        repeated = is_in_text | self._is_in_prompt.index_select(0, own.slots)
        x = torch.where(repeated, torch.where(x > 0, x / repetition, x * repetition), x)
        penalized: torch.Tensor = x - frequency * counts - presence * is_in_text
        return penalized

    def _mask_grammars(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Exclude the tokens that structured output does not allow."""
        own = [(row, sequence) for row, (_, sequence) in enumerate(rows) if sequence.grammar is not None]
        if not own:
            return x
        masks = np.full((len(rows), -(-self._vocabulary // 32)), -1, np.int32)
        for row, sequence in own:
            if sequence.grammar is not None:
                sequence.grammar.fill_mask(masks[row])
        bits = self._upload(masks)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=self._device)
        allowed = (bits & 1).bool().flatten(1)[:, : self._vocabulary]
        return x.masked_fill(~allowed, -torch.inf)


def make_sampling(sequence: EngineSequence) -> SlotSampling:
    """Return temperature, top_k, top_p and random numbers of a sequence."""
    params = sequence.request.params
    if params.is_greedy:
        return SlotSampling()
    top_k, top_p = (params.top_k if params.top_k > 0 else None), (params.top_p if params.top_p < 1 else None)
    return SlotSampling(params.temperature, top_k, top_p, sequence.seed, sequence.index)


def _scale_min_p(params: SamplingParams) -> float:
    """Return the least logit of a token that is sampled, relative to the largest one."""
    return log(params.min_p) * (0.0 if params.is_greedy else params.temperature) if params.min_p else -np.inf
