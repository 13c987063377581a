"""Which answers of a server count, and which folders are a run's: against a server that is started anew at will."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rl_api.errors import EndpointError, ModelError
from rl_trainer.rollout.engines import endpoint, endpoint_look
from rl_trainer.rollout.engines.base import GenerationRequest, GenerationResult, SamplingParams
from rl_trainer.rollout.engines.endpoint import EndpointEngine
from rl_trainer.rollout.engines.endpoint_client import EndpointClient, ServerLost
from rl_trainer.rollout.engines.endpoint_look import claim, look_at
from rl_trainer.rollout.engines.endpoint_names import Names
from rl_trainer.rollout.engines.endpoint_requests import EndpointOptions, ServerFacts

URL = "http://inference:8000"
TOKENS = {"model folder": 3, "weights": 5}


class Server:
    """Answers as vLLM does, with one token for each request: which one says of what weights."""

    def __init__(self) -> None:
        self.url, self.timeout = URL, 5.0
        self.label, self.holds, self.paused = "default", "model folder", False
        self.before: Callable[[int, Any], Exception | None] = lambda count, body: None  # each completion
        self.completions = 0
        self.control: list[str] = []

    def start_anew(self) -> None:
        self.label, self.holds, self.paused = "default", "model folder", False

    def call(self, method: str, path: str, body: Any = None, within: float | None = None) -> Any:
        if method == "POST":
            self.control.append(path.partition("?")[0])
        match path:
            case "/weight_info":
                return {"weight_version": self.label}
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/collective_rpc":
                self.holds = "weights"
            case "/is_paused":
                return {"is_paused": self.paused}
            case "/pause?mode=abort":
                self.paused = True
            case "/resume":
                self.paused = False
            case "/v1/models":
                return {"data": [{"id": "one", "max_model_len": 64}]}
        return None

    def send(self, path: str, body: Any, done: Callable[[Any], None]) -> Future[None]:
        self.completions += 1
        assert re.fullmatch(r"[^@/\\\0]{1,128}", body["cache_salt"]), "vLLM refuses another"
        answer: Any = self.before(self.completions, body)
        if answer is None:
            logprobs = {"token_logprobs": [-1.0]}
            answer = {
                "choices": [
                    {"token_ids": [TOKENS[self.holds]], "logprobs": logprobs, "finish_reason": "length"}
                ]
            }
        done(answer)
        return Future()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (endpoint, endpoint_look):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


@pytest.fixture
def server() -> Server:
    return Server()


def open_engine(server: Server, folder: Path, slots: int = 4) -> EndpointEngine:
    names = Names.of(URL, str(folder))
    server.label = names.label(0)
    return EndpointEngine(
        cast(EndpointClient, server),
        ServerFacts("one", 64, False),
        lambda shapes, where: None,
        64,
        slots=slots,
        options=EndpointOptions(URL, folder, folder, timeout=5.0),
        names=names,
    )


@pytest.fixture
def engine(server: Server, tmp_path: Path) -> EndpointEngine:
    return open_engine(server, tmp_path)


def work(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(place, np.array([place + 1], np.int32), SamplingParams(1, temperature=1.0), place)
        for place in range(count)
    ]


def drain(engine: EndpointEngine) -> dict[Any, GenerationResult]:
    found = {}
    while engine.active or engine.waiting:
        found |= {result.id: result for result in engine.step()}
    return found


def load(engine: EndpointEngine, version: int) -> None:
    engine.load_weights({"a": torch.zeros(2)}, version)


def test_only_folders_of_this_run_are_removed(server: Server, engine: EndpointEngine, tmp_path: Path) -> None:
    earlier = Names.of(URL, str(tmp_path))  # a sampler that has died
    other = Names.of("http://elsewhere:8000", str(tmp_path))
    kept = {"weights-llama-backup", "weights-00000001", other.folder(1, 1), f".{other.folder(2, 2)}"}
    for name in (*kept, earlier.folder(3, 1), f".{earlier.folder(4, 2)}"):
        (tmp_path / name).mkdir()
    load(engine, 1)
    load(engine, 2)
    left = {path.name for path in tmp_path.iterdir()} - kept
    assert len(left) == 1
    assert re.match("weights-00000002-", left.pop())
    assert all((tmp_path / name).is_dir() for name in kept)


def test_tokens_of_a_server_that_was_started_anew_are_thrown_away(
    server: Server, engine: EndpointEngine
) -> None:
    """It goes away and comes back with the model folder's weights while others are in flight."""
    load(engine, 7)
    server.before = lambda count, body: server.start_anew() if count == 2 else None
    engine.add(work(4))
    found = drain(engine)
    assert {place: result.tokens.tolist() for place, result in found.items()} == {
        place: [5] for place in range(4)
    }
    assert {version for result in found.values() for version in result.versions.tolist()} == {7}
    assert server.completions == 8
    assert server.control.count("/collective_rpc") == 2


def test_before_the_first_weights_a_server_that_was_started_anew_is_labelled_again(
    server: Server, engine: EndpointEngine
) -> None:
    label = server.label
    server.start_anew()
    engine.add(work(1))
    assert drain(engine)[0].tokens.tolist() == [3]
    assert server.label == label
    assert "/collective_rpc" not in server.control


def test_a_server_that_another_sampler_has_taken(
    server: Server, engine: EndpointEngine, tmp_path: Path
) -> None:
    load(engine, 1)
    open_engine(server, tmp_path / "other")
    engine.add(work(1))
    with pytest.raises(EndpointError, match="another sampler has changed its weights"):
        drain(engine)
    with pytest.raises(ModelError, match="another sampler has changed its weights"):
        load(engine, 2)


def test_one_error_does_not_end_the_other_requests(server: Server, engine: EndpointEngine) -> None:
    load(engine, 1)
    server.control.clear()
    server.before = lambda count, body: ServerLost("answered with 500", answered=True) if count == 2 else None
    engine.add(work(3))
    assert sorted(drain(engine)) == [0, 1, 2]
    assert server.control == [], "the server was paused"


@pytest.mark.parametrize("answered", [True, False])
def test_a_prompt_at_which_a_server_always_breaks_off(answered: bool, server: Server, tmp_path: Path) -> None:
    """Others end in between, and yet there is a limit."""
    engine = open_engine(server, tmp_path, slots=2)
    server.before = lambda count, body: (
        ServerLost("answered with 500", answered=answered) if body["prompt"][0] == 1 else None
    )
    engine.add(work(20))
    with pytest.raises(EndpointError, match=r"broke off 4 times at one sequence \(answered with 500\)"):
        drain(engine)


def test_aborted_sequences_are_not_asked_for_again(server: Server, engine: EndpointEngine) -> None:
    server.before = lambda count, body: ServerLost("answered with 500", answered=True) if count < 3 else None
    engine.add(work(3))
    engine.step()
    engine.abort([0, 1])
    assert set(drain(engine)) <= {2}
    assert not engine.active


def test_a_server_that_somebody_else_has_paused(server: Server, tmp_path: Path) -> None:
    names, client = Names.of(URL, str(tmp_path)), cast(EndpointClient, server)
    for label, words in (
        ("default", "it is paused, and not by this run"),
        (Names.of(URL, "/other/folder").label(3), "a run on .* with folder /other/folder has it"),
    ):
        server.label, server.paused = label, True
        with pytest.raises(EndpointError, match=words):
            look_at(client, names, 10, 10)
        assert server.control == []
    server.label = Names.of(URL, str(tmp_path)).label(3)
    with pytest.raises(ModelError, match="knows a token id 10"):
        look_at(client, names, 10, 10)
    assert server.control[0] == "/resume"


def test_a_server_of_another_run_is_refused_with_how_to_free_it(server: Server, tmp_path: Path) -> None:
    holder, own = open_engine(server, tmp_path / "held"), Names.of(URL, str(tmp_path))
    client, held = cast(EndpointClient, server), server.label
    for ask in (lambda: look_at(client, own, 10, 10), lambda: claim(client, own)):
        with pytest.raises(EndpointError) as error:
            ask()
        assert f"with folder {tmp_path / 'held'} has it" in str(error.value)
        assert f'POST {URL}/update_weight_version with {{"new_version": "free"}}' in str(error.value)
    assert server.label == held
    claim(
        client, Names.of(URL, str(tmp_path / "held"))
    )  # a sampler of the same run, after the first has died
    with pytest.raises(EndpointError, match="another sampler has changed its weights"):
        holder.add(work(1))
        drain(holder)


def test_a_run_that_ends_gives_its_server_back(
    server: Server, engine: EndpointEngine, tmp_path: Path
) -> None:
    load(engine, 1)
    engine.close()
    assert server.label == "free"
    claim(cast(EndpointClient, server), Names.of(URL, str(tmp_path / "next")))
    taken = server.label
    engine.close()
    assert server.label == taken, "of another run by now"
    with pytest.raises(ModelError, match="it is given back"):
        load(engine, 2)
    assert server.label == taken


def test_a_server_is_claimed_last_when_nothing_can_be_refused_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[object] = []

    def refuse(*_: object) -> None:
        raise ModelError("model.safetensors: broken")

    (tmp_path / "config.json").write_text('{"vocab_size": 64}')
    monkeypatch.setattr(endpoint, "load_tokenizer", lambda folder: SimpleNamespace(vocab_size=64))
    monkeypatch.setattr(endpoint, "look_at", lambda *_: ServerFacts("one", 64, False))
    monkeypatch.setattr(endpoint, "claim", lambda *_: claimed.append(None))
    monkeypatch.setattr(endpoint, "check_of", refuse)
    with pytest.raises(ModelError, match="broken"):
        EndpointEngine.open(tmp_path, slots=4, options=EndpointOptions(URL, tmp_path, tmp_path, timeout=5.0))
    assert not claimed


def test_a_server_that_may_hold_two_versions_is_not_given_back(
    server: Server, engine: EndpointEngine
) -> None:
    def call(method: str, path: str, body: Any = None, within: float | None = None) -> Any:
        if path == "/collective_rpc":
            raise ServerLost("answered with 500", answered=True)
        return Server.call(server, method, path, body, within)

    server.call = call  # type: ignore[method-assign]
    label = server.label
    with pytest.raises(ModelError, match="start it anew"):
        load(engine, 1)
    engine.close()
    assert server.label == label


def test_in_a_pod_a_run_is_known_by_its_name_whatever_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTRAIN_RUN", "sums")
    monkeypatch.setenv("RLTRAIN_NAMESPACE", "team-a")
    first = Names.of(URL, "/mnt/weights")
    monkeypatch.setattr(socket, "gethostname", lambda: "another-pod")
    second = Names.of(URL, "/mnt/weights")
    assert (first.run, second.holder(first.label(3))) == (second.run, None)
    assert second.is_of_other(first.label(3)), "another sampler"
    monkeypatch.setenv("RLTRAIN_NAMESPACE", "team-b")
    assert Names.of(URL, "/mnt/weights").holder(first.label(3)) == "run team-a/sums"
