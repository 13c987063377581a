"""The routes above a generator: what clients are answered, in full queues, late, and while weights change."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from generators import QUEUE, SECONDS, SHAPE, SLOTS, generator_of, run, text_of, until
from starlette.requests import Request as HttpRequest

from rl_api.errors import ModelError
from rl_serve.http import Api
from rl_serve.keys import read_keys
from rl_serve.window import Answered
from rl_trainer.model.folder import read_tensors
from rl_trainer.model.presets import write_tiny
from rl_trainer.rollout.engines.torch import TorchEngine


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
                assert found[1]["x-policy-version"] == found[2]["policy_version"] == "step-7"
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


def test_a_stream_that_cannot_go_on_ends_with_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("rl_serve.job.time", SimpleNamespace(monotonic=lambda: now))

    async def work() -> None:
        nonlocal now
        async with generator_of(folder, timeout=3600.0) as generator:
            # The deadline passes when the test says so: after the first token, however late that comes.
            loop, passes = asyncio.get_running_loop(), list[Callable[[], None]]()
            later = loop.call_later

            def noted(delay: float, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
                if delay == 3600.0:
                    passes.append(call)
                return later(delay, call, *given, **named)

            monkeypatch.setattr(loop, "call_later", noted)
            client = Client(Api(lambda: generator, lambda: None))
            body = {"prompt": "a", "max_tokens": 2000, "n": SLOTS + QUEUE, "stream": True}
            status, _, pieces = await client.ask("/v1/completions", body)
            assert status == 200
            await anext(pieces)
            now += 0.75
            (deadline,) = passes
            deadline()
            events = [piece async for piece in pieces if piece]
            said = json.loads(events[-1].removeprefix(b"data: "))
            assert (said["error"]["code"], said["policy_version"]) == ("deadline_exceeded", "step-7")
            assert b"data: [DONE]\n\n" not in events
            assert generator.admission.expected(1) == 0.75, "since its first token"
            generator.timeout = 0.05
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

            monkeypatch.setattr(generator.tokenizer, "encode", broken)
            ended: list[Answered] = []
            api = Api(lambda: generator, lambda: None, ended=ended.append)
            status, _, found = await Client(api).whole("/v1/completions", {"prompt": "a"})
            assert (status, found["error"]["type"]) == (500, "server_error")
            assert "secret" not in json.dumps(found)
            # Who compares versions hears of it.
            assert [(one.version, one.code) for one in ended] == [("step-7", 500)]
            assert not api.under_way

    run(work())


def test_a_stream_that_fails_inside_ends_with_an_error_that_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with generator_of(folder) as generator:
            ended: list[Answered] = []
            begun: list[dict[str, int]] = []
            api = Api(
                lambda: generator,
                lambda: None,
                began=lambda: begun.append(dict(api.under_way)),
                ended=ended.append,
            )
            client = Client(api)
            body = {"prompt": "a", "max_tokens": 600, "stream": True}
            status, _, pieces = await client.ask("/v1/completions", body)
            assert (status, api.under_way, begun) == (200, {"step-7": 1}, [{"step-7": 1}])

            def broken(*_: object) -> None:
                raise KeyError("/secret/path")

            monkeypatch.setattr("rl_serve.http.event", broken)
            events = [piece async for piece in pieces if piece]
            assert json.loads(events[-1].removeprefix(b"data: "))["error"]["type"] == "server_error"
            assert b"secret" not in b"".join(events)
            assert [(one.version, one.code) for one in ended] == [("step-7", 500)]
            assert not api.under_way

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


def test_an_error_names_the_policy_that_was_to_answer(folder: Path) -> None:
    async def work() -> None:
        async with generator_of(folder, timeout=0.5) as generator:
            other = SimpleNamespace(version="step-8")
            now: list[Any] = [generator]
            client = Client(Api(lambda: now[0], lambda: None))
            body = {"prompt": "a", "max_tokens": 2000, "n": SLOTS + QUEUE}
            task = asyncio.create_task(client.whole("/v1/completions", body))
            await until(lambda: generator.admission.taken > 0)
            now[0] = other  # promoted meanwhile
            status, headers, found = await task
            assert (status, headers["x-policy-version"], found["policy_version"]) == (504, "step-7", "step-7")
            now[0] = None
            status, headers, found = await client.whole("/v1/completions", body)
            assert (status, found["error"]["code"], found.keys()) == (503, "no_policy", {"error"})
            assert "x-policy-version" not in headers

    run(work())


def test_weights_change_between_two_tokens_and_the_answer_says_where(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny(tmp_path / "other", SHAPE, seed=2)
    wider = write_tiny(tmp_path / "wider", SHAPE.model_copy(update={"hidden_size": 64}), seed=2)
    step, steps, goes_on = TorchEngine.step, itertools.count(), threading.Event()

    def held(engine: TorchEngine) -> Any:
        """The engine's thread would have written all tokens where this one stands still for a moment."""
        assert next(steps) < 5 or goes_on.wait(SECONDS)
        return step(engine)

    monkeypatch.setattr(TorchEngine, "step", held)

    async def work() -> None:
        async with generator_of(folder) as generator:
            client = Client(Api(lambda: generator, lambda: None, stamped=True))
            body = {"prompt": "a", "max_tokens": 600, "temperature": 0}
            status, headers, pieces = await client.ask("/v1/completions", body | {"stream": True})
            assert (status, headers["x-policy-version"]) == (200, "step-7")
            await anext(pieces)
            swap = asyncio.create_task(generator.swap(read_tensors(other), "step-8"))
            await asyncio.sleep(0)  # the engine's thread is told of them
            goes_on.set()
            await swap
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
