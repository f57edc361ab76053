"""Launches that hold all SMs take turns: two of them at once may each wait for an SM that the other has."""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
_last: dict[Any, Any] = {}  # of each device, the stream of the last such launch


def take_turn(cuda: Any, device: Any) -> None:
    """Put the current stream behind all such launches of this process on another stream.

    Launches that stream captures hold are not known here: whoever replays them on several streams at once sees to it.

    Args:
        cuda: ``torch.cuda``.
        device: whose SMs they are.
    """
    if cuda.is_current_stream_capturing():
        return
    current = cuda.current_stream()
    with _lock:
        last = _last.get(device)
        if last is not None and last != current:
            current.wait_stream(last)
        _last[device] = current
