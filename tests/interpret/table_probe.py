"""Results of executors for a small plan, to compare packages whose tables differ."""

from __future__ import annotations

from typing import Any

import interlace as il
from interlace.core.errors import HangError

from ..cases import strike_posts
from .cases import EXECUTORS, case


def probe() -> dict[str, Any]:
    """Bits of outputs, workers of the trace, and the record of a wait that fails."""
    c = case("gated-ffn", 20)
    inputs = c.inputs()
    found: dict[str, Any] = {}
    for name in ("serial-split", "semaphore_streams-chunked", "static", "ticket-split", "ticket-chunked"):
        cls, schedule = EXECUTORS[name]
        run = cls(il.build(c.graph, schedule(c.graph)), il.RunOptions("cpu", trace=True))
        out = c.run(run, inputs)
        c.check(out, inputs)
        trace = run.read_trace()
        found[name] = out.float().tolist(), trace.worker.tolist(), trace.sm.tolist()
    strike_posts(run, [0])
    try:
        c.run(run, inputs)
    except HangError as error:
        found["hang"] = error.item, error.semaphore, error.expected, error.seen, error.producer
    return found
