"""Loading of an engine's model: decoder, tokenizer and chat template."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from interlace.core.errors import ArgumentError, ModelFileError
from interlace.models.chat import ChatTemplate, read_chat_template
from interlace.models.generation_settings import SAMPLING_DEFAULTS
from interlace.models.llama import PAGE_TOKENS
from interlace.models.notices import warn_missing
from interlace.models.pretrained import PretrainedModel, load_model_quietly
from interlace.models.tokenizer import TextTokenizer, open_tokenizer
from interlace.models.weights import list_weights
from interlace.nn.decoder.cache import check_positive, count_cache_bytes, get_free_bytes, resolve_max_seq_len
from interlace.nn.decoder.decoder import Decoder
from interlace.nn.decoder.files import Progress, select_device

_GPU_SEQS, _CPU_SEQS = 64, 8  # default number of slots
_FEW_SEQS = 1, 16  # slots of further launches, which run steps of few sequences
_CACHE_SHARE = 0.8  # share of the memory that weights leave free, of which blocks take no more by default


class LoadedModel(NamedTuple):
    """Model that an engine runs.

    Attributes:
        name: name of the file or folder.
        decoder: decoder with blocks.
        tokenizer: tokenizer of the model.
        chat_template: template of chats, None if the model has none.
    """

    name: str
    decoder: Decoder
    tokenizer: TextTokenizer
    chat_template: ChatTemplate | None


def load_for_engine(
    path: str | Path,
    max_num_seqs: int | None,
    max_model_len: int | None,
    num_blocks: int | None,
    device: str | torch.device | None,
    progress: Progress,
) -> LoadedModel:
    """Load the model in a GGUF file or a folder; see ``Engine.from_pretrained``."""
    model = load_model_quietly(path, SAMPLING_DEFAULTS)
    warn_missing(model.notices, stacklevel=1)
    tokenizer = open_tokenizer(model.path, model.gguf)
    try:
        template = read_chat_template(model.path, model.gguf)
    except ModelFileError:
        template = None  # not made for chats
    where = select_device(device)
    seqs = (_CPU_SEQS if where.type == "cpu" else _GPU_SEQS) if max_num_seqs is None else max_num_seqs
    max_len = resolve_max_seq_len(max_model_len, model.max_positions, model.window)
    blocks = choose_num_blocks(model, check_positive(seqs, "max_num_seqs"), max_len, where, num_blocks)
    decoder = Decoder.from_pretrained(
        model,
        batch=seqs,
        max_seq_len=max_len,
        num_blocks=blocks,
        device=where,
        progress=progress,
    )
    decoder.build_batches(_FEW_SEQS, progress)
    return LoadedModel(model.path.name, decoder, tokenizer, template)


def choose_num_blocks(
    model: PretrainedModel, seqs: int, max_len: int, device: torch.device, requested: int | None
) -> int:
    """Return the number of blocks: by default for all slots, or what fits in memory; for one sequence at least."""
    if requested is not None:
        return requested
    of_sequence = -(-max_len // PAGE_TOKENS)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    weights = dtype.itemsize * sum(map(prod, list_weights(model.shape).values()))
    room = _CACHE_SHARE * max(get_free_bytes(device) - weights, 0)
    fitting = int(room / count_cache_bytes(model.shape, PAGE_TOKENS, dtype))
    return max(min(seqs * of_sequence, fitting), of_sequence)


def resolve_max_model_len(requested: int | None, decoder: Decoder) -> int:
    """Return the most tokens of a prompt and its text: by default the decoder's positions, at most one more."""
    if requested is None:
        return decoder.max_seq_len
    if check_positive(requested, "max_model_len") > decoder.max_seq_len + 1:
        raise ArgumentError(
            f"max_model_len is {requested}, and the decoder has {decoder.max_seq_len} positions; give at most "
            f"{decoder.max_seq_len + 1}"
        )
    return requested
