"""Checks and conversions of token ids from callers: lists, arrays and tensors of any kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.core.arguments import check_int, format_value, safe_repr
from interlace.core.errors import ArgumentError, PromptError

Prompt = Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor | Mapping[str, Any]
Prompts = Prompt | Sequence[Prompt]
_MOST = 1 << 24  # ids, more than the maximum length of any model
_MAX_STOP_TOKENS = 1 << 20
_TEXTS = (str, bytes, bytearray, memoryview)


def is_array(values: object) -> bool:
    """Return True for a tensor or an array."""
    return isinstance(values, (torch.Tensor, np.ndarray))


@dataclass(frozen=True)
class AllowedContent:
    """Permitted content of tensors and arrays.

    Attributes:
        description: description for messages.
        kinds: permitted kinds of NumPy dtypes.
        is_allowed: function that returns True for permitted PyTorch dtypes.
    """

    description: str
    kinds: str
    is_allowed: Callable[[torch.dtype], bool]


_INTEGERS = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
)


def _is_plain(dtype: torch.dtype) -> bool:
    """Return True if a dtype holds real numbers or booleans that PyTorch can convert to lists."""
    return dtype in _INTEGERS or dtype is torch.bool or (dtype.is_floating_point and dtype.itemsize > 1)


IDS = AllowedContent("ids of tokens", "iuO", _INTEGERS.__contains__)
MASK = AllowedContent("ones and zeros", "iuObf", _is_plain)


def find_fault(tensor: torch.Tensor) -> str:
    """Return why the values of a tensor cannot be read, empty if they can."""
    if tensor.is_nested:
        return "is nested; give a list of tensors, by unbind()"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}; give a dense one, by to_dense()"
    if tensor.is_quantized:
        return "is quantised; give a plain one"
    if tensor.device.type == "meta":
        return "is on the device meta, without data; give one with data"
    if hasattr(tensor, "fake_mode"):
        return "is fake, without data; give one with data"
    return ""


def to_lists(values: Any, what: str, content: AllowedContent = IDS) -> Any:
    """Convert a tensor or an array to nested lists; return anything else as it is.

    Args:
        what: name of the values for messages, such as "a prompt".

    Raises:
        PromptError: the tensor has no data, has another layout or dtype, or is too large.
    """
    if not is_array(values):
        return values
    tensor = isinstance(values, torch.Tensor)
    if tensor and (fault := find_fault(values)):
        raise PromptError(f"{what} is a tensor that {fault}")
    count = values.numel() if tensor else values.size
    if count and (not content.is_allowed(values.dtype) if tensor else values.dtype.kind not in content.kinds):
        kind, such = ("a tensor", "torch.int64") if tensor else ("an array", "int64")
        raise PromptError(f"{what} is {kind} of {values.dtype}; give {content.description}, as {such}")
    if count > _MOST:
        raise PromptError(f"{what} has {count} ids; give at most {_MOST}")
    try:
        return values.tolist()
    except Exception as error:  # noqa: BLE001  # third-party tensors may raise anything
        lines = f"{type(error).__name__}: {error}".splitlines()
        raise PromptError(f"{what} is a {type(values).__name__} that cannot be read ({lines[0]})") from None


def to_id_list(values: Any) -> list[int]:
    """Return ids of tokens as a list of ints.

    Raises:
        PromptError: the ids are empty or not one-dimensional, or an id is not a whole number.
    """
    content = to_lists(values, "a prompt")
    if isinstance(content, _TEXTS) or not isinstance(content, Sequence):
        raise PromptError(f"a prompt is {format_value(content)}; give ids of tokens, as a list of ints")
    if len(content) > _MOST:
        raise PromptError(f"a prompt has {len(content)} ids; give at most {_MOST}")
    try:
        ids = [check_int(value, "prompt", f"ids[{i}]") for i, value in enumerate(content)]
    except ArgumentError as error:
        raise PromptError(f"{error}, an id of a token") from None
    if not ids:
        raise PromptError("a prompt has no ids; give one token at least, such as that of the beginning of a text")
    return ids


def check_vocabulary(ids: Sequence[int], vocabulary: int) -> None:
    """Raise PromptError for an id outside the vocabulary."""
    for i, id in enumerate(ids):
        if not 0 <= id < vocabulary:
            raise PromptError(f"ids[{i}] is {safe_repr(id)}; the vocabulary has ids 0 to {vocabulary - 1}")


def check_stop_ids(values: Any, where: str) -> tuple[int, ...]:
    """Return the ids that end a text.

    Args:
        where: name of the calling method, for messages.

    Raises:
        ArgumentError: the values are not ids, or are a bare id.
    """
    try:
        content = to_lists(values, "stop_token_ids")
    except PromptError as error:
        raise ArgumentError(f"{where}: {error}") from None
    has_ids = isinstance(content, (Collection, Iterator)) and not isinstance(content, (*_TEXTS, Mapping))
    if not has_ids:
        such = [content] if type(content) is int and 0 <= content < 1 << 31 else [2]
        value = format_value(content)
        raise ArgumentError(
            f"{where}: stop_token_ids is {value}; give the ids that end a text, as {such}, or [] for none"
        )
    first = [*islice(content, _MAX_STOP_TOKENS + 1)]
    if len(first) > _MAX_STOP_TOKENS:
        raise ArgumentError(f"{where}: stop has more than {_MAX_STOP_TOKENS} ids; give those that end a text")
    return tuple(check_int(id, where, f"stop_token_ids[{i}]") for i, id in enumerate(first))


def make_step_ids(
    tokens: Sequence[int] | torch.Tensor, active_slots: Sequence[int], batch: int, vocabulary: int, device: torch.device
) -> torch.Tensor:
    """Return the token of each slot as the input of a step; entries of slots without a sequence are ignored.

    Raises:
        PromptError: an id is out of the vocabulary, or the number of ids differs from the number of slots.
    """
    if isinstance(tokens, torch.Tensor) and tokens.device.type == device.type != "cpu":
        if fault := find_fault(tokens):
            raise PromptError(f"tokens are a tensor that {fault}")
        if tokens.dtype not in _INTEGERS:
            raise PromptError(f"tokens are a tensor of {tokens.dtype}; give ids of tokens, as torch.int64")
        if tokens.shape != (batch,):
            raise PromptError(f"tokens have shape {tuple(tokens.shape)}; give ({batch},), one for each slot")
        wide = tokens if tokens.dtype in (torch.int32, torch.int64) else tokens.long()  # some cannot be clamped
        return wide.clamp(0, vocabulary - 1)
    content = to_lists(tokens, "the token of each slot")
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes)) or len(content) != batch:
        count = len(content) if isinstance(content, (list, tuple)) else format_value(content)
        raise PromptError(f"{count} tokens were given; give {batch}, one for each slot")
    active = to_id_list([content[slot] for slot in active_slots])
    check_vocabulary(active, vocabulary)
    ids = dict(zip(active_slots, active, strict=True))
    return torch.tensor([ids.get(slot, 0) for slot in range(batch)])
