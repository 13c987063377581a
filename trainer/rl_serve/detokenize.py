"""From the tokens of one sequence to its text, piece by piece: whole characters only, and never past a stop text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# A character is at most four bytes, so at most as many tokens: what is still incomplete then is no UTF-8.
_LONGEST_CHARACTER = 4


@dataclass
class TextToken:
    """One token of the text: its id, log-probability, and where its text begins and ends, in characters.

    `top`: id and log-probability of the most probable tokens at its place, where they are wanted.
    """

    id: int
    logprob: float
    start: int = 0
    end: int = 0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """The next piece of text, and the tokens whose text ends in it."""

    text: str = ""
    tokens: tuple[TextToken, ...] = ()


@dataclass
class TextStream:
    """The text of one sequence.

    Args:
        decode: token ids to text.
        stop: texts that end it; they are no part of it.

    Attributes:
        stopped: a stop text was found; whatever comes after it is ignored.
        used: tokens that were taken, up to the one that completed a stop text.
    """

    decode: Callable[[Sequence[int]], str]
    stop: Sequence[str] = ()
    stopped: bool = False
    used: int = 0
    # Tokens are decoded together with those before them, as some tokenizers write a space only between two: `_ids` are
    # those that gave the last text (`_known`) and those whose characters are not complete.
    _ids: list[int] = field(default_factory=list)
    _read: int = 0
    _known: str = ""
    _open: list[TextToken] = field(default_factory=list)
    _waiting: list[TextToken] = field(default_factory=list)
    _held: str = ""
    _sent: int = 0

    def add(self, tokens: Iterable[TextToken]) -> Piece:
        """The text that is certain after these; where theirs begins and ends is found here."""
        for token in tokens:
            if self.stopped:
                break
            self.used += 1
            self._ids.append(token.id)
            self._open.append(token)
            text = self.decode(self._ids)
            if text.endswith(_INCOMPLETE) and len(self._open) < _LONGEST_CHARACTER:
                continue
            self._complete(text)
        return self._release(0 if self.stopped else self._maybe_stop())

    def finish(self) -> Piece:
        """What is left when no token comes any more: characters that never became whole are U+FFFD."""
        if self._open and not self.stopped:
            self._complete(self.decode(self._ids))
        return self._release(0)

    def _complete(self, text: str) -> None:
        """`text`, of all `_ids`, is whole."""
        before = self._sent + len(self._held)
        self._held += text[len(self._known) :]
        for token in self._open:
            token.start, token.end = before, self._sent + len(self._held)
        self._waiting += self._open
        self._open = []
        if text != self._known:  # else it was a token without text, and those before it are needed still
            self._ids = self._ids[self._read :]
            self._known = self.decode(self._ids)
        self._read = len(self._ids)
        found = [place for stop in self.stop if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = self._held[: min(found)]
            end = self._sent + len(self._held)
            self._waiting = [token for token in self._waiting if token.start < end]
            for token in self._waiting:
                token.end = min(token.end, end)

    def _maybe_stop(self) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        longest = 0
        for stop in self.stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _release(self, keep: int) -> Piece:
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        self._sent += len(text)
        ready = [token for token in self._waiting if token.end <= self._sent]
        self._waiting = [token for token in self._waiting if token.end > self._sent]
        return Piece(text, tuple(ready))
