"""Engine: requests with texts in and out, on the slots of a decoder, with continuous batching.

A step is enqueued before the tokens of the step before it have reached the host, so that the device never waits:

    host      enqueue step 1   enqueue step 2, read tokens of 1   enqueue step 3, read tokens of 2
    device                     step 1                             step 2

A text that ends with token 1 is therefore known to have ended when step 2 is enqueued already. That step's token of it
is dropped, and its slot and blocks are free for step 3: later work on the same stream overwrites what step 2 wrote.
Texts that end by their number of tokens take no such extra step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from interlace.core.arguments import check_type, format_value, safe_repr
from interlace.core.errors import DecodeError, PromptError, RequestError
from interlace.engine.chats import render_chat
from interlace.engine.limits import RequestLimits
from interlace.engine.loading import load_for_engine, resolve_max_model_len
from interlace.engine.logits import LogitsSampler
from interlace.engine.logprobs import LogprobCopy
from interlace.engine.outputs import CompletionOutput, EngineStats, RequestOutput
from interlace.engine.params import SamplingParams
from interlace.engine.request import EngineRequest, EngineSequence
from interlace.engine.scheduler import Scheduler
from interlace.engine.structured import GrammarCompiler, GrammarMatcher
from interlace.engine.text import SequenceText
from interlace.models.chat import ChatTemplate
from interlace.models.llama import PAGE_TOKENS
from interlace.models.tokenizer import IncrementalDecoder, TextTokenizer
from interlace.nn.decoder.decoder import Decoder
from interlace.nn.decoder.files import Progress
from interlace.nn.decoder.session import DecoderSession, TokenCopy

_SEEDS = 1 << 31


class _Flight(NamedTuple):
    """Tokens on their way to the host: the sequences that get one, by slot, and the copies."""

    rows: list[tuple[int, EngineSequence]]
    copy: TokenCopy
    logprobs: LogprobCopy


class Engine:
    """Requests on a decoder. All methods are called from one thread.

    Args:
        decoder: decoder without sequences, which the engine keeps to itself until ``close``.
        tokenizer: tokenizer of the model; without one, prompts are token ids and texts are empty.
        model_name: name of the model.
        chat_template: template of chats, None if the model has none.
        max_model_len: most tokens of a prompt and its text; by default the decoder's ``max_seq_len``, at most one more,
            because the last token needs no position.
        max_num_batched_tokens: most prompt tokens that a step reads while other sequences decode.
        enable_prefix_caching: True to share full blocks between sequences that begin alike, if the decoder has blocks.
        can_build: False to build no launches of chunks for prompts; see ``Decoder.read_in_chunks``.
        runs_ahead: True to enqueue a step before the tokens of the last one are on the host; by default on a GPU.

    Attributes:
        max_num_seqs: number of sequences that run at once.
        max_model_len: most tokens of a prompt and its text.
        chat_template: template of chats, None if the model has none.
        limits: limits of requests.

    Raises:
        BusyError, SlotError: the decoder is in use.
        ArgumentError: a number is not positive, or ``max_model_len`` is too large.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: TextTokenizer | None = None,
        *,
        model_name: str = "model",
        chat_template: ChatTemplate | None = None,
        max_model_len: int | None = None,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        can_build: bool = True,
        runs_ahead: bool | None = None,
    ) -> None:
        check_type(decoder, Decoder, "Engine", "decoder", "Engine.from_pretrained('FOLDER_OR_GGUF')")
        self.decoder, self.tokenizer, self.model_name = decoder, tokenizer, model_name
        self.max_num_seqs, self.max_model_len = decoder.batch, resolve_max_model_len(max_model_len, decoder)
        self.chat_template = chat_template
        vocabulary, blocks = decoder.shape.vocabulary, decoder.num_blocks or None
        self.limits = RequestLimits(vocabulary, self.max_model_len, blocks, tokenizer is not None)
        self._session = DecoderSession(decoder, max_num_batched_tokens, can_build)
        self._scheduler = Scheduler(self._session, enable_prefix_caching)
        self._requests: dict[str, EngineRequest] = {}
        self._runs_ahead = decoder.device.type != "cpu" if runs_ahead is None else runs_ahead
        self._flights: list[_Flight] = []
        self._copies = [TokenCopy(decoder.batch, decoder.device) for _ in range(2)]
        self._news: dict[str, RequestOutput] = {}
        self._seeds = np.random.default_rng()
        self._sampler = LogitsSampler(self._session)
        self._grammars: GrammarCompiler | None = None
        if tokenizer is not None:
            self._grammars = GrammarCompiler(tokenizer, decoder.shape.vocabulary, decoder.stop_token_ids)
        self._arrivals = count()
        self._is_closed = False
        self._prompt_tokens = self._generation_tokens = 0

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        max_num_seqs: int | None = None,
        max_model_len: int | None = None,
        num_blocks: int | None = None,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        device: str | torch.device | None = None,
        progress: Progress = iter,
    ) -> Engine:
        """Load a GGUF file, or a folder with config.json, tokenizer.json and safetensors files.

        Args:
            max_num_seqs: number of sequences that run at once; by default 64 on a GPU and 8 on a CPU.
            max_model_len: most tokens of a prompt and its text; by default the model's maximum, at most 4096.
            num_blocks: number of 64-token blocks of KV cache that all sequences share; by default enough for all of
                them, or as many as fit in memory.
            max_num_batched_tokens, enable_prefix_caching: see ``Engine``.
            device: device of the model; by default the current GPU, if there is one.
            progress: iterator over the names of the weights, and of launches, which may display the progress.

        Raises:
            ModelFileError: the model or its tokenizer is missing or damaged.
            UnsupportedModelError: the model is not of the Llama family.
            ArgumentError, NoDeviceError, DecodeError: see ``Decoder.from_pretrained``.
        """
        check_type(model, (str, Path), "Engine.from_pretrained", "model", "'FOLDER_OR_GGUF'")
        loaded = load_for_engine(model, max_num_seqs, max_model_len, num_blocks, device, progress)
        return cls(
            loaded.decoder,
            loaded.tokenizer,
            model_name=loaded.name,
            chat_template=loaded.chat_template,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
        )

    def close(self) -> None:
        """Abort all requests, and release the decoder; the engine takes no more requests."""
        self._is_closed = True
        for request_id in [*self._requests]:
            self.abort(request_id)
        self._session.close()

    def build_launches(self, progress: Progress = iter) -> None:
        """Build the launches that prompts may need now: otherwise all requests wait seconds when one is first needed.

        Args:
            progress: iterator over the names of the launches, which may display the progress.

        Raises:
            LaunchEndedError: a launch ended itself, and with it the CUDA context.
        """
        self._session.build_chunks(progress)

    @property
    def has_unfinished(self) -> bool:
        """True if ``step`` has anything left to do or to return."""
        return bool(self._requests or self._flights or self._news)

    def stats(self) -> EngineStats:
        """Return the counters of the engine."""
        scheduler = self._scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            block_usage=scheduler.block_usage,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
            prefix_cache_queries_total=scheduler.num_queries,
            prefix_cache_hits_total=scheduler.num_hits,
            num_preemptions_total=scheduler.num_preemptions,
        )

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the token ids of a chat that awaits the model's answer.

        Takes some 50 ms, most of them in another process, so that a server calls it from another thread.

        Args:
            messages: messages with ``role`` and ``content``, of JSON types only.
            tools: JSON schemas of functions that the model may call.

        Raises:
            RequestError: the model has no tokenizer or no chat template, or there are no messages, or they are no JSON.
            ModelFileError: the template fails.
        """
        return render_chat(self.chat_template, self.tokenizer, self.model_name, messages, tools)

    def compile_grammar(self, params: SamplingParams) -> GrammarMatcher | None:
        """Compile the schema or the expression of a request, which may take a second, and keep it.

        ``add_request`` calls this method; a server may call it before, from any thread.

        Raises:
            RequestError: the schema or the expression is invalid or too complex, or ``llguidance`` is missing.
        """
        if params.json_schema is None and params.regex is None:
            return None
        if self._grammars is None:
            param = "regex" if params.json_schema is None else "json_schema"
            raise RequestError(f"{param} needs a tokenizer, and the engine has none; leave it out", param=param)
        return self._grammars.compile(params)

    def add_request(self, request_id: str, prompt: str | Sequence[int], params: SamplingParams) -> None:
        """Add a request; later steps generate its texts.

        Args:
            request_id: id that no unfinished request has.
            prompt: text, or token ids.
            params: sampling parameters.

        Raises:
            RequestError: the id is in use, or the engine does not support a parameter.
            PromptError: the prompt is empty, or has ids out of the vocabulary.
            LengthError: the prompt leaves no room for a token.
            ArgumentError: ``params`` is no ``SamplingParams``.
            DecodeError: the engine is closed.
        """
        if self._is_closed:
            raise DecodeError("the engine is closed, and its decoder free for others; make another engine")
        request = self._make_request(request_id, prompt, params)
        self._requests[request_id] = request
        self._scheduler.waiting.extend(request.sequences)
        self._prompt_tokens += len(request.prompt)

    def abort(self, request_id: str) -> None:
        """End a request; the next step returns its outputs with finish reason ``abort``. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for sequence in request.sequences:
            if not sequence.is_finished:
                output = CompletionOutput(sequence.index)
                sequence.finish(output, "abort")
                self._report(sequence, output)

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Enqueue a step, and return what is new of each request since the last call.

        Raises:
            HangError: the watchdog ended a wait of an earlier step.
            LaunchEndedError: an earlier step ended itself, and with it the CUDA context.
        """
        self._scheduler.admit()
        self._scheduler.secure_blocks()
        rows = self._enqueue_step()
        self._collect()
        if rows:
            self._sampler.sample(rows)
            logprobs = LogprobCopy(rows, self.decoder.logits, self.decoder.next)
            copy = self._copies.pop()
            copy.enqueue(self.decoder.next)
            self._flights.append(_Flight(rows, copy, logprobs))
            self._end_by_length(rows)
        if not self._runs_ahead:
            self._collect()
        news, self._news = [*self._news.values()], {}
        return news

    def _enqueue_step(self) -> list[tuple[int, EngineSequence]]:
        """Enqueue a step, and return the sequences that it makes a token for, by slot."""
        running = self._scheduler.running
        if not running:
            return []
        readers = self.decoder.unread
        self._session.step()
        unread = self.decoder.unread
        if readers:
            lengths = self.decoder.lengths
            for slot in readers:
                self._scheduler.enter_blocks(running[slot], lengths[slot])
        return [(slot, sequence) for slot, sequence in running.items() if slot not in unread]

    def _end_by_length(self, rows: list[tuple[int, EngineSequence]]) -> None:
        """Free the slots of the sequences whose last token is enqueued."""
        for _, sequence in rows:
            sequence.num_enqueued += 1
            if sequence.num_enqueued >= sequence.request.max_tokens and sequence.slot is not None:
                self._scheduler.release(sequence)

    def _collect(self) -> None:
        """Wait for the tokens that are on their way to the host, and give them to their sequences."""
        for flight in self._flights:
            tokens = flight.copy.read()
            for slot, sequence in flight.rows:
                if not sequence.is_finished:
                    self._generation_tokens += 1
                    output = sequence.append(tokens[slot])
                    if slot in flight.logprobs.rows:
                        output.logprobs = [flight.logprobs.read(slot, tokens[slot], self.tokenizer)]
                    # The step that made this token has written the keys and values of all tokens before it.
                    num_cached = len(sequence.tokens) - 1
                    if not num_cached % PAGE_TOKENS:
                        self._scheduler.enter_blocks(sequence, num_cached)
                    self._report(sequence, output)
            self._copies.append(flight.copy)
        self._flights.clear()

    def _report(self, sequence: EngineSequence, output: CompletionOutput) -> None:
        """Add what is new of a sequence to the news; a sequence that has ended frees its slot."""
        request = sequence.request
        news = self._news.get(request.request_id)
        if news is None:
            news = RequestOutput(request.request_id, request.prompt, request.num_cached_tokens)
            self._news[request.request_id] = news
        news.outputs.append(output)
        news.error = request.error
        if sequence.is_finished:
            self._scheduler.release(sequence)
            if request.is_finished:
                news.finished = True
                del self._requests[request.request_id]

    def _make_request(self, request_id: str, prompt: str | Sequence[int], params: SamplingParams) -> EngineRequest:
        if not isinstance(request_id, str):
            raise RequestError(f"request_id is {format_value(request_id)}; give a string", param="request_id")
        if request_id in self._requests:
            raise RequestError(f"request_id {request_id!r} is in use; give another", param="request_id")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise PromptError(f"the prompt is {safe_repr(prompt[:40])}, and the engine has no tokenizer; give ids")
            prompt = self.tokenizer.encode(prompt)
        tokens = self.limits.read_prompt(prompt)
        max_tokens = self.limits.count_new_tokens(tokens, params)
        grammar = self.compile_grammar(params)
        ends = frozenset(() if params.ignore_eos else self.decoder.stop_token_ids) | {*(params.stop_token_ids or ())}
        request = EngineRequest(request_id, tokens, params, ends, max_tokens)
        seed = int(self._seeds.integers(_SEEDS)) if params.seed is None else params.seed % _SEEDS
        for index in range(params.n):
            text = None
            if self.tokenizer is not None:
                stream = IncrementalDecoder(self.tokenizer, params.skip_special_tokens)
                text = SequenceText(stream, params.stop_strings, params.include_stop_str_in_output)
            sequence = EngineSequence(request, index, text, seed, list(tokens), next(self._arrivals))
            sequence.grammar = None if grammar is None else grammar.copy()
            request.sequences.append(sequence)
        return request
