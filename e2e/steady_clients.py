"""A program for a pod: sends requests at a steady rate, whatever becomes of the answers, and keeps a tally in a file. It
pauses while too many are under way.

Arguments: URL of /v1/completions, model, requests a second, prompt, tokens of an answer, the file. API_KEY in the
environment is sent along.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import aiohttp

URL, MODEL, RATE, PROMPT, TOKENS, RESULT = sys.argv[1:]
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": int(TOKENS), "temperature": 0}
HEADERS = {"Authorization": f"Bearer {os.environ['API_KEY']}"} if "API_KEY" in os.environ else {}
SECONDS = 180.0
# Of requests under way, in seconds of the rate: a service that is slower than its clients would answer ever later, and in
# the end nothing in time.
MOST_SECONDS = 20.0


class Tally:
    """What became of all requests."""

    def __init__(self) -> None:
        self.sent = self.answered = 0
        self.failed: list[dict[str, Any]] = []
        self.before = ""  # what went wrong last before the first answer
        self.versions: dict[str, list[str]] = {}
        self.slowest = 0.0

    def write(self) -> None:
        """Replace the file."""
        with open(f"{RESULT}.new", "w") as file:
            json.dump(vars(self), file)
        os.replace(f"{RESULT}.new", RESULT)


async def ask(session: aiohttp.ClientSession, tally: Tally) -> None:
    """One request."""
    began = time.monotonic()
    try:
        async with session.post(URL, json=BODY, headers=HEADERS) as response:
            body = await response.json(content_type=None)
            status, named = response.status, response.headers.get("x-policy-version", "")
        if status != 200:
            raise RuntimeError(f"status {status}: {json.dumps(body)[:300]}")
        if not named or body.get("policy_version") != named:
            raise RuntimeError(f"header names {named!r}, body {body.get('policy_version')!r}")
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        if not tally.answered:
            tally.before = (
                words  # the address of a service that has just begun is not known on every node yet
            )
            return
        tally.failed.append({"at": time.time(), "after": time.monotonic() - began, "error": words})
    else:
        tally.answered += 1
        texts = tally.versions.setdefault(named, [])
        text = body["choices"][0]["text"]
        if text not in texts:
            texts.append(text)
        tally.slowest = max(tally.slowest, time.monotonic() - began)


async def main() -> None:
    tally, under_way = Tally(), set[asyncio.Task[None]]()
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    # The address of a Service does not change.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        due = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            while len(under_way) >= MOST_SECONDS * float(RATE):
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                due = time.monotonic()  # what was not sent meanwhile is not made up for
            due += 1 / float(RATE)
            tally.sent += 1
            task = asyncio.create_task(ask(session, tally))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            if tally.sent % max(1, int(float(RATE) / 2)) == 0:
                tally.write()


asyncio.run(main())
