"""A vLLM server outside the run behind `rl_trainer.rollout.engines.base.Engine`.

Sequences are requests to the server, all slots at once. New weights go through a folder that both sides see: they are
written there, the server is paused, which ends all requests with the tokens that they have, it reads the folder in place,
and what was not at its end is asked for anew, its tokens part of the prompt. So each token is of the version that it names,
and no key and no value is of older weights. The version's label stays in the server: one that was started anew does not have
it, and gets the weights once more before it samples.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
import uuid
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rl_api.errors import CheckpointError, DeadlineExceeded, EndpointError, InvalidConfig, ModelError
from rl_trainer.error_text import reason
from rl_trainer.model.config import read_json
from rl_trainer.model.folder import write_weights
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.base import Engine, GenerationResult
from rl_trainer.rollout.engines.endpoint_client import EndpointClient, ServerLost
from rl_trainer.rollout.engines.endpoint_requests import (
    FIELD,
    PROBE_TEMPERATURES,
    EndpointOptions,
    ServerFacts,
    check_cuts,
    check_logprobs,
    completion_body,
    probe_body,
    read_completion,
    served_model,
    vocabulary_of,
)
from rl_trainer.rollout.engines.sequences import Sequences
from rl_trainer.rollout.engines.weight_check import Check, check_of
from rl_trainer.weights.payload import made_when_wanted, shapes_of
from rl_trainer.weights.source import source_of

# A step ends at the first answer, or after this long.
STEP_SECONDS = 0.05
# Between two looks whether a server is there.
LOOK_SECONDS = 0.5
# Times that a server may break off, one after the other, before any sequence ends.
MOST_LOSSES = 3
WEIGHTS = "weights-"


class EndpointEngine(Engine):
    """Implements `rl_trainer.rollout.engines.base.Engine`; see the module for how. Its results have no `top`."""

    def __init__(
        self,
        client: EndpointClient,
        facts: ServerFacts,
        check: Check,
        vocab_size: int,
        *,
        slots: int,
        options: EndpointOptions,
    ) -> None:
        """`check`: refuses weights that are not the model's; `vocab_size`: its token ids."""
        super().__init__(slots, vocab_size, facts.context)
        self._client, self._facts, self._check, self._options = client, facts, check, options
        self._sequences = Sequences(slots)
        self._flying: dict[str, Future[None]] = {}
        self._arrived: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._ended: list[GenerationResult] = []
        self._run = uuid.uuid4().hex[:12]
        self._loads = 0
        self._weights: Path | None = None  # those of the server, as the server sees them
        self._broken: str | None = None  # why requests have come back that nobody ended
        self._losses = 0

    @classmethod
    def open(cls, folder: Path, *, slots: int, options: EndpointOptions) -> EndpointEngine:
        """An engine for a Hugging Face folder whose model the server has as well; waits until the server is there.

        Raises:
            DeadlineExceeded: it is not, in time.
            EndpointError: it is no vLLM server, or refuses what it is asked.
            InvalidConfig: it was not started as a run needs it, or the folder for weights cannot be made.
            ModelError: its model has another vocabulary.
        """
        config = read_json(folder / "config.json")
        try:
            options.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig(
                f"{FIELD}.folder: found {str(options.folder)!r}, which cannot be made ({reason(error)})"
            ) from None
        vocabulary = vocabulary_of(config)
        client = EndpointClient(options.url, options.key, options.timeout)
        try:
            facts = _look_at(client, vocabulary, max(vocabulary, load_tokenizer(folder).vocab_size))
            check_cuts(options.url, options.cuts, facts.extended)
        except BaseException:
            client.close()
            raise
        check = check_of(folder, bool(config.get("tie_word_embeddings")))
        return cls(client, facts, check, vocabulary, slots=slots, options=options)

    @property
    def active(self) -> int:
        """Sequences in flight now, and those that have ended since the last step."""
        return self._sequences.active + len(self._ended)

    def step(self) -> list[GenerationResult]:
        """Send what free slots have room for, and wait a little for answers.

        Raises:
            DeadlineExceeded: the server is away for too long, or does not end a sequence in time.
            EndpointError: it refuses what it is asked, or breaks off again and again.
        """
        if self._waiting and not self._flying:
            self._confirm()
        for key, _ in self._sequences.admit(self._waiting):
            self._send(key)
        if self._flying:
            self._take(STEP_SECONDS)
        if self._broken is not None:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise EndpointError(
                    f"server {self._options.url}: it broke off {self._losses} times before any sequence ended "
                    f"({self._broken}); look at its log"
                )
            self._update()
        results, self._ended = self._ended, []
        return results

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """See `Engine.load_weights`. Also raises the errors of `step`."""
        where = f"weights of version {version}"
        self._check(shapes_of(tensors), where)
        name = f"{WEIGHTS}{version:08d}-{self._run}-{self._loads + 1}"
        self._write(tensors, name, where)
        self._weights = self._options.server_folder / name
        self._loads += 1
        try:
            self._update(version)
        except EndpointError as error:
            raise ModelError(f"{where}: {error}") from None
        for other in self._options.folder.glob(f"{WEIGHTS}*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)

    def abort(self, ids: Sequence[Hashable]) -> None:
        """See `Engine.abort`."""
        super().abort(ids)
        unwanted = set(ids)
        self._ended = [result for result in self._ended if result.id not in unwanted]
        for key in self._sequences.abort(ids):
            if (future := self._flying.pop(key, None)) is not None:
                future.cancel()

    # -- sequences ---------------------------------------------------------------------------------------------------

    def _send(self, key: str) -> None:
        """Ask for what is left of a sequence."""
        request = self._sequences.rest(key, self.context)
        if request is None:
            self._ended.append(self._sequences.end(key))
            return
        body = completion_body(self._facts.model, request, self._options.seeded, self._label)
        self._flying[key] = self._client.send("/v1/completions", body, partial(self._hear, key))

    def _hear(self, key: str, answer: Any) -> None:
        self._arrived.put((key, answer))

    def _take(self, seconds: float) -> None:
        """What has arrived, or arrives within so many seconds."""
        try:
            key, answer = self._arrived.get(timeout=seconds)
            while True:
                self._record(key, answer)
                key, answer = self._arrived.get_nowait()
        except queue.Empty:
            return

    def _record(self, key: str, answer: Any) -> None:
        if self._flying.pop(key, None) is None:  # aborted meanwhile
            return
        if isinstance(answer, ServerLost):
            self._broken = str(answer)
            return
        if isinstance(answer, Exception):
            raise answer
        piece = read_completion(self._options.url, answer)
        self._sequences.record(key, piece.tokens, piece.logprobs, self.version)
        if piece.reason == "abort":
            self._broken = "somebody else has ended its requests"
        else:
            self._ended.append(self._sequences.end(key))
            self._losses = 0

    # -- weights -----------------------------------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        """Of the weights that the server should have."""
        return f"{self._run}-{self._loads}"

    def _write(self, tensors: Mapping[str, torch.Tensor], name: str, where: str) -> None:
        """A folder of the weights, complete or not there; holds one piece of them at a time."""
        source = source_of(made_when_wanted(tensors))
        part = self._options.folder / f".{name}"
        try:
            part.mkdir(exist_ok=True)
            write_weights(source, part)
            os.rename(part, self._options.folder / name)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(part, ignore_errors=True)
            said = str(error) if isinstance(error, CheckpointError) else reason(error)
            raise EndpointError(
                f"{FIELD}.folder: {where} cannot be written into {str(self._options.folder)!r} ({said})"
            ) from None

    def _confirm(self) -> None:
        """Nothing is under way: the server may have been started anew since."""
        try:
            found = self._client.call("GET", "/weight_info")["weight_version"]
        except ServerLost as error:
            self._broken = str(error)
        else:
            if self._weights is None or found == self._label:
                return
        self._update()

    def _update(self, version: int | None = None) -> None:
        """Have the server read its weights, and ask for the rest of all sequences; `version`: of the weights, if it changes.

        What the server still answers is of the version before. It stays paused where it cannot load them: it may hold some
        of both versions then.
        """
        deadline = time.monotonic() + self._options.timeout
        while True:
            _wait_until_there(self._client, deadline)
            try:
                self._end_requests(deadline)
                if self._weights is not None:
                    self._reload()
                self._client.call("POST", "/resume")
                break
            except ServerLost as error:
                self._losses += 1
                if self._losses > MOST_LOSSES:
                    raise EndpointError(
                        f"server {self._options.url}: it does not load weights from {self._weights} ({error}); it may hold "
                        "some of both versions now: start it anew"
                    ) from None
        if version is not None:
            self.version = version
        self._broken = None
        for key in self._sequences.in_flight:
            if key not in self._flying:
                self._send(key)

    def _reload(self) -> None:
        _everywhere(self._client, "reload_weights", weights_path=str(self._weights))
        if self._facts.extended:
            _everywhere(self._client, "rltrain_repack_heads")
            _everywhere(self._client, "rltrain_measure_all_tokens")
        self._client.call("POST", "/update_weight_version", {"new_version": self._label})

    def _end_requests(self, deadline: float) -> None:
        """Returns when the server is paused and nothing is under way."""
        self._client.call("POST", "/pause?mode=abort")
        while self._flying:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"server {self._options.url}: it did not end {len(self._flying)} requests within {FIELD}.timeout"
                )
            # One that arrived after the pause would wait until its end.
            self._client.call("POST", "/abort_requests", {})
            self._take(STEP_SECONDS)


def _everywhere(client: EndpointClient, method: str, **arguments: str) -> None:
    """Call a method of all the server's workers."""
    client.call("POST", "/collective_rpc", {"method": method, "kwargs": arguments})


def _is_extended(client: EndpointClient) -> bool:
    """Whether the server's workers have our methods; the others answer that there is no such one."""
    try:
        _everywhere(client, "rltrain_measure_all_tokens")
    except ServerLost:
        client.call("GET", "/health")
        return False
    return True


def _wait_until_there(client: EndpointClient, deadline: float) -> None:
    """Returns when the server answers that it is well; DeadlineExceeded when it does not until then."""
    while True:
        try:
            client.call("GET", "/health")
            return
        except ServerLost as error:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"server {client.url}: not there within {FIELD}.timeout ({client.timeout:.0f} s): {error}"
                ) from None
        time.sleep(LOOK_SECONDS)


def _look_at(client: EndpointClient, vocabulary: int, end: int) -> ServerFacts:
    """What a server is, once it is there; see `_check_vocabulary` for `vocabulary` and `end`."""
    _wait_until_there(client, time.monotonic() + client.timeout)
    try:
        model, context = served_model(client.url, client.call("GET", "/v1/models"))
        client.call("POST", "/resume")  # a sampler before this one may have died while it was paused
        _check_vocabulary(client, model, vocabulary, end)
        probes = [probe_body(model, vocabulary - 1, one) for one in PROBE_TEMPERATURES]
        check_logprobs(client.url, [client.call("POST", "/v1/completions", probe) for probe in probes])
        return ServerFacts(model, context, _is_extended(client))
    except ServerLost as error:
        raise EndpointError(f"server {client.url}: lost while it was looked at ({error})") from None


def _check_vocabulary(client: EndpointClient, model: str, size: int, end: int) -> None:
    """ModelError where the server's model does not know all token ids of the run's, which has `size`, or some from `end` on,
    where neither model nor tokenizer has any."""
    found = []
    for token in (size - 1, end):
        try:
            client.call("POST", "/v1/completions", probe_body(model, token))
            found.append(True)
        except EndpointError:
            found.append(False)
    if found != [True, False]:
        what = f"no token id {size - 1}" if not found[0] else f"a token id {end}"
        raise ModelError(
            f"server {client.url}: its model {model!r} knows {what}, the run's knows 0 to {size - 1}; let it serve "
            "the model of model.source"
        )
