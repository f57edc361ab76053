"""The studio's server in this process, on a free port, for tests."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

JSON = "application/json"


@contextmanager
def running(view: Any = None) -> Iterator[int]:
    """Run the server for the block and yield its port; ``view`` is the view that it shows, if any."""
    from interlace.studio.server import build_server, listen

    with listen(0) as listening:
        server = build_server(listening, view)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def send(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str | None
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the response; headers of None are not sent, ``_`` stands for ``-``."""
    usual: dict[str, str | None] = {"host": f"127.0.0.1:{port}"}
    if method == "POST":
        usual |= {"origin": f"http://127.0.0.1:{port}", "content_type": JSON}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in (usual | headers).items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    if body is not None and "transfer_encoding" not in headers:
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def ask(port: int, name: str, data: Any) -> tuple[int, Any]:
    """Return status and JSON of the server's response."""
    status, _, body = send(port, "POST", f"/api/{name}", json.dumps(data).encode())
    return status, json.loads(body)
