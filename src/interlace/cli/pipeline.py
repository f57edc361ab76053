"""``interlace pipeline``: the result of the circular-buffer pass on a kernel of loops."""

from __future__ import annotations

import os
import runpy
from enum import Enum
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlace.cli.console import BadInput, convert_to_bad_input
from interlace.cli.options import register_command
from interlace.core.devices import DEFAULT_GPU

if TYPE_CHECKING:
    from interlace.loops import LoopKernel


class Artifact(Enum):
    """Representation of the kernel to print."""

    IR = "ir"
    CUDA = "cuda"
    SMEM = "smem"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @register_command(app, "pipeline")
    def pipeline(
        file: Annotated[
            Path,
            typer.Argument(metavar="FILE.py", help="Python that defines KERNEL, and BUFFERED: names of its tiles."),
        ],
        stages: Annotated[int, typer.Option("--stages", help="Depth of each buffered tile.")] = 4,
        prefetch: Annotated[
            int | None, typer.Option("--prefetch", help="Steps that loads run ahead; stages - 1 by default.")
        ] = None,
        warp_specialised: Annotated[
            bool, typer.Option("--warp-specialised", help="A loader warp and consumer warpgroups.")
        ] = False,
        printed: Annotated[
            Artifact,
            typer.Option("--print", help="ir: loops before and after. cuda: the text for NVRTC. smem: shared memory."),
        ] = Artifact.IR,
    ) -> None:
        """Rewrite a kernel of plain loops into a TMA and mbarrier pipeline, and print what comes of it.

        The file is run; it names its kernel KERNEL and in BUFFERED the tiles that loads fill ahead. No GPU is needed.

        Example: interlace pipeline examples/06_row_sums_as_loops.py --stages 4 --print ir
        """
        from interlace import loops  # imported late: it takes a tenth of a second

        plain, buffered = _read(file)
        with convert_to_bad_input():
            marked = plain
            for tile in buffered:
                marked = loops.circular_buffer(marked, tile, stages, prefetch)
            rewritten = loops.lower(marked, warp_specialised=warp_specialised)
            if printed is Artifact.CUDA:
                text = loops.emit_kernel(rewritten, DEFAULT_GPU).cuda_source
            elif printed is Artifact.SMEM:
                text = f"{loops.lay_out(rewritten, DEFAULT_GPU)}\n"
            else:
                text = f"// loops\n{loops.print_kernel(plain)}\n// pipeline\n{loops.print_kernel(rewritten)}"
        typer.echo(text, nl=False)


def _read(file: Path) -> tuple[LoopKernel, tuple[str, ...]]:
    """Return KERNEL and BUFFERED of a Python file.

    Raises:
        BadInput: the file cannot be run, or does not define them.
    """
    from interlace.loops import LoopKernel

    if not os.path.isfile(file):  # `is_file` raises for a name that is too long
        raise BadInput(f"no file {str(file)!r}; name a Python file that defines KERNEL and BUFFERED")
    try:
        found: dict[str, Any] = runpy.run_path(str(file), run_name="pipeline")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (whatever a user's file raises, and SystemExit too: it is not done)
        raise BadInput(
            f"{str(file)!r} cannot be run: {_find_line(error, file)}{type(error).__name__}: {error}"
        ) from None
    kernel, buffered = found.get("KERNEL"), found.get("BUFFERED")
    names = isinstance(buffered, tuple) and all(isinstance(name, str) for name in buffered)
    if not isinstance(kernel, LoopKernel) or not isinstance(buffered, tuple) or not names:
        raise BadInput(f"{str(file)!r} must define KERNEL, made by a Builder, and BUFFERED, a tuple of names of tiles")
    return kernel, buffered


def _find_line(error: BaseException, file: Path) -> str:
    """Return the line of a user's file where an error arose; "" if it arose elsewhere."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines = [error.lineno]
    return f"line {lines[-1]}: " if lines and lines[-1] is not None else ""
