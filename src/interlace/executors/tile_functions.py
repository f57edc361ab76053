"""The functions of a Triton body in the form that the launch templates of ``kernels/templates`` take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from interlace.graph.op import Op
from interlace.kernels.bodies import PROVIDED_PARAMETERS, TritonBody


def build_arguments(op: Op, body: TritonBody, tensors: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """Return each function's arguments other than ``tile``, ``sync`` and ``acc``: tensors, by argument, and params.

    An argument that the op lacks is None or the function's default.
    """
    from triton.language import constexpr

    params = op.parameters

    def values(function: Any) -> tuple[Any, ...]:
        if function is None:
            return ()
        out: list[Any] = []
        for name, parameter in inspect.signature(function.fn).parameters.items():
            if name in PROVIDED_PARAMETERS:
                continue
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            value = tensors.get(name, params.get(name, default))
            constant = "constexpr" in str(parameter.annotation) or isinstance(value, (str, bool))
            out.append(constexpr(value) if constant and value is not None else value)
        return tuple(out)

    return values(body.prefetch), values(body.accumulate), values(body.finish)


def build_constants(body: TritonBody) -> tuple[Any, ...]:
    """Return the functions as one compile-time argument.

    Triton's cache identifies a function passed as a compile-time argument only by its name. So a digest of the sources
    follows the functions of each body; without it, the old code of an edited body would run.
    """
    from triton.language import constexpr

    from interlace.kernels.templates import do_nothing

    functions = body.prefetch or do_nothing, body.accumulate or do_nothing, body.finish
    digest = "-".join(getattr(f, "cache_key", "") for f in functions)
    takes_sync = "sync" in inspect.signature(body.finish.fn).parameters
    return (*functions, constexpr(body.accumulate is not None), constexpr(digest), constexpr(takes_sync))
