"""Functions compiled by numba and cached on disk; a damaged cache entry is compiled again.

    @cached_njit
    def count(path): ...

Numba looks up files next to the module (``__pycache__``), in $NUMBA_CACHE_DIR or in the user's cache, and trusts them.
These files have the same names and folders, with three differences:

- Each ends in a checksum, and nothing is unpickled before the checksum is verified.
- A compiled function is stored with its signature and source. Two processes that write at the same time can give two
  functions one name; the result is then a miss, not the wrong function.
- A file that cannot be read is compiled again, and a function that cannot be written is not cached.

Python itself trusts the other files in ``__pycache__``. Files in any other folder are used only if nobody else can have
written them (``core/store``).
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import getfile
from pathlib import Path
from typing import Any, TypeVar, overload

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.extending import register_jitable

from interlace.core.compiling import report_compiling
from interlace.core.store import UnsafeCacheError, open_file, open_folder, read_descriptor, warn_unsafe, write_new

Function = TypeVar("Function", bound=Callable[..., Any])
_CHECKSUM_BYTES = hashlib.sha256().digest_size


@overload
def cached_njit(function: Function, /) -> Function: ...
@overload
def cached_njit(*, allocates: bool = True, **options: Any) -> Callable[[Function], Function]: ...
def cached_njit(function: Any = None, /, *, allocates: bool = True, **options: Any) -> Any:
    """Compile a function by ``numba.njit`` on its first call, and cache the result on disk.

    Args:
        function: function to compile; None if the decorator is given options.
        allocates: False for a function that makes no array, nor calls one that does. It compiles in about two thirds
            of the time, because no array is reference-counted.
        options: options of ``numba.njit``, except for ``cache``.
    """
    # A first-class function would need the other entry point.
    options = {"no_cfunc_wrapper": True, **({} if allocates else {"_nrt": False}), **options}
    if function is None:
        return lambda each: _compile(each, options)
    return _compile(function, options)


def inner_njit(function: Function, /) -> Function:
    """Let compiled functions call a function that makes no array; Python runs it as it is.

    It is compiled with each of its callers and never alone, which saves the entry point for Python and files of its
    own.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    jitable: Function = register_jitable(**options)(function)
    return jitable


def _compile(function: Any, options: Mapping[str, Any]) -> Any:
    compiled: Any = njit(**options)(function)
    if compiled is not function:  # it is the function itself under NUMBA_DISABLE_JIT
        # Numba has no cache location if no folder can be written.
        try:
            compiled._cache = _CheckedCache(function)
        except (OSError, RuntimeError):
            compiled._cache = _NoCache(function)
    return compiled


class _NoCache(NullCache):
    """Cache of a function for which there is no folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def load_overload(self, signature: Any, context: Any) -> Any:
        report_compiling(self._function.__module__, self._function.__name__)


class _CheckedCache(FunctionCache):
    """Numba's cache of one function; file and disk errors count as misses and never reach the caller."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._function = function
        numbas, folder = self._cache_file, Path(self._cache_path)
        shared = folder == Path(getfile(function)).parent / "__pycache__"
        with suppress(OSError):
            if not shared and not os.listdir(folder):
                folder.chmod(0o700)  # numba has just created it, with any umask
        self._cache_file = _CheckedFile(folder, self._impl.filename_base, numbas._source_stamp, shared)

    def load_overload(self, signature: Any, context: Any) -> Any:
        found = None
        with suppress(Exception):  # a file may hold anything
            found = super().load_overload(signature, context)
        if found is None:
            report_compiling(self._function.__module__, self._function.__name__)
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        try:
            super().save_overload(signature, compiled)
        except OSError:
            return


class _CheckedFile(IndexDataCacheFile):
    """Index and data of one function.

    Args:
        folder: folder of the files.
        base: base of their names.
        stamp: stamp of the function's source.
        shared: True if files of other users are accepted.
    """

    def __init__(self, folder: Path, base: str, stamp: object, shared: bool) -> None:
        super().__init__(str(folder), base, stamp)
        self._folder = folder
        self._shared = shared

    def save(self, key: Any, data: Any, *stamps: Any) -> None:
        super().save(key, (self._source_stamp, key, data), *stamps)

    def load(self, key: Any) -> Any:
        found = super().load(key)
        if found is None:
            return None
        stamp, stored, data = found
        return data if (stamp, stored) == (self._source_stamp, key) else None

    def _load_index(self) -> Any:
        try:
            version, stamp, overloads = self._read(self._index_path)
        except Exception:  # noqa: BLE001  # a file may hold anything
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: Any) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    @contextmanager
    def _open_folder(self) -> Iterator[int | None]:
        """Open the folder for the duration of a block, unless it is shared. Raises UnsafeCacheError, with a warning."""
        if self._shared:
            yield None
            return
        try:
            with open_folder(self._folder) as folder:
                yield folder
        except UnsafeCacheError as error:
            warn_unsafe(error)
            raise

    def _read(self, path: str) -> Any:
        """Verify and unpickle a file. Raises OSError or ValueError if it is unreadable or damaged."""
        with self._open_folder() as folder, open_file(Path(path), folder, own=not self._shared) as number:
            content = read_descriptor(number)
        data, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
        if hashlib.sha256(data).digest() != checksum:
            raise ValueError(f"{path!r} is damaged")
        return pickle.loads(data)

    def _write(self, path: str, content: Any) -> None:
        data = self._dump(content)
        with self._open_folder() as folder:
            mode = 0o666 if self._shared else 0o600
            write_new(Path(path), data + hashlib.sha256(data).digest(), folder, mode=mode)
