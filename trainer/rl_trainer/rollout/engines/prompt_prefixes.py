"""Prompts that are prepared for the PyTorch engine: each once, several at a time and ahead of need."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rl_trainer.model.decoder import Decoder
from rl_trainer.profile.meters import EngineMeter
from rl_trainer.rollout.engines.base import GenerationRequest
from rl_trainer.rollout.engines.kv_cache import round_up
from rl_trainer.rollout.engines.prefill import prefill

# Prompt tokens (with padding) that go through the model in one pass: enough for fast matrix products, few enough that what
# lies between them stays in a CPU's cache. Prompts are prepared ahead of need up to the same number.
PREFILL_TOKENS = {"cpu": 1024, "cuda": 16384}


@dataclass(frozen=True)
class Prefix:
    """Entry `entry` of a prefilled batch [layers, 2, B, kv_heads, T, D]."""

    batch: torch.Tensor
    entry: int


class PromptPrefixes:
    """Keys and values of prompts, by their bytes, as long as a request that has not begun wants them.

    All but the last token of a prompt are its prefix; a prompt of one token has none. `seconds`: that preparing took since
    its reader set it to 0.
    """

    def __init__(self, decoder: Decoder, meter: EngineMeter) -> None:
        self._decoder, self._meter = decoder, meter
        self._device = decoder.embed.device
        self._most = PREFILL_TOKENS.get(self._device.type, 1024)
        self._wanted: Counter[bytes] = Counter()
        self._there: dict[bytes, Prefix] = {}
        self.seconds = 0.0

    def want(self, requests: Iterable[GenerationRequest]) -> None:
        """These will begin."""
        self._wanted.update(request.prompt_bytes for request in requests)

    def keep_for(self, waiting: Iterable[GenerationRequest]) -> None:
        """Of all that were to begin only `waiting` still are."""
        self._wanted = Counter(request.prompt_bytes for request in waiting)
        self._there = {key: value for key, value in self._there.items() if key in self._wanted}

    def clear(self) -> None:
        """What is prepared is of no use any more: the weights are others."""
        self._there.clear()

    def batches(self) -> list[torch.Tensor]:
        """What they lie in, some of them several times."""
        return [prefix.batch for prefix in self._there.values()]

    def take(self, request: GenerationRequest) -> Prefix | None:
        """That of one that begins; None: it has none. Forgotten where no other wants it."""
        key = request.prompt_bytes
        found = self._there.get(key)
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key]
            self._there.pop(key, None)
        return found

    def prepare(self, admitted: Sequence[GenerationRequest], waiting: Iterable[GenerationRequest]) -> None:
        """Make sure those of `admitted` are there; if one is not, prepare some of the next prompts, of `waiting`, along with
        it."""
        needed = {
            request.prompt_bytes: request.prompt
            for request in admitted
            if len(request.prompt) > 1 and request.prompt_bytes not in self._there
        }
        if not needed:
            return
        budget = self._most - sum(round_up(len(prompt) - 1) for prompt in needed.values())
        for request in waiting:
            if budget <= 0:
                break
            key, prompt = request.prompt_bytes, request.prompt
            if key in needed or key in self._there or len(prompt) < 2:
                continue
            budget -= round_up(len(prompt) - 1)
            if budget >= 0:
                needed[key] = prompt
        # Prompts of like length share a batch: little padding, and the memory of one batch stays bounded.
        ordered = sorted(needed.items(), key=lambda pair: len(pair[1]))
        while ordered:
            size = max(1, self._most // round_up(len(ordered[-1][1]) - 1))
            chunk, ordered = ordered[-size:], ordered[:-size]
            started = time.perf_counter()
            batch = prefill(self._decoder, [prompt[:-1] for _, prompt in chunk])
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # else its seconds would be those of the decode step
            seconds = time.perf_counter() - started
            # Computed once for all answers that begin with it: of a group the tokens of all are read.
            tokens = sum((len(prompt) - 1) * self._wanted[key] for key, prompt in chunk)
            self._meter.prefilled(seconds, tokens)
            self.seconds += seconds
            for entry, (key, _) in enumerate(chunk):
                self._there[key] = Prefix(batch, entry)
