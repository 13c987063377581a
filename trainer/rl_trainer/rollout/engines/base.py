"""The interface every inference engine has: requests in, finished sequences out, new weights between two steps.

An engine keeps up to `slots` sequences in flight and advances all of them by one token per `step()`. It knows
nothing of groups, rewards or Ray; `rl_trainer.rollout.loop` builds those on top.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from rl_api.errors import TaskError
from rl_trainer.profile.meters import EngineMeter

FinishReason = Literal["stop", "length"]
Top = tuple[tuple[int, float], ...]
"""Tokens at one place, the most probable first, and their log-probabilities as those of `GenerationResult`."""


@dataclass(frozen=True)
class SamplingParams:
    """How one sequence is sampled.

    `temperature` 0 is greedy. `top_p` in (0, 1] and `top_k` >= 0 (0: off) cut the distribution *after* the
    temperature, top-k first, as the Hugging Face library does. A token of `stop_token_ids` ends the sequence
    and is part of it. `top_logprobs`: of how many most probable tokens the result tells the log-probabilities at each
    place, beside those of the sampled one.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 0 (off) or more")
        if self.top_logprobs < 0:
            raise ValueError(f"top_logprobs is {self.top_logprobs}; it must be 0 (none) or more")


@dataclass(frozen=True)
class Prefilled:
    """Keys and values of a prompt that another engine holds, for one that takes them over.

    `version`: of the weights that they are of, as the engine counts that takes them; `until`: when (`time.monotonic`) it is
    too late to begin; `place`: where they are, in the words of what carries them; `cached`: tokens of the prompt that the
    other engine had computed before.
    """

    version: int
    until: float
    place: Mapping[str, Any]
    cached: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """One sequence to generate: `prompt` int32 [P], P >= 1.

    `seed` keys a counter-based random number generator: the token at position t depends on (seed, t) and the
    model's distribution only, not on the other sequences of the batch. `drawn`: so many of the last tokens of `prompt`
    were drawn for this sequence before (`Engine.interrupt`), and the next one is at position `drawn`. `hand_over`: keep the
    prompt's keys and values for another engine; `prefilled`: such ones of another engine, which are disregarded where they
    are too old, or of other weights. Both are for engines that can, and nothing to others.
    """

    id: Hashable
    prompt: npt.NDArray[np.int32]
    params: SamplingParams
    seed: int = 0
    drawn: int = 0
    hand_over: bool = False
    prefilled: Prefilled | None = None

    @property
    def generator_seed(self) -> int:
        """For engines with a generator for each request, which begins anew with it: it must not repeat the draws of the
        tokens that are there."""
        return (self.seed + 0x9E3779B9 * self.drawn) & 0x7FFFFFFFFFFFFFFF

    @cached_property
    def prompt_bytes(self) -> bytes:
        """What requests with the same prompt have in common."""
        return np.ascontiguousarray(self.prompt, np.int32).tobytes()


@dataclass
class GenerationResult:
    """One finished sequence of T tokens.

    `tokens` int32 [T], with the stop token where there is one; `logprobs` float32 [T], the log-probability of
    each token as the learner measures it too: fp32 log-softmax of logits / temperature, over all tokens, whatever
    top-k and top-p left out of the draw (for greedy decoding: of the plain logits); `versions` int32 [T], the
    weight version that sampled each token; `top` [T], where the request has asked for it; `cached`: tokens of the prompt
    that the engine had computed before, for another request; None: it keeps none; `taken`: tokens whose keys and values it
    took over; `place`: where another engine finds them, of a request that hands them over.
    """

    id: Hashable
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    finish_reason: FinishReason
    top: Sequence[Top] = ()
    cached: int | None = None
    taken: int = 0
    place: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class GenerationProgress:
    """The newest T tokens of a sequence that is still in flight; arrays as in `GenerationResult`."""

    id: Hashable
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    top: Sequence[Top] = ()
    cached: int | None = None
    taken: int = 0


class Engine(ABC):
    """What a sampler needs of an inference engine.

    Attributes:
        slots: the largest number of sequences in flight.
        version: the weight version that the next step samples with.
        vocab_size: ids that a prompt may hold, from 0 on.
        context: most tokens of a sequence, its prompt included.
        meter: what its steps took.
        reads_again: whether it drops keys and values where it is offloaded, and computes them anew.
    """

    reads_again = False

    def __init__(self, slots: int, vocab_size: int, context: int) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}; an engine needs at least 1")
        self.slots = slots
        self.version = 0
        self.vocab_size = vocab_size
        self.context = context
        self.meter = EngineMeter()
        self._waiting: deque[GenerationRequest] = deque()

    @property
    @abstractmethod
    def active(self) -> int:
        """Sequences in flight now."""

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return len(self._waiting)

    def add(self, requests: Sequence[GenerationRequest]) -> None:
        """Queue requests, first in first out.

        Raises TaskError when a prompt is empty, holds an id outside the vocabulary, or leaves no room for a
        token in the model's context; then none of `requests` is queued.
        """
        for request in requests:
            self.check_request(request)
        self._waiting.extend(requests)

    def check_request(self, request: GenerationRequest) -> None:
        """Raises TaskError as `add` does."""
        prompt = request.prompt
        if len(prompt) == 0:
            raise TaskError(f"request {request.id}: the prompt is empty; a prompt needs at least one token")
        lowest, highest = int(prompt.min()), int(prompt.max())
        if lowest < 0 or highest >= self.vocab_size:
            raise TaskError(
                f"request {request.id}: the prompt holds token id {lowest if lowest < 0 else highest}; the model knows "
                f"0 to {self.vocab_size - 1}"
            )
        if len(prompt) >= self.context:
            raise TaskError(
                f"request {request.id}: the prompt has {len(prompt)} tokens, but the context holds {self.context} with at "
                "least one new token; shorten the prompt or take a model with a longer context"
            )

    @abstractmethod
    def step(self) -> list[GenerationResult]:
        """Refill free slots, then sample one token for every active sequence; returns the sequences that ended."""

    @abstractmethod
    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy weights (Hugging Face names) in place, between two steps; tokens sampled from now on carry `version`.

        Sequences in flight go on with the keys and values they have. Raises ModelError when a tensor is missing, unknown or
        of another shape; then the weights are as before.
        """

    def prepare_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> Callable[[], None]:
        """Does ahead what can be done of `load_weights` while steps go on, on another thread; one call at a time.

        What it returns does the rest, between two steps, and is the end of `load_weights`; what was prepared before and not
        called is void. Raises what that raises, as the result may. An engine that can do nothing ahead leaves all for it.
        """
        return partial(self.load_weights, tensors, version)

    @property
    def device_bytes(self) -> int | None:
        """Bytes of weights, keys and values on its device now; None: it cannot say."""
        return None

    def offload(self) -> int:
        """Give the device's memory back, between two steps, until `onload`; how many bytes.

        Sequences in flight stay, and go on afterwards with the tokens they would have had. Until then nothing is sampled or
        loaded, which is refused with a sentence; requests may come and be aborted. Away already, or an engine that can give
        none back (a server outside; vLLM without its sleep mode): nothing happens, and 0. Raises RLTrainError where there is
        no room for the bytes elsewhere; then all is as it was.
        """
        return 0

    def onload(self) -> int:
        """Take up again what `offload` gave back; how many bytes. There already: nothing happens, and 0."""
        return 0

    def close(self) -> None:
        """Give back what is not this process's own; from then on nothing is sampled. May come from any thread, and again."""
        return

    def progress(self, known: Mapping[Hashable, int]) -> list[GenerationProgress]:
        """What sequences in flight have beyond their first `known[id]` tokens; those without anything new, or that `known`
        does not name, are left out. An engine that cannot tell says nothing: its sequences come whole, when they end.
        """
        return []

    def memory(self) -> tuple[int, int]:
        """Bytes of the weights that this process holds, and of one token's keys and values; 0: not known."""
        return 0, 0

    def abort(self, ids: Sequence[Hashable]) -> None:
        """Forget sequences, in flight or waiting; ids that are unknown (any more) are passed over."""
        unwanted = set(ids)
        self._waiting = deque(request for request in self._waiting if request.id not in unwanted)

    def interrupt(self, ids: Sequence[Hashable]) -> list[GenerationProgress]:
        """Forgets sequences as `abort` does, and says what they have so far; those without a token are left out.

        A request whose prompt ends with these tokens, with `drawn` as many, goes on where this one was interrupted, on any
        engine. The library's and ours draw the same uniform numbers as without the interruption, so that the tokens are the
        same but where one of those falls into the rounding between two tokens: what the prompt's pass computes and what
        decoding did differs in the last bits. vLLM's generators begin anew, from another seed. An engine that cannot tell
        what is in flight begins its sequences anew.
        """
        found = self.progress(dict.fromkeys(ids, 0))
        self.abort(ids)
        return found
