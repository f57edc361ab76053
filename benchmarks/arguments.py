"""Arguments of the scripts that take few: the help is the script's docstring."""

from __future__ import annotations

import argparse


def given(doc: str | None, *names: str, optional: tuple[str, ...] = ()) -> list[str]:
    """The positional arguments of the command line, those that may be left out as far as they are there.

    Args:
        doc: the script's docstring.
        names: of arguments that must be there.
        optional: of further ones.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        parser.add_argument(name)
    for name in optional:
        parser.add_argument(name, nargs="?")
    found = vars(parser.parse_args())
    return [found[name] for name in (*names, *optional) if found[name] is not None]
