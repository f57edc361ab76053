"""Observation of every load and store of a kernel under Triton's interpreter, before it happens.

The interpreter has no hook for this, and memory alone does not suffice: a value that is written back unchanged leaves
no trace in it. So the builder's methods that all memory operations go through (Triton 3.6 to 3.9) are replaced on that
one object for the duration of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Callback for an access: "reads" or "writes", the addresses of its elements, bytes per element.
AccessCallback = Callable[[str, NDArray[np.uint64], int], None]

#: Methods of the builder: what they do, and the positions of their pointers and of their mask.
_METHODS: dict[str, tuple[tuple[str, ...], int, int | None]] = {
    "create_masked_load": (("reads",), 0, 1),
    "create_masked_store": (("writes",), 0, 2),
    "create_atomic_rmw": (("reads", "writes"), 1, 3),
    "create_atomic_cas": (("reads", "writes"), 0, None),
}


@contextmanager
def observe_accesses(callback: AccessCallback) -> Iterator[None]:
    """Call ``callback`` within this context for every access of every interpreted kernel.

    An exception from ``callback`` ends the kernel; derive it from BaseException to keep the interpreter from wrapping
    it.
    """
    from triton.runtime.interpreter import interpreter_builder

    with ExitStack() as stack:
        for name, (verbs, pointers, mask) in _METHODS.items():
            method = _wrap_method(getattr(interpreter_builder, name), callback, verbs, pointers, mask)
            stack.callback(_restore_method, interpreter_builder, name, vars(interpreter_builder).get(name))
            setattr(interpreter_builder, name, method)
        yield


def _wrap_method(
    method: Callable[..., Any], see: AccessCallback, verbs: tuple[str, ...], pointers: int, mask: int | None
) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        pointer = arguments[pointers]
        at = np.ravel(pointer.data)
        if mask is not None:
            at = at[np.ravel(np.broadcast_to(arguments[mask].data.astype(bool), np.shape(pointer.data)))]
        for verb in verbs:
            see(verb, at, max(1, pointer.get_element_ty().primitive_bitwidth // 8))
        return method(*arguments, **options)

    return call


def _restore_method(builder: Any, name: str, own: Any) -> None:
    """Restore a method: an attribute of the object itself, or the method of its class."""
    if own is None:
        delattr(builder, name)
    else:
        setattr(builder, name, own)
