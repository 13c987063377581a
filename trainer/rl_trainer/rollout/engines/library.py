"""The fallback engine: the library's own `generate`, for model families that our decoder does not run.

A batch of up to `slots` requests runs to its end in one `step`; there is no refill in between. The library
computes logits and keeps its cache; tokens are chosen by our sampling, so seeds, log-probabilities and
stopping mean the same in both engines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rl_trainer.model.library_model import LibraryModel
from rl_trainer.model.offload import Offloader, held_bytes
from rl_trainer.profile.meters import EngineMeter
from rl_trainer.rollout.engines.base import Engine, GenerationRequest, GenerationResult, Top
from rl_trainer.rollout.engines.sampling import BatchSampling, most_probable, sample, uniforms


class LibraryEngine(Engine):
    """Implements `rl_trainer.rollout.engines.base.Engine` with `generate`."""

    def __init__(self, model: LibraryModel, slots: int) -> None:
        super().__init__(slots, model.vocab_size, model.max_positions)
        from transformers import GenerationConfig

        self._model = model.requires_grad_(False).eval()
        self._offloader = Offloader("the sampler's engine")
        # The folder's own defaults (end tokens, repetition penalty, ...) would change what our parameters say.
        model.model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]

    @property
    def active(self) -> int:
        """Always 0 between steps: a batch ends in the step that began it."""
        return 0

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy weights in place; see `Engine.load_weights`."""
        self._offloader.require("weights are loaded")
        self._model.load_hf_state_dict(tensors, where=f"weights of version {version}")
        self.version = version

    @property
    def device_bytes(self) -> int:
        """See `Engine.device_bytes`."""
        return held_bytes(self._memory())

    def offload(self) -> int:
        """See `Engine.offload`. Between two steps it keeps weights alone."""
        return self._offloader.offload(self._memory())

    def onload(self) -> int:
        """See `Engine.onload`."""
        return self._offloader.onload()

    def _memory(self) -> list[torch.Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]

    @torch.inference_mode()
    def step(self) -> list[GenerationResult]:
        """Generate the next batch to its end."""
        self._offloader.require("a step")
        batch = [self._waiting.popleft() for _ in range(min(self.slots, self.waiting))]
        if not batch:
            return []
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        device = next(self._model.parameters()).device
        longest = max(len(request.prompt) for request in batch)
        tokens = np.zeros((len(batch), longest), np.int64)
        mask = np.zeros((len(batch), longest), np.int64)
        for row, request in enumerate(batch):  # the library continues on the right: padding goes to the left
            tokens[row, longest - len(request.prompt) :] = request.prompt
            mask[row, longest - len(request.prompt) :] = 1
        choice = _Choice(batch, self.context, self.vocab_size, device, self.meter)
        self._model.model.generate(
            input_ids=torch.from_numpy(tokens).to(device),
            attention_mask=torch.from_numpy(mask).to(device),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                do_sample=False, max_new_tokens=int(choice.limits.max()), pad_token_id=0, eos_token_id=None
            ),
            logits_processor=LogitsProcessorList([choice]),
            stopping_criteria=StoppingCriteriaList([choice.stopped]),
        )
        return choice.results(self.version)


class _Choice:
    """Chooses every token with our sampling, inside the library's loop.

    As a logits processor it records the token and its log-probability and leaves the library's greedy choice
    no other token.
    """

    def __init__(
        self,
        batch: Sequence[GenerationRequest],
        context: int,
        vocab_size: int,
        device: torch.device,
        meter: EngineMeter,
    ) -> None:
        params = [request.params for request in batch]
        self._batch = batch
        self._device = device
        self.limits = np.array(
            [min(p.max_new_tokens, context - len(r.prompt)) for p, r in zip(params, batch, strict=True)]
        )
        self._seeds = np.array([request.seed & 0xFFFFFFFFFFFFFFFF for request in batch], np.uint64)
        self._drawn = np.array([request.drawn for request in batch], np.int64)
        self._sampling = BatchSampling.of(
            np.array([p.temperature for p in params], np.float32),
            np.array([p.top_k for p in params], np.int64),
            np.array([p.top_p for p in params], np.float32),
            vocab_size,
            device,
        )
        self._done = np.zeros(len(batch), bool)
        self._stopped = np.zeros(len(batch), bool)
        self._lengths = np.zeros(len(batch), np.int64)
        self._tokens: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._logprobs: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self._wanted = [p.top_logprobs for p in params]
        self._top: list[list[Top]] = []
        self._meter, self._since = meter, time.perf_counter()
        self._prompts = sum(len(request.prompt) for request in batch)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits processor: scores [B, V] -> the same with everything but the chosen token at minus infinity."""
        step = len(self._tokens)
        uniform = uniforms(self._seeds, self._drawn + step)
        chosen, logprobs = sample(scores, torch.from_numpy(uniform).to(self._device), self._sampling)
        tokens = chosen.cpu().numpy()
        self._tokens.append(tokens)
        self._logprobs.append(logprobs.cpu().numpy())
        self._measure(step)
        if any(self._wanted):
            self._top.append(most_probable(scores, self._sampling, self._wanted))
        for row in np.flatnonzero(~self._done).tolist():
            self._lengths[row] = step + 1
            self._stopped[row] = int(tokens[row]) in self._batch[row].params.stop_token_ids
            self._done[row] = self._stopped[row] or step + 1 >= self.limits[row]
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _measure(self, step: int) -> None:
        """The pass that gave these logits: the first one is that of the prompts, all rows of the others are computed."""
        now = time.perf_counter()
        if step:
            rows = len(self._batch)
            self._meter.decoded(now - self._since, rows, self._prompts + rows * step)
        else:
            self._meter.prefilled(now - self._since, self._prompts)
        self._since = now

    def stopped(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Stopping criterion: bool [B], the sequences that have ended."""
        return torch.from_numpy(self._done.copy()).to(self._device)

    def results(self, version: int) -> list[GenerationResult]:
        """What was recorded, cut to each sequence's length."""
        tokens = np.stack(self._tokens, axis=1).astype(np.int32)
        logprobs = np.stack(self._logprobs, axis=1).astype(np.float32)
        return [
            GenerationResult(
                id=request.id,
                tokens=tokens[row, : self._lengths[row]].copy(),
                logprobs=logprobs[row, : self._lengths[row]].copy(),
                versions=np.full(self._lengths[row], version, np.int32),
                finish_reason="stop" if self._stopped[row] else "length",
                top=[step[row] for step in self._top[: self._lengths[row]]] if self._wanted[row] else (),
            )
            for row, request in enumerate(self._batch)
        ]
