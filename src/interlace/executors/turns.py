"""Launches that hold all SMs take turns: two of them at once may each wait for an SM that the other has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_last: dict[Any, Any] = {}  # of each device, the stream of the last such launch


@contextmanager
def turn(cuda: Any, device: Any) -> Iterator[None]:
    """While it lasts such a launch is enqueued on the current stream, behind all others of this process.

    Nobody else's turn begins before the launch is on its stream: a stream that waits for another waits for what is
    there by then.

        thread 0    turn on stream a: [ launch ]
        thread 1                                 turn on stream b: [ b waits for a; launch ]

    Launches that stream captures hold are not known here: whoever replays them on several streams at once sees to it.

    Args:
        cuda: ``torch.cuda``.
        device: whose SMs they are.
    """
    if cuda.is_current_stream_capturing():
        yield
        return
    current = cuda.current_stream()
    with _lock:
        last = _last.get(device)
        if last is not None and last != current:
            current.wait_stream(last)
        yield
        _last[device] = current
