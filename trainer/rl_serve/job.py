"""One request under way: from what the engine says of its answers to pieces of text, for whoever reads them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_serve.answers import Delta, Mark, Usage
from rl_serve.detokenize import Piece, TextStream, TextToken
from rl_serve.engine_loop import Update
from rl_serve.errors import ApiError
from rl_trainer.rollout.engines.base import FinishReason

# A log-probability that JSON has no number for.
_LOWEST = -9999.0


@dataclass
class Answer:
    """One answer that is being written."""

    text: TextStream
    done: bool = False
    sampled: int = 0
    cached: int | None = None
    taken: int = 0
    # When its first token came.
    since: float | None = None
    # (number of the weights, first token that was sampled with them)
    began: list[tuple[int, int]] = field(default_factory=list)

    def note(self, versions: Sequence[int]) -> None:
        """Which weights the next tokens were sampled with."""
        for version in versions:
            if not self.began or self.began[-1][0] != version:
                self.began.append((version, self.sampled))
            self.sampled += 1


class Job:
    """One request under way; get one from `Generator.start`, and `close` it whatever happens."""

    def __init__(
        self,
        answers: list[Answer],
        prompt_tokens: int,
        close: Callable[[], None],
        names: Mapping[int, str],
        asked: int,
        n: int,
        wrote: Callable[[float, bool], None],
    ) -> None:
        self._answers, self._n = answers, n
        self._prompt_tokens = prompt_tokens
        self._close, self._wrote = close, wrote
        self._names, self._asked = names, asked
        self.place: Mapping[str, Any] | None = None
        """Where another copy finds the prompt's keys and values, once they are handed over."""
        self._inbox: asyncio.Queue[Delta | ApiError] = asyncio.Queue()
        self.pace: Callable[[], float] = lambda: 0.0
        """Seconds between two pieces of one answer; its first piece and its end never wait."""
        self._held: dict[int, Piece] = {}
        self._due: dict[int, float] = {}

    async def deltas(self) -> AsyncIterator[Delta]:
        """The answers, piece by piece, until all have ended.

        Raises:
            ApiError: they cannot be ended: the deadline has passed, or the engine has failed.
        """
        left = len(self._answers)
        while left:
            found = await self._inbox.get()
            if isinstance(found, ApiError):
                raise found
            left -= found.finish_reason is not None
            yield found

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        # Answers to one prompt share it: what the first of them has found is what was there before the request.
        known = [answer.cached for answer in self._answers[:: self._n] if answer.cached is not None]
        return Usage(
            self._prompt_tokens,
            sum(answer.text.used for answer in self._answers),
            sum(known) if known else None,
            sum(answer.taken for answer in self._answers[:: self._n]),
        )

    @property
    def version(self) -> str:
        """The policy's version that the answers began with; before their first token the one that was asked."""
        began = [answer.began[0][0] for answer in self._answers if answer.began]
        return self._names[min(began, default=self._asked)]

    @property
    def versions(self) -> tuple[Mark, ...]:
        """Which version wrote what, so far."""
        return tuple(
            Mark(index, self._names[version], token)
            for index, answer in enumerate(self._answers)
            for version, token in answer.began
        )

    def close(self) -> None:
        """Give the places back, and let the engine forget what has not ended. A second time does nothing."""
        self._close()

    def fail(self, error: ApiError) -> None:
        """End it with `error`, for whoever reads `deltas`."""
        self._inbox.put_nowait(error)
        self._close()

    def take(self, number: int, update: Update, stop_ids: frozenset[int]) -> bool:
        """What the engine says about the answer `number`; True: its text has ended before its tokens have."""
        answer = self._answers[number]
        if answer.done:
            return False
        if any(math.isnan(logprob) for _, logprob in update.tokens):
            self.fail(
                ApiError("the policy's weights give probabilities that are no numbers", status=500, code=None)
            )
            return False
        now = time.monotonic()
        answer.since = now if answer.since is None else answer.since
        answer.note(update.versions)
        answer.cached, answer.taken = update.cached, update.taken
        self.place = update.place
        reason = update.finish_reason
        tokens = _text_tokens(update)
        # The token that ends a sequence is counted, but it is no text.
        last = tokens.pop() if reason == "stop" and tokens and tokens[-1].id in stop_ids else None
        piece = answer.text.add(tokens)
        early = answer.text.stopped and reason is None
        if answer.text.stopped:
            reason = "stop"
        elif reason is not None:
            rest = answer.text.finish()
            piece = Piece(piece.text + rest.text, piece.tokens + rest.tokens)
            reason = "stop" if answer.text.stopped else reason
            answer.text.used += last is not None
        answer.done = reason is not None
        if answer.done:
            self._wrote(now - answer.since, True)
        self._hand_on(number, piece, reason, now)
        return early

    def expire(self, error: ApiError) -> None:
        """End it, as its deadline has passed."""
        now = time.monotonic()
        for answer in self._answers:
            if answer.since is not None and not answer.done:
                self._wrote(now - answer.since, False)
        self.fail(error)

    def _hand_on(self, number: int, piece: Piece, reason: FinishReason | None, now: float) -> None:
        """What is new of an answer, together with what was held back, goes to whoever reads `deltas`, or is held back."""
        if held := self._held.pop(number, None):
            piece = Piece(held.text + piece.text, held.tokens + piece.tokens)
        if reason is None and not (piece.text or piece.tokens):
            return
        if reason is None and now < self._due.get(number, 0.0):
            self._held[number] = piece
            return
        self._due[number] = now + self.pace()
        self._inbox.put_nowait(Delta(number, piece.text, piece.tokens, reason))


def _text_tokens(update: Update) -> list[TextToken]:
    tops = update.top or ((),) * len(update.tokens)
    return [
        TextToken(
            token,
            max(logprob, _LOWEST),
            top=tuple((other, max(value, _LOWEST)) for other, value in top),
        )
        for (token, logprob), top in zip(update.tokens, tops, strict=True)
    ]
