"""Hooks of modules, which something that takes a module's place would drop."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def hooks_of(module: nn.Module) -> list[str]:
    """Each kind of hooks that a module itself has, with their names, as in ``forward hooks (log)``."""
    return [
        f"{kind.strip('_').replace('_', ' ')} ({', '.join(map(_name, hooks.values()))})"
        for kind, hooks in vars(module).items()
        if kind.endswith("_hooks") and isinstance(hooks, Mapping) and hooks  # libraries keep lists of theirs beside
    ]


def _name(hook: object) -> str:
    """Of a hook, which some kinds keep in a wrapper."""
    hook = getattr(hook, "hook", hook)
    return getattr(hook, "__qualname__", type(hook).__name__)
