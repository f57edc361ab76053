"""The command line, as ``python -m interlace`` and as the script ``interlace``."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130


def main() -> None:
    """Run the command line, of which Ctrl-C is answered in one line while it is still being imported."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and not where a shell has it ignored
        # An exception could be lost in whatever is being imported, or end in another one.
        signal.signal(signal.SIGINT, _end)
    from interlace.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _end(number: int, frame: object) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
