"""Requests on a real engine with a small random model: batches, pieces, deadlines, prompts that it cannot take."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from generators import QUEUE, SECONDS, SLOTS, generator_of, run, text_of, until

from rl_serve.admission import Admission
from rl_serve.errors import ApiError
from rl_serve.generation import Generator, seed_of
from rl_serve.job import Job
from rl_serve.loading import difference, shape_of
from rl_serve.requests import Limits, parse_completion
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.create import create_engine


def test_answers_do_not_depend_on_who_else_asks(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            alone = [(await text_of(generator, seed=seed, max_tokens=20 + seed))[0] for seed in range(4)]
            together = await asyncio.gather(
                *(text_of(generator, seed=seed, max_tokens=20 + seed) for seed in range(4))
            )
            assert [one[0] for one in together] == alone
            assert generator.admission.taken == 0
            assert generator.tokens == 2 * sum(range(20, 24))

    run(work())


def test_a_client_that_reads_slowly_does_not_make_answers_look_slow(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            body = json.dumps({"prompt": "2+2=", "max_tokens": 20, "stream": True})
            job = generator.start(parse_completion(body.encode(), generator.limits))
            await until(lambda: generator.admission.expected(1) > 0)
            known = generator.admission.expected(1)
            await asyncio.sleep(10 * known)
            assert [delta async for delta in job.deltas()][-1].finish_reason == "length"
            job.close()
            assert generator.admission.expected(1) == known

    run(work())


@pytest.mark.parametrize(("seconds", "pieces"), [(0.0, 20), (3600.0, 2)])
def test_a_stream_hands_on_pieces_at_its_pace(folder: Path, seconds: float, pieces: int) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            (whole,) = await text_of(generator, seed=3, max_tokens=20)
            body = json.dumps({"prompt": "2+2=", "seed": 3, "max_tokens": 20, "stream": True, "logprobs": 0})
            job = generator.start(parse_completion(body.encode(), generator.limits))
            job.pace = lambda: seconds
            deltas = [delta async for delta in job.deltas()]
            job.close()
            # The first token and the end never wait; what is held back in between comes with the end.
            assert len(deltas) == pieces
            assert len(deltas[0].tokens) == 1
            assert sum(len(delta.tokens) for delta in deltas) == 20
            assert "".join(delta.text for delta in deltas) == whole
            assert [delta.finish_reason for delta in deltas] == [None] * (pieces - 1) + ["length"]
            assert job.usage.completion == 20

    run(work())


def test_streams_share_the_pieces_of_a_second(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:

            def stream(n: int) -> Job:
                body = json.dumps({"prompt": "a", "max_tokens": 2000, "n": n, "stream": True})
                return generator.start(parse_completion(body.encode(), generator.limits))

            one = stream(1)
            alone = one.pace()
            others = stream(SLOTS)
            assert one.pace() == others.pace() == pytest.approx((1 + SLOTS) * alone)
            one.close()
            others.close()

    run(work())


def test_seeds_of_several_answers_differ_and_repeat(folder: Path) -> None:
    assert seed_of(5, 0) == 5
    assert len({seed_of(5, index) for index in range(100)}) == 100

    async def work() -> None:
        async with generator_of(folder) as generator:
            three = await text_of(generator, seed=5, n=3)
            assert len(set(three)) == 3
            assert await text_of(generator, seed=5, n=3) == three
            assert (await text_of(generator, seed=5)) == three[:1]
            assert await text_of(generator) != await text_of(generator), "without a seed they do not repeat"

    run(work())


def test_a_stop_text_frees_the_place_in_the_engine(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            (whole,) = await text_of(generator, seed=1, max_tokens=30)
            before = generator.tokens
            (cut,) = await text_of(generator, seed=1, max_tokens=1000, stop=whole[10:13])
            assert cut == whole[: whole.index(whole[10:13])]
            # All slots once: had the sequence stayed in the engine, it had been written to its end meanwhile.
            await text_of(generator, n=SLOTS, max_tokens=200)
            assert generator.tokens - before < SLOTS * 200 + 1000

    run(work())


def test_the_deadline_ends_an_answer(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder, timeout=0.05) as generator:
            with pytest.raises(ApiError, match=r"not ready 0\.05 seconds after the request") as caught:
                await text_of(generator, n=SLOTS + QUEUE, max_tokens=2000)
            assert caught.value.status == 504
            assert generator.admission.taken == 0

    run(work())


def test_prompts_that_the_model_cannot_take(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            for fields, param, sentence in (
                ({"prompt": ""}, "prompt", "prompt: found no token, allowed: at least one"),
                ({"prompt": "é"}, "prompt", "prompt: there is no token for the character 'é' (U+00E9)"),
                ({"prompt": [97, 98]}, "prompt", "prompt: found token id 98, allowed: 0 to 97"),
                ({"prompt": "a" * 2048}, "prompt", "prompt: found 2048 tokens, allowed: at most 2047"),
                ({"prompt": "a" * 2000, "max_tokens": 49}, "max_tokens", "allowed: at most 48"),
            ):
                with pytest.raises(ApiError) as caught:
                    await text_of(generator, **fields)
                assert sentence in caught.value.message
                assert caught.value.param == param
                assert str(folder) not in caught.value.message
            assert generator.admission.taken == 0
            assert generator.tokens == 0
            await text_of(generator, prompt="a" * 2000, max_tokens=48)
            assert generator.tokens == 48

    run(work())


def test_who_finds_no_place_has_its_prompt_not_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            encoded: list[str] = []
            encode = generator.tokenizer.encode
            monkeypatch.setattr(
                generator.tokenizer,
                "encode",
                lambda text, **more: encoded.append(text) or encode(text, **more),
            )
            all_places = {"prompt": "a", "n": SLOTS + QUEUE, "max_tokens": 2000}
            job = generator.start(parse_completion(json.dumps(all_places).encode(), generator.limits))
            with pytest.raises(ApiError) as caught:
                await text_of(generator, prompt="b" * 100)
            assert (caught.value.status, encoded) == (429, ["a"])
            job.close()
            with pytest.raises(ApiError, match="found 2048 tokens"):
                await text_of(generator, prompt="a" * 2048)
            assert generator.admission.taken == 0
            # So long that its tokens need not be counted.
            encoded.clear()
            with pytest.raises(
                ApiError, match=r"found 100000 characters, allowed: at most 2047 tokens"
            ) as caught:
                await text_of(generator, prompt="a" * 100_000)
            assert (caught.value.code, encoded, generator.admission.taken) == (
                "context_length_exceeded",
                [],
                0,
            )

    run(work())


def test_a_long_prompt_is_encoded_beside_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            goes_on = threading.Event()
            began = asyncio.Event()
            loop = asyncio.get_running_loop()

            def slow(text: str, **_: bool) -> list[int]:
                loop.call_soon_threadsafe(began.set)
                assert goes_on.wait(SECONDS)
                return [1, 2]

            encode = generator.tokenizer.encode
            monkeypatch.setattr(generator.tokenizer, "longest", None)
            monkeypatch.setattr(
                generator.tokenizer,
                "encode",
                lambda text, **more: slow(text) if len(text) > 2**16 else encode(text, **more),
            )
            body = json.dumps({"prompt": "a" * 2**17, "max_tokens": 3}).encode()
            task = asyncio.create_task(generator.begin(parse_completion(body, generator.limits)))
            await began.wait()
            assert (generator.idle, generator.admission.taken) == (False, 1)
            assert len(await text_of(generator, max_tokens=5)) == 1
            goes_on.set()
            job = await task
            deltas = [delta async for delta in job.deltas()]
            assert (deltas[-1].finish_reason, job.usage.prompt, job.usage.completion) == ("length", 2, 3)
            job.close()
            assert (generator.idle, generator.admission.taken) == (True, 0)
            goes_on.clear()
            gone = asyncio.create_task(generator.begin(parse_completion(body, generator.limits)))
            await until(lambda: generator.admission.taken == 1)
            gone.cancel()
            await asyncio.wait([gone])
            assert (gone.cancelled(), generator.idle, generator.admission.taken) == (True, True, 0)
            goes_on.set()

    run(work())


def test_a_family_of_the_librarys_comes_in_one_piece(family_folder: Callable[[str], Path]) -> None:
    async def work() -> None:
        async with generator_of(family_folder("gpt2")) as generator:
            body = {"prompt": [[5, 6], [7]], "n": 2, "temperature": 0, "max_tokens": 9, "stream": True}
            job = generator.start(parse_completion(json.dumps(body).encode(), generator.limits))
            deltas = [delta async for delta in job.deltas()]
            job.close()
            assert sorted(delta.index for delta in deltas) == [0, 1, 2, 3]
            assert (job.usage.prompt, job.usage.completion) == (3, 36), "a prompt counts once"
            assert all(len(delta.text.split()) == 9 for delta in deltas)

    run(work())


def test_an_engine_that_fails_ends_all_answers_with_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            await text_of(generator)

            def broken(self: Engine) -> None:
                raise RuntimeError("out of memory\nmore")

            monkeypatch.setattr("rl_trainer.rollout.engines.torch.TorchEngine.step", broken)
            for _ in range(2):
                with pytest.raises(
                    ApiError, match=r"the engine has failed: RuntimeError: out of memory$"
                ) as e:
                    await text_of(generator)
                assert e.value.status == 500
            assert generator.admission.taken == 0

    run(work())


def test_weights_that_are_no_numbers_are_said_to_be_so(folder: Path) -> None:
    async def work() -> None:
        engine = create_engine(folder, slots=SLOTS)
        engine._decoder.norm.fill_(np.nan)  # type: ignore[attr-defined]
        limits = Limits("small", engine.context, 2000, SLOTS)
        generator = Generator(engine, load_tokenizer(folder), limits, Admission(SLOTS, 0), SECONDS, "step-7")
        with pytest.raises(ApiError, match="probabilities that are no numbers"):
            await text_of(generator)
        generator.close()

    run(work())


def test_only_weights_may_change_in_place(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "same")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "same" / "config.json").write_text(json.dumps(config | {"transformers_version": "1"}))
    assert difference(shape_of(folder), shape_of(tmp_path / "same")) == ""
    (tmp_path / "same" / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    assert "rope_theta" in difference(shape_of(folder), shape_of(tmp_path / "same"))
    (tmp_path / "same" / "config.json").write_text(json.dumps(config))
    (tmp_path / "same" / "tokenizer.json").write_text("{}")
    assert difference(shape_of(folder), shape_of(tmp_path / "same")) == "tokenizer.json"
