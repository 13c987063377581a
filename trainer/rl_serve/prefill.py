"""Prompts that other copies compute: which ones, in what time, and what becomes of a request where they do not.

A copy that writes answers asks one for prompts, takes over the keys and values that it names, and writes. Whatever goes
wrong costs no answer: then it computes the prompt itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rl_api.errors import DeadlineExceeded
from rl_trainer.error_text import first_line
from rl_trainer.rollout.engines.vllm_arguments import LEASE_SECONDS

logger = logging.getLogger(__name__)

# How long an answer waits for its prompt.
ASK_SECONDS: Final = 30.0
# Until then what was asked for is surely held: the other copy counts from when it was ready, which is later.
_USABLE_SECONDS: Final = LEASE_SECONDS - 10.0
# Between two looks at whether a copy that has failed answers again.
_AGAIN_SECONDS: Final = 1.0
# Prompts that are shorter are computed by who writes the answer: that takes no longer than to ask.
LEAST_TOKENS: Final = 256


@dataclass(frozen=True)
class Handover:
    """What a copy for prompts says of one: where its keys and values are, and of which version; or why they are not.

    Attributes:
        version: of the policy.
        place: see `Prefilled`; None: there are none.
        cached: tokens that it had computed before.
        refusal: why there are none.
    """

    version: str = ""
    place: Mapping[str, Any] | None = None
    cached: int = 0
    refusal: str = ""


@dataclass(frozen=True)
class Computed:
    """Keys and values of a prompt, and until when (`time.monotonic`) they can be had."""

    place: Mapping[str, Any]
    cached: int
    until: float


class Copies(Protocol):
    """The copies for prompts, whichever answers."""

    async def prefill(self, prompt: Sequence[int]) -> Handover:
        """Compute a prompt."""

    async def answers(self) -> bool:
        """Whether one has a policy."""


@dataclass
class Prefill:
    """Asks the copies for prompts, on the event loop of the requests.

    Once one has failed nobody waits for them before one has answered again, which is found out beside the requests.

    Attributes:
        copies: who is asked.
        least: tokens of a prompt from which on it is worth it.
        note: hears what became of each prompt: `prefilled`, `short`, `shared` (several answers to one prompt), `away` (no
            copy answers), `late`, `refused`, `version` (the policy is another one).
        seconds: how long an answer waits for its prompt.
    """

    copies: Copies
    least: int = LEAST_TOKENS
    note: Callable[[str], None] = lambda outcome: None
    seconds: float = ASK_SECONDS
    again: float = _AGAIN_SECONDS
    _there: bool = False
    _looking: asyncio.Task[None] | None = field(default=None, repr=False)

    def wants(self, prompt: Sized, answers: int) -> bool:
        """Whether a prompt with so many answers is computed by another copy, as far as can be said without asking."""
        if len(prompt) < self.least:
            self.note("short")
        elif answers > 1:  # keys and values that are handed over are one sequence's
            self.note("shared")
        elif not self._there:
            self._look()
            self.note("away")
        else:
            return True
        return False

    async def __call__(self, prompt: Sequence[int], version: str) -> Computed | None:
        """Where keys and values of a prompt are, for the policy of this version; None: nowhere. Never fails."""
        outcome, found = await self._ask(prompt, version)
        self.note(outcome)
        return found

    async def _ask(self, prompt: Sequence[int], version: str) -> tuple[str, Computed | None]:
        until = time.monotonic() + _USABLE_SECONDS
        try:
            async with asyncio.timeout(self.seconds):
                said = await self.copies.prefill(prompt)
        except Exception as error:  # of Ray and Ray Serve: a dozen kinds
            late = isinstance(error, TimeoutError)
            why = f"no answer after {self.seconds:g} s" if late else first_line(error) or type(error).__name__
            logger.warning("no copy for prompts answers (%s); prompts are computed here until one does", why)
            self._there = False
            self._look()
            return "late" if late else "away", None
        if said.place is None:
            return "refused", None
        if said.version != version:
            return "version", None
        return "prefilled", Computed(said.place, said.cached, until)

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._until_there())

    async def _until_there(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.seconds):
                    if await self.copies.answers():
                        self._there = True
                        return
            except Exception as error:  # as above; the next look is soon
                logger.debug("no copy for prompts answers: %s", first_line(error))
            await asyncio.sleep(self.again)


class Remote:
    """`Copies` by a handle of Ray Serve."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def prefill(self, prompt: Sequence[int]) -> Handover:
        """See `Copies`."""
        found: Handover = await _heard(self._handle.prefill.remote([int(token) for token in prompt]))
        return found

    async def answers(self) -> bool:
        """See `Copies`."""
        return bool(await _heard(self._handle.has_policy.remote()))


async def _heard(response: Any) -> Any:
    """An answer; who waits no longer lets it be given up where it is made."""
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    except Exception as error:
        raise DeadlineExceeded(first_line(error) or type(error).__name__) from None
