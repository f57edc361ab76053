"""Sampling parameters of a request, with the names and defaults of vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from numbers import Real
from typing import Any

from interlace.core.arguments import check_int, format_value, safe_repr
from interlace.core.errors import ArgumentError, RequestError

_MAX_TOKENS = 1 << 31
_MAX_STOPS = 1024
_MAX_STOP_CHARACTERS = 1 << 14  # of all stop strings: each token is compared with them
_MAX_LOGPROBS = 20
_MAX_CHOICES = 1024
_LEAST_TEMPERATURE = 1e-5  # below it sampling is greedy, as in vLLM


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request.

    Attributes:
        n: number of texts to generate for the prompt.
        temperature: divisor of the logits; 0 for greedy sampling.
        top_p: total probability of the smallest set of tokens to sample from.
        top_k: number of most probable tokens to sample from; 0 or -1 for all.
        min_p: least probability of a token, relative to that of the most probable one.
        seed: seed of the random numbers, which then depend on nothing else but the position; None for a random one.
        max_tokens: maximum number of tokens to generate; None for as many as the engine's ``max_model_len`` admits.
        min_tokens: number of tokens before which the text does not end.
        stop: strings that end the text, and are not part of it.
        stop_token_ids: token ids that end the text, in addition to those of the model.
        ignore_eos: True to generate on after the model's own stop tokens.
        include_stop_str_in_output: True to keep the stop string, or the text of the stop token, in the text.
        presence_penalty, frequency_penalty: subtracted from the logits of tokens in the text: once, and for each
            occurrence; -2 to 2.
        repetition_penalty: divisor of positive and factor of negative logits of tokens in the prompt or the text.
        logit_bias: number added to the logit of each token id, -100 to 100.
        logprobs: number of most probable tokens whose log probabilities are returned with that of the chosen one;
            None for no log probabilities.
        json_schema: JSON schema that the text follows, as a mapping or as text.
        regex: regular expression that the text matches.
        skip_special_tokens: True to leave special tokens out of the text.

    Raises:
        RequestError: a value has the wrong type or is out of range; its ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | list[str] | tuple[str, ...] | None = None
    stop_token_ids: list[int] | tuple[int, ...] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_int("n", 1, _MAX_CHOICES)
        self._check_real("temperature", 0.0, 1e9)
        self._check_real("top_p", 1e-9, 1.0)
        self._check_int("top_k", -1, _MAX_TOKENS - 1)
        self._check_real("min_p", 0.0, 1.0)
        self._check_int("min_tokens", 0, _MAX_TOKENS - 1)
        for name, low, high in (
            ("seed", -(1 << 63), (1 << 64) - 1),
            ("max_tokens", 1, _MAX_TOKENS - 1),
            ("logprobs", 0, _MAX_LOGPROBS),
        ):
            if getattr(self, name) is not None:
                self._check_int(name, low, high)
        for name in ("presence_penalty", "frequency_penalty"):
            self._check_real(name, -2.0, 2.0)
        self._check_real("repetition_penalty", 1e-3, 1e3)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise self._refuse(name, "True or False")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}; give a smaller one",
                param="min_tokens",
            )
        self._check_stops()
        self._check_bias()
        self._check_grammar()

    @property
    def is_greedy(self) -> bool:
        """True if the most probable token is selected."""
        return self.temperature < _LEAST_TEMPERATURE

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Presence, frequency and repetition penalty."""
        return self.presence_penalty, self.frequency_penalty, self.repetition_penalty

    @cached_property
    def has_penalties(self) -> bool:
        """True if tokens of the text change the logits."""
        return self.penalties != (0, 0, 1)

    @cached_property
    def changes_logits(self) -> bool:
        """True if a request asks for more than the steps of a decoder sample themselves."""
        is_structured = self.json_schema is not None or self.regex is not None
        return bool(self.has_penalties or self.min_p or self.logit_bias or self.min_tokens or is_structured)

    def _refuse(self, name: str, wanted: str) -> RequestError:
        return RequestError(f"{name} is {format_value(getattr(self, name))}; give {wanted}", param=name)

    def _check_int(self, name: str, low: int, high: int) -> None:
        try:
            value = check_int(getattr(self, name), "SamplingParams", name)
        except ArgumentError as error:
            raise RequestError(str(error), param=name) from None
        if not low <= value <= high:
            raise RequestError(f"{name} is {safe_repr(value)}; give {low} to {high}", param=name)

    def _check_real(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not _is_real(value) or not low <= value <= high:
            raise RequestError(f"{name} is {safe_repr(value)}; give a number from {low:g} to {high:g}", param=name)

    def _check_stops(self) -> None:
        stops = self.stop_strings if isinstance(self.stop, (str, list, tuple)) or self.stop is None else (None,)
        if len(stops) > _MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
            raise self._refuse("stop", f"a string, or a list of at most {_MAX_STOPS}, none of them empty")
        if (count := sum(map(len, stops))) > _MAX_STOP_CHARACTERS:
            message = f"stop has {count} characters in all; give strings of at most {_MAX_STOP_CHARACTERS}"
            raise RequestError(message, param="stop")
        ids = () if self.stop_token_ids is None else self.stop_token_ids
        if not isinstance(ids, (list, tuple)) or len(ids) > _MAX_STOPS or not all(_is_id(id) for id in ids):
            raise self._refuse("stop_token_ids", f"a list of at most {_MAX_STOPS} token ids")

    def _check_bias(self) -> None:
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping) or not all(
            _is_id(id) and _is_real(value) and -100 <= value <= 100 for id, value in bias.items()
        ):
            raise self._refuse("logit_bias", "numbers from -100 to 100 by token id, such as {50256: -100}")

    def _check_grammar(self) -> None:
        if self.regex is not None and not isinstance(self.regex, str):
            raise self._refuse("regex", "a regular expression as a string")
        if self.json_schema is None:
            return
        if self.regex is not None:
            raise RequestError("regex and json_schema are both given; give one of them", param="regex")
        schema: object = self.json_schema
        try:
            schema = json.loads(schema) if isinstance(schema, str) else json.loads(json.dumps(schema))
        except (TypeError, ValueError, RecursionError):
            schema = None
        if not isinstance(schema, (dict, bool)):
            raise self._refuse("json_schema", "a JSON schema, such as {'type': 'object'}")


def _is_real(value: object) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_TOKENS
