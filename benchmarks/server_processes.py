"""Servers of OpenAI's API as processes: started together, waited for, and ended in any case."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from script import end_process

_LOG_LINES = 15
_PROGRESS_S = 15.0


class ServerError(RuntimeError):
    """A server did not come up, or died; the message ends with the end of its log."""


@dataclass(frozen=True)
class Server:
    """Server that was started.

    Attributes:
        name: name in the record.
        url: address.
        process: shell that runs it, which leads a session.
        log: file of its output.
    """

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def build_error(self, problem: str) -> ServerError:
        """Return the error of a problem, with the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return ServerError("\n".join([f"{self.name} {problem}; the end of {self.log}:", *lines]))

    def check(self) -> None:
        """Raise ``ServerError`` if the server has ended."""
        if self.process.poll() is not None:
            raise self.build_error(f"ended with exit status {self.process.returncode}")

    def answers(self) -> bool:
        """Return True if the server lists its models."""
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def read_version(self) -> str | None:
        """Return the version that the server reports at /version, None if it reports none."""
        try:
            version: str = httpx.get(f"{self.url}/version", timeout=2, trust_env=False).json()["version"]
            return version
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return None


@contextmanager
def run_servers(
    commands: Mapping[str, str], texts: Mapping[str, str], start_seconds: float, folder: Path | None = None
) -> Iterator[list[Server]]:
    """Run servers for the block, which begins when all of them answer.

    Args:
        commands: command line of each, by its name.
        texts: text that takes the place of each name in braces, next to ``{port}``.
        folder: folder of the logs; by default a temporary one, which is removed unless something is raised.

    Raises:
        ServerError: a server does not answer within ``start_seconds``, or ended.
    """
    logs = folder or Path(tempfile.mkdtemp(prefix="servers-"))
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in commands]
        numbers = [port.getsockname()[1] for port in ports]
    with ExitStack() as stack:
        servers = []
        for (name, command), port in zip(commands.items(), numbers, strict=True):
            for word, text in {**texts, "port": str(port)}.items():
                command = command.replace(f"{{{word}}}", text)  # commands have other braces too
            log = logs / f"{name}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command, shell=True, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            stack.callback(end_process, process)
            servers.append(Server(name, f"http://127.0.0.1:{port}", process, log))
        wait_for_servers(servers, start_seconds)
        yield servers
    if folder is None:
        shutil.rmtree(logs)


def wait_for_servers(servers: list[Server], seconds: float) -> None:
    """Wait until all servers answer, and print when each does and for which the others wait.

    Raises:
        ServerError: one does not within so many seconds, or has ended.
    """
    begin, waiting, shown = time.monotonic(), servers, 0.0
    while waiting:
        for server in waiting:
            server.check()
        now = time.monotonic() - begin
        up = [server for server in waiting if server.answers()]
        waiting = [server for server in waiting if server not in up]
        for server in up:
            print(f"  {server.name} answers after {now:.0f} s", flush=True)
        if waiting and now > seconds:
            raise waiting[0].build_error(f"does not answer within {seconds:g} s")
        if waiting and now > shown + _PROGRESS_S:
            shown = now
            print(f"  {now:.0f} s: waiting for {', '.join(server.name for server in waiting)}", flush=True)
        time.sleep(0.5)
