"""Mutual exclusion of launches that occupy all SMs: two at once could each wait for an SM that the other holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_last_streams: dict[Any, Any] = {}  # device -> stream of the last such launch


@contextmanager
def serialize_launch(cuda: Any, device: Any) -> Iterator[None]:
    """Enqueue such a launch on the current stream within this context, after all others of this process.

    The next turn begins only once the launch is on its stream, because a stream that waits for another waits for what
    is on it at that time.

        thread 0    turn on stream a: [ launch ]
        thread 1                                 turn on stream b: [ b waits for a; launch ]

    Launches in captured graphs are not tracked: callers that replay graphs on several streams at once must order them.

    Args:
        cuda: ``torch.cuda``.
        device: device whose SMs the launch occupies.
    """
    if cuda.is_current_stream_capturing():
        yield
        return
    current = cuda.current_stream()
    with _lock:
        last = _last_streams.get(device)
        if last is not None and last != current:
            current.wait_stream(last)
        yield
        _last_streams[device] = current
