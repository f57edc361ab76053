"""``interlace studio``: the page to play with tile orders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from interlace.cli.console import BadInput, bad_input, fail, say, working
from interlace.cli.options import command
from interlace.cli.plan_file import read

_PORT = 8787


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "studio")
    def studio(
        plan: Annotated[
            Path | None, typer.Argument(metavar="PLAN.json", help="A plan to look at, which `interlace plan` wrote.")
        ] = None,
        port: Annotated[
            int, typer.Option("--port", min=0, max=65535, help="Of this machine, on which the page is; 0 for any free.")
        ] = _PORT,
        no_browser: Annotated[bool, typer.Option("--no-browser", help="Only say where the page is.")] = False,
    ) -> None:
        """Play with tile orders on a page in the browser: click tiles, and see what they load through a small cache.

        With a plan, the page begins with it: its items on the simulated H200, what each waits for, and its proof or why
        it has none.

        The page is on this machine alone, under 127.0.0.1, and asks nothing of any other. Ctrl-C ends it; a game is
        kept by the address in the browser, and by files that the page saves: `--order explicit:FILE` of other
        commands takes them. Needs the extra: pip install 'interlace[studio]'.

        Example: interlace studio

        Example: interlace studio plan.json --port 0 --no-browser
        """
        server = _server()
        view = None
        if plan is not None:
            with bad_input(), working("verifying and simulating (the first use compiles the simulation)"):
                view = server.PlanView.of(read(plan))
        try:
            server.serve(port, view, browser=not no_browser, tell=lambda address: say(f"{address} (Ctrl-C ends it)"))
        except OSError as error:
            raise BadInput(f"cannot listen on port {port}: {error.strerror}; choose another one with --port") from None


def _server() -> Any:
    """``interlace.studio.server``, which needs the extra."""
    try:
        from interlace.studio import server
    except ImportError as error:
        raise fail(f"the studio needs {error.name}; install it with: pip install 'interlace[studio]'", 1) from None
    return server
