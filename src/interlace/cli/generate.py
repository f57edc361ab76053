"""``interlace generate``: the text that a model writes after a prompt, and its speed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import typer

from interlace.cli.console import BadInput, convert_to_bad_input, note, show_progress, show_spinner
from interlace.cli.machine import HostMachine, find_machine, list_versions
from interlace.cli.names import DEVICES, Device
from interlace.cli.options import JsonFile, make_option, register_command
from interlace.cli.outputs import save_json
from interlace.core.errors import NoDeviceError
from interlace.models.chat import render_chat_prompt
from interlace.models.generation_settings import SAMPLING_DEFAULTS, read_sampling_defaults
from interlace.models.pretrained import PretrainedModel, load_model_quietly
from interlace.models.tokenizer import TextTokenizer, open_tokenizer

#: Positions of the KV cache, of which the decoder gets a multiple. A step is planned and compiled once for each number
#: of positions and then cached, so that most prompts of a model find it.
_POSITIONS = 1024


class _Parts(NamedTuple):
    """Modules that need PyTorch: ``interlace.engine`` and ``interlace.nn``."""

    engine: Any
    nn: Any


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling parameters, by their names in ``SamplingParams``; None for the default."""

    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="0 is greedy, 1 samples as trained.")
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="Sample from the K likeliest tokens; 0 for all.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", metavar="P", help="Sample from the fewest tokens with total probability P."),
    ] = None
    min_p: Annotated[
        float | None, typer.Option("--min-p", metavar="P", help="Least probability, relative to the likeliest token.")
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", metavar="X", help="Above 1, avoids tokens of the prompt and the text."),
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option("--presence-penalty", metavar="X", help="Above 0, avoids tokens of the text.")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option("--frequency-penalty", metavar="X", help="The same, for each occurrence.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends the text; may be repeated.")
    ] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed samples the same text.")] = 0


@dataclass(frozen=True)
class _GeneratedText:
    """Result of a generation.

    Attributes:
        ids: ids of the new tokens, without the one that ends the text.
        text: their text.
        prompt_s: seconds to the first new token.
        seconds: seconds from the first new token to the last.
    """

    ids: list[int]
    text: str
    prompt_s: float
    seconds: float

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first token; None if there is only one."""
        return (len(self.ids) - 1) / self.seconds if len(self.ids) > 1 and self.seconds > 0 else None


def register(app: typer.Typer) -> None:
    """Add the command."""

    @register_command(app, "generate")
    def generate(
        model: Annotated[
            Path,
            typer.Option(
                "--model",
                metavar="FOLDER_OR_GGUF",
                help="A GGUF file, or a folder with config.json, tokenizer.json and safetensors files.",
            ),
        ],
        prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What the text begins with.")],
        sampling: SamplingOptions,
        chat: Annotated[
            bool, typer.Option("--chat", help="Answer the prompt, in the form of the model's chat template.")
        ] = False,
        max_new_tokens: Annotated[
            int, typer.Option("--max-new-tokens", min=1, max=1 << 20, metavar="N", help="Most tokens to write.")
        ] = 128,
        device: Annotated[Device | None, make_option(DEVICES, "--device", "DEVICE", "Where to run")] = None,
        json: JsonFile = None,
    ) -> None:
        """Write what follows a prompt, by a model of the Llama family, token by token.

        Runs in bf16 on a GPU and in fp32 on a CPU. The text ends with the model's own end token, or after
        --max-new-tokens. Sampling is as generation_config.json says where options do not, else greedy.

        Behind the text: tokens per second, and on a GPU the share of the floor, the time in which a step could read
        its weights and its cache. Needs the extras: pip install -e '.[gpu,generate]'.

        Example: interlace generate --model SmolLM2-135M-Instruct.Q4_1.gguf --prompt "The capital of France is"
        """
        parts = _import_parts()
        if json is not None and json.stream is None and _is_part(json.path, model):
            raise BadInput(f"{str(json.path)!r} is a file of the model's folder; give the record another name")
        with convert_to_bad_input():
            params = _build_params(parts, model, sampling, max_new_tokens)
            trained = load_model_quietly(model, applied=SAMPLING_DEFAULTS)
            for notice in trained.notices:
                note(notice)
            tokenizer = open_tokenizer(trained.path, trained.gguf)
            text = render_chat_prompt(trained.path, trained.gguf, prompt) if chat else prompt
            ids = tokenizer.encode(text, whole=chat)
        if not ids or not prompt:  # an empty prompt may still have initial ids
            raise BadInput("the prompt has no tokens; write something, such as --prompt 'Once upon a time'")
        _check_length(trained, len(ids), max_new_tokens)
        machine = find_machine(device)
        llm = _load_llm(parts, trained, tokenizer, machine, len(ids), max_new_tokens)
        written = _write(llm, ids, params)
        decoder = llm.engine.decoder
        floor_us = _compute_floor_us(decoder, machine, len(ids) + len(written.ids) / 2)
        if json is not None:
            save_json(json, _make_record(model, machine, prompt, ids, written, decoder, floor_us))
        _report_speed(written, len(ids), floor_us, machine)


def _list_limits(trained: PretrainedModel) -> list[tuple[int, str]]:
    """Return the numbers of positions that limit a text, with their descriptions, in ascending order."""
    limits = [(trained.max_positions, "positions that the model was made for")]
    if trained.window is not None:
        limits.append((trained.window, "positions of the model's sliding window, beyond which a decoder does not go"))
    return sorted(limits)


def _check_length(trained: PretrainedModel, prompt: int, more: int) -> None:
    """Raise BadInput for a text with more positions than the model, or its sliding window, supports."""
    most, what = _list_limits(trained)[0]
    if prompt + more - 1 > most:
        raise BadInput(
            f"a prompt of {prompt} tokens and {more} new ones are more than the {most} {what}; shorten the prompt or "
            "give fewer with --max-new-tokens"
        )


def _is_part(path: Path, model: Path) -> bool:
    """Return True if a path names an existing file in a model's folder."""
    return os.path.isfile(path) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(model))


def _import_parts() -> _Parts:
    try:
        from interlace import engine, nn
    except ImportError as error:
        raise NoDeviceError(str(error)) from None
    return _Parts(engine, nn)


def _build_params(parts: _Parts, model: Path, options: SamplingOptions, max_tokens: int) -> Any:
    """Return the sampling parameters: options, else the model's defaults, else greedy ones."""
    given = {name: value for name, value in asdict(options).items() if value is not None}
    return parts.engine.SamplingParams(
        **{"temperature": 0.0, **read_sampling_defaults(model), **given}, max_tokens=max_tokens
    )


def _load_llm(
    parts: _Parts, trained: PretrainedModel, tokenizer: TextTokenizer, machine: HostMachine, prompt: int, more: int
) -> Any:
    """Load the model for one text: with a slot of its own memory, and no launches of batches or chunks."""
    capacity = -(-(prompt + more) // _POSITIONS) * _POSITIONS
    with ExitStack() as after, convert_to_bad_input():

        def list_with_progress(names: Iterable[str]) -> Iterator[str]:
            yield from show_progress(names, f"reading {trained.path.name}", len(trained.names))
            after.enter_context(show_spinner("making its steps ready"))

        decoder = parts.nn.Decoder.from_pretrained(
            trained,
            max_seq_len=min(capacity, _list_limits(trained)[0][0]),
            device=machine.device_name,
            progress=list_with_progress,
        )
        engine = parts.engine.Engine(
            decoder, tokenizer, max_model_len=prompt + more, max_num_batched_tokens=prompt, can_build=False
        )
        return parts.engine.LLM(engine)


def _write(llm: Any, ids: list[int], params: Any) -> _GeneratedText:
    """Stream the text to standard output."""
    made: list[int] = []
    pieces: list[str] = []
    times = [perf_counter()]
    for part in llm.stream(ids, params):
        tokens = [token for token in part.token_ids if token not in llm.engine.decoder.stop_token_ids]
        if tokens:
            times.append(perf_counter())
            made += tokens
        pieces.append(part.text)
        typer.echo(_escape_text(part.text), nl=False)
    typer.echo("")
    first = times[1] if made else perf_counter()
    return _GeneratedText(made, "".join(pieces), first - times[0], times[-1] - first if made else 0.0)


def _escape_text(text: str) -> str:
    """Return a text with its line breaks and all other control characters escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _compute_floor_us(decoder: Any, machine: HostMachine, length: float) -> float | None:
    """Return the microseconds that a step needs at least to read its weights and this long a KV cache."""
    if not machine.cuda:
        return None
    moved = decoder.explain().weight_bytes + decoder.cache.position_bytes * length
    return float(moved / machine.spec.dram_bytes_per_s * 1e6)


def _make_record(
    model: Path,
    machine: HostMachine,
    prompt: str,
    ids: list[int],
    written: _GeneratedText,
    decoder: Any,
    floor_us: float | None,
) -> dict[str, object]:
    return {
        "model": str(model),
        "device": {"name": machine.name, "kind": "cuda" if machine.cuda else "cpu"},
        "versions": list_versions(),
        "runs": decoder.explain().executor or "torch",
        "prompt": prompt,
        "prompt_ids": ids,
        "text": written.text,
        "ids": written.ids,
        "prompt_s": written.prompt_s,
        "tokens_per_s": written.tokens_per_s,
        "floor_us": floor_us,
    }


def _report_speed(written: _GeneratedText, prompt: int, floor_us: float | None, machine: HostMachine) -> None:
    rate = written.tokens_per_s
    speed = "" if rate is None else f", {rate:.4g} tokens/s"
    known = rate is not None and floor_us is not None
    share = f", {floor_us * 1e-6 * rate:.0%} of the floor ({floor_us:.4g} us a step)" if known else ""  # type: ignore[operator]
    read = f"{prompt} tokens read in {written.prompt_s:.3g} s"
    note(f"{read}, {len(written.ids)} written{speed}{share}, on {machine.name}")
