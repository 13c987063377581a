"""`rltrain serve` under far more clients than it has places: serve_load.py [--clients 500] [--minutes 10] [--replicas 1].

Each client streams completions of mixed lengths, one after the other; some leave in the middle of an answer. One that gets
429 comes back after a second or two. Nothing but a whole answer or 429 may happen: no other status, no cut stream, no lost
connection, no process that ends. Memory (all processes of the server, unique bytes) is looked at every five seconds; after
the first fifth of the time it may rise by a tenth at most. Ends with status 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from http_clients import ask
from openai_server import OpenAiServer, free_port
from serve import CONTEXT, MODEL, write_model
from table import Check, at_most, report

LOOK_SECONDS = 5.0
# Most that memory may rise after the start, as a share of it.
RISE = 0.1
# One answer of so many is left after some tokens.
LEAVES = 20


class Load:
    """The clients and what they have seen; `outcomes` by what happened."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.end = url, time.monotonic() + seconds
        self.outcomes: Counter[str] = Counter()
        self.tokens = 0
        self.slowest = 0.0

    async def client(self, session: aiohttp.ClientSession, number: int) -> None:
        """One client until the end."""
        choice = random.Random(number)
        while time.monotonic() < self.end:
            body = {
                "model": MODEL,
                "prompt": "".join(choice.choices("abcdefghij ", k=choice.randint(1, 100))),
                "max_tokens": choice.choice([1, 8, 32, 128]),
                "temperature": choice.choice([0, 1]),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            outcome = await self._once(session, body, leaves=choice.randrange(LEAVES) == 0)
            self.outcomes[outcome] += 1
            if outcome == "429":
                await asyncio.sleep(1.0 + choice.random())

    async def _once(self, session: aiohttp.ClientSession, body: dict[str, Any], *, leaves: bool) -> str:
        try:
            if leaves:
                return await self._leave(session, body)
            answer = await ask(session, self.url, body, timeout=300)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"[:80]
        if answer.status != 200:
            return str(answer.status)
        if answer.error or answer.tokens > body["max_tokens"] or not answer.tokens:
            return answer.error[:80] or f"{answer.tokens} tokens of {body['max_tokens']}"
        self.tokens += answer.tokens
        self.slowest = max(self.slowest, answer.seconds)
        return "answered"

    async def _leave(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> str:
        async with session.post(f"{self.url}/v1/completions", json=body) as response:
            if response.status != 200:
                await response.read()
                return str(response.status)
            await response.content.readline()
        return "left"


async def run(server: OpenAiServer, clients: int, seconds: float) -> tuple[Load, list[float]]:
    """The load, and the server's memory in MiB over the time."""
    load, memory = Load(server.url, seconds), []

    async def look() -> None:
        while time.monotonic() < load.end:
            memory.append(await asyncio.to_thread(server.memory) / 2**20)
            print(f"{memory[-1]:,.0f} MiB, {dict(load.outcomes)}", flush=True)
            await asyncio.sleep(LOOK_SECONDS)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(look(), *(load.client(session, number) for number in range(clients)))
    return load, memory


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(folder)
        port = free_port()
        command = [sys.executable, "-m", "rl_cli.main", "serve", str(folder), "--port", str(port)]
        command += ["--model-name", MODEL, "--max-context", str(CONTEXT), "--replicas", str(options.replicas)]
        with OpenAiServer("serve-load", command, port) as server:
            before = {process.pid for process in server.processes()}
            load, memory = asyncio.run(run(server, options.clients, options.minutes * 60))
            alive = {process.pid for process in server.processes()}
            after = asyncio.run(_one_more(server.url))
    settled = memory[len(memory) // 5 :]
    third = max(1, len(settled) // 3)
    rise = statistics.median(settled[-third:]) / statistics.median(settled[:third]) - 1
    wrong = {name: count for name, count in load.outcomes.items() if name not in ("answered", "left", "429")}
    checks = [
        Check("every request answered or 429", not wrong, str(wrong or "all"), "nothing else"),
        Check("no process ended", before <= alive, f"{len(before - alive)} ended", "0 ended"),
        Check("it answers afterwards", after == 200, str(after), "200"),
        at_most("memory's rise after the first fifth", 100 * rise, 100 * RISE, " %"),
    ]
    columns = ["clients", "answered", "left", "429", "tok/s", "slowest, s", "MiB at first", "MiB at the end"]
    counts = [load.outcomes[name] for name in ("answered", "left", "429")]
    rate = load.tokens / (options.minutes * 60)
    row = [options.clients, *counts, rate, load.slowest, memory[0], memory[-1]]
    meta = {"what": __doc__, "minutes": options.minutes, "replicas": options.replicas, "memory": memory}
    return report("serve_load", columns, [row], meta, checks)


async def _one_more(url: str) -> int:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 4, "stream": True}
    async with aiohttp.ClientSession() as session:
        return (await ask(session, url, {**body, "stream_options": {"include_usage": True}}, 300)).status


if __name__ == "__main__":
    sys.exit(not main())
