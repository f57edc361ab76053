"""``interlace serve``: a model behind OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from interlace.cli.console import BadInput, convert_to_bad_input, fail, note, print_line, show_progress, show_spinner
from interlace.cli.options import register_command
from interlace.models.generation_settings import read_sampling_defaults

_MAX_COUNT = 1 << 24


class _Parts(NamedTuple):
    """Modules that need extras: ``interlace.engine``, and those of ``interlace.serve``."""

    engine: Any
    server: Any
    process: Any


def register(app: typer.Typer) -> None:
    """Add the command."""

    @register_command(app, "serve")
    def serve(
        model: Annotated[
            Path,
            typer.Argument(
                metavar="FOLDER_OR_GGUF",
                help="A GGUF file, or a folder with config.json, tokenizer.json and safetensors files.",
            ),
        ],
        host: Annotated[
            str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0 lets other machines in.")
        ] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 for any free one.")] = 8000,
        max_num_seqs: Annotated[
            int | None,
            typer.Option(
                "--max-num-seqs",
                min=1,
                max=_MAX_COUNT,
                help="Sequences that run at once; by default 64 on a GPU, 8 on a CPU.",
            ),
        ] = None,
        max_model_len: Annotated[
            int | None,
            typer.Option(
                "--max-model-len",
                min=1,
                max=_MAX_COUNT,
                help="Most tokens of a prompt and its answer; by default the model's, at most 4096.",
            ),
        ] = None,
        max_num_batched_tokens: Annotated[
            int,
            typer.Option(
                "--max-num-batched-tokens",
                min=1,
                max=_MAX_COUNT,
                help="Most prompt tokens in a step: fewer keep other answers flowing, more begin sooner.",
            ),
        ] = 512,
        api_key: Annotated[
            str | None,
            typer.Option(
                "--api-key",
                envvar="INTERLACE_API_KEY",
                metavar="KEY",
                help="Key that clients must send; INTERLACE_API_KEY keeps it out of lists of processes.",
            ),
        ] = None,
        served_model_name: Annotated[
            str | None,
            typer.Option("--served-model-name", metavar="NAME", help="Name in requests; by default that of the file."),
        ] = None,
        log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Print prompts on stderr.")] = False,
    ) -> None:
        """Serve a model of the Llama family to clients of OpenAI's API.

        Clients take the printed address as base_url; a curl command that tries it is printed too.

        The server has /v1/chat/completions and /v1/completions, whole and streamed, with tools, JSON schemas and log
        probabilities; /v1/models; /health; and /metrics for Prometheus. Requests that arrive together share the steps
        of the model. A field that is not supported is refused by name.

        Ctrl-C or SIGTERM lets running requests finish; a second one ends them. Runs in bf16 on a GPU and in fp32 on a
        CPU. Needs the extras: pip install -e '.[gpu,generate,serve]'.

        Example: interlace serve SmolLM2-135M-Instruct.Q4_1.gguf

        Example: interlace serve Llama-3.2-1B-Instruct --port 9000 --max-model-len 8192 --max-num-seqs 32
        """
        if api_key is not None and not (api_key and api_key.isprintable()):
            raise BadInput("--api-key is empty or not printable, so that no client can send it; give another")
        note(f"loading {model}")
        parts = _import_parts()
        try:
            listening = parts.server.listen(host, port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(
                f"cannot listen on {host} port {port}: {reason}; choose others with --host, --port"
            ) from None
        with listening:
            engine = _load_engine(
                parts,
                model,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                max_num_batched_tokens=max_num_batched_tokens,
            )
            settings = parts.server.ServerSettings(
                served_model_name or engine.model_name or model.resolve().name,
                api_key=api_key,
                default_params=_read_defaults(parts, model),
                log_prompt=(lambda text: note(f"prompt: {text}")) if log_prompts else None,
            )
            _print_address(listening, settings.model_name, engine.chat_template is not None, api_key is not None)
            failure = parts.process.serve(engine, settings, listening, note)
        if failure is not None:
            raise failure


def _import_parts() -> _Parts:
    try:
        from interlace import engine
        from interlace.serve import process, server
    except ImportError as error:
        raise fail(
            f"the server needs {error.name}; install it with: pip install -e '.[gpu,generate,serve]'", 1
        ) from None
    return _Parts(engine, server, process)


def _load_engine(parts: _Parts, model: Path, **options: Any) -> Any:
    with ExitStack() as after, convert_to_bad_input():

        def list_with_progress(names: Iterable[str]) -> Iterator[str]:
            known = [*names]
            after.close()  # the spinner of earlier names
            yield from show_progress(known, f"loading {model.name}", len(known))
            after.enter_context(show_spinner("making its steps ready"))

        engine = parts.engine.Engine.from_pretrained(model, **options, progress=list_with_progress)
        engine.build_launches(list_with_progress)
        return engine


def _read_defaults(parts: _Parts, model: Path) -> dict[str, Any]:
    """Return the sampling parameters that hold where a request gives none."""
    with convert_to_bad_input():
        defaults = read_sampling_defaults(model)
        parts.engine.SamplingParams(**defaults)  # a file that makes no sense is refused before any request
    return defaults


def _print_address(listening: Any, name: str, is_chat: bool, has_key: bool) -> None:
    """Print the address, and a command that tries it."""
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    path = "chat/completions" if is_chat else "completions"
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]} if is_chat else {"prompt": "Hello"}
    key = """ -H "authorization: Bearer $INTERLACE_API_KEY\"""" if has_key else ""
    print_line(f"{address}/v1 serves {name} (Ctrl-C ends it)")
    data = json.dumps({"model": name, **prompt}).replace("'", "'\\''")
    print_line(f"curl {address}/v1/{path} -H 'content-type: application/json'{key} -d '{data}'")
