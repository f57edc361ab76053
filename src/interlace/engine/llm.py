"""``LLM``: a model on disk, with texts in and out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from interlace.core.arguments import check_type, format_value
from interlace.core.errors import PromptError, RequestError
from interlace.engine.engine import Engine
from interlace.engine.outputs import CompletionOutput, RequestOutput
from interlace.engine.params import SamplingParams

_MAX_NUM_BATCHED_TOKENS = 8192  # as vLLM reads by default
Prompts = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


class LLM:
    """Language model with texts in and out.

    llm = LLM("SmolLM2-135M-Instruct.Q4_1.gguf")
    for result in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=32)):
        print(result.outputs[0].text)

    Args:
        model: GGUF file, or folder with config.json, tokenizer.json and safetensors files; or an ``Engine``.
        options: options of ``Engine.from_pretrained``; by default, steps read up to 8192 prompt tokens
            (``max_num_batched_tokens``), because nobody waits for a single token.

    Attributes:
        engine: engine that runs the model.

    Raises:
        ModelFileError, UnsupportedModelError, ArgumentError, NoDeviceError, DecodeError: see
            ``Engine.from_pretrained``.
    """

    def __init__(self, model: str | Path | Engine, **options: Any) -> None:
        check_type(model, (str, Path, Engine), "LLM", "model", "'FOLDER_OR_GGUF'")
        options = {"max_num_batched_tokens": _MAX_NUM_BATCHED_TOKENS, **options}
        self.engine = model if isinstance(model, Engine) else Engine.from_pretrained(model, **options)
        self._ids = count()

    def generate(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Return the texts that follow prompts, in the order of the prompts.

        Args:
            prompts: one text or list of token ids, or several.
            params: sampling parameters of all prompts, or of each; by default ``SamplingParams()``.

        Raises:
            RequestError, PromptError, LengthError, ArgumentError: see ``Engine.add_request``; nothing is generated.
        """
        each = _split_prompts(prompts)
        own = [*params] if isinstance(params, Sequence) else [params or SamplingParams()] * len(each)
        if len(own) != len(each):
            raise RequestError(f"{len(own)} params and {len(each)} prompts; give as many", param="params")
        ids: list[str] = []
        try:
            for prompt, sampling in zip(each, own, strict=True):
                request_id = f"llm-{next(self._ids)}"
                self.engine.add_request(request_id, prompt, sampling)
                ids.append(request_id)
            results: dict[str, RequestOutput] = {}
            while self.engine.has_unfinished:
                for news in self.engine.step():
                    _append(results, news)
            return [results[request_id] for request_id in ids]
        except BaseException:
            self._drop(ids)
            raise

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, *, tools: Any = None
    ) -> RequestOutput:
        """Return the model's answer in a chat.

        Args:
            messages: messages with ``role`` and ``content``.
            params: sampling parameters; by default ``SamplingParams()``.
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
        """
        request_id = f"llm-{next(self._ids)}"
        self.engine.add_request(request_id, prompt, params or SamplingParams())
        try:
            is_finished = False
            while not is_finished:
                for news in self.engine.step():
                    if news.request_id == request_id:
                        is_finished = news.finished
                        yield from news.outputs
        finally:
            self._drop([request_id])

    def _drop(self, ids: Sequence[str]) -> None:
        """End requests."""
        for request_id in ids:
            self.engine.abort(request_id)


def _split_prompts(prompts: Prompts) -> list[Any]:
    """Return a list of prompts, of which each is a text or a list of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) and not hasattr(prompts, "tolist"):
        raise PromptError(f"prompts are {format_value(prompts)}; give a text, a list of token ids, or several of them")
    if not len(prompts):
        return []
    is_single = not isinstance(prompts[0], (str, Sequence)) and not getattr(prompts[0], "ndim", 0)
    return [prompts] if is_single else [*prompts]


def _append(results: dict[str, RequestOutput], news: RequestOutput) -> None:
    """Add what is new of a request to its whole texts."""
    result = results.get(news.request_id)
    if result is None:
        result = RequestOutput(news.request_id, news.prompt_token_ids)
        results[news.request_id] = result
    result.num_cached_tokens, result.finished = news.num_cached_tokens, news.finished
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
