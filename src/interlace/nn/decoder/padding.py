"""Prompts of a batch without their padding.

Tokenizers return rows of equal length: they pad the shorter prompts on the left or right, and mark the tokens in an
attention mask. A decoder accepts prompts of any lengths, so this module removes the pads:

    input_ids       [[0, 0, 5, 6], [9, 8, 7, 6]]
    attention_mask  [[0, 0, 1, 1], [1, 1, 1, 1]]     prompts [5, 6] and [9, 8, 7, 6]

Models of ``transformers`` count positions from the first unmasked token, so the generated tokens are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from interlace.core.arguments import format_value
from interlace.core.errors import PromptError
from interlace.models.folder import read_json
from interlace.models.pretrained import PretrainedModel
from interlace.nn.decoder.ids import MASK, Prompt, Prompts, check_vocabulary, is_array, to_id_list, to_lists

#: Fields that a tokenizer may return in addition to ids and mask, and that change no token.
_IGNORED = frozenset(
    (
        "assistant_masks",
        "length",
        "num_truncated_tokens",
        "offset_mapping",
        "overflow_to_sample_mapping",
        "overflowing_tokens",
        "special_tokens_mask",
        "token_type_ids",
    )
)


@dataclass(frozen=True)
class Padding:
    """Token ids that identify padding.

    Attributes:
        pad: pad id in the model's config, None if it declares none.
        begin: id that begins texts, None without one.
        stop_token_ids: ids that end a text, which tokenizers without a pad id use for padding.
    """

    pad: int | None = None
    begin: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    @staticmethod
    def from_model(model: Any, stop_token_ids: tuple[int, ...]) -> Padding:
        """Read the configs of a model of ``transformers``."""
        configs = [getattr(model, name, None) for name in ("generation_config", "config")]
        pad, begin = (
            _find_first_id(getattr(config, f"{name}_token_id", None) for config in configs) for name in ("pad", "bos")
        )
        return Padding(pad, begin, stop_token_ids)

    @staticmethod
    def from_pretrained(model: PretrainedModel) -> Padding:
        """Read the metadata of a GGUF file, or the configs of a folder."""
        if model.gguf is not None:
            data = model.gguf.metadata
            pad, begin = (_find_first_id([data.get(f"tokenizer.ggml.{name}_token_id")]) for name in ("padding", "bos"))
        else:
            files = [model.path / name for name in ("generation_config.json", "config.json")]
            configs = [read_json(file) for file in files if file.is_file()]
            pad, begin = (
                _find_first_id(config.get(f"{name}_token_id") for config in configs) for name in ("pad", "bos")
            )
        return Padding(pad, begin, model.stop_token_ids)


def read_prompts(ids: Prompts, mask: Any, vocabulary: int, padding: Padding) -> tuple[list[list[int]], bool]:
    """Return prompts without padding, and True if a single prompt was given.

    Args:
        ids: one prompt or several, or the output of a tokenizer: a mapping with ``input_ids``.
        mask: 1 for tokens and 0 for pads, in the shape of the ids; None for the mask of the mapping, if it has one.

    Raises:
        PromptError: there are no prompts; a prompt is empty or has ids out of the vocabulary; the mask is invalid or
            does not match the prompts; or the prompts look padded and have no mask.
    """
    packed = isinstance(ids, Mapping)
    ids, mask = _unpack(ids, mask)
    dense = packed or is_array(ids)
    if isinstance(ids, torch.Tensor) and ids.is_nested:
        ids, dense = [*ids.unbind()], False
    values = to_lists(ids, "a prompt")
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(values, Sequence):
        raise PromptError(f"a prompt is {format_value(values)}; give ids of tokens, as a list of ints, or several such")
    if not len(values):
        raise PromptError("a prompt has no ids; give one token at least, such as that of the beginning of a text")
    single = not (isinstance(values[0], (Sequence, Mapping)) or (is_array(values[0]) and values[0].ndim))
    rows: Sequence[Any] = [values] if single else values
    masks = [None] * len(rows) if mask is None else _split_mask(mask, len(rows), single)
    prompts, bare = [], []
    for number, (row, own) in enumerate(zip(rows, masks, strict=True)):
        try:
            row, own = _unpack_one(row, own)
            prompts.append(_select_tokens(row, own))
            bare.append(own is None)
        except PromptError as error:
            raise error if single else PromptError(f"prompt {number}: {error}") from None
    if all(bare):
        _check_padding(prompts, padding, dense or all(is_array(row) for row in rows))
    for number, prompt in enumerate(prompts):
        try:
            check_vocabulary(prompt, vocabulary)
        except PromptError as error:
            raise error if single else PromptError(f"prompt {number}: {error}") from None
    return prompts, single


def read_prompt(ids: Prompt, mask: Any, vocabulary: int, padding: Padding, past_key_values: Any = None) -> list[int]:
    """Return one prompt without padding; see ``read_prompts``. A tokenizer's batch of one prompt is one.

    Args:
        past_key_values: keys and values of the first ids, without pads.
    """
    packed = isinstance(ids, Mapping)
    ids, mask = _unpack_one(ids, mask)
    prompt = _select_tokens(ids, mask)
    if past_key_values is not None and mask is not None and len(prompt) < len(mask):
        raise PromptError(
            "attention_mask leaves out pads, of which a past has keys and values too; run the model without padding"
        )
    if mask is None:
        _check_padding([prompt], padding, packed or is_array(ids))
    check_vocabulary(prompt, vocabulary)
    return prompt


def _find_first_id(values: Any) -> int | None:
    return next((value for value in values if type(value) is int), None)


def _unpack(ids: Any, mask: Any) -> tuple[Any, Any]:
    """Return ids and mask of a tokenizer's output; return other ids and masks unchanged."""
    if not isinstance(ids, Mapping):
        return ids, mask
    if "input_ids" not in ids:
        raise PromptError(f"a prompt is a mapping of {format_value([*ids])}; give one with input_ids")
    if others := {*ids} - {"input_ids", "attention_mask"} - _IGNORED:
        raise PromptError(f"a prompt has {sorted(map(str, others))[0]}, which a decoder would drop; leave it out")
    if mask is not None and "attention_mask" in ids:
        raise PromptError("a prompt has an attention_mask of its own, and another is given; give one")
    return ids["input_ids"], ids.get("attention_mask", mask)


def _unpack_one(ids: Any, mask: Any) -> tuple[Any, Any]:
    """Do the same for one prompt, which a tokenizer may return as a batch of one."""
    if not isinstance(ids, Mapping):
        return ids, mask
    ids, mask = _unpack(ids, mask)
    rows = to_lists(ids, "a prompt")
    if not isinstance(rows, Sequence) or not len(rows) or not isinstance(rows[0], Sequence):
        return ids, mask
    if len(rows) > 1:
        raise PromptError(f"input_ids have {len(rows)} prompts; give one")
    return rows[0], mask if mask is None else _split_mask(mask, 1, single=False)[0]


def _split_mask(mask: Any, count: int, single: bool) -> Sequence[Any]:
    rows = to_lists(mask, "attention_mask", MASK)
    if single:
        return [rows]
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)) or len(rows) != count:
        other = len(rows) if isinstance(rows, Sequence) else format_value(rows)
        raise PromptError(f"attention_mask is of {other} prompts, the ids of {count}; give it in the shape of the ids")
    return rows


def _select_tokens(ids: Any, mask: Any) -> list[int]:
    """Return the unmasked ids as ints."""
    if mask is None:
        return to_id_list(ids)
    values, entries = to_lists(ids, "a prompt"), to_lists(mask, "attention_mask", MASK)
    several = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if not several or not isinstance(entries, Sequence) or len(values) != len(entries):
        shape = f"{len(entries)} positions" if isinstance(entries, Sequence) else format_value(entries)
        of = f"{len(values)} ids" if several else format_value(values)
        raise PromptError(f"attention_mask has {shape} for {of}; give it in the shape of the ids")
    for position, entry in enumerate(entries):
        if not isinstance(entry, (bool, int, float, np.generic)) or entry not in (0, 1):
            raise PromptError(f"attention_mask[{position}] is {format_value(entry)}; it is 1 for a token, 0 for a pad")
    tokens = [id for id, entry in zip(values, entries, strict=True) if entry]
    if values and not tokens:
        raise PromptError("attention_mask has no token; give a prompt of one at least")
    return to_id_list(tokens)


def _check_padding(prompts: Sequence[Sequence[int]], padding: Padding, dense: bool) -> None:
    """Raise PromptError for rows of equal length that begin or end like padded rows.

    A single pad cannot be distinguished from a token, so these rules apply to an id at the start or end of a row:

    - The declared pad id is padding, unless it also begins or ends texts.
    - An id that ends texts is padding if it is repeated, or if only some rows have it there.
    - Any other id is padding if it is repeated in only some rows, or, without a declared pad, at the start of a row.
    - Lists need no padding, so only pad and stop ids count there, in only some rows; ids that also begin or end texts
      must be repeated.

    Args:
        dense: True if the rows are those of a tensor.
    """
    if len({len(prompt) for prompt in prompts}) > 1 or (not dense and len(prompts) == 1):
        return
    for at, place in ((0, "begins"), (-1, "ends")):
        edges = {prompt[at] for prompt in prompts}
        for number, prompt in enumerate(prompts):
            id, count, some = prompt[at], _count_edge_run(prompt, at), len(edges) > 1
            pads = id == padding.pad or id in padding.stop_token_ids
            alone = id == padding.pad and id != padding.begin and id not in padding.stop_token_ids
            if not dense:
                is_padded = pads and some and (count > 1 or alone)
            elif pads:
                is_padded = count > 1 or some or alone
            else:
                left = at == 0 and padding.pad is None and id != padding.begin
                is_padded = (some or left) and 1 < count < len(prompt)
            if is_padded:
                which = "a prompt" if len(prompts) == 1 else f"prompt {number}"
                raise PromptError(
                    f"{which} {place} with {count} of the id {id}, as padding does; pass the tokenizer's "
                    "attention_mask too, or one of ones if these are tokens"
                )


def _count_edge_run(prompt: Sequence[int], at: int) -> int:
    """Return the length of the run of equal ids at the start (``at`` 0) or at the end (-1)."""
    run = groupby(prompt if at == 0 else reversed(prompt))
    return sum(1 for _ in next(run)[1])
