"""Policies behind OpenAI's interface with vLLM as their engine: what clients see is what they see with ours."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests
import torch
from local_server import SECONDS, Server
from serve_cluster import policy_of, service, wait_for, write_endless, write_run
from training_runs import until
from transformers import AutoModelForCausalLM
from two_nodes import in_a_process

from rl_serve.gate.criteria import parse_gate
from rl_serve.gate.evaluate import evaluate
from rl_serve.gate.measure import Clock, Opened
from rl_serve.policy import find_policy
from rl_trainer.model.folder import read_tensors
from rl_trainer.model.tokenizer import load_tokenizer

PROMPTS = ["2+2=", "What is the sum of 12 and 30?", "x"]
LONGEST = 1500
# All places of the server: 32 that are generated at once, and its queue.
PLACES, QUEUE = 36, 4
CLOSE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("serve")
    write_endless(base / "model", 3, hidden_size=64)
    return base


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    options = ["--engine", "vllm", "--queue", str(QUEUE), "--max-new-tokens", str(LONGEST)]
    found = Server(folder, "model", *options)
    try:
        found.wait()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=SECONDS, max_retries=0) as found:
        yield found


def say(client: openai.OpenAI, prompt: Any = "2+2=", **options: Any) -> Any:
    return client.completions.create(**{"model": "model", "prompt": prompt, "max_tokens": 12, **options})


def health(server: Server) -> dict[str, Any]:
    return dict(requests.get(f"{server.url}/healthz", timeout=60).json())


def greedy(folder: Path, prompt: str, count: int) -> str:
    """What the library's own model writes."""
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([tokenizer.encode(prompt)])
    whole = model.generate(ids, do_sample=False, max_new_tokens=count, attention_mask=torch.ones_like(ids))
    return tokenizer.decode(whole[0, ids.shape[1] :].tolist())


def logprobs_of(folder: Path, prompt: str, answer: str, temperature: float = 1.0) -> np.ndarray:
    """Of every token of an answer, by the library's own model: [T], over all tokens."""
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    start, tokens = tokenizer.encode(prompt), tokenizer.encode(answer)
    with torch.no_grad():
        logits = model(torch.tensor([[*start, *tokens]])).logits[0, len(start) - 1 : -1]
    whole = torch.log_softmax(logits.float() / temperature, -1)
    found: np.ndarray = whole.gather(1, torch.tensor(tokens)[:, None]).squeeze(1).numpy()
    return found


def test_greedy_answers_are_those_of_transformers(client: openai.OpenAI, folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:  # together in one batch
        jobs = [pool.submit(say, client, one, max_tokens=30, temperature=0) for one in PROMPTS]
        answers = [job.result() for job in jobs]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.choices[0].text == greedy(folder / "model", prompt, 30)
        assert answer.choices[0].finish_reason == "length"
        assert answer.policy_version.startswith("weights-")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 30)


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.8}], ids=str
)
def test_logprobs_are_those_of_transformers(
    client: openai.OpenAI, folder: Path, options: dict[str, float]
) -> None:
    compared = 0
    for prompt, seed in itertools.product(PROMPTS, range(5)):
        choice = say(client, prompt, max_tokens=20, logprobs=0, seed=seed, **options).choices[0]
        assert "".join(choice.logprobs.tokens) == choice.text
        if "" in choice.logprobs.tokens:  # a special token, which has no text to be found again by
            continue
        wanted = logprobs_of(folder / "model", prompt, choice.text, options["temperature"] or 1.0)
        np.testing.assert_allclose(choice.logprobs.token_logprobs, wanted, atol=CLOSE)
        compared += 1
    assert compared > 3


def cached(answer: Any) -> int:
    """Tokens of its prompt that were known, in whole blocks of 128 on a CPU."""
    found: int = answer.usage.prompt_tokens_details.cached_tokens
    return found


def test_usage_says_how_much_of_a_prompt_was_known(client: openai.OpenAI) -> None:
    prompt = "What was known of this? " * 20
    assert cached(say(client, prompt)) == 0
    assert cached(say(client, prompt)) == 128 * ((len(prompt) - 1) // 128)
    # The answers to one prompt know it of each other: that is not what was known before.
    assert cached(say(client, "Another " * 60, n=3)) == 0
    stream = say(client, prompt, stream=True, stream_options={"include_usage": True})
    assert cached(list(stream)[-1]) > 0


def test_a_conversation_goes_on_where_its_beginning_is_known(folder: Path) -> None:
    other = Server(folder, "model", "--engine", "vllm", "--replicas", "2")
    try:
        other.wait()
        with openai.OpenAI(base_url=f"{other.url}/v1", api_key="any", timeout=SECONDS) as client:
            talks = {number: f"{number} was the first question. " * 14 for number in range(12)}
            for turn in range(3):
                for number, said in talks.items():
                    answer = say(client, said)
                    known = 128 * ((len(said) - 13 * bool(turn)) // 128) if turn else 0
                    assert cached(answer) >= known, (turn, number)
                    talks[number] = f"{said}{answer.choices[0].text}?"
    finally:
        other.kill()


def test_a_stream_is_the_same_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = say(client, seed=5, max_tokens=200).choices[0].text
    with say(client, seed=5, max_tokens=200, stream=True) as stream:
        chunks = list(stream)
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(texts) == whole
    assert len([text for text in texts if text]) > 5, "it comes as it is made"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chats_and_several_answers_repeat_with_their_seed(client: openai.OpenAI) -> None:
    def texts(**options: Any) -> list[str]:
        said = client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": "2+2="}], max_tokens=12, n=3, **options
        )
        return [str(choice.message.content) for choice in said.choices]

    first = texts(seed=11)
    assert len(set(first)) == 3
    assert texts(seed=11) == first
    assert texts(seed=12) != first
    assert len(set(texts(temperature=0))) == 1


def test_a_stop_text_ends_an_answer_before_it(client: openai.OpenAI) -> None:
    whole = say(client, temperature=0, max_tokens=40).choices[0].text
    stop = whole[20:24]
    answer = say(client, temperature=0, max_tokens=40, stop=["never said", stop])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == whole.index(stop) + len(stop)


def test_what_does_not_fit_the_context_is_refused(client: openai.OpenAI) -> None:
    context = client.models.list().data[0].max_model_len  # type: ignore[attr-defined]
    assert context == 2048
    with pytest.raises(
        openai.BadRequestError, match=f"found {context} tokens, allowed: at most {context - 1}"
    ):
        say(client, "x" * context)
    left = say(client, "x" * (context - 5), max_tokens=5)
    assert left.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError, match="max_tokens: found 6 with a prompt of 2043 tokens"):
        say(client, "x" * (context - 5), max_tokens=6)


def test_clients_that_go_leave_the_engine(server: Server, client: openai.OpenAI) -> None:
    until(lambda: health(server)["running"] == 0, SECONDS, lambda: "the server is not idle")
    before = health(server)["tokens"]
    with say(client, n=PLACES, max_tokens=LONGEST, stream=True) as stream:
        next(iter(stream))
        full = requests.get(f"{server.url}/healthz", timeout=60)
        assert (full.status_code, full.json()["running"], full.json()["waiting"]) == (503, 32, QUEUE)
        with pytest.raises(openai.RateLimitError, match="the queue is full"):
            say(client)
    until(lambda: health(server)["running"] == 0, SECONDS, lambda: "places are still taken")
    assert len(say(client, n=PLACES, max_tokens=20).choices) == PLACES
    # Had they not left the engine, the answers above had come after all of theirs.
    assert health(server)["tokens"] - before < PLACES * LONGEST


def test_two_processes_share_a_copy_and_none_is_left(folder: Path) -> None:
    server = Server(folder, "model", "--engine", "vllm", "--tensor-parallel-size", "2")
    try:
        server.wait()
        workers = [one for one in server.children if "VLLM::Worker" in " ".join(one.cmdline())]
        assert len(workers) == 2, [one.cmdline() for one in server.children]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=SECONDS) as client:
            for prompt in PROMPTS:
                said = say(client, prompt, max_tokens=30, temperature=0).choices[0].text
                assert said == greedy(folder / "model", prompt, 30)
        assert server.stop(signal.SIGTERM) == (143, "rltrain: stopped\n")
    finally:
        server.kill()


def test_the_gate_measures_what_vllm_computes(folder: Path) -> None:
    write_endless(folder / "other", 4, hidden_size=64)
    gate = parse_gate({"latency": {"maxRatio": 1000.0}, "agreement": {"maxDifference": CLOSE}})
    told: list[str] = []
    options: dict[str, Any] = {"engine": "vllm", "tell": told.append}
    report = evaluate(folder / "model", folder / "other", gate, **options)
    assert report.passed, report.message
    assert report.agreement is not None
    assert 0 < report.agreement.mean < CLOSE
    assert report.latency is not None
    assert report.latency.candidate > 0
    # What it reports is held against a forward pass of the same weights, and not against itself.
    opened = Opened(find_policy(str(folder / "model"), folder), "candidate", engine="vllm")
    opened.engine.load_weights(read_tensors(folder / "other"), 1)
    assert opened.agreement(opened.plain_prompts(), Clock(SECONDS)).mean > 0.05


def weights_change_in_place(base: Path) -> None:
    models = {
        10: write_endless(base / "ten", 1, hidden_size=64),
        20: write_endless(base / "twenty", 2, hidden_size=64),
        30: write_endless(base / "thirty", 2, hidden_size=128),
    }
    run = write_run(base / "run", models)
    ten, twenty, thirty = (policy_of(run, step) for step in models)
    wanted = {
        policy["version"]: {one: greedy(model, one, 30) for one in PROMPTS}
        for policy, model in zip((ten, twenty), models.values(), strict=False)
    }
    assert wanted[ten["version"]] != wanted[twenty["version"]]
    source = {"run": "arithmetic", "folder": str(run)}
    with service(base, source, 1, engine="vllm", answers="stamp") as made:
        assert made.ask().status_code == 503
        made.apply(ten)
        made.wait(version=ten["version"], loading=None, error=None)
        client = openai.OpenAI(base_url=f"{made.url}/v1", api_key="any", timeout=SECONDS, max_retries=0)
        for policy in (ten, twenty, ten):
            # One that is under way goes on, and says which weights wrote what.
            stream = client.completions.create(model="small", prompt="x", max_tokens=LONGEST, stream=True)
            first = next(iter(stream))
            made.apply(policy)
            made.wait(version=policy["version"], error=None)
            for prompt, text in wanted[policy["version"]].items():
                answer = made.ask(prompt, max_tokens=30)
                assert answer.headers["x-policy-version"] == policy["version"]
                assert answer.json()["choices"][0]["text"] == text
            last = list(stream)[-1]
            marks = last.policy_versions  # type: ignore[attr-defined]
            assert marks[0] == {"index": 0, "version": first.policy_version, "token": 0}  # type: ignore[attr-defined]
            assert marks[-1]["version"] == policy["version"]
            assert len(marks) == 1 + (first.policy_version != policy["version"])  # type: ignore[attr-defined]
        said = made.control(
            "POST", "evaluate", json={"candidate": twenty, "serving": ten, "gate": {"agreement": {}}}
        )
        assert said.status_code == 202, said.text
        found = wait_for(
            lambda: (one := made.status()["evaluations"][twenty["digest"]])["state"] != "running" and one,
            lambda: f"{made.status()}",
        )
        assert (found["state"], found["report"]["agreement"]["mean"] < CLOSE) == ("passed", True), found
        # One of another shape has no room beside it: it is not served, and says so.
        made.apply(thirty)
        wait_for(lambda: not made.replicas(error=None), lambda: "no error is told")
        (told,) = made.status()["replicas"]
        assert told["version"] == ten["version"]
        assert "only weights may change: serve it by a service of its own" in told["error"]
        assert made.ask("x", max_tokens=30).json()["choices"][0]["text"] == wanted[ten["version"]]["x"]


def test_weights_change_in_place(tmp_path: Path) -> None:
    in_a_process(weights_change_in_place, tmp_path, timeout=500)
