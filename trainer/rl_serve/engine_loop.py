"""The thread that owns an engine: sequences of all requests share its batch, and join and leave it between two steps."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl_api.errors import ModelError
from rl_trainer.error_text import first_line
from rl_trainer.rollout.engines.base import Engine, FinishReason, GenerationRequest, Top

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """What is new of one sequence: (token, log-probability) each, and at its end why it ended.

    `versions`: the number of the weights that each token was sampled with; `top`: the most probable tokens at the place of
    each, where they are wanted; `cached`: tokens of the prompt that the engine knew, None: it keeps none; `taken` and
    `place` as in `GenerationResult`.
    """

    id: Hashable
    tokens: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None = None
    versions: tuple[int, ...] = ()
    top: tuple[Top, ...] = ()
    cached: int | None = None
    taken: int = 0
    place: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Swap:
    """Weights (Hugging Face names) that shall replace those of the engine, under another number.

    `done` hears why they could not, None: they have; in the loop's thread.
    """

    tensors: Mapping[str, torch.Tensor]
    version: int
    done: Callable[[str | None], None]


class EngineLoop:
    """Runs `engine` until `close`.

    Args:
        engine: nobody else may use it any more.
        deliver: hears of everything that is new after a step; called in the loop's thread.
        failed: hears a sentence when the engine has raised: then nothing is generated any more. Called there, too.
        pieces: tell of each token; else of whole sequences, when they end, which is less work.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Update]], None],
        failed: Callable[[str], None],
        pieces: bool = True,
    ) -> None:
        self._engine, self._pieces = engine, pieces
        self._deliver, self._failed = deliver, failed
        self._condition = threading.Condition()
        self._new: list[GenerationRequest] = []
        self._unwanted: set[Hashable] = set()
        self._swaps: deque[Swap] = deque()
        self._told: dict[Hashable, int] = {}
        self._closed = False
        self.failure = ""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Queue sequences; their ids are unique for all time, their prompts ones that `Engine.add` takes."""
        with self._condition:
            self._new += requests
            self._condition.notify()

    def cancel(self, ids: Sequence[Hashable]) -> None:
        """Forget sequences; one that has ended is passed over. Updates that are under way may still come."""
        with self._condition:
            self._unwanted.update(ids)
            self._condition.notify()

    def swap(self, swap: Swap) -> None:
        """Change the weights before the next step; sequences in flight go on."""
        with self._condition:
            if not self._closed:
                self._swaps.append(swap)
                self._condition.notify()
                return
        swap.done(self.failure or "the engine was closed")

    def close(self, timeout: float = 10.0) -> None:
        """End after the step at hand, at most `timeout` seconds later."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._take():
                self._step()
        except Exception as error:
            logger.exception("the engine has failed")
            self.failure = f"the engine has failed: {type(error).__name__}: {first_line(error)}"
            self._failed(self.failure)
        with self._condition:
            self._closed = True
            swaps, self._swaps = self._swaps, deque()
        for swap in swaps:
            swap.done(self.failure or "the engine was closed")

    def _take(self) -> bool:
        """Wait for work, and hand what came in to the engine; False: the loop was closed."""
        engine = self._engine
        with self._condition:
            idle = not engine.active and not engine.waiting
            self._condition.wait_for(
                lambda: self._closed or self._new or self._unwanted or self._swaps or not idle
            )
            if self._closed:
                return False
            new, unwanted, self._new, self._unwanted = self._new, self._unwanted, [], set()
            swap = self._swaps.popleft() if self._swaps else None
        if swap is not None:
            self._load(swap)
        wanted = [request for request in new if request.id not in unwanted]
        if unwanted:
            engine.abort(list(unwanted))
            for one in unwanted:
                self._told.pop(one, None)
        engine.add(wanted)
        self._told.update((request.id, 0) for request in wanted)
        return True

    def _load(self, swap: Swap) -> None:
        try:
            self._engine.load_weights(swap.tensors, swap.version)
        except ModelError as error:
            swap.done(str(error))
        else:
            swap.done(None)

    def _step(self) -> None:
        if not self._engine.active and not self._engine.waiting:
            return
        ended = self._engine.step()
        updates = []
        for result in ended:
            known = self._told.pop(result.id)
            fresh = zip(result.tokens[known:].tolist(), result.logprobs[known:].tolist(), strict=True)
            versions = tuple(result.versions[known:].tolist())
            top = tuple(result.top[known:])
            updates.append(
                Update(
                    result.id,
                    tuple(fresh),
                    result.finish_reason,
                    versions,
                    top,
                    result.cached,
                    result.taken,
                    result.place,
                )
            )
        for progress in self._engine.progress(self._told) if self._pieces else ():
            self._told[progress.id] += len(progress.tokens)
            fresh = zip(progress.tokens.tolist(), progress.logprobs.tolist(), strict=True)
            versions = tuple(progress.versions.tolist())
            top = tuple(progress.top)
            updates.append(
                Update(progress.id, tuple(fresh), None, versions, top, progress.cached, progress.taken)
            )
        if updates:
            self._deliver(updates)
