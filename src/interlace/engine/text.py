"""Text of a sequence as its tokens arrive, and the stop strings in it.

With the stop string "\nUser:", text that may begin it is held back until the next tokens decide:

    token     "Hi"   "!\n"   "Us"   "ing"          "\n"   "User"  ":"
    returned  "Hi"   "!"     ""     "\nUsing"      ""     ""      "" and the stop string
"""

from __future__ import annotations

from interlace.models.tokenizer import IncrementalDecoder


class StopStringMatcher:
    """Text without the stop string that ends it.

    Args:
        stops: strings that end the text.
        keeps_stop: True to return the stop string as part of the text.
    """

    def __init__(self, stops: tuple[str, ...], keeps_stop: bool) -> None:
        self._stops, self._keeps_stop = stops, keeps_stop
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """Return the text that no stop string can begin in any more, and the stop string that ends it, if one does."""
        text = self._held + piece
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self._held = ""
            return text[: at + len(stop) * self._keeps_stop], stop
        longest = max(map(len, self._stops)) - 1
        begins = (n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in self._stops))
        held = next(begins, 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def finish(self) -> str:
        """Return the text that is held back."""
        text, self._held = self._held, ""
        return text


class SequenceText:
    """Text of a sequence.

    Args:
        stream: incremental decoder of the tokens.
        stops, keeps_stop: see ``StopStringMatcher``.
    """

    def __init__(self, stream: IncrementalDecoder, stops: tuple[str, ...], keeps_stop: bool) -> None:
        self._stream = stream
        self._matcher = StopStringMatcher(stops, keeps_stop) if stops else None

    def push(self, token: int, may_stop: bool) -> tuple[str, str | None]:
        """Return the text that a token completes, and the stop string that ends it, if one does.

        Args:
            may_stop: False to ignore stop strings.
        """
        return self._match(self._stream.push(token), may_stop)

    def finish(self) -> tuple[str, str | None]:
        """Return the rest of the text, and the stop string that ends it, if one does."""
        text, stop = self._match(self._stream.finish(), True)
        return text + (self._matcher.finish() if self._matcher else ""), stop

    def _match(self, piece: str, may_stop: bool) -> tuple[str, str | None]:
        if self._matcher is None:
            return piece, None
        if not may_stop:
            return self._matcher.finish() + piece, None
        return self._matcher.push(piece)
