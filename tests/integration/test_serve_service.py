"""Both applications of a service on a Ray like a cluster's: policies that change under load, damaged ones, and keys."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import requests
import torch
from ray import serve
from serve_cluster import (
    SECONDS,
    Service,
    policy_of,
    service,
    wait_for,
    write_endless,
    write_run,
)
from transformers import AutoModelForCausalLM
from two_nodes import in_a_process

from rl_operator.model.parse import parse_ray_service
from rl_serve.status import DEAD_SECONDS
from rl_trainer.checkpoint.pins import LocalPins, parse_pin
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.vllm_needs import is_installed

KEY = "sk-0123456789abcdef"
PROMPTS = ("2+2=", "What is the sum of 12 and 30?", "x")


def greedy(folder: Path, count: int) -> dict[str, str]:
    """What the library's own model writes, by prompt."""
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    found = {}
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        whole = model.generate(
            ids, do_sample=False, max_new_tokens=count, attention_mask=torch.ones_like(ids)
        )
        found[prompt] = tokenizer.decode(whole[0, ids.shape[1] :].tolist())
    return found


class Load:
    """Clients that ask one after the other, from the beginning of a block to its end."""

    def __init__(self, asked: Service, clients: int = 4, tokens: int = 30) -> None:
        self._asked, self._tokens = asked, tokens
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self.answers: list[tuple[str, requests.Response]] = []
        self._jobs = [self._pool.submit(self._ask, number) for number in range(clients)]

    def _ask(self, number: int) -> None:
        while not self._stop.is_set():
            prompt = PROMPTS[number % len(PROMPTS)]
            self.answers.append((prompt, self._asked.ask(prompt, max_tokens=self._tokens)))

    def more(self, count: int = 20) -> None:
        """Wait for as many further answers."""
        goal = len(self.answers) + count
        wait_for(lambda: len(self.answers) >= goal, lambda: f"{len(self.answers)} answers instead of {goal}")

    def end(self) -> list[tuple[str, requests.Response]]:
        self._stop.set()
        for job in self._jobs:
            job.result(SECONDS)
        self._pool.shutdown()
        return self.answers


def policies_change_under_load(base: Path) -> None:
    models = {10: write_endless(base / "ten", 1), 20: write_endless(base / "twenty", 2)}
    run = write_run(base / "run", models)
    wanted = {policy_of(run, step)["version"]: greedy(model, 30) for step, model in models.items()}
    ten, twenty = policy_of(run, 10), policy_of(run, 20)
    assert wanted[ten["version"]] != wanted[twenty["version"]]
    with service(base, {"run": "arithmetic", "folder": str(run)}) as made:
        early = made.ask()
        assert (early.status_code, early.json()["error"]["message"]) == (503, "there is no policy yet")
        assert requests.get(f"{made.url}/healthz", timeout=60).status_code == 503
        assert made.control("GET", "status", token="other").status_code == 401
        assert made.control("GET", "nothing").status_code == 404
        assert made.control("POST", "status").status_code == 405
        assert [one["step"] for one in made.status()["checkpoints"]] == [20, 10]
        assert made.status()["checkpoints"][0] == {
            "step": 20,
            "digest": twenty["digest"],
            "source": twenty["source"],
        }

        made.apply(ten)
        made.wait(version=ten["version"], loading=None, error=None)
        load = Load(made)
        load.more()
        for policy in (twenty, ten, twenty):
            made.apply(policy)
            made.wait(version=policy["version"])
            load.more()
        answers = load.end()
        assert Counter(answer.status_code for _, answer in answers) == {200: len(answers)}
        for prompt, answer in answers:
            version = answer.headers["x-policy-version"]
            assert answer.json()["policy_version"] == version
            assert answer.json()["choices"][0]["text"] == wanted[version][prompt]
        counted = Counter(answer.headers["x-policy-version"] for _, answer in answers)
        assert set(counted) == set(wanted)

        def told() -> dict[str, Any]:
            return dict(made.status()["versions"])

        wait_for(
            lambda: {version: one["requests"] for version, one in told().items()} == counted,
            lambda: f"{told()} instead of {counted}",
        )
        for version, one in told().items():
            assert (one["errors"], one["tokens"]) == (0, 30 * counted[version])
            assert 0 < one["ttft"]["p50"] <= one["latency"]["p50"] <= one["latency"]["p95"] < SECONDS
            assert one["tpot"]["p50"] > 0

        made.apply(None)
        made.wait(version=None)
        assert made.ask().status_code == 503


def damaged_policies_leave_the_old_one(base: Path) -> None:
    models = {10: write_endless(base / "ten", 1), 20: write_endless(base / "twenty", 2)}
    run = write_run(base / "run", models | {30: write_endless(base / "wider", 3, hidden_size=64)})
    ten, twenty, wider = policy_of(run, 10), policy_of(run, 20), policy_of(run, 30)
    (base / "keys").mkdir()
    (base / "keys" / "team").write_text(f"{KEY}\n")
    more = {"keysFolder": str(base / "keys"), "answers": "stamp"}
    with service(base, {"run": "r", "folder": str(run)}, 1, **more) as made:
        made.apply(ten)
        made.wait(version=ten["version"])
        made.apply({**twenty, "digest": "0" * 64})
        made.wait(version=ten["version"], loading=None)

        def errors() -> list[str]:
            return [one["error"] for one in made.status().get("replicas", ()) if one["error"]]

        (told,) = wait_for(errors, lambda: "no error is told")
        assert f"its digest is {twenty['digest']}, and not {'0' * 64}" in told

        weights = Path(twenty["source"]) / "model" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        made.apply(twenty)
        text = f"{twenty['source']}: model/model.safetensors does not match its checksum"
        made.wait(version=ten["version"], error=text)

        made.apply(wider)
        text = (
            f"{wider['version']}: its config.json: hidden_size is another one than that of the policy that is served; with "
            "answers stamp only weights may change: take answers finish"
        )
        made.wait(version=ten["version"], error=text)

        # The one that serves is on the head, whatever becomes of the run's folder.
        Path(ten["source"]).rename(base / "deleted")
        made.apply(ten)
        made.wait(version=ten["version"], error=None)

        assert made.ask().status_code == 401
        body = {"prompt": "2+2=", "max_tokens": 4}
        place, headers = f"{made.url}/v1/completions", {"Authorization": f"Bearer {KEY}"}
        answer = requests.post(place, json=body, headers=headers, timeout=SECONDS)
        assert (answer.status_code, answer.headers["x-policy-version"]) == (200, ten["version"])
        (base / "keys" / "team").write_text(f"{KEY[::-1]}\n")
        wait_for(
            lambda: requests.post(place, json=body, headers=headers, timeout=SECONDS).status_code == 401,
            lambda: "a key that was taken back is good still",
        )


def an_engine_is_missing(base: Path) -> None:
    run = write_run(base / "run", {10: write_endless(base / "ten", 1)})
    with service(
        base, {"run": "r", "folder": str(run)}, 1, ready=False, engine="vllm", answers="stamp"
    ) as made:

        def failed() -> dict[str, Any]:
            """The applications as KubeRay shows them, once the policy's has failed."""
            found = serve.status().applications
            if "rltrain" not in found or found["rltrain"].status != "DEPLOY_FAILED":
                return {}
            return {
                name: {
                    "status": str(one.status.value),
                    "message": one.message,
                    "serveDeploymentStatuses": {
                        key: {"status": str(each.status.value), "message": each.message}
                        for key, each in one.deployments.items()
                    },
                }
                for name, one in found.items()
            }

        applications = wait_for(failed, lambda: f"no failure: {serve.status()}")
        status = {"activeServiceStatus": {"applicationStatuses": applications}}
        found = parse_ray_service({"metadata": {"name": "svc"}, "status": status})
        assert found.problem.startswith(
            "rltrain: spec.engine: found vllm, which is not installed where this copy of the policy runs; install it"
        )
        assert found.problem.endswith("or set spec.engine: torch"), found.problem
        # The control goes on: the operator hears of it.
        assert made.status()["replicas"] == []


def candidates_are_evaluated(base: Path) -> None:
    models = {10: write_endless(base / "ten", 1), 20: write_endless(base / "twenty", 2)}
    run = write_run(base / "run", models)
    ten, twenty = policy_of(run, 10), policy_of(run, 20)
    lines = [json.dumps({"prompt": one, "answer": said}) for one, said in greedy(models[20], 30).items()]
    (base / "probe.jsonl").write_text("\n".join(4 * lines))  # three say little with 95 % confidence
    probe = {"file": str(base / "probe.jsonl"), "scorer": "contains"}
    with service(base, {"run": "r", "folder": str(run)}, 1, probe=probe) as made:
        made.apply(ten)
        made.wait(version=ten["version"])
        gate = {"probe": {"maxDrop": 0.0}, "agreement": {}}
        up = {"candidate": twenty, "serving": ten, "gate": gate}
        assert made.control("POST", "evaluate", json={**up, "gate": {}}).status_code == 400
        assert made.control("POST", "evaluate", token="other", json=up).status_code == 401
        for _ in range(2):
            said = made.control("POST", "evaluate", json=up)
            assert (said.status_code, said.json().get("state")) == (202, "running"), said.text

        def ended(digest: str) -> dict[str, Any] | None:
            found = made.status()["evaluations"][digest]
            return None if found["state"] == "running" else dict(found)

        found = wait_for(lambda: ended(twenty["digest"]), lambda: f"{made.status()}")
        assert found["state"] == "passed", found
        # The head keeps the run, which goes on, from deleting either.
        pin = parse_pin(LocalPins(run / "checkpoints").read("svc.json") or b"")
        pinned = {one.digest: one.candidate for one in pin.checkpoints}
        assert pinned == {ten["digest"]: False, twenty["digest"]: True}

        again = made.control("POST", "evaluate", json=up).json()
        assert again["state"] == "passed"
        asked = again["report"]["probe"]
        assert (asked["candidate"], asked["serving"], asked["n"]) == (1.0, 0.0, 12), again
        assert again["report"]["agreement"]["mean"] < 0.05

        down = {"candidate": ten, "serving": twenty, "gate": gate}
        assert made.control("POST", "evaluate", json=down).status_code == 202
        found = wait_for(lambda: ended(ten["digest"]), lambda: f"{made.status()}")
        assert found["state"] == "failed", found
        assert made.control("POST", "evaluate", json=down).json()["report"]["passed"] is False

        # One that was deleted, and that the head has no copy of, is nothing to be compared with.
        gone = {"source": str(run / "checkpoints" / "step-00000005"), "digest": "5" * 64, "version": "svc-5"}
        assert made.control("POST", "evaluate", json={**down, "serving": gone}).status_code == 202
        found = wait_for(lambda: ended(ten["digest"]), lambda: f"{made.status()}")
        assert found["state"] == "passed", found
        assert "alone, as what serves cannot be read any more" in found["message"]

        def score(version: str) -> Any:
            return made.status()["versions"].get(version, {}).get("probe")

        for policy, wanted in ((ten, 0.0), (twenty, 1.0)):
            made.apply(policy)
            assert made.control("POST", "probe", json={"version": policy["version"]}).status_code == 202
            got = wait_for(lambda version=policy["version"]: score(version), lambda: f"{made.status()}")
            assert got == {"score": wanted, "n": 12}
        assert made.status()["versions"][twenty["version"]]["requests"] == 0


def replicas_are_killed(base: Path) -> None:
    run = write_run(base / "run", {10: write_endless(base / "ten", 1)})
    ten = policy_of(run, 10)
    with service(base, {"run": "r", "folder": str(run)}) as made:
        made.apply(ten)
        made.wait(version=ten["version"])
        client = openai.OpenAI(base_url=f"{made.url}/v1", api_key="any", timeout=SECONDS, max_retries=0)
        load = Load(made, 3)
        load.more(6)
        first = {one.pid for one in replica_processes()}
        assert len(first) == 2
        streams = []
        for _ in range(6):
            stream = client.completions.create(model="small", prompt="x", max_tokens=1400, stream=True)
            next(iter(stream))
            streams.append(stream)
        os.kill(min(first), signal.SIGKILL)  # at once: they are not to end before
        ends = Counter(map(end_of, streams))
        assert set(ends) <= {"length", "replica_died"}, ends
        assert ends["replica_died"] > 0
        # No other client has seen anything, and there are two again.
        load.more(6)
        wait_for(
            lambda: len({one.pid for one in replica_processes()} - {min(first)}) == 2,
            lambda: "the replica is not replaced",
        )
        made.wait(version=ten["version"])
        answers = load.end()
        assert Counter(answer.status_code for _, answer in answers) == {200: len(answers)}

        # What it was answering counts against its version, though most of it was answered by another one.
        def told() -> dict[str, Any]:
            return dict(made.status()["versions"][ten["version"]])

        wait_for(lambda: told()["deaths"], lambda: f"{made.status()}")
        # What came in its last second it may not have told.
        assert (told()["deaths"], 1 <= told()["errors"] <= 9) == (1, True), f"{told()}, {ends}"
        # One that ends because fewer are wanted says so.
        made.scale(1)
        made.apply(ten)
        made.wait(version=ten["version"])
        fewer = time.monotonic()
        wait_for(lambda: time.monotonic() - fewer > DEAD_SECONDS + 2 or told()["deaths"] > 1, lambda: "")
        assert told()["deaths"] == 1, f"{made.status()}"


def end_of(stream: Any) -> str | None:
    """How a stream has ended: why its answer did, or the code of its error."""
    try:
        return str([chunk.choices[0].finish_reason for chunk in stream][-1])
    except openai.APIError as error:
        return error.code


def replica_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ServeReplica:rltrain:policy" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_a_replica_that_is_killed_fails_no_request_of_which_nothing_was_sent(tmp_path: Path) -> None:
    in_a_process(replicas_are_killed, tmp_path, timeout=500)


def test_a_candidate_is_evaluated_and_the_live_policy_is_probed(tmp_path: Path) -> None:
    in_a_process(candidates_are_evaluated, tmp_path, timeout=500)


def test_policies_change_under_load_and_no_request_fails(tmp_path: Path) -> None:
    in_a_process(policies_change_under_load, tmp_path, timeout=500)


@pytest.mark.skipif(is_installed(), reason="vLLM is installed here")
def test_a_copy_without_its_engine_says_so(tmp_path: Path) -> None:
    in_a_process(an_engine_is_missing, tmp_path, timeout=500)


def test_damaged_policies_leave_the_old_one_and_keys_can_be_taken_back(tmp_path: Path) -> None:
    in_a_process(damaged_policies_leave_the_old_one, tmp_path, timeout=500)
