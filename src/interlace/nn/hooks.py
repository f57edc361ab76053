"""Hooks of modules, which a replacement of the module would drop."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def list_hooks(module: nn.Module) -> list[str]:
    """Return each kind of hooks of the module itself with their names, such as ``forward hooks (log)``."""
    return [
        f"{kind.strip('_').replace('_', ' ')} ({', '.join(map(_format_hook, hooks.values()))})"
        for kind, hooks in vars(module).items()
        if kind.endswith("_hooks") and isinstance(hooks, Mapping) and hooks  # libraries have own lists
    ]


def _format_hook(hook: object) -> str:
    """Return the name of a hook; some kinds are wrapped."""
    hook = getattr(hook, "hook", hook)
    return getattr(hook, "__qualname__", type(hook).__name__)
