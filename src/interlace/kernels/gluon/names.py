"""One spelling of the Gluon names that moved between triton 3.6 and 3.9."""

from __future__ import annotations

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

bulk_load = tma.async_load if _VERSION >= (3, 8) else tma.async_copy_global_to_shared
barrier = gl.barrier if _VERSION >= (3, 7) else gl.thread_barrier
_memory = gl.shared_memory_descriptor
reinterpret = _memory.reinterpret if _VERSION >= (3, 9) else _memory._reinterpret
