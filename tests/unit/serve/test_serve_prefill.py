"""Prompts that other copies compute: when they are asked, what is made of their answers, and what if there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from generators import generator_of, run, text_of, until

from rl_serve.engine_loop import EngineLoop
from rl_serve.generation import Generator
from rl_serve.prefill import ASK_SECONDS, Handover, Prefill
from rl_serve.requests import parse_completion
from rl_trainer.rollout.engines.base import GenerationRequest
from rl_trainer.rollout.engines.vllm_arguments import LEASE_SECONDS

PROMPT = list(range(2, 12))
PLACE = {"remote_block_ids": [[1, 2]]}


class Copies:
    """Copies for prompts whose answers are given; None: they do not answer."""

    def __init__(self, *said: Handover | Exception | None, there: bool = True) -> None:
        self.said, self.there = list(said), there
        self.asked: list[list[int]] = []
        self.looks = self.cancelled = 0

    async def prefill(self, prompt: Sequence[int]) -> Handover:
        self.asked.append(list(prompt))
        said = self.said.pop(0) if self.said else Handover("step-7", PLACE, 3)
        if said is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        if isinstance(said, Exception):
            raise said
        assert said is not None
        return said

    async def answers(self) -> bool:
        self.looks += 1
        return self.there


def asking(copies: Copies, seconds: float = 5.0) -> tuple[Prefill, list[str]]:
    outcomes: list[str] = []
    return Prefill(copies, 4, outcomes.append, seconds, again=0.001), outcomes


async def ready(prefill: Prefill) -> None:
    """Until it is known that a copy answers."""
    await until(lambda: prefill.wants(PROMPT, 1))


def test_short_prompts_and_shared_ones_are_nobody_elses() -> None:
    async def work() -> None:
        prefill, outcomes = asking(Copies())
        await ready(prefill)
        outcomes.clear()
        assert [prefill.wants(PROMPT[:count], 1) for count in (3, 4)] == [False, True]
        assert not prefill.wants(PROMPT, 2)
        assert outcomes == ["short", "shared"]

    run(work())


def test_nobody_waits_for_copies_that_have_never_answered() -> None:
    async def work() -> None:
        copies = Copies(there=False)
        prefill, outcomes = asking(copies)
        assert not prefill.wants(PROMPT, 1)
        await until(lambda: copies.looks > 2)
        assert not prefill.wants(PROMPT, 1)
        assert (set(outcomes), copies.asked) == ({"away"}, [])
        copies.there = True
        await ready(prefill)

    run(work())


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (Handover("step-7", PLACE, 3), "prefilled"),
        (Handover("step-8", PLACE), "version"),
        (Handover(refusal="the queue is full"), "refused"),
        (RuntimeError("the replica has died"), "away"),
        (None, "late"),
    ],
)
def test_what_is_made_of_an_answer(said: Handover | Exception | None, outcome: str) -> None:
    async def work() -> None:
        copies = Copies(said)
        prefill, outcomes = asking(copies, seconds=0.05)
        await ready(prefill)
        outcomes.clear()
        found = await prefill(PROMPT, "step-7")
        assert outcomes == [outcome]
        assert copies.asked == [PROMPT]
        if outcome == "prefilled":
            assert found is not None
            assert (found.place, found.cached) == (PLACE, 3)
        else:
            assert found is None
        # After one that has failed nobody waits before copies answer again; the others were answers.
        copies.there = False
        assert prefill.wants(PROMPT, 1) == (outcome in ("prefilled", "version", "refused"))
        copies.there = True
        await ready(prefill)

    run(work())


def test_what_is_held_for_it_is_given_up_before_the_other_copy_does() -> None:
    async def work() -> None:
        prefill, _ = asking(Copies())
        before = asyncio.get_running_loop().time()
        found = await prefill(PROMPT, "step-7")
        assert found is not None
        assert before + ASK_SECONDS < found.until < before + LEASE_SECONDS

    run(work())


def submitted(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What its engine is given, from now on."""
    found: list[GenerationRequest] = []
    submit = EngineLoop.submit

    def noting(loop: EngineLoop, requests: Sequence[GenerationRequest]) -> None:
        found.extend(requests)
        submit(loop, requests)

    monkeypatch.setattr(EngineLoop, "submit", noting)
    return found


def prefilling(folder: Path, copies: Copies, work: Callable[[Generator, list[str]], Any]) -> None:
    async def whole() -> None:
        async with generator_of(folder) as generator:
            prefill, outcomes = asking(copies, seconds=1000.0)
            await ready(prefill)
            outcomes.clear()
            generator._prefill = prefill
            await work(generator, outcomes)
            assert generator.admission.taken == 0

    run(whole())


def test_an_answer_begins_with_what_another_copy_has_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies()

    async def work(generator: Generator, outcomes: list[str]) -> None:
        given = submitted(generator, monkeypatch)
        await text_of(generator, prompt=["a long prompt", "one", "another one"], max_tokens=3)
        assert [len(prompt) for prompt in copies.asked] == [13, 11]
        assert sorted(outcomes) == ["prefilled", "prefilled", "short"]
        first, short, last = given
        assert short.prefilled is None
        for one in (first, last):
            assert one.prefilled is not None
            assert (one.prefilled.version, one.prefilled.place, one.prefilled.cached) == (0, PLACE, 3)

    prefilling(folder, copies, work)


def test_what_another_copy_has_computed_for_older_weights_is_known_by_its_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()

    class Slow(Copies):
        async def prefill(self, prompt: Sequence[int]) -> Handover:
            await waits.wait()
            return await super().prefill(prompt)

    async def work(generator: Generator, outcomes: list[str]) -> None:
        given = submitted(generator, monkeypatch)
        answer = asyncio.create_task(text_of(generator, prompt="a long prompt", max_tokens=3))
        await until(lambda: not generator.idle)
        await asyncio.sleep(0)
        # The weights change while the other copy computes: what it says is of those before.
        generator._names[1], generator._serving = "step-8", 1
        waits.set()
        await answer
        assert outcomes == ["prefilled"]
        assert given[0].prefilled is not None
        assert given[0].prefilled.version == 0

    prefilling(folder, Slow(), work)


def test_a_failure_costs_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(generator: Generator, outcomes: list[str]) -> None:
        given = submitted(generator, monkeypatch)
        alone = await text_of(generator, prompt="a long prompt", max_tokens=9, temperature=0)
        assert outcomes == ["away"]
        assert given[0].prefilled is None
        assert len(alone[0]) > 0

    prefilling(folder, Copies(RuntimeError("the replica has died")), work)


def test_a_client_that_goes_takes_its_question_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(None)

    async def work(generator: Generator, outcomes: list[str]) -> None:
        given = submitted(generator, monkeypatch)
        body = json.dumps({"prompt": "a long prompt", "max_tokens": 3}).encode()
        job = generator.start(parse_completion(body, generator.limits))
        await until(lambda: bool(copies.asked))
        job.close()
        await until(lambda: copies.cancelled == 1)
        assert given == []

    prefilling(folder, copies, work)


def test_a_copy_for_prompts_computes_one_and_says_of_which_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            given = submitted(generator, monkeypatch)
            said = await generator.hand_over(PROMPT)
            (asked,) = given
            assert (asked.hand_over, asked.params.max_new_tokens) == (True, 1)
            assert (said.version, said.refusal) == ("step-7", "")
            assert said.place is None, "this engine hands nothing over"
            refused = await generator.hand_over([10**6])
            assert "found token id 1000000" in refused.refusal
            generator.admission.taken = generator.admission.places
            assert "the queue is full" in (await generator.hand_over(PROMPT)).refusal
            generator.admission.taken = 0

    run(work())
