"""Structured output: texts that follow a JSON schema or match a regular expression, by the package ``llguidance``.

A matcher says after each token which tokens may come next, as a mask of one bit for each token of the vocabulary.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import RequestError
from interlace.engine.params import SamplingParams
from interlace.models.tokenizer import TextTokenizer

_MAX_CHARACTERS = 1 << 17  # of a schema or an expression
_MAX_KEPT = 64  # grammars
#: Limits of llguidance: symbols of a grammar, and work on its expressions when it is compiled and for each mask.
_MAX_SYMBOLS, _MAX_COMPILE_WORK, _MAX_STEP_WORK = 20_000, 100_000, 100_000  # compiles within 0.3 s
_LEGIBLE = 300  # characters of an error message


class GrammarMatcher:
    """State of one text.

    Args:
        matcher: ``llguidance.LLMatcher``.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """True if the text is complete, and no token may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str | None:
        """Reason why no text can follow the grammar, such as a limit that was reached; None if there is none."""
        return _shorten(self._matcher.get_error()) if self._matcher.is_error() else None

    def copy(self) -> GrammarMatcher:
        """Return a matcher in the same state."""
        return GrammarMatcher(self._matcher.deep_copy())

    def consume(self, token: int) -> None:
        """Add a token to the text."""
        self._matcher.consume_token(token)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Set the bits (vocabulary / 32,) of the tokens that may come next."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)


class GrammarCompiler:
    """Compiler of grammars for a tokenizer; safe to call from several threads.

    Args:
        tokenizer: tokenizer of the model.
        vocabulary: number of logits of the model.
        stop_token_ids: token ids that end a text.
    """

    def __init__(self, tokenizer: TextTokenizer, vocabulary: int, stop_token_ids: tuple[int, ...]) -> None:
        self._tokenizer, self._vocabulary, self._stop = tokenizer, vocabulary, stop_token_ids
        self._lock = Lock()
        self._ll_tokenizer: Any = None
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def compile(self, params: SamplingParams) -> GrammarMatcher | None:
        """Return the matcher of a request; None if its text is free.

        Raises:
            RequestError: the schema or the expression is invalid or too complex, or ``llguidance`` is missing.
        """
        if params.regex is not None:
            key = "regex", params.regex
        elif params.json_schema is not None:
            schema = params.json_schema
            key = "json_schema", schema if isinstance(schema, str) else json.dumps(schema)
        else:
            return None
        with self._lock:
            matcher = self._kept.pop(key, None) or self._compile(*key)
            self._kept[key] = matcher
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return GrammarMatcher(matcher.deep_copy())

    def _compile(self, param: str, text: str) -> Any:
        try:
            import llguidance
        except ImportError as error:
            message = f"{param} needs llguidance: {error}; `pip install -e '.[generate]'`"
            raise RequestError(message, param=param) from None
        if len(text) > _MAX_CHARACTERS:
            raise RequestError(
                f"{param} has {len(text)} characters; give one of at most {_MAX_CHARACTERS}", param=param
            )
        types: Any = llguidance.LLMatcher
        try:
            if self._ll_tokenizer is None:
                source, ends = self._tokenizer.to_json(), [*self._stop] or None
                self._ll_tokenizer = llguidance.LLTokenizer(source, n_vocab=self._vocabulary, eos_token=ends)
            grammar = types.grammar_from_regex(text) if param == "regex" else types.grammar_from_json_schema(text)
            limits = llguidance.LLParserLimits(
                max_grammar_size=_MAX_SYMBOLS,
                initial_lexer_fuel=_MAX_COMPILE_WORK,
                step_lexer_fuel=_MAX_STEP_WORK,
                verbose_errors=False,
            )
            matcher = types(self._ll_tokenizer, grammar, log_level=0, limits=limits)
        except ValueError as error:
            raise RequestError(f"{param} is invalid: {_shorten(str(error))}", param=param) from None
        first = GrammarMatcher(matcher.deep_copy())
        first.fill_mask(np.zeros(-(-self._vocabulary // 32), np.int32))  # may reach a limit
        if matcher.is_error() or first.error is not None:
            reason = _shorten(matcher.get_error() or first.error or "")
            raise RequestError(f"{param} is invalid or too complex: {reason}", param=param)
        return matcher


def _shorten(message: str) -> str:
    """Return the beginning of a message in one line."""
    return " ".join(message.split())[:_LEGIBLE]
