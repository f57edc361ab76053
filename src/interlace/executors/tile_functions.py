"""The functions of a Triton body as the launch templates of ``kernels/templates`` take them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from interlace.graph.op import Op
from interlace.kernels.bodies import PROVIDED, TritonBody


def arguments(op: Op, body: TritonBody, tensors: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """What each function takes beside ``tile``, ``sync`` and ``acc``: tensors, given by argument, and params.

    Those that an op lacks are None, or what the function has by default.
    """
    from triton.language import constexpr

    params = op.parameters

    def values(function: Any) -> tuple[Any, ...]:
        if function is None:
            return ()
        out: list[Any] = []
        for name, parameter in inspect.signature(function.fn).parameters.items():
            if name in PROVIDED:
                continue
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            value = tensors.get(name, params.get(name, default))
            constant = "constexpr" in str(parameter.annotation) or isinstance(value, (str, bool))
            out.append(constexpr(value) if constant and value is not None else value)
        return tuple(out)

    return values(body.prefetch), values(body.accumulate), values(body.finish)


def constants(body: TritonBody) -> tuple[Any, ...]:
    """The functions as one compile-time argument.

    Triton's cache knows a function that comes as a compile-time argument only by its name, so each body
    is followed by a digest of its source; without it an edited body would run as it was before.
    """
    from triton.language import constexpr

    from interlace.kernels.templates import nothing

    functions = body.prefetch or nothing, body.accumulate or nothing, body.finish
    digest = "-".join(getattr(f, "cache_key", "") for f in functions)
    takes_sync = "sync" in inspect.signature(body.finish.fn).parameters
    return (*functions, constexpr(body.accumulate is not None), constexpr(digest), constexpr(takes_sync))
