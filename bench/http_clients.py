"""Closed-loop clients of an OpenAI server: each sends its next streamed request when the one before has ended.

One event loop for all of them, and no more work for an event than finding its tokens: on a small machine clients take from
what they measure.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_PREFIX, _DONE = b"data: ", b"data: [DONE]"


@dataclass
class Answer:
    """One answer: HTTP status, tokens by the server's own count, seconds to its end, to its first and between later tokens.

    `error`: why a stream that began well has not ended well.
    """

    status: int
    tokens: int = 0
    seconds: float = 0.0
    first: float = 0.0
    between: float = 0.0
    error: str = ""


@dataclass
class Measured:
    """What a load came to: tokens per second over all of it, and every answer."""

    rate: float
    seconds: float
    answers: list[Answer] = field(default_factory=list)

    def percentile(self, name: str, share: float) -> float:
        """A percentile of a field of the answers that ended well."""
        values = sorted(getattr(one, name) for one in self.answers if one.status == 200 and not one.error)
        return values[min(len(values) - 1, int(share * len(values)))]


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], timeout: float = 600.0
) -> Answer:
    """One streamed completion; connection errors are raised."""
    began = time.perf_counter()
    answer = Answer(0)
    last = first = None
    limit = aiohttp.ClientTimeout(total=timeout)
    async with session.post(f"{url}/v1/completions", json=body, timeout=limit) as response:
        answer.status = response.status
        if response.status != 200:
            await response.read()
            return answer
        ended = False
        async for line in response.content:
            if not line.startswith(_PREFIX):
                continue
            if line.startswith(_DONE):
                ended = True
            elif b'"usage":{' in line or b'"usage": {' in line:
                answer.tokens = json.loads(line[len(_PREFIX) :])["usage"]["completion_tokens"]
            elif b'"error"' in line:
                answer.error = line.decode()
            else:
                last = time.perf_counter()
                first = first or last
    answer.seconds = time.perf_counter() - began
    if not ended:
        answer.error = answer.error or "the stream ended without [DONE]"
    if first is not None and last is not None:
        answer.first = first - began
        answer.between = (last - first) / max(1, answer.tokens - 1)
    return answer


async def closed_loop(url: str, bodies: Sequence[Sequence[dict[str, Any]]]) -> Measured:
    """Client i sends `bodies[i]` one after the other."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(body: dict[str, Any]) -> Answer:
            try:
                return await ask(session, url, body)
            except aiohttp.ServerDisconnectedError:
                # A server may close a connection that is kept as the next request comes: uvicorn does it now and then.
                return await ask(session, url, body)

        async def client(own: Sequence[dict[str, Any]]) -> list[Answer]:
            return [await one(body) for body in own]

        began = time.perf_counter()
        found = await asyncio.gather(*map(client, bodies))
        seconds = time.perf_counter() - began
    answers = [answer for own in found for answer in own]
    return Measured(sum(answer.tokens for answer in answers) / seconds, seconds, answers)


async def bare(url: str, path: str, count: int) -> float:
    """Median seconds of `count` GET requests, one after the other over one connection."""
    seconds = []
    async with aiohttp.ClientSession() as session:
        for _ in range(count):
            began = time.perf_counter()
            async with session.get(f"{url}{path}") as response:
                await response.read()
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
