"""A vLLM server outside the run behind `rl_trainer.rollout.engines.base.Engine`.

Sequences are requests to the server, all slots at once. New weights go through a folder that both sides see: they are
written there, the server is paused, which ends all requests with the tokens that they have, it reads the folder in place,
and what was not at its end is asked for anew, its tokens part of the prompt. So each token is of the version that it names,
and no key and no value is of older weights. The version's label stays in the server: one that was started anew does not have
it, gets the weights once more, and what it has answered meanwhile is thrown away. One with a label of somebody else's is not
this sampler's any more; one that another run has is refused, and a run gives its server back when it ends.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections import Counter
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
from rl_trainer.rollout.engines.endpoint_look import (
    LOOK_SECONDS,
    claim,
    everywhere,
    give_back,
    look_at,
    wait_until_there,
)
from rl_trainer.rollout.engines.endpoint_names import Names
from rl_trainer.rollout.engines.endpoint_requests import (
    FIELD,
    EndpointOptions,
    Piece,
    ServerFacts,
    check_cuts,
    completion_body,
    read_completion,
    vocabulary_of,
    weight_label,
)
from rl_trainer.rollout.engines.sequences import Sequences
from rl_trainer.rollout.engines.weight_check import Check, check_of
from rl_trainer.weights.payload import made_when_wanted, shapes_of
from rl_trainer.weights.source import source_of

# A step ends at the first answer, or after this long.
STEP_SECONDS = 0.05
# Times that a server may break off, one after the other, before any sequence ends, and at one sequence.
MOST_LOSSES = 3


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
        names: Names,
    ) -> None:
        """`check`: refuses weights that are not the model's; `vocab_size`: its token ids; `names`: whose first label the
        server has."""
        super().__init__(slots, vocab_size, facts.context)
        self._client, self._facts, self._check, self._options = client, facts, check, options
        self._sequences = Sequences(slots)
        self._flying: dict[str, Future[None]] = {}
        self._arrived: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._ended: list[GenerationResult] = []
        self._names = names
        self._loads = 0
        self._label = names.label(0)  # of what the server was last seen to hold
        self._unsure: list[tuple[str, Piece]] = []  # arrived, of weights that are not looked at yet
        self._refused: list[str] = []  # sequences for which the server had an error
        self._lost: Counter[str] = Counter()  # requests that failed, by sequence
        self._weights: Path | None = None  # those of the server, as the server sees them
        self._broken: str | None = None  # why requests have come back that nobody ended
        self._losses = 0
        self._closed = False
        self._updating = threading.Lock()
        self._whole = True  # the server's weights are all of one version

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
        names = Names.of(options.url, str(options.folder))
        try:
            facts = look_at(client, names, vocabulary, max(vocabulary, load_tokenizer(folder).vocab_size))
            check_cuts(options.url, options.cuts, facts.extended)
            check = check_of(folder, bool(config.get("tie_word_embeddings")))
            claim(client, names)
        except BaseException:
            client.close()
            raise
        return cls(client, facts, check, vocabulary, slots=slots, options=options, names=names)

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
            if self._broken is not None:
                self._update()
        for key, _ in self._sequences.admit(self._waiting):
            self._send(key)
        if self._flying:
            self._take(STEP_SECONDS)
        if self._refused and self._broken is None:
            self._ask_again()
        if self._unsure and self._broken is None:
            self._confirm()
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
        name = self._names.folder(version, self._loads + 1)
        self._write(tensors, name, where)
        self._weights = self._options.server_folder / name
        self._loads += 1
        try:
            self._update(version)
        except EndpointError as error:
            raise ModelError(f"{where}: {error}") from None
        for other in self._options.folder.iterdir():
            if self._names.is_folder(other.name) and other.name != name:
                shutil.rmtree(other, ignore_errors=True)

    def abort(self, ids: Sequence[Hashable]) -> None:
        """See `Engine.abort`."""
        super().abort(ids)
        unwanted = set(ids)
        self._ended = [result for result in self._ended if result.id not in unwanted]
        keys = self._sequences.abort(ids)
        self._unsure = [(key, piece) for key, piece in self._unsure if key not in keys]
        self._refused = [key for key in self._refused if key not in keys]
        for key in keys:
            del self._lost[key]
            if (future := self._flying.pop(key, None)) is not None:
                future.cancel()

    def close(self) -> None:
        """See `Engine.close`: the server is free for other runs. One that has not loaded all of its weights is not."""
        if not self._updating.acquire(timeout=LOOK_SECONDS):
            return
        try:
            if self._whole and not self._closed:
                self._closed = True
                give_back(self._client, self._label)
        finally:
            self._updating.release()

    # -- sequences ---------------------------------------------------------------------------------------------------

    def _send(self, key: str) -> None:
        """Ask for what is left of a sequence."""
        request = self._sequences.rest(key, self.context)
        if request is None:
            self._ended.append(self._sequences.end(key))
            del self._lost[key]
            return
        salt = Names.salt(self._label)
        body = completion_body(self._facts.model, request, self._options.seeded, salt)
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
            self._lost[key] += 1
            if self._lost[key] > MOST_LOSSES:
                raise EndpointError(
                    f"server {self._options.url}: it broke off {self._lost[key]} times at one sequence ({answer}); look at "
                    "its log"
                )
            if answer.answered:
                self._refused.append(key)
            else:
                self._broken = str(answer)
            return
        if isinstance(answer, Exception):
            raise answer
        self._unsure.append((key, read_completion(self._options.url, answer)))

    def _ask_again(self) -> None:
        """Send what the server had an error for once more, when it is well; the others go on."""
        keys, self._refused = self._refused, []
        time.sleep(LOOK_SECONDS)
        wait_until_there(self._client, time.monotonic() + self._options.timeout)
        self._confirm()
        if self._broken is None:
            for key in keys:
                self._send(key)

    def _settle(self) -> bool:
        """Record what has arrived, if the server holds what it was asked with, else forget it; whether it does.

        Raises:
            EndpointError: it is another sampler's now.
            ServerLost: see there; what has arrived waits.
        """
        found = weight_label(self._options.url, self._client.call("GET", "/weight_info"))
        if self._names.is_of_other(found):
            raise EndpointError(
                f"server {self._options.url}: another sampler has changed its weights (their label is {found!r}, ours "
                f"{self._label!r}); give each run a server of its own"
            )
        arrived, self._unsure = self._unsure, []
        if found != self._label:
            return False
        for key, piece in arrived:
            self._sequences.record(key, piece.tokens, piece.logprobs, self.version)
            if piece.reason == "abort":
                self._broken = "somebody else has ended its requests"
            else:
                self._ended.append(self._sequences.end(key))
                self._losses = 0
                del self._lost[key]
        return True

    def _confirm(self) -> None:
        """Settle, or say in `_broken` why that cannot be: the server may have been started anew since."""
        try:
            if not self._settle():
                self._broken = "it does not hold the weights that it was given: it was started anew"
        except ServerLost as error:
            self._broken = str(error)

    # -- weights -----------------------------------------------------------------------------------------------------

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

    def _update(self, version: int | None = None) -> None:
        """Have the server read its weights, and ask for the rest of all sequences; `version`: of the weights, if it changes.

        What the server still answers is of the version before. It stays paused where it cannot load them: it may hold some
        of both versions then.
        """
        with self._updating:
            if self._closed:
                raise EndpointError(f"server {self._options.url}: it is given back")
            self._whole = False
            self._have_it_read()
            self._whole = True
        if version is not None:
            self.version = version
        self._broken, self._refused = None, []
        for key in self._sequences.in_flight:
            if key not in self._flying:
                self._send(key)

    def _have_it_read(self) -> None:
        """What `_update` says of the server."""
        deadline = time.monotonic() + self._options.timeout
        while True:
            wait_until_there(self._client, deadline)
            try:
                self._end_requests(deadline)
                self._settle()
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

    def _reload(self) -> None:
        if self._weights is not None:
            everywhere(self._client, "reload_weights", weights_path=str(self._weights))
            if self._facts.extended:
                everywhere(self._client, "rltrain_repack_heads")
        if self._facts.extended:
            everywhere(self._client, "rltrain_measure_all_tokens")
        label = self._names.label(self._loads)
        self._client.call("POST", "/update_weight_version", {"new_version": label})
        self._label = label

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
