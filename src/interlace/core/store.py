"""Folders of the user's cache: files are read and written without following links, and only if this user owns them.

    Store("compiled", re.compile(r"[0-9a-f]+"))      <cache folder>/compiled/<name>

The contents of a cache are trusted or even executed, so nobody else may have written them. The cache folder, the folder
in it and each file must belong to this user, must not be writable by the group or by others, and must not be links. All
checks are made on the open file (``fstat``), so nothing can be exchanged between check and use. If a check fails, the
cache counts as absent, with one warning.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from interlace.core.files import UNFINISHED_SUFFIX, cache_dir

#: Maximum bytes of a file; a larger one was not stored by this module.
MAX_BYTES = 1 << 30
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # do not block on a pipe without a writer
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = re.compile(rf"\.interlace-[0-9a-f]{{16}}{re.escape(UNFINISHED_SUFFIX)}")
_ABANDONED_S = 24 * 3600  # a temporary file this old belongs to a process that has died


class UnsafeCacheError(OSError):
    """Another user can write the contents of a cache."""


@dataclass(frozen=True)
class CacheFolder:
    """One folder of the user's cache.

    Attributes:
        folder: name of the folder in the cache folder.
        names: pattern that matches the whole name of each entry; no other file is ever deleted.
    """

    folder: str
    names: re.Pattern[str]

    def entry_path(self, name: str) -> Path:
        """Return the path of an entry. Raises OSError if there is no cache folder."""
        return cache_dir() / self.folder / name

    def read(self, name: str) -> bytes | None:
        """Return the content of an entry and mark it as used; None if it is absent or refused, with a warning.

        Raises:
            OSError: the entry cannot be read, is too large, or is not a regular file.
        """
        try:
            with self._open(make=False) as folder, open_file(self.entry_path(name), folder) as number:
                content = read_descriptor(number)
                with suppress(OSError):  # a read-only cache is acceptable
                    os.utime(number)
                return content
        except FileNotFoundError:
            return None
        except UnsafeCacheError as error:
            warn_unsafe(error)
            return None

    def write(self, name: str, content: bytes) -> Path:
        """Write an entry atomically, in place of an older one, and return its path.

        Raises:
            OSError: the entry cannot be written, or the cache is refused (``UnsafeCacheError``).
        """
        path = self.entry_path(name)
        if len(content) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {len(content)} bytes", str(path))
        with self._open(make=True) as folder:
            with suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    raise OSError(errno.EINVAL, "it is no regular file", str(path))
            write_new(path, content, folder)
        return path

    def create(self) -> None:
        """Create the folder and try to write to it. Raises OSError as ``write``."""
        with self._open(make=True) as folder:
            name = _make_temporary_name()
            try:
                os.close(os.open(name, _WRITE_FLAGS, 0o600, dir_fd=folder))
            finally:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def prune(self, max_entries: int) -> None:
        """Delete all entries except the ``max_entries`` most recently used, and the unfinished files of dead processes.

        Other files, and those of other users, are not touched; another process may prune at the same time.
        Raises OSError.
        """
        with self._open(make=False) as folder:
            used: list[tuple[int, str]] = []
            for name in os.listdir(folder):
                temporary = _TEMPORARY.fullmatch(name)
                if not temporary and not self.names.fullmatch(name):
                    continue
                with suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                        continue
                    if not temporary:
                        used.append((found.st_mtime_ns, name))
                    elif time.time() - found.st_mtime > _ABANDONED_S:
                        os.unlink(name, dir_fd=folder)
            for _, name in sorted(used, reverse=True)[max_entries:]:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    @contextmanager
    def _open(self, *, make: bool) -> Iterator[int]:
        """Open the folder for the duration of a block; ``make`` creates it if it is absent.

        Raises:
            UnsafeCacheError: the folder is a link, belongs to another user or can be written by others.
            OSError: the folder cannot be opened or created.
        """
        root = cache_dir()
        if make:
            root.parent.mkdir(parents=True, exist_ok=True)
            _make_folder(root)
        with open_folder(root) as parent:
            if make:
                _make_folder(self.folder, parent)
            with open_folder(root / self.folder, parent) as folder:
                yield folder


@contextmanager
def open_folder(path: Path, parent: int | None = None) -> Iterator[int]:
    """Open a folder for the duration of a block, by its name in an open ``parent`` if one is given.

    Raises:
        UnsafeCacheError: the folder is a link, belongs to another user or can be written by others.
        OSError: the folder cannot be opened.
    """
    name = path if parent is None else path.name
    try:
        folder = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except OSError:
        if path.is_symlink():
            raise _build_refusal(path, "it is a link", "set INTERLACE_CACHE_DIR to the folder that it names") from None
        raise
    try:
        check_owner(os.fstat(folder), path)
        yield folder
    finally:
        os.close(folder)


@contextmanager
def open_file(path: Path, folder: int | None = None, *, own: bool = True) -> Iterator[int]:
    """Open a regular file for reading for the duration of a block, by its name in an open ``folder`` if one is given.

    Args:
        path: path of the file.
        folder: descriptor of the open folder that contains it.
        own: True to refuse a file that belongs to another user or can be written by others.

    Raises:
        UnsafeCacheError: the file is a link or, with ``own``, is refused.
        OSError: the file cannot be opened, is too large, or is not a regular file.
    """
    try:
        number = os.open(path if folder is None else path.name, _READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _build_refusal(path, "it is a link", "delete it") from None
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if own:
            check_owner(found, path)
        if found.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes")
        yield number
    finally:
        os.close(number)


def read_descriptor(number: int) -> bytes:
    """Return the content of an open file, at most ``MAX_BYTES`` of it."""
    with open(number, "rb", closefd=False) as file:
        return file.read(MAX_BYTES)


def write_new(path: Path, content: bytes, folder: int | None = None, *, mode: int = 0o600) -> None:
    """Write a file, by its name in an open ``folder`` if one is given, and rename it to ``path`` once it is complete.

    A link of that name is replaced and not followed. Raises OSError.
    """
    name = _make_temporary_name()
    temporary = path.with_name(name) if folder is None else name
    number = os.open(temporary, _WRITE_FLAGS, mode, dir_fd=folder)
    try:
        with open(number, "wb") as file:
            file.write(content)
        os.replace(temporary, path if folder is None else path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def check_owner(found: os.stat_result, path: Path) -> None:
    """Raise UnsafeCacheError for a file or folder that belongs to another user or that others may write."""
    if found.st_uid != os.geteuid():
        why = f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        raise _build_refusal(path, why, "set INTERLACE_CACHE_DIR to a folder of your own")
    if found.st_mode & _OTHERS:
        raise _build_refusal(path, f"others may write it (mode {stat.S_IMODE(found.st_mode):04o})", "chmod go-w it")


def warn_unsafe(error: UnsafeCacheError) -> None:
    """Issue a RuntimeWarning about a refused cache, once per process."""
    _warn(f"{error.filename!r} is {error.strerror}")


@cache
def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def _build_refusal(path: Path, why: str, fix: str) -> UnsafeCacheError:
    return UnsafeCacheError(errno.EPERM, f"not used as a cache, since {why}; {fix}", str(path))


def _make_folder(path: str | Path, parent: int | None = None) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=parent)


def _make_temporary_name() -> str:
    """Return a name that no other writer uses."""
    return f".interlace-{secrets.token_hex(8)}{UNFINISHED_SUFFIX}"
