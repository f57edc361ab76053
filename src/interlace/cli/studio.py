"""``interlace studio``: a page to explore tile orders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from interlace.cli.console import BadInput, fail, print_line
from interlace.cli.machine import target_gpu
from interlace.cli.options import DeviceOption, register_command
from interlace.core.devices import DEFAULT_GPU

_PORT = 8787


def register(app: typer.Typer) -> None:
    """Add the command."""

    @register_command(app, "studio")
    def studio(
        files: Annotated[
            list[Path] | None,
            typer.Argument(metavar="FILE.json", help="A plan, a trace (or two, or one and a plan) or records."),
        ] = None,
        port: Annotated[
            int, typer.Option("--port", min=0, max=65535, help="Of this machine, on which the page is; 0 for any free.")
        ] = _PORT,
        device: DeviceOption = None,
        no_browser: Annotated[bool, typer.Option("--no-browser", help="Only say where the page is.")] = False,
    ) -> None:
        """Play with tile orders on a page in the browser: click tiles, and see what they load through a small cache.

        With a file the page begins with that: a plan, a trace (or two, or one and a plan), or records.

        A plan: its items on a simulated H200, or on the GPU of --device, with
        waits and proof. A trace of `interlace trace`: a lane per worker, hand-offs, tails; a second trace, or the
        prediction of a plan, on the same axis. Records of `interlace bench WORKLOAD`: speedups by size, and the most
        there can be; of `interlace profile --json`: bytes from memory, and hits of the L2.

        The page is on this machine alone, under 127.0.0.1, and asks nothing of any other. Ctrl-C ends it; a game is
        kept by the address in the browser, and by files that the page saves: `--order explicit:FILE` of other
        commands takes them. The address is there at once; the first use with a plan compiles the simulator, about 5 s
        once, meanwhile. Needs the extra: pip install -e '.[studio]'.

        Example: interlace studio

        Example: interlace studio plan.json --port 0 --no-browser

        Example: interlace studio trace.json plan.json
        """
        server = _import_server()
        from interlace.cli.studio_files import open_view  # needs the extra

        view = open_view(files or [], DEFAULT_GPU if device is None else target_gpu(device).spec)
        try:
            server.serve(
                port, view, browser=not no_browser, report=lambda address: print_line(f"{address} (Ctrl-C ends it)")
            )
        except OSError as error:
            raise BadInput(f"cannot listen on port {port}: {error.strerror}; choose another one with --port") from None


def _import_server() -> Any:
    """Return ``interlace.studio.server``, which needs the extra."""
    try:
        from interlace.studio import server
    except ImportError as error:
        raise fail(f"the studio needs {error.name}; install it with: pip install -e '.[studio]'", 1) from None
    return server
