"""Interlace runs a graph of dependent GPU kernels as if it were one kernel.

graph = interlace.workloads.ffn(16, interlace.workloads.MODELS["minilm"])
plan = interlace.autoplan(graph, interlace.CPU)
outputs = interlace.ReferenceExecutor(plan).run(inputs)
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from interlace.core.version import VERSION

if TYPE_CHECKING:
    from interlace import nn as nn
    from interlace import studio as studio
    from interlace.api import *  # noqa: F403
    from interlace.api import __all__ as __all__
    from interlace.engine import LLM as LLM
    from interlace.engine import SamplingParams as SamplingParams

__version__ = VERSION

_WITH_EXTRAS = ("engine", "nn", "studio")
#: Names whose module is imported when they are asked for, because it needs PyTorch.
_LAZY = {"LLM": "engine", "SamplingParams": "engine"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is asked for: a module, or all names of ``interlace.api``.

        Not before, so that the command line, which needs few of them, is there at once and answers Ctrl-C, and because
        what ``nn`` and ``studio`` need takes seconds, or is absent.
        """
        if name in _LAZY:
            return getattr(__getattr__(_LAZY[name]), name)
        if not name.startswith("__") and find_spec(f"{__name__}.{name}") is not None:
            try:
                return import_module(f"{__name__}.{name}")
            except ImportError as error:
                if name not in _WITH_EXTRAS:
                    raise
                # An AttributeError, so that `hasattr` and `help` go on where an extra is not installed.
                raise AttributeError(str(error)) from error
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        api = import_module(f"{__name__}.api")
        exported = {each: getattr(api, each) for each in ("__all__", *api.__all__)}
        globals().update(exported)
        if name not in exported:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return exported[name]

    def __dir__() -> list[str]:
        api = import_module(f"{__name__}.api")
        return sorted({*globals(), *api.__all__, *_WITH_EXTRAS, *_LAZY})
