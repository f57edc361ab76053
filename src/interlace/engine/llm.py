"""``LLM``: a model on disk, with texts in and out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

from interlace.core.arguments import check_type, format_value
from interlace.core.errors import ArgumentError, DecodeError, ModelFileError, PromptError, RequestError
from interlace.engine.engine import Engine
from interlace.engine.outputs import CompletionOutput, RequestOutput
from interlace.engine.params import SamplingParams
from interlace.models.generation_settings import read_sampling_defaults

_MAX_NUM_BATCHED_TOKENS = 8192  # as vLLM reads by default
Prompts = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


class LLM:
    """Language model with texts in and out. Threads may share one: their requests run in the same steps.

    llm = LLM("SmolLM2-135M-Instruct.Q4_1.gguf")
    for result in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=32)):
        print(result.outputs[0].text)

    Args:
        model: GGUF file, or folder with config.json, tokenizer.json and safetensors files; or an ``Engine``.
        options: options of ``Engine.from_pretrained``; by default, steps read up to 8192 prompt tokens
            (``max_num_batched_tokens``), because nobody waits for a single token.

    Attributes:
        engine: engine that runs the model.
        default_params: sampling parameters where none are given: those of generation_config.json, as in vLLM; for an
            ``Engine``, ``SamplingParams()``.

    Raises:
        ModelFileError, UnsupportedModelError, ArgumentError, NoDeviceError, DecodeError: see
            ``Engine.from_pretrained``; a ModelFileError also for values of generation_config.json out of range.
    """

    def __init__(self, model: str | Path | Engine, **options: Any) -> None:
        check_type(model, (str, Path, Engine), "LLM", "model", "'FOLDER_OR_GGUF'")
        if isinstance(model, Engine) and options:
            raise ArgumentError(f"LLM: {', '.join(options)} cannot change an engine; give the options to the engine")
        options = {"max_num_batched_tokens": _MAX_NUM_BATCHED_TOKENS, **options}
        self.default_params = SamplingParams() if isinstance(model, Engine) else _read_default_params(Path(model))
        self.engine = model if isinstance(model, Engine) else Engine.from_pretrained(model, **options)
        self._ids = count()
        self._lock = RLock()
        self._news: dict[str, RequestOutput] = {}  # by request, since its caller last took any

    def generate(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Return the texts that follow prompts, in the order of the prompts.

        Args:
            prompts: one text or list of token ids, or several.
            params: sampling parameters of all prompts, or of each; by default ``default_params``.

        Raises:
            RequestError, PromptError, LengthError, ArgumentError: see ``Engine.add_request``; nothing is generated.
        """
        each = _split_prompts(prompts)
        own = [*params] if isinstance(params, Sequence) else [params] * len(each)
        if len(own) != len(each):
            raise RequestError(f"{len(own)} params and {len(each)} prompts; give as many", param="params")
        ids: list[str] = []
        try:
            for prompt, sampling in zip(each, own, strict=True):
                ids.append(self._add(prompt, sampling))
            for request_id in ids:
                while not self._news[request_id].finished:
                    self._step(request_id)
            return [self._news[request_id] for request_id in ids]
        finally:
            self._drop(ids)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, *, tools: Any = None
    ) -> RequestOutput:
        """Return the model's answer in a chat.

        Args:
            messages: messages with ``role`` and ``content``.
            params: sampling parameters; by default ``default_params``.
            tools: JSON schemas of functions that the model may call.

        Raises:
            RequestError: the model has no chat template.
            ModelFileError: the template fails.
            PromptError, LengthError, ArgumentError: see ``Engine.add_request``.
        """
        return self.generate(self.engine.render_chat(messages, tools), params)[0]

    def stream(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Iterator[CompletionOutput]:
        """Yield the parts of a text as they are generated. Closing the iterator ends the text.

        Raises:
            RequestError, PromptError, LengthError, ArgumentError: see ``Engine.add_request``.
            DecodeError: the text failed on its way, after the parts that were yielded.
        """
        request_id = self._add(prompt, params)
        try:
            is_finished = False
            while not is_finished:
                if not self._news[request_id].outputs:
                    self._step(request_id)
                with self._lock:
                    news, self._news[request_id] = self._news[request_id], RequestOutput(request_id, [])
                is_finished = news.finished
                yield from news.outputs
                if news.error is not None:
                    raise DecodeError(news.error)
        finally:
            self._drop([request_id])

    def _add(self, prompt: str | Sequence[int], params: SamplingParams | None) -> str:
        """Add a request, and return its id."""
        with self._lock:
            request_id = f"llm-{next(self._ids)}"
            self.engine.add_request(request_id, prompt, self.default_params if params is None else params)
            self._news[request_id] = RequestOutput(request_id, [])
            return request_id

    def _step(self, request_id: str) -> None:
        """Step, and keep what is new of each request; no effect if a request has ended."""
        with self._lock:
            if self._news[request_id].finished:
                return
            for news in self.engine.step():
                if news.request_id in self._news:
                    _append(self._news[news.request_id], news)

    def _drop(self, ids: Sequence[str]) -> None:
        """End requests."""
        with self._lock:
            for request_id in ids:
                self.engine.abort(request_id)
                self._news.pop(request_id, None)


def _read_default_params(model: Path) -> SamplingParams:
    """Return the sampling parameters of a model's generation config; raise ModelFileError if they make no sense."""
    try:
        return SamplingParams(**read_sampling_defaults(model))
    except RequestError as error:
        raise ModelFileError(f"generation_config.json of {str(model)!r}: {error}") from None


def _split_prompts(prompts: Prompts) -> list[Any]:
    """Return a list of prompts, of which each is a text or a list of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) and not getattr(prompts, "ndim", 0):
        raise PromptError(f"prompts are {format_value(prompts)}; give a text, a list of token ids, or several of them")
    if not len(prompts):
        return []
    is_single = not isinstance(prompts[0], (str, Sequence)) and not getattr(prompts[0], "ndim", 0)
    return [prompts] if is_single else [*prompts]


def _append(result: RequestOutput, news: RequestOutput) -> None:
    """Add what is new of a request to what is known of its texts."""
    result.prompt_token_ids, result.num_cached_tokens = news.prompt_token_ids, news.num_cached_tokens
    result.finished = news.finished
    result.error = news.error or result.error
    for part in news.outputs:
        whole = next((output for output in result.outputs if output.index == part.index), None)
        if whole is None:
            result.outputs.append(part)
            result.outputs.sort(key=lambda output: output.index)
            continue
        whole.text += part.text
        whole.token_ids += part.token_ids
        whole.finish_reason, whole.stop_reason = part.finish_reason, part.stop_reason
        if part.logprobs is not None:
            whole.logprobs = [*(whole.logprobs or ()), *part.logprobs]
