"""Rows of many parts on a real engine with a small random model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from async_work import run_async

from rl_api.errors import ActorDied
from rl_api.run import TinyModelSpec
from rl_generate.generator import Generator
from rl_generate.job import Options
from rl_generate.rows import Outcome
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.create import create_engine

SECONDS = 120.0
SLOTS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1, max_positions=512)
    return write_tiny(tmp_path_factory.mktemp("generator") / "model", shape, seed=1)


@asynccontextmanager
async def generator_of(
    folder: Path, engine: Engine | None = None, **options: Any
) -> AsyncIterator[Generator]:
    engine = engine or create_engine(folder, slots=SLOTS)
    found = Generator(engine, load_tokenizer(folder), Options(**{"max_new_tokens": 40, **options}))
    try:
        yield found
    finally:
        found.close()


def run(work: Awaitable[None]) -> None:
    run_async(lambda: work, SECONDS)


def rows(first: int, count: int) -> list[dict[str, Any] | None]:
    return [{"prompt": f"{number}+1="} for number in range(first, first + count)]


def test_an_answer_depends_on_its_row_alone(folder: Path) -> None:
    engine = create_engine(folder, slots=SLOTS)

    async def work() -> None:
        async with generator_of(folder, engine) as generator:
            parts = await asyncio.gather(
                *(generator.answer(rows(20 * number, 20), {}) for number in range(6))
            )
            alone = [(await generator.answer(rows(20 * number, 20), {})) for number in range(6)]
            assert parts == alone
            assert generator.rows == 0
            found = [answer for part in parts for one in part for answer in one.answers]
            assert generator.tokens == 2 * sum(one.tokens for one in found)
            assert {one.finish_reason for one in found} == {"stop", "length"}

    run(work())


def test_slots_stay_full_while_rows_wait(folder: Path) -> None:
    engine = create_engine(folder, slots=SLOTS)
    active: list[tuple[int, int]] = []
    step = engine.step

    def watched() -> Any:
        ended = step()
        active.append((engine.active + len(ended), engine.waiting))
        return ended

    engine.step = watched  # type: ignore[method-assign]

    async def work() -> None:
        async with generator_of(folder, engine) as generator:
            await asyncio.gather(*(generator.answer(rows(8 * number, 8), {}) for number in range(10)))

    run(work())
    busy = [taken for taken, waiting in active if waiting]
    assert len(busy) > 50
    assert set(busy) == {SLOTS}


def test_bad_rows_have_their_sentence_and_the_others_an_answer(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder, max_context=64) as generator:
            asked: list[dict[str, Any] | None] = [
                None,
                {"prompt": "2+2="},
                {"prompt": ""},
                {"prompt": "é"},
                {"prompt": [99999]},
                {"prompt": "1" * 600},
                {"messages": [{"role": "user", "content": "2+2="}]},
                {"prompt": [5, 6]},
            ]
            found = await generator.answer(asked, {0: "row 1 of x cannot be read"})
            assert [bool(one.error) for one in found] == [True, False, True, True, True, True, False, False]
            assert found[0] == Outcome(error="row 1 of x cannot be read")
            assert found[2].error == "prompt: found no token, allowed: at least one"
            assert found[3].error.startswith("prompt: there is no token for the character 'é'")
            assert found[4].error.startswith("prompt: found token id 99999, allowed: 0 to ")
            assert "found 600 tokens, allowed: at most 63" in found[5].error
            assert await generator.answer([None], {0: "x"}) == [Outcome(error="x")]
            assert await generator.answer([], {}) == []

    run(work())


def test_a_stop_text_ends_an_answer_before_it(folder: Path) -> None:
    async def work() -> None:
        asked: list[dict[str, Any] | None] = [{"prompt": [5, 6, 7]}]
        async with generator_of(folder, temperature=0.0) as generator:
            (whole,) = await generator.answer(asked, {})
        text = whole.answers[0].text
        stop = text[5:8]
        async with generator_of(folder, temperature=0.0, stop=("never said", stop)) as generator:
            (cut,) = await generator.answer(asked, {})
            (again,) = await generator.answer(asked, {})
        assert cut == again
        assert cut.answers[0].text == text[: text.index(stop)]
        assert cut.answers[0].finish_reason == "stop"
        assert cut.answers[0].tokens <= 8
        async with generator_of(folder, temperature=0.0, stop=("never said",)) as generator:
            assert await generator.answer(asked, {}) == [whole]

    run(work())


def test_several_answers_of_a_row_differ_and_repeat(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder, n=3, seed=5) as generator:
            (first,) = await generator.answer(rows(0, 1), {})
            assert len({one.text for one in first.answers}) == 3
            assert (await generator.answer(rows(0, 9), {}))[0] == first
        async with generator_of(folder, n=1, seed=5) as generator:
            assert (await generator.answer(rows(0, 1), {}))[0].answers == first.answers[:1]

    run(work())


def test_weights_that_are_no_numbers_are_said_of_each_row(folder: Path) -> None:
    engine = create_engine(folder, slots=SLOTS)
    engine._decoder.embed.data.fill_(torch.nan)  # type: ignore[attr-defined]

    async def work() -> None:
        async with generator_of(folder, engine, n=2) as generator:
            found = await generator.answer(rows(0, 2), {})
            assert {one.error for one in found} == {
                "the policy's weights give probabilities that are no numbers"
            }

    run(work())


def test_an_engine_that_fails_is_said_to_all_who_wait(folder: Path) -> None:
    engine = create_engine(folder, slots=SLOTS)

    def fail() -> Any:
        raise RuntimeError("out of memory")

    engine.step = fail  # type: ignore[method-assign]

    async def work() -> None:
        async with generator_of(folder, engine) as generator:
            found = await asyncio.gather(
                generator.answer(rows(0, 2), {}), generator.answer(rows(2, 2), {}), return_exceptions=True
            )
            assert [type(one) for one in found] == [ActorDied, ActorDied]
            assert str(found[0]) == "the engine has failed: RuntimeError: out of memory"
            with pytest.raises(ActorDied):
                await generator.answer(rows(4, 1), {})

    run(work())
