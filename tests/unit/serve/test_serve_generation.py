"""Requests on a real engine with a small random model, and the routes above them: batches, deadlines, clients that go."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from async_work import run_async
from starlette.requests import Request as HttpRequest

from rl_api.errors import ModelError
from rl_api.run import TinyModelSpec
from rl_serve.admission import Admission
from rl_serve.answers import Delta
from rl_serve.errors import ApiError
from rl_serve.generation import Generator, Job, seed_of
from rl_serve.http import Api
from rl_serve.keys import read_keys
from rl_serve.loading import difference, shape_of
from rl_serve.requests import Limits, parse_completion
from rl_trainer.model.folder import read_tensors
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.create import create_engine

SECONDS = 60.0
SLOTS, QUEUE = 4, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1, max_positions=2048)
    return write_tiny(tmp_path_factory.mktemp("generation") / "model", shape, seed=1)


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


def test_a_chat_goes_through_the_models_template(folder: Path, tmp_path: Path) -> None:
    templated = shutil.copytree(folder, tmp_path / "model")
    (templated / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    )

    async def work() -> None:
        async with generator_of(templated) as generator:
            client = Client(Api(lambda: generator, lambda: None))
            messages = [{"role": "developer", "content": "add"}, {"role": "user", "content": "2+2="}]
            body = {"messages": messages, "temperature": 0, "max_tokens": 5}
            _, _, answer = await client.whole("/v1/chat/completions", body)
            prompt = "[system]add[user]2+2=[assistant]"
            assert answer["usage"]["prompt_tokens"] == len(prompt)
            plain = await text_of(generator, prompt=prompt, temperature=0, max_tokens=5)
            assert [answer["choices"][0]["message"]["content"]] == plain
            messages.append({"role": "tool", "content": "4"})
            status, _, refused = await client.whole("/v1/chat/completions", body)
            assert status == 400
            assert refused["error"]["message"].startswith(
                "messages: the chat template refuses messages of roles"
            )

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


class Client:
    """Requests as Ray Serve hands them over."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.gone = asyncio.Event()

    async def ask(
        self, path: str, body: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        """Status, headers and the pieces of the body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {
            "content-type": "application/json",
            **{name.replace("_", "-"): headers[name] for name in headers},
        }
        inbox = [{"type": "http.request", "body": content, "more_body": False}]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in said.items()],
        }
        sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def receive() -> dict[str, Any]:
            if inbox:
                return inbox.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def answer() -> None:
            response = await self.api(HttpRequest(scope, receive))
            await response(scope, receive, sent.put)  # type: ignore[arg-type]
            await sent.put({"type": "end"})

        task = asyncio.create_task(answer())
        start = await sent.get()

        async def pieces() -> AsyncIterator[bytes]:
            while (message := await sent.get())["type"] == "http.response.body":
                yield message["body"]
            await task

        return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, pieces()

    async def whole(self, path: str, body: Any = None, **options: str) -> tuple[int, dict[str, str], Any]:
        status, headers, pieces = await self.ask(path, body, **options)
        return status, headers, json.loads(b"".join([piece async for piece in pieces]))


def test_routes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-0123456789abcdef")

    async def work() -> None:
        async with generator_of(folder) as generator:
            keys = read_keys(tmp_path / "keys")
            client = Client(Api(lambda: generator, lambda: keys))
            key = {"authorization": "Bearer sk-0123456789abcdef"}
            for path, options, status, code in (
                ("/v1/models", {}, 401, "invalid_api_key"),
                ("/v1/models", {"method": "DELETE", **key}, 405, "method_not_allowed"),
                ("/v1/models/other", {"method": "GET", **key}, 404, "not_found"),
                ("/", {"method": "GET", **key}, 404, "not_found"),
                ("/v1/completions", {"content_type": "text/plain", **key}, 415, "invalid_content_type"),
                ("/v1/completions", key, 400, "invalid_json"),
            ):
                found = await client.whole(path, None, **options)
                assert (found[0], found[2]["error"]["code"]) == (status, code), path
                assert found[1]["x-policy-version"] == "step-7"
            large = await client.whole("/v1/completions", b"x" * (8 * 2**20 + 1), **key)
            assert large[0] == 413
            status, _, health = await client.whole("/healthz", method="GET")
            assert (status, health["status"], health["running"]) == (200, "ok", 0)
            listed = await client.whole("/v1/models/", method="GET", **key)
            one = await client.whole("/v1/models/small", method="GET", **key)
            assert listed[2]["data"] == [one[2]]
            answer = await client.whole("/v1/completions", {"prompt": "a", "max_tokens": 3}, **key)
            assert (answer[0], answer[2]["usage"]["completion_tokens"]) == (200, 3)

    run(work())


def test_a_full_queue_and_a_client_that_goes(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            leaving, other = (Client(Api(lambda: generator, lambda: None)) for _ in range(2))
            long = {"prompt": "a", "max_tokens": 2000, "n": SLOTS + QUEUE, "stream": True}
            status, headers, _ = await leaving.ask("/v1/completions", long)
            assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
            refused = await other.whole("/v1/completions", {"prompt": "a"})
            assert (refused[0], refused[2]["error"]["code"]) == (429, "queue_full")
            assert int(refused[1]["retry-after"]) >= 1
            full = await other.whole("/healthz", method="GET")
            assert (full[0], full[2]["running"], full[2]["waiting"]) == (503, SLOTS, QUEUE)
            leaving.gone.set()
            await until(lambda: generator.admission.taken == 0)
            assert generator.admission.expected(1) == 0, "how long it would have taken is not known"
            again = await other.whole("/v1/completions", {"prompt": "a", "n": SLOTS + QUEUE})
            assert again[0] == 200
            assert generator.admission.expected(1) > 0
            assert generator.tokens < 2000 * (SLOTS + QUEUE)

    run(work())


def test_a_stream_that_cannot_go_on_ends_with_an_error(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder, timeout=1.0) as generator:
            client = Client(Api(lambda: generator, lambda: None))
            body = {"prompt": "a", "max_tokens": 2000, "n": SLOTS + QUEUE, "stream": True}
            status, _, pieces = await client.ask("/v1/completions", body)
            assert status == 200
            events = [piece async for piece in pieces if piece]
            assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "deadline_exceeded"
            assert b"data: [DONE]\n\n" not in events
            assert 0 < generator.admission.expected(1) < 1
            late = await client.whole("/v1/completions", body | {"stream": False})
            assert (late[0], late[2]["error"]["code"]) == (504, "deadline_exceeded")

    run(work())


def test_what_nobody_thought_of_is_an_error_without_an_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:

            def broken(*_: object) -> None:
                raise KeyError("/secret/path")

            monkeypatch.setattr(generator, "start", broken)
            client = Client(Api(lambda: generator, lambda: None))
            status, _, found = await client.whole("/v1/completions", {"prompt": "a"})
            assert (status, found["error"]["type"]) == (500, "server_error")
            assert "secret" not in json.dumps(found)

    run(work())


def test_weights_change_between_two_tokens_and_the_answer_says_where(folder: Path, tmp_path: Path) -> None:
    shape = TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1, max_positions=2048)
    other = write_tiny(tmp_path / "other", shape, seed=2)
    wider = write_tiny(tmp_path / "wider", shape.model_copy(update={"hidden_size": 64}), seed=2)

    async def work() -> None:
        async with generator_of(folder) as generator:
            client = Client(Api(lambda: generator, lambda: None, stamped=True))
            body = {"prompt": "a", "max_tokens": 600, "temperature": 0}
            status, headers, pieces = await client.ask("/v1/completions", body | {"stream": True})
            assert (status, headers["x-policy-version"]) == (200, "step-7")
            await anext(pieces)
            await generator.swap(read_tensors(other), "step-8")
            events = [piece async for piece in pieces if piece]
            last = json.loads(events[-2].removeprefix(b"data: "))
            first, second = last["policy_versions"]
            assert first == {"index": 0, "version": "step-7", "token": 0}
            assert (second["index"], second["version"], 0 < second["token"] < 600) == (0, "step-8", True)
            assert b"policy_versions" not in b"".join(events[:-2])
            _, headers, found = await client.whole("/v1/completions", body | {"max_tokens": 3})
            assert headers["x-policy-version"] == found["policy_version"] == "step-8"
            assert found["policy_versions"] == [{"index": 0, "version": "step-8", "token": 0}]
            with pytest.raises(ModelError):
                await generator.swap(read_tensors(wider), "step-9")
            assert generator.version == "step-8"
            _, _, again = await client.whole("/v1/completions", body | {"max_tokens": 3})
            assert again["choices"] == found["choices"]

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
