"""Files in the folder of a language model: JSON settings, and safetensors files with the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interlace.core.errors import GraphError, ModelFileError
from interlace.core.files import check_regular
from interlace.models.checkpoint import Checkpoint

_SINGLE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model.

    Raises:
        ModelFileError: the file cannot be read, or is not a JSON object.
    """
    try:
        check_regular(path)
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(
            f"cannot read {str(path)!r}: {error.strerror}; name a GGUF file, or a folder with config.json and "
            "safetensors files"
        ) from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{str(path)!r} is damaged: it is not JSON") from None
    if not isinstance(data, dict):
        raise ModelFileError(f"{str(path)!r} is damaged: it is no JSON object")
    return data


def open_checkpoints(path: Path) -> dict[str, Checkpoint]:
    """Return the file that holds each tensor of a model, by the tensor's name.

    The choice of files follows ``transformers``: ``model.safetensors`` if it exists, else the files that the index
    names. Other files in the folder, such as the same weights in another format, are ignored. Without either, all
    safetensors files are used.

    Raises:
        ModelFileError: no file was found, one is missing or damaged, or two files hold the same tensor.
    """
    holders: dict[str, Checkpoint] = {}
    for file in _find_files(path):
        try:
            checkpoint = Checkpoint.open(file)
        except GraphError as error:
            raise ModelFileError(str(error)) from None
        for name in checkpoint.tensors:
            if name in holders:
                raise ModelFileError(f"folder {str(path)!r} has tensor {name!r} in two files")
            holders[name] = checkpoint
    return holders


def _find_files(path: Path) -> Sequence[Path]:
    if (path / _SINGLE_FILE).is_file():
        return [path / _SINGLE_FILE]
    if (path / _INDEX).is_file():
        return _read_index(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        other = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
        found = f"; {other[0]} would have to be unpickled, which may run anything, so convert it" if other else ""
        raise ModelFileError(f"folder {str(path)!r} has no weights (*.safetensors){found}")
    return files


def _is_file(path: Path) -> bool:
    """Return True if the path is a file; a name that is too long for the system is not."""
    try:
        return path.is_file()
    except OSError:
        return False


def _read_index(path: Path) -> Sequence[Path]:
    named = read_json(path / _INDEX).get("weight_map")
    names = [*named.values()] if isinstance(named, dict) else []
    # Accept plain file names only: an index may be untrusted and must not reach other folders.
    if not names or not all(isinstance(name, str) and name and Path(name).name == name for name in names):
        raise ModelFileError(f"{str(path / _INDEX)!r} is damaged: its weight_map does not name files of its folder")
    files = [path / name for name in sorted({*names})]
    lacking = [file.name for file in files if not _is_file(file)]
    if lacking:
        raise ModelFileError(
            f"folder {str(path)!r} lacks {lacking[0]}, one of {len(lacking)} missing of the {len(files)} files that "
            f"{_INDEX} names; fetch it again"
        )
    return files
