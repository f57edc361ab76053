"""Log probabilities of tokens, for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from interlace.engine.outputs import Logprob
from interlace.engine.request import EngineSequence
from interlace.models.tokenizer import TextTokenizer


class LogprobCopy:
    """Log probabilities on their way to the host, of the tokens that a step has made.

    They are valid when the tokens are, which are copied afterwards.

    Args:
        rows: sequences that get a token, with their slots.
        logits: (batch, vocabulary), the model's own logits.
        tokens: (batch,), tokens by slot.

    Attributes:
        rows: rows of the slots whose requests ask for log probabilities.
    """

    def __init__(self, rows: Sequence[tuple[int, EngineSequence]], logits: torch.Tensor, tokens: torch.Tensor) -> None:
        wanted = {slot: sequence.request.params.logprobs for slot, sequence in rows}
        counts = {slot: count for slot, count in wanted.items() if count is not None}
        self.rows = {slot: row for row, slot in enumerate(counts)}
        self._counts = counts
        if not counts:
            return
        slots = torch.tensor([*counts], pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
        values = logits.index_select(0, slots).float().log_softmax(-1)
        chosen = values.gather(-1, tokens.index_select(0, slots).long()[:, None])
        rank = (values > chosen).sum(-1, keepdim=True)
        best, ids = values.topk(min(max(counts.values()), values.shape[-1]), dim=-1)
        numbers = torch.cat([chosen, best], -1), torch.cat([rank, ids], -1)
        self._logprobs, self._ids = (_copy_to_host(each) for each in numbers)

    def read(self, slot: int, token: int, tokenizer: TextTokenizer | None) -> dict[int, Logprob]:
        """Return log probabilities by token id for the token of a slot that has a row."""
        row = self.rows[slot]
        count = self._counts[slot]
        logprobs, ids = self._logprobs[row].tolist(), self._ids[row].tolist()
        ranked = [(token, logprobs[0], ids[0] + 1)]
        ranked += [(ids[1 + n], logprobs[1 + n], 1 + n) for n in range(count) if 1 + n < len(ids)]
        made: dict[int, Logprob] = {}
        for id, logprob, rank in ranked:
            text = "" if tokenizer is None else tokenizer.decode([id], skip_special_tokens=False)
            made.setdefault(id, Logprob(logprob, rank, text))
        return made


def _copy_to_host(values: torch.Tensor) -> torch.Tensor:
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)
