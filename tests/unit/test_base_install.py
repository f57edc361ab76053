"""The package as a user without a GPU gets it: it imports what is small and always there."""

import subprocess
import sys

import interlace

# Runs in a fresh process, because this one may have imported torch already.
IMPORT_WITHOUT_GPU_STACK = """
import sys

BLOCKED = {"torch", "triton", "numba", "matplotlib"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is for those who use it", name=name)
        return None


sys.meta_path.insert(0, Blocker())

import interlace
import interlace.cli

loaded = BLOCKED & {name.partition(".")[0] for name in sys.modules}
assert "torch" not in sys.modules, "torch was imported"
assert not loaded, f"imported: {sorted(loaded)}"
"""


def test_package_and_cli_import_without_the_gpu_stack() -> None:
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_GPU_STACK], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr


def test_every_exported_name_resolves() -> None:
    exported = sorted(interlace.__all__)
    assert exported, "interlace exports nothing"
    assert [name for name in exported if not hasattr(interlace, name)] == []
    assert len(exported) == len(set(exported))
