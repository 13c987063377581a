"""`rltrain serve` and `rltrain chat` with real Ray Serve, the official client and curl. One server for most of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from local_server import SECONDS, Server
from training_runs import until

from rl_api.run import TinyModelSpec
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.model.presets import write_tiny

KEY = "sk-0123456789abcdef"
# Answers that are generated at once, as many as one request may have, and the server's queue.
SLOTS, QUEUE = 32, 4
LONGEST = 3000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one checkpoint, of a small random model that knows no end: answers are as long as they may be."""
    base = tmp_path_factory.mktemp("serve")
    shape = TinyModelSpec(hidden_size=64, layers=2, heads=4, kv_heads=1, max_positions=4096)
    model = write_tiny(base / "model", shape, seed=3)
    for name, field in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(content | {field: None}))
    store = CheckpointStore(base / "run" / "checkpoints")
    store.save(20, {"model": lambda target: shutil.copytree(model, target)})
    (base / "keys.txt").write_text(f"# one client\n{KEY}\n")
    return base


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    options = ["--api-key-file", "keys.txt", "--queue", str(QUEUE), "--max-new-tokens", str(LONGEST)]
    found = Server(folder, "run", *options)
    try:
        found.wait()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=SECONDS, max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def version(client: openai.OpenAI) -> str:
    return str(client.models.list().data[0].policy_version)  # type: ignore[attr-defined]


def health(server: Server) -> dict[str, Any]:
    return dict(requests.get(f"{server.url}/healthz", timeout=60).json())


def curl(server: Server, *arguments: str, key: str = KEY) -> str:
    command = ["curl", "--silent", "--no-buffer", "--max-time", str(SECONDS)]
    command += ["-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def say(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "run", "messages": [{"role": "user", "content": "2+2="}], "max_tokens": 12, **options}
    )


def test_the_server_says_what_it_does(server: Server, version: str) -> None:
    phases = ["verifying", "starting Ray", "starting Ray Serve", "loading the model", "serving run"]
    assert len(server.lines) == len(phases), server.lines
    assert all(line.startswith(phase) for line, phase in zip(server.lines, phases, strict=True))
    assert f"policy {version}, at {server.url}/v1" in server.lines[-1]
    assert "curl http://127.0.0.1:" in server.lines[-1]
    assert version.startswith("step-20-")


def test_a_chat(client: openai.OpenAI, version: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="run", messages=[{"role": "user", "content": "2+2="}], max_tokens=12, seed=5, logprobs=True
    )
    assert raw.headers["x-policy-version"] == version
    answer = raw.parse()
    assert answer.policy_version == version  # type: ignore[attr-defined]
    assert (answer.object, answer.model, answer.system_fingerprint) == ("chat.completion", "run", version)
    choice = answer.choices[0]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
    assert all(one.logprob < 0 and one.bytes == list(one.token.encode()) for one in choice.logprobs.content)
    assert answer.usage is not None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 12, 16)


def test_a_stream_is_the_same_answer_in_pieces(client: openai.OpenAI, version: str) -> None:
    whole = say(client, seed=5).choices[0].message.content
    with say(client, seed=5, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == whole
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 12
    assert {one.policy_version for one in chunks} == {version}


def test_several_answers_repeat_with_their_seed(client: openai.OpenAI) -> None:
    def texts(**options: Any) -> list[str]:
        return [choice.message.content for choice in say(client, n=3, **options).choices]

    first = texts(seed=11)
    assert len(set(first)) == 3
    assert texts(seed=11) == first
    assert texts(seed=12) != first
    assert len(set(texts(temperature=0))) == 1


def test_a_stop_text_ends_an_answer_before_it(client: openai.OpenAI) -> None:
    whole = say(client, temperature=0, max_tokens=40).choices[0].message.content
    stop = whole[20:24]
    answer = say(client, temperature=0, max_tokens=40, stop=["never said", stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == whole.index(stop) + len(stop)
    with say(client, temperature=0, max_tokens=40, stop=stop, stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole[: whole.index(stop)]


def test_completions_of_texts_and_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="run", prompt=["ab", "cd"], max_tokens=5, temperature=0, logprobs=0, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == texts[0]
    assert logprobs.text_offset == [0, 1, 2, 3, 4]
    # "a" and "b" are characters 97 and 98: ids begin with two special tokens, a newline and the space.
    tokens = client.completions.create(model="run", prompt=[68, 69], max_tokens=5, temperature=0)
    assert tokens.choices[0].text == texts[0]
    assert client.completions.create(model="run", prompt="ab").usage.completion_tokens == 16  # type: ignore[union-attr]


def test_greedy_answers_are_those_of_transformers(client: openai.OpenAI, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from rl_trainer.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    prompts = ["2+2=", "What is the sum of 12 and 30?", "x"]
    with ThreadPoolExecutor(3) as pool:  # together in one batch
        jobs = [
            pool.submit(client.completions.create, model="run", prompt=one, max_tokens=30, temperature=0)
            for one in prompts
        ]
        answers = [job.result().choices[0].text for job in jobs]
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        wanted = model.generate(ids, do_sample=False, max_new_tokens=30, attention_mask=torch.ones_like(ids))
        assert answer == tokenizer.decode(wanted[0, ids.shape[1] :].tolist()), prompt


def test_the_most_probable_tokens_are_those_of_transformers(client: openai.OpenAI, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from rl_trainer.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")

    def wanted(ids: list[int], answer: list[int], temperature: float) -> list[list[tuple[str, float]]]:
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *answer]])).logits[0, len(ids) - 1 : -1]
        found = torch.log_softmax(logits / temperature, -1).topk(20)
        return [
            [(tokenizer.decode([token]), value) for token, value in zip(tokens, values, strict=True)]
            for tokens, values in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        ]

    def same(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> None:
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)
        assert sorted(text for text, _ in found) == sorted(text for text, _ in expected)

    for options, temperature in (({"temperature": 0}, 1.0), ({"temperature": 0.7, "top_p": 0.5}, 0.7)):
        for stream in (False, True):
            said = say(client, logprobs=True, top_logprobs=20, seed=2, stream=stream, **options)
            choices = [chunk.choices[0] for chunk in said] if stream else [said.choices[0]]
            content = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
            assert len(content) == 12
            answer = [id_ for one in content for id_ in tokenizer.encode(one.token)]
            prompt = tokenizer.encode_chat([{"role": "user", "content": "2+2="}])
            for one, expected in zip(content, wanted(prompt, answer, temperature), strict=True):
                same([(top.token, top.logprob) for top in one.top_logprobs], expected)
    said = client.completions.create(model="run", prompt="ab", max_tokens=6, temperature=0, logprobs=3)
    logprobs = said.choices[0].logprobs
    assert logprobs is not None
    answer = [id_ for text in logprobs.tokens or [] for id_ in tokenizer.encode(text)]
    for found, expected in zip(
        logprobs.top_logprobs or [], wanted(tokenizer.encode("ab"), answer, 1.0), strict=True
    ):
        same(list(found.items()), expected[:3])
    with pytest.raises(
        openai.BadRequestError, match="top_logprobs: found 3, allowed: 0 where logprobs is not"
    ):
        say(client, top_logprobs=3)


def test_curl_reads_a_stream(server: Server, version: str) -> None:
    body = json.dumps({"prompt": "ab", "max_tokens": 3, "stream": True})
    said = curl(server, "--include", f"{server.url}/v1/completions", "-d", body)
    head, _, events = said.replace("\r\n", "\n").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert f"x-policy-version: {version}" in head
    assert "content-type: text/event-stream" in head
    lines = [line for line in events.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    contents = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [one["choices"][0]["finish_reason"] for one in contents][-1] == "length"


CHAT = {"messages": [{"role": "user", "content": "?"}]}
REFUSED = [
    ("/v1/chat/completions", CHAT | {"temperature": 3}, 400, "temperature"),
    ("/v1/chat/completions", CHAT | {"model": "gpt-4"}, 404, "model"),
    ("/v1/chat/completions", CHAT | {"max_tokens": 100_000}, 400, "max_tokens"),
    ("/v1/chat/completions", CHAT | {"n": SLOTS + 1}, 400, "n"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "é"}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "?" * 5000}]}, 400, "messages"),
    ("/v1/completions", {"prompt": [[99999]]}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a", "tempratur": 1}, 400, "tempratur"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/nothing", {}, 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), REFUSED)
def test_a_mistake_gets_one_sentence(
    server: Server, version: str, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = requests.post(
        f"{server.url}{path}", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["code"]
    assert len(error["message"].split("\n")) == 1
    assert answer.headers["x-policy-version"] == version
    assert "Traceback" not in answer.text


def test_what_is_no_json_and_who_has_no_key(server: Server) -> None:
    place = f"{server.url}/v1/completions"
    assert json.loads(curl(server, place, "-d", "{"))["error"]["code"] == "invalid_json"
    assert json.loads(curl(server, place, "-d", "{}", key="other"))["error"]["code"] == "invalid_api_key"
    form = requests.post(place, data="{}", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    assert form.status_code == 415
    assert requests.get(place, headers={"Authorization": f"Bearer {KEY}"}, timeout=60).status_code == 405
    assert requests.get(f"{server.url}/v1/models", timeout=60).status_code == 401
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="a key that is not known"):
        stranger.models.list()


def test_a_full_queue_refuses_and_a_client_that_goes_frees_its_places(
    server: Server, client: openai.OpenAI
) -> None:
    until(lambda: health(server)["running"] == 0, SECONDS, lambda: "the server is not idle")
    before = health(server)["tokens"]
    with (
        say(client, n=SLOTS, max_tokens=LONGEST, stream=True) as stream,
        ThreadPoolExecutor() as waiting,
    ):
        next(iter(stream))
        queued = waiting.submit(say, client, n=QUEUE, max_tokens=20)
        until(lambda: health(server)["waiting"] == QUEUE, SECONDS, lambda: "the queue is not full")
        full = requests.get(f"{server.url}/healthz", timeout=60)
        assert (full.status_code, full.json()["running"], full.json()["waiting"]) == (503, SLOTS, QUEUE)
        with pytest.raises(openai.RateLimitError) as refused:
            say(client)
        stream.close()
        assert len(queued.result(SECONDS).choices) == QUEUE
    error = refused.value
    assert error.status_code == 429
    assert 1 <= int(error.response.headers["retry-after"]) <= 60
    assert "the queue is full" in error.message
    # The stream is closed: its places are free, and the engine writes for others.
    until(lambda: health(server)["running"] == 0, SECONDS, lambda: "places are still taken")
    assert len(say(client, n=SLOTS, max_tokens=20).choices) == SLOTS
    # Had they not left the engine, the answers above had come after all of theirs.
    assert health(server)["tokens"] - before < SLOTS * LONGEST
    assert requests.get(f"{server.url}/healthz", timeout=60).status_code == 200


def test_chat_in_a_pipe(server: Server, version: str) -> None:
    command = [sys.executable, "-m", "rl_cli.main", "chat", server.url, "--max-tokens", "9"]
    done = subprocess.run(
        [*command, "--temperature", "0"],
        input="2+2=\nand?\n/quit\nnever\n",
        env={**os.environ, "OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, len(done.stdout.splitlines()) >= 2) == (0, True)
    assert done.stderr == f"rltrain: run, policy {version}; /quit ends the chat\n"
    refused = subprocess.run(
        command,
        input="2+2=\n",
        env={**os.environ, "OPENAI_API_KEY": "no"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert refused.returncode == 1
    assert "rltrain: the server refuses (401): found a key that is not known" in refused.stderr


def test_ctrl_c_ends_it_at_once_with_nothing_left(server: Server, client: openai.OpenAI) -> None:
    with say(client, n=8, max_tokens=LONGEST, stream=True) as stream:
        next(iter(stream))
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == (130, "rltrain: stopped\n")
        assert time.monotonic() - began < 200
        with pytest.raises(openai.APIError):
            list(stream)


def test_replicas_share_requests_and_sigterm_ends_them(folder: Path) -> None:
    server = Server(folder, "model", "--replicas", "2", "--model-name", "small")
    try:
        server.wait()
        # Fifteen answers of the same length: two replicas that share them have not written the same number of tokens.
        body = {"prompt": "ab", "max_tokens": 200}
        with ThreadPoolExecutor(16) as pool:
            jobs = [
                pool.submit(requests.post, f"{server.url}/v1/completions", json=body, timeout=SECONDS)
                for _ in range(15)
            ]
            answers = [job.result() for job in jobs]
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["model"] for answer in answers} == {"small"}
        counted = {health(server)["tokens"] for _ in range(20)}
        assert (len(counted), sum(counted)) == (2, 15 * 200)
        assert server.stop(signal.SIGTERM) == (143, "rltrain: stopped\n")
    finally:
        server.kill()
