"""Two processes: this one runs the steps of an engine, another one serves HTTP (``serve/remote_engine``).

The server's process is told to end by signals that this one forwards, and it ends by itself when this one is gone:
its standard input then ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from interlace.core.errors import InterlaceError
from interlace.engine import Engine, RequestOutput
from interlace.serve.remote_engine import (
    ABORT,
    ADD,
    LOG_PROMPT,
    REPORT,
    EngineFacts,
    RemoteEngine,
    StepMessage,
    pack_outputs,
)
from interlace.serve.server import run_server
from interlace.serve.settings import ServerSettings

_COMMAND = f"from {__name__} import main; main()"
_SOURCE = Path(__file__).parents[2]
_SIGNALS = signal.SIGINT, signal.SIGTERM


def serve(
    engine: Engine, settings: ServerSettings, listening: socket.socket, report: Callable[[str], None]
) -> BaseException | None:
    """Answer requests until a signal ends the server; return the error if the engine or the server failed.

    Args:
        engine: the engine, whose steps run on this thread.
        settings: name, limits and defaults.
        listening: socket of the server, as ``listen`` returns it.
        report: function that gets a line on each fault of the server.
    """
    ours, theirs = Pipe()
    grammars, their_grammars = Pipe()
    files = listening, theirs, their_grammars
    facts = EngineFacts(engine.model_name, engine.tokenizer, engine.chat_template, engine.max_num_seqs, engine.limits)
    told = replace(settings, log_prompt=None), settings.log_prompt is not None, facts
    folders = [str(_SOURCE), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *(str(each.fileno()) for each in files)],
        stdin=subprocess.PIPE,
        pass_fds=[each.fileno() for each in files],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        start_new_session=True,  # signals of a terminal come to this process only, which forwards them
    )
    with process, ours, grammars:
        theirs.close()
        their_grammars.close()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, as its status will say
            process.stdin.write(pickle.dumps(told))
            process.stdin.flush()
        gc.collect()
        gc.freeze()  # later collections, in which no step is enqueued, need not look at the model's plans
        threading.Thread(target=_compile_grammars, args=(engine, grammars), daemon=True).start()
        with _forward_signals(process):
            failure = _run_steps(engine, ours, report, settings.log_prompt)
            ours.close()
            status = process.wait()
    return failure or (RuntimeError(f"the server's process ended with status {status}") if status else None)


def _run_steps(
    engine: Engine, connection: Connection, report: Callable[[str], None], log_prompt: Callable[[str], None] | None
) -> BaseException | None:
    """Take requests and run steps until the server is gone; return the error if the engine failed."""
    try:
        while True:
            refused: list[RequestOutput] = []
            while connection.poll(0 if engine.has_unfinished or refused else None):
                kind, *told = connection.recv()
                if kind == ADD:
                    try:
                        engine.add_request(*told)
                    except InterlaceError as error:  # which the limits of the engine do not cover
                        refused.append(RequestOutput(told[0], [], finished=True, error=str(error)))
                elif kind == ABORT:
                    engine.abort(*told)
                elif kind == REPORT:
                    report(*told)
                elif kind == LOG_PROMPT and log_prompt is not None:
                    log_prompt(*told)
            outputs = engine.step() if engine.has_unfinished else []
            connection.send(StepMessage(pack_outputs([*refused, *outputs]), engine.stats()))
    except (EOFError, ConnectionError):
        return None
    except BaseException as error:  # noqa: BLE001  whatever it is, no later step can be trusted
        with suppress(OSError):
            connection.send(StepMessage([], None, type(error).__name__))
        return error


def _compile_grammars(engine: Engine, connection: Connection) -> None:
    with suppress(EOFError, OSError):
        while True:
            params, error = connection.recv(), None
            try:
                engine.compile_grammar(params)
            except InterlaceError as refusal:
                error = refusal
            connection.send(error)


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward signals that end the server to its process, where this thread may handle them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Serve HTTP, with files and facts of an engine's process."""
    listening, connection, grammars = map(int, sys.argv[1:])
    settings, logs_prompts, facts = pickle.load(sys.stdin.buffer)
    engine: Any = RemoteEngine(facts, Connection(connection), Connection(grammars))
    if logs_prompts:
        settings = replace(settings, log_prompt=engine.log_prompt)
    threading.Thread(target=_end_with_engine, daemon=True).start()
    with socket.socket(fileno=listening) as own:
        failure = run_server(engine, settings, own, engine.report)
    sys.exit(failure is not None)


def _end_with_engine() -> None:
    """End this process when the engine's is gone: running requests get an error."""
    while os.read(sys.stdin.fileno(), 1):  # not through the buffer, which the interpreter locks when it ends
        pass
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
