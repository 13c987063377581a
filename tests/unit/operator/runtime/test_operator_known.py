"""Answers that hold for a while: asked for once, and not kept for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rl_operator.runtime.known import Known


def answers(found: list[str], text: str) -> Callable[[], Awaitable[str]]:
    async def ask() -> str:
        found.append(text)
        return text

    return ask


def test_what_holds_is_not_asked_for_again() -> None:
    known, asked = Known(), list[str]()

    async def look() -> list[str]:
        return [
            await known.lately(("claim", "a"), 60.0, answers(asked, "first")),
            await known.lately(("claim", "a"), 60.0, answers(asked, "second")),
            await known.lately(("claim", "b"), -1.0, answers(asked, "third")),
            await known.lately(("claim", "b"), 60.0, answers(asked, "fourth")),
        ]

    assert asyncio.run(look()) == ["first", "first", "third", "fourth"]
    assert asked == ["first", "third", "fourth"]


def test_what_holds_no_more_is_dropped_in_the_end() -> None:
    known, asked = Known(), list[str]()

    async def look() -> None:
        await known.lately(("kept",), 60.0, answers(asked, "kept"))
        for number in range(1000):
            await known.lately((str(number),), -1.0, answers(asked, "over"))

    asyncio.run(look())
    assert len(known.answers) <= 200
    assert ("kept",) in known.answers
