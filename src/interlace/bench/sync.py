"""Synchronisation costs on an idle GPU: a post, waits, a hand-off between SMs, a ticket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from interlace.core.errors import HangError
from interlace.executors.gpu import open_device
from interlace.kernels.abi import ITEM, RECORD, WAIT

#: Rooms and modules that these costs depend on.
MEASURES = ("kernels/abi", "kernels/microbench.py", "kernels/primitives/semaphore.py")
_ROUNDS, _REPEATS = 1000, 11


def measure_costs() -> Mapping[str, float]:
    """Measure costs in nanoseconds: the median over repeats of the mean over 1,000 rounds, as seen by one thread block.

    post
        a barrier and a release add, repeated on one counter.
    satisfied wait
        reading a row of waits, one poll of one semaphore, and a barrier.
    satisfied wait of 112
        the same, polling 112 semaphores at once.
    one-way hand-off
        half of a ping-pong between two SMs: from before a post to after the wait that it ends.
    ticket
        claiming a ticket and broadcasting it to all threads.

    Raises:
        NoDeviceError: there is no CUDA device.
        HangError: the two blocks did not run concurrently.
    """
    torch, device = open_device("cuda")
    from triton.language import constexpr

    from interlace.kernels.microbench import time_chain, time_ping_pong
    from interlace.kernels.primitives.semaphore import Sync

    def zeros(n: int, dtype: Any = torch.int32) -> Any:
        return torch.zeros(n, dtype=dtype, device=device)

    samples: dict[str, list[float]] = {}
    for _ in range(_REPEATS):
        waits = np.zeros(3, WAIT.dtype)
        waits["first"], waits["count"], waits["stride"], waits["threshold"] = (0, 1, 2), (1, 1, 112), 1, (1, 1, 0)
        rows = torch.tensor(waits.view(np.int32), device=device)
        items, ns = zeros(ITEM.columns), zeros(8, torch.int64)
        sync = Sync(
            items=items,
            waits=rows,
            semaphores=zeros(128),
            arrivals=zeros(1, torch.int64),
            workspace=zeros(1, torch.float32),
            done=zeros(8),
            fault=zeros(1),
            record=zeros(RECORD.columns),
            trace=zeros(1, torch.int64),
            starts=zeros(1, torch.int64),
            first=0,
            programs=1,
            WAITS=constexpr(True),
            CHUNKED=constexpr(False),
            SPLIT=constexpr(1),
            SLOT=constexpr(0),
            TRACE=constexpr(False),
            JITTER_NS=constexpr(0),
            TIMEOUT_NS=constexpr(2_000_000_000),
            INTERPRET=constexpr(False),
        )
        time_chain[(1,)](sync, ns, _ROUNDS, num_warps=4)
        sync = sync._replace(semaphores=zeros(128))
        time_ping_pong[(2,)](sync, ns[4:], _ROUNDS, num_warps=4, launch_cooperative_grid=True)
        torch.cuda.synchronize()
        if int(sync.fault[0]):
            raise HangError(
                "the two blocks of the ping-pong did not meet",
                item=0,
                semaphore=0,
                expected=0,
                seen=0,
                producer=None,
            )
        post, one, many, ticket, both = (ns[:5].cpu().numpy() / _ROUNDS).tolist()
        for name, value in {
            "post": post,
            "satisfied wait": one,
            "satisfied wait of 112": many,
            "one-way hand-over": both / 2,
            "ticket": ticket,
        }.items():
            samples.setdefault(name, []).append(value)
    return {name: float(np.median(values)) for name, values in samples.items()}
