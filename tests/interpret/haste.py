"""Speed up Triton's interpreter: work that it repeats without effect is done once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def nothing_twice() -> Iterator[None]:
    """Patch the interpreter to do once what it repeats at each call or value; this halves its time.

    Each call of a jit function by another replaces the builtins of ``triton.language``, which the outermost call has
    done. Each sum of whole numbers is computed again in 64 bits for a check of overflow, which without ``debug`` is
    dropped. NumPy's type of each value is looked up in a table that is built for it.
    """
    from triton import language as tl
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    builder, replace_all = interpreter.interpreter_builder, interpreter._patch_lang

    @cache
    def names(package: Any) -> list[str]:
        return [name for name in dir(package) if is_builtin(getattr(package, name, None))]

    @cache
    def languages(fn: Any) -> list[Any]:
        return [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]

    of_name: dict[str, Any] = {}
    find = interpreter._get_np_dtype

    def numpy_type(of: Any) -> Any:
        name = of.scalar.name
        if name not in of_name:
            of_name[name] = find(of)
        return of_name[name]

    def replace(package: Any, builder: Any, scope: Any) -> None:
        for name in names(package):  # none of which is a builtin while another call has it replaced
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    def replace_unless_done(fn: Any) -> Any:
        if any(is_builtin(language.load) for language in languages(fn)):
            return replace_all(fn)
        return interpreter._LangPatchScope()  # which restores nothing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_builtin", replace)
        patch.setattr(interpreter, "_patch_lang", replace_unless_done)
        patch.setattr(interpreter, "_get_np_dtype", numpy_type)
        if not builder.options.debug:
            patch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
        yield
