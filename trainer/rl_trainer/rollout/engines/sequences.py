"""What an engine knows of its sequences when their keys, values and tokens live elsewhere. Pure.

Once one of `slots` is free for its request, a sequence has a key, a text that no other sequence ever had, and collects what
was sampled for it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rl_trainer.rollout.engines.base import GenerationProgress, GenerationRequest, GenerationResult, Top


@dataclass
class _Sequence:
    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    cached: int | None = None
    taken: int = 0


class Sequences:
    """The sequences of one engine that are in flight."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._active: dict[str, _Sequence] = {}
        self._keys = itertools.count()

    @property
    def active(self) -> int:
        """Sequences in flight."""
        return len(self._active)

    @property
    def tokens(self) -> int:
        """Of all sequences in flight, prompts included."""
        return sum(len(one.request.prompt) + len(one.tokens) for one in self._active.values())

    def admit(self, waiting: deque[GenerationRequest]) -> list[tuple[str, GenerationRequest]]:
        """Give free slots to the first that wait; their keys."""
        admitted = []
        for _ in range(min(self.slots - len(self._active), len(waiting))):
            key, request = f"sequence-{next(self._keys)}", waiting.popleft()
            self._active[key] = _Sequence(request)
            admitted.append((key, request))
        return admitted

    def record(
        self,
        key: str,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        version: int,
        top: Sequence[Top] = (),
        cached: int | None = None,
        taken: int = 0,
    ) -> None:
        """Append tokens that were sampled with the weights of `version`.

        Args:
            top: the most probable ones at the place of each, where they are wanted.
            cached: tokens of its prompt that were known.
            taken: those of which another engine had the keys and values.
        """
        sequence = self._active[key]
        sequence.cached, sequence.taken = cached, taken
        sequence.tokens.extend(tokens)
        sequence.logprobs.extend(logprobs)
        sequence.versions.extend([version] * len(tokens))
        sequence.top.extend(top)

    @property
    def in_flight(self) -> list[str]:
        """Keys of the sequences in flight, the oldest first."""
        return list(self._active)

    def rest(self, key: str, context: int) -> GenerationRequest | None:
        """What is left to sample of a sequence, as a request whose prompt holds its tokens so far; None: nothing.

        Args:
            key: the sequence's.
            context: most tokens of a sequence, its prompt included.
        """
        sequence = self._active[key]
        request, count = sequence.request, len(sequence.tokens)
        prompt = np.concatenate((request.prompt, np.asarray(sequence.tokens, np.int32)))
        left = min(request.params.max_new_tokens - count, context - len(prompt))
        if left < 1:
            return None
        params = replace(request.params, max_new_tokens=left)
        return replace(request, prompt=prompt, params=params, drawn=request.drawn + count)

    def progress(self, known: Mapping[Hashable, int]) -> list[GenerationProgress]:
        """What those in flight have beyond their first `known[id]` tokens; see `Engine.progress`."""
        found = []
        for sequence in self._active.values():
            start = known.get(sequence.request.id)
            if start is not None and start < len(sequence.tokens):
                found.append(
                    GenerationProgress(
                        sequence.request.id,
                        np.asarray(sequence.tokens[start:], np.int32),
                        np.asarray(sequence.logprobs[start:], np.float32),
                        np.asarray(sequence.versions[start:], np.int32),
                        sequence.top[start:],
                        sequence.cached,
                        sequence.taken,
                    )
                )
        return found

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
            top=sequence.top,
            cached=sequence.cached,
            taken=sequence.taken,
        )

    def abort(self, ids: Sequence[Hashable]) -> list[str]:
        """Forget sequences by their requests' ids; the keys of those that were in flight."""
        unwanted = set(ids)
        keys = [key for key, sequence in self._active.items() if sequence.request.id in unwanted]
        for key in keys:
            del self._active[key]
        return keys

    def take_back(self, waiting: deque[GenerationRequest]) -> list[str]:
        """Let those in flight that have no token yet wait again, before all others; the keys that they had."""
        keys = [key for key, sequence in self._active.items() if not sequence.tokens]
        waiting.extendleft([self._active.pop(key).request for key in reversed(keys)])
        return keys
