"""A generator of a small random model: what tests of it, and of the routes above it, share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from async_work import run_async

from rl_api.run import TinyModelSpec
from rl_serve.admission import Admission
from rl_serve.answers import Delta
from rl_serve.generation import Generator
from rl_serve.requests import Limits, parse_completion
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.create import create_engine

SECONDS = 120.0
SLOTS, QUEUE = 4, 2
SHAPE = TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1, max_positions=2048)


@asynccontextmanager
async def generator_of(folder: Path, timeout: float = SECONDS) -> AsyncIterator[Generator]:
    engine = create_engine(folder, slots=SLOTS)
    tokenizer = load_tokenizer(folder)
    tokenizer.stop_ids = frozenset()
    limits = Limits("small", engine.context, 2000, SLOTS + QUEUE)
    found = Generator(engine, tokenizer, limits, Admission(SLOTS, QUEUE), timeout, "step-7")
    try:
        yield found
    finally:
        found.close()


def run(work: Awaitable[None]) -> None:
    run_async(lambda: work, SECONDS)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def text_of(generator: Generator, **fields: Any) -> list[str]:
    request = parse_completion(json.dumps({"prompt": "2+2=", **fields}).encode(), generator.limits)
    job = generator.start(request)
    try:
        deltas: list[Delta] = [delta async for delta in job.deltas()]
    finally:
        job.close()
    return ["".join(one.text for one in deltas if one.index == index) for index in range(request.sequences)]
