"""What an engine knows of its sequences when their keys, values and tokens live elsewhere. Pure.

Requests wait first in, first out until one of `slots` is free. From then on a sequence has a key, a text that no other
sequence ever had, and collects what was sampled for it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rl_trainer.rollout.engines.base import GenerationRequest, GenerationResult


@dataclass
class _Sequence:
    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Sequences:
    """The sequences of one engine, waiting and in flight."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}; an engine needs at least 1")
        self.slots = slots
        self._waiting: deque[GenerationRequest] = deque()
        self._active: dict[str, _Sequence] = {}
        self._keys = itertools.count()

    @property
    def active(self) -> int:
        """Sequences in flight."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return len(self._waiting)

    def queue(self, requests: Sequence[GenerationRequest]) -> None:
        """Let requests wait behind those that do."""
        self._waiting.extend(requests)

    def admit(self) -> list[tuple[str, GenerationRequest]]:
        """Give free slots to the first that wait; their keys."""
        admitted = []
        for _ in range(min(self.slots - len(self._active), len(self._waiting))):
            key, request = f"sequence-{next(self._keys)}", self._waiting.popleft()
            self._active[key] = _Sequence(request)
            admitted.append((key, request))
        return admitted

    def record(self, key: str, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Append tokens that were sampled with the weights of `version`."""
        sequence = self._active[key]
        sequence.tokens.extend(tokens)
        sequence.logprobs.extend(logprobs)
        sequence.versions.extend([version] * len(tokens))

    def end(self, key: str) -> GenerationResult:
        """What was sampled for a sequence, whose slot is free from now on."""
        sequence = self._active.pop(key)
        stopped = bool(sequence.tokens) and sequence.tokens[-1] in sequence.request.params.stop_token_ids
        return GenerationResult(
            id=sequence.request.id,
            tokens=np.asarray(sequence.tokens, np.int32),
            logprobs=np.asarray(sequence.logprobs, np.float32),
            versions=np.asarray(sequence.versions, np.int32),
            finish_reason="stop" if stopped else "length",
        )

    def abort(self, ids: Sequence[Hashable]) -> list[str]:
        """Forget sequences by their requests' ids; the keys of those that were in flight."""
        unwanted = set(ids)
        self._waiting = deque(request for request in self._waiting if request.id not in unwanted)
        keys = [key for key, sequence in self._active.items() if sequence.request.id in unwanted]
        for key in keys:
            del self._active[key]
        return keys

    def take_back(self) -> list[str]:
        """Let those in flight that have no token yet wait again, before all others; the keys that they had."""
        keys = [key for key, sequence in self._active.items() if not sequence.tokens]
        self._waiting.extendleft([self._active.pop(key).request for key in reversed(keys)])
        return keys
