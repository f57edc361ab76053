"""The package as a user without a GPU gets it: base dependencies only, and of them no compiler at import."""

import subprocess
import sys

import pytest

import interlace

# Runs in a fresh process, because this one may have imported torch already.
IMPORT_WITHOUT_GPU_STACK = """
import sys

BLOCKED = {"torch", "triton", "numba", "matplotlib"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is absent, or too slow to import", name=name)
        return None


sys.meta_path.insert(0, Blocker())

import interlace
import interlace.api
import interlace.cli

loaded = BLOCKED & {name.partition(".")[0] for name in sys.modules}
assert "torch" not in sys.modules, "torch was imported"
assert {"LLM", "SamplingParams", "engine", "nn", "studio"} <= {*dir(interlace)}
assert "interlace.studio" not in sys.modules
assert interlace.studio.show.__module__ == "interlace.studio"
assert not hasattr(interlace, "nn")
assert not hasattr(interlace, "LLM")
try:
    interlace.nn
except AttributeError as error:
    assert "interlace.nn needs `pip install -e '.[gpu]'`" in str(error), error
assert not loaded, f"imported: {sorted(loaded)}"
"""


def test_package_and_cli_import_without_the_gpu_stack() -> None:
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_GPU_STACK], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr


def test_a_name_that_there_is_not_is_told_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'interlace' has no attribute 'stduio'"):
        interlace.stduio  # noqa: B018


def test_every_exported_name_resolves() -> None:
    exported = sorted(interlace.__all__)
    assert exported, "interlace exports nothing"
    assert [name for name in exported if not hasattr(interlace, name)] == []
    assert len(exported) == len(set(exported))
