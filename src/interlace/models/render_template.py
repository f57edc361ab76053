"""Render one chat template: the program of the process that ``templates.render`` starts.

The program reads a JSON request from its standard input and writes a JSON answer to its standard output:

    {"template": "{{ bos_token }}...", "variables": {...}, "characters": 1048576, "cpu_s": 5, "memory_bytes": 536870912}
    {"text": "<s>..."}  or  {"error": "TemplateSyntaxError: ..."}  or  {"missing": "No module named 'jinja2'"}

Its arguments are the folders that hold jinja2 and markupsafe. It imports nothing else, so it starts in 50 ms.

Filters, globals and extensions are those of ``transformers`` (utils/chat_template_utils.py).
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

_PAGES_IN_USE = "/proc/self/statm"
_LEGIBLE = 300  # characters of an error message


def main() -> None:
    """Answer the request."""
    sys.path += sys.argv[1:]
    request = json.loads(sys.stdin.buffer.read())
    try:
        environment = _make_environment()
    except ImportError as error:
        answer = {"missing": str(error)}
    else:
        _limit(request["cpu_s"], request["memory_bytes"])
        answer = _answer(environment, request)
    sys.stdout.write(json.dumps(answer))


def _answer(environment: Any, request: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": _render(environment, request["template"], request["variables"], request["characters"])}
    except MemoryError:
        return {"error": f"it takes more than {request['memory_bytes'] >> 20} MiB of memory"}
    except BaseException as error:  # noqa: BLE001  # a template may raise anything
        lines = f"{type(error).__name__}: {error}"[:_LEGIBLE].splitlines()
        return {"error": "".join(c if c.isprintable() else " " for c in lines[0])}


def _render(environment: Any, template: str, variables: dict[str, Any], characters: int) -> str:
    pieces: list[str] = []
    written = 0
    for piece in environment.from_string(template).generate(variables):
        written += len(piece)
        if written > characters:
            raise ValueError(f"it writes more than {characters} characters")
        pieces.append(piece)
    return "".join(pieces)


def _limit(cpu_s: int, memory_bytes: int) -> None:
    """Limit CPU time and memory from now on, and forbid files, processes and core dumps."""
    used = 0
    with suppress(OSError), open(_PAGES_IN_USE) as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    # Some systems lack a limit, or reject one below what the process already maps.
    limits = {"RLIMIT_CPU": cpu_s, "RLIMIT_AS": used + memory_bytes, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, most in {**limits, "RLIMIT_NPROC": 0}.items():
        with suppress(AttributeError, ValueError, OSError):
            kind: int = getattr(resource, name)
            soft, hard = (most if old == resource.RLIM_INFINITY else min(most, old) for old in resource.getrlimit(kind))
            if name == "RLIMIT_CPU" and resource.getrlimit(kind)[1] != hard:
                hard += 1  # at the hard limit the signal is SIGKILL
            resource.setrlimit(kind, (soft, hard))


def _make_environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """The ``{% generation %}`` block, which marks text that a model was trained to write; only training uses it."""

        tags = {"generation"}  # noqa: RUF012  # as its base has it

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("call_body"), [], [], body).set_lineno(line)

        def call_body(self, caller: Callable[[], str]) -> str:
            return caller()

    class PlainNamespace(Namespace):
        """A namespace without names that are special in Python."""

        def __init__(*args: Any, **names: Any) -> None:
            self, *mappings = args
            attributes = dict(*mappings, **names)
            for name in attributes:
                _check_name(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    class PlainDict:
        """The ``dict`` that templates call, without the attributes of a class."""

        def __call__(self, *args: Any, **names: Any) -> dict[Any, Any]:
            return dict(*args, **names)

        def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
            return dict.fromkeys(keys, value)

    def _check_name(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace has no {name!r}; take a name without an underscore in front")

    def raise_exception(message: object) -> NoReturn:
        raise ValueError(message)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    extensions = ["jinja2.ext.loopcontrols", Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": PlainDict(),
        "namespace": PlainNamespace,
    }
    return environment


if __name__ == "__main__":
    main()
