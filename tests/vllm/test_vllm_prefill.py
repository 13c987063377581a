"""Copies that compute prompts for those that write the answers: two engines in two processes, NIXL between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest
import torch
from local_server import SECONDS, Server
from serve_cluster import policy_of, service, write_endless, write_run
from training_runs import until
from transformers import AutoModelForCausalLM
from two_nodes import in_a_process

from rl_trainer.model.tokenizer import load_tokenizer

pytest.importorskip("nixl")

LONG = 600


def text(name: str, length: int = LONG) -> str:
    """A prompt of so many tokens, one for each character; none begins like that of another name."""
    return f"{name}. {'What is the sum of all of them? ' * length}"[:length]


def greedy(folder: Path, prompt: str, count: int) -> str:
    """What the library's own model writes."""
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([tokenizer.encode(prompt)])
    whole = model.generate(ids, do_sample=False, max_new_tokens=count, attention_mask=torch.ones_like(ids))
    return tokenizer.decode(whole[0, ids.shape[1] :].tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("prefill")
    write_endless(base / "model", 3, hidden_size=64)
    return base


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    found = Server(folder, "model", "--engine", "vllm", "--prefill-replicas", "1")
    try:
        found.wait()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=SECONDS, max_retries=0) as found:
        names = itertools.count()
        until(
            lambda: prefilled(say(found, text(f"ready {next(names)}"))) > 0,
            SECONDS,
            lambda: "no prompt is computed by the other copy",
        )
        yield found


def say(client: openai.OpenAI, prompt: str, **options: Any) -> Any:
    asked = {"model": "model", "prompt": prompt, "max_tokens": 12, "temperature": 0, **options}
    return client.completions.create(**asked)


def prefilled(answer: Any) -> int:
    """Tokens of its prompt that the other copy has computed."""
    return int(getattr(answer.usage.prompt_tokens_details, "prefilled_tokens", 0))


def test_answers_are_those_of_transformers_whoever_computes_the_prompt(
    client: openai.OpenAI, folder: Path
) -> None:
    prompts = [text(f"number {number}", length) for number, length in enumerate((255, 256, 384, 600, 1500))]
    with ThreadPoolExecutor(len(prompts)) as pool:  # together in one batch
        jobs = [pool.submit(say, client, one, max_tokens=20) for one in prompts]
        answers = [job.result() for job in jobs]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.choices[0].text == greedy(folder / "model", prompt, 20)
        assert prefilled(answer) == (len(prompt) if len(prompt) >= 256 else 0)
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_what_the_other_copy_had_known_is_said_to_be_known(client: openai.OpenAI) -> None:
    beginning = text("a long beginning", 512)
    say(client, beginning + "one")
    again = say(client, beginning + "another")
    assert again.usage.prompt_tokens_details.cached_tokens == 512
    assert prefilled(again) > 0


def test_logprobs_and_seeds_are_those_of_a_prompt_that_is_computed_here(client: openai.OpenAI) -> None:
    options = {"temperature": 0.8, "seed": 5, "logprobs": 0, "max_tokens": 20}
    prompt = text("one seed")
    there = say(client, prompt, **options)
    here = say(client, prompt, n=2, **options)  # two answers to a prompt share what this copy computes
    assert (prefilled(there) > 0, prefilled(here)) == (True, 0)
    assert here.choices[0].text == there.choices[0].text
    found = [answer.choices[0].logprobs.token_logprobs for answer in (there, here)]
    np.testing.assert_allclose(*found, atol=1e-4)


def test_a_stream_begins_with_the_prompt_of_the_other_copy(client: openai.OpenAI, folder: Path) -> None:
    prompt = text("a stream")
    stream = list(say(client, prompt, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert said == greedy(folder / "model", prompt, 12)
    assert prefilled(stream[-1]) == LONG


def test_a_copy_for_prompts_that_dies_costs_no_answer(
    server: Server, client: openai.OpenAI, folder: Path
) -> None:
    def one(number: int) -> tuple[str, Any]:
        prompt = text(f"killed {number}")
        return prompt, say(client, prompt)

    (prefill,) = [
        process
        for process in psutil.Process(server.process.pid).children(recursive=True)
        if "ServeReplica:rltrain:prefill" in " ".join(process.cmdline())
    ]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(one, number) for number in range(6)]
        jobs[2].result()
        prefill.kill()
        jobs += [pool.submit(one, number) for number in range(6, 12)]
        answers = [job.result() for job in jobs]
    assert any(prefilled(answer) == 0 for _, answer in answers), "it died while it was asked"
    for prompt, answer in answers:
        assert answer.choices[0].text == greedy(folder / "model", prompt, 12)
    # Ray Serve makes it anew, and it is asked again.
    numbers = itertools.count(100)
    until(
        lambda: prefilled(one(next(numbers))[1]) == LONG,
        SECONDS,
        lambda: "the other copy is not asked again",
    )


def prompts_are_of_the_policy_that_answers(base: Path) -> None:
    models = {
        10: write_endless(base / "ten", 1, hidden_size=64),
        20: write_endless(base / "twenty", 2, hidden_size=64),
    }
    run = write_run(base / "run", models)
    policies = {step: policy_of(run, step) for step in models}
    # The same prompts for both: their keys and values differ by nothing but the weights.
    prompts = [text(f"swap {number}") for number in range(4)]
    wanted = {
        policies[step]["version"]: {one: greedy(model, one, 20) for one in prompts}
        for step, model in models.items()
    }
    first, second = wanted.values()
    assert all(first[one] != second[one] for one in prompts)
    source = {"run": "arithmetic", "folder": str(run)}
    args: dict[str, Any] = {"engine": "vllm", "answers": "stamp", "prefill": {"minPromptTokens": 300}}
    with service(base, source, 1, prefill_replicas=1, **args) as made:
        for step in (10, 20, 10):
            policy = policies[step]
            made.apply(policy)
            taken = 0

            def asked(version: str = policy["version"]) -> bool:
                nonlocal taken
                for prompt in prompts:
                    answer = made.ask(prompt, max_tokens=20)
                    if answer.status_code == 503:
                        return False  # no policy yet
                    body, marks = answer.json(), answer.json()["policy_versions"]
                    if len(marks) == 1:  # else the weights have changed in the middle of it
                        said = wanted[answer.headers["x-policy-version"]]
                        assert body["choices"][0]["text"] == said[prompt], (version, marks, body["usage"])
                    details = body["usage"]["prompt_tokens_details"]
                    taken += marks[0]["version"] == version and details.get("prefilled_tokens", 0) > 0
                return taken >= 2 * len(prompts)

            until(asked, SECONDS, lambda: f"no prompt of step {step} is computed by the other copy")  # noqa: B023


def test_prompts_are_of_the_policy_that_answers(tmp_path: Path) -> None:
    in_a_process(prompts_are_of_the_policy_that_answers, tmp_path, timeout=500)
