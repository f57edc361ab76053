"""Settings that a measured search found, kept in the user's cache: one file per FFN, GPU and versions.

    $INTERLACE_CACHE_DIR, else $XDG_CACHE_HOME/interlace, else ~/.cache/interlace
        tune/<hash of the key>.json     {"schema_version": 1, "key": {...}, "setting": {...}, "us": 54.2}

The key of a setting of the persistent executor has ``"kind": "persistent"``, that of the Hopper executor has no kind.
A file is written whole, then renamed, so writers at the same time cannot harm one another's entries, and a
reader never sees half of one. What cannot be read counts as absent.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from interlace.core.dtypes import DType, bf16
from interlace.core.files import write_whole
from interlace.workloads.ffn import FFNShape
from interlace.workloads.hopper import HopperSetting, fits, hopper_setting
from interlace.workloads.persistent import persistent_fits
from interlace.workloads.settings import FFNSetting

#: What the cache keeps.
Setting = HopperSetting | FFNSetting
S = TypeVar("S", HopperSetting, FFNSetting)

_SCHEMA = 1
_FOLDER = "tune"
_PERSISTENT = "persistent"


def cache_dir() -> Path:
    """The folder of this user's cache. Raises OSError if neither the environment nor the system names one."""
    if chosen := os.environ.get("INTERLACE_CACHE_DIR"):
        return Path(chosen)
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return (xdg if xdg.is_absolute() else Path("~/.cache").expanduser()) / "interlace"
    except RuntimeError:
        raise OSError(errno.ENOENT, "this user has no home folder; set INTERLACE_CACHE_DIR") from None


def make_store() -> None:
    """Make the folder of settings, if it is not there.

    Raises:
        OSError: nothing can be kept there.
    """
    folder = cache_dir() / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass


def store(gpu: str, m: int, shape: FFNShape, setting: Setting, us: float, dtype: DType = bf16) -> Path:
    """Keep a setting and the microseconds that it took; returns the file.

    Raises:
        OSError: the cache cannot be written.
    """
    key = _key(gpu, m, shape, dtype, "" if isinstance(setting, HopperSetting) else _PERSISTENT)
    path = _path(key)
    make_store()
    entry = {"schema_version": _SCHEMA, "key": key, "setting": setting.to_data(), "us": us}
    write_whole(path, json.dumps(entry, indent=1) + "\n")
    return path


def lookup(gpu: str, m: int, shape: FFNShape, dtype: DType = bf16) -> HopperSetting | None:
    """The setting that was kept for exactly this, by these versions; None, with a warning if the file is damaged."""
    key = _key(gpu, m, shape, dtype)
    return _read(key, HopperSetting.from_data, lambda setting: fits(m, shape, setting, dtype))


def lookup_persistent(gpu: str, m: int, shape: FFNShape, dtype: DType, smem_bytes: int) -> FFNSetting | None:
    """The same for the persistent executor, on a GPU whose thread blocks may use so much shared memory."""
    key = _key(gpu, m, shape, dtype, _PERSISTENT)
    return _read(key, FFNSetting.from_data, lambda setting: persistent_fits(shape, setting, dtype, smem_bytes))


def _read(key: dict[str, Any], from_data: Callable[[Mapping[str, Any]], S], usable: Callable[[S], bool]) -> S | None:
    where = "the cache of tuned settings"
    try:
        path = _path(key)
        where = str(path)
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry["schema_version"] != _SCHEMA or entry["key"] != key:
            raise ValueError("it is of another schema, or for something else")
        setting = from_data(entry["setting"])
        if not usable(setting):
            raise ValueError(f"its setting makes no launch: {setting}")
        return setting
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{where} is ignored: {type(error).__name__}: {error}; `interlace tune` writes it anew"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return None


def setting_for(gpu: str, m: int, shape: FFNShape, dtype: DType = bf16) -> HopperSetting:
    """The tuned setting if there is one, else the default."""
    return lookup(gpu, m, shape, dtype) or hopper_setting(m, shape)


def _path(key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / _FOLDER / f"{digest[:32]}.json"


def _key(gpu: str, m: int, shape: FFNShape, dtype: DType, kind: str = "") -> dict[str, Any]:
    """Everything that a setting may depend on."""
    return {
        **({"kind": kind} if kind else {}),
        "gpu": gpu,
        "versions": dict(_versions()),
        "m": m,
        "hidden": shape.hidden,
        "ffn": shape.ffn,
        "activation": shape.activation.value,
        "gated": shape.gated,
        "dtype": dtype.name,
    }


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    from interlace import __version__  # the package imports this room before it knows its version

    found = [("interlace", __version__)]
    for package in ("torch", "triton"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)
