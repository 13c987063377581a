"""The PyTorch engine: continuous batching on our own decoder, made for CPUs and small models, correct everywhere.

Sequences in flight occupy the first slots of the cache without gaps. A finished sequence leaves a hole;
before the next step holes are filled from the queue, or, when that is empty, with the last sequences. Prompts
are run through the model once each, several distinct ones at a time and ahead of need, and their keys and
values copied to every sequence that starts with them. The last prompt token is the first input of the decode
loop, so each token, the first included, comes from the same code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import numpy as np
import torch

from rl_trainer.model.decoder import Decoder
from rl_trainer.model.offload import Offloader, held_bytes
from rl_trainer.rollout.engines.base import (
    Engine,
    GenerationProgress,
    GenerationRequest,
    GenerationResult,
    Top,
)
from rl_trainer.rollout.engines.decode import DecodeStep
from rl_trainer.rollout.engines.kv_cache import KVCache, round_up
from rl_trainer.rollout.engines.prompt_prefixes import Prefix, PromptPrefixes
from rl_trainer.rollout.engines.sampling import BatchSampling, most_probable, sample, uniforms
from rl_trainer.weights.free_memory import MARGIN, free_memory


class TorchEngine(Engine):
    """Implements `rl_trainer.rollout.engines.base.Engine`; see the module for how."""

    def __init__(self, decoder: Decoder, slots: int) -> None:
        config = decoder.config
        super().__init__(slots, config.vocab_size, config.max_positions)
        self._decoder = decoder.requires_grad_(False).eval()
        self._device = decoder.embed.device
        self._cache = KVCache(config, slots, decoder.embed.dtype, self._device)
        self._step = DecodeStep(decoder, self._cache)
        self.steps = 0

        self._prefixes = PromptPrefixes(decoder, self.meter)

        # Row i of each array belongs to slot i; rows beyond `_used` feed the padding of a block and stay at zero.
        rows = self._cache.slots
        self._used = 0
        self._holes: list[int] = []
        self._requests: list[GenerationRequest | None] = [None] * rows
        # Of those in flight that want it.
        self._top: dict[Hashable, list[Top]] = {}
        self._tokens = np.zeros(rows, np.int64)
        self._positions = np.zeros(rows, np.int64)
        self._counts = np.zeros(rows, np.int64)
        self._drawn = np.zeros(rows, np.int64)  # before the request
        self._limits = np.zeros(rows, np.int64)
        self._seeds = np.zeros(rows, np.uint64)
        self._temperatures = np.ones(rows, np.float32)
        self._top_k = np.zeros(rows, np.int64)
        self._top_p = np.ones(rows, np.float32)
        self._stops = np.full((rows, 1), -1, np.int64)
        self._out_tokens = np.zeros((rows, 0), np.int32)
        self._out_logprobs = np.zeros((rows, 0), np.float32)
        self._out_versions = np.zeros((rows, 0), np.int32)
        self._per_slot = ["_tokens", "_positions", "_counts", "_drawn", "_limits", "_seeds", "_temperatures"]
        self._per_slot += ["_top_k", "_top_p", "_stops", "_out_tokens", "_out_logprobs", "_out_versions"]
        self._index = np.arange(rows)
        self._tainted = False
        self._sampling = BatchSampling()
        self._offloader = Offloader("the sampler's engine")
        # Held while a second set of parameters is filled, on another thread; and whether it has what is to be loaded.
        self._preparing = threading.Lock()
        self._prepared = False

    @property
    def active(self) -> int:
        """Sequences in flight now."""
        return self._used - len(self._holes)

    def add(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Engine.add`."""
        super().add(requests)
        self._prefixes.want(requests)

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """See `Engine.load_weights`."""
        self._offloader.require("weights are loaded")
        self._decoder.load_hf_state_dict(tensors, where=f"weights of version {version}")
        self._loaded(version)

    def prepare_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> Callable[[], None]:
        """See `Engine.prepare_weights`. On a CPU a second set of parameters is filled, and exchanged for the first, if there
        is memory for it; that of a GPU is for keys and values. Nor while the first one is offloaded. Tensors that are lent
        become parameters as they are where their layout allows it (`payload.lent_rows`).
        """
        with self._preparing:
            if self._device.type != "cpu" or self._offloader.away:
                return super().prepare_weights(tensors, version)
            lent = self._decoder.lent_parameters(tensors)
            if not self._has_room(lent):
                return super().prepare_weights(tensors, version)
            self._prepared = True
            where = f"weights of version {version}"
            exchange = self._decoder.prepare_hf_state_dict(tensors, where, lent)

        def load() -> None:
            self._offloader.require("weights are loaded")
            exchange()
            self._prepared = False
            self._loaded(version)

        return load

    def _has_room(self, lent: Collection[str]) -> bool:
        """Whether a second set of parameters, but for those that are `lent`, is there, or may be made."""
        needed = self._decoder.bytes_to_prepare(lent)
        return needed == 0 or free_memory() >= needed + MARGIN

    def _loaded(self, version: int) -> None:
        self.version = version
        self._prefixes.clear()
        if self._tainted:
            self._cache.clear()
            self._tainted = False

    @property
    def device_bytes(self) -> int:
        """See `Engine.device_bytes`; with parameters that are lent."""
        lent = {id(one): one.nbytes for one in self._decoder.lent()}
        own = [tensor for part in self._memory() for tensor in part if id(tensor) not in lent]
        return held_bytes(own) + sum(lent.values())

    def offload(self) -> int:
        """See `Engine.offload`. Keys and values of sequences in flight are moved along; a second set of parameters that
        waits to be loaded as well, else it is dropped. What is lent is given back for good, and a copy of it moved.
        """
        with self._preparing:
            self._step.forget_buffers()
            if not self._offloader.away:
                self._decoder.own_parameters()
            return self._offloader.offload(*self._memory())

    def onload(self) -> int:
        """See `Engine.onload`."""
        return self._offloader.onload()

    def _memory(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What is kept on the device, and what of it nobody reads before it is written again."""
        kept = [*self._decoder.parameters(), *self._prefixes.batches()]
        void: list[torch.Tensor] = []
        (kept if self._prepared else void).extend(self._decoder.prepared())
        (kept if self.active else void).extend(self._cache.storage())
        return kept, void

    def memory(self) -> tuple[int, int]:
        """See `Engine.memory`."""
        config, weights = self._decoder.config, sum(one.nbytes for one in self._decoder.parameters())
        token = 2 * config.layers * config.kv_heads * config.head_dim * self._decoder.embed.element_size()
        return weights, token

    def progress(self, known: Mapping[Hashable, int]) -> list[GenerationProgress]:
        """See `Engine.progress`."""
        found = []
        for slot, request in enumerate(self._requests[: self._used]):
            if request is None or request.id not in known:
                continue
            new = slice(known[request.id], int(self._counts[slot]))
            if new.start < new.stop:
                found.append(
                    GenerationProgress(
                        request.id,
                        self._out_tokens[slot, new].copy(),
                        self._out_logprobs[slot, new].copy(),
                        self._out_versions[slot, new].copy(),
                        self._top.get(request.id, [])[new],
                    )
                )
        return found

    def abort(self, ids: Sequence[Hashable]) -> None:
        """See `Engine.abort`."""
        super().abort(ids)
        self._prefixes.keep_for(self._waiting)
        unwanted = set(ids)
        for slot, request in enumerate(self._requests[: self._used]):
            if request is not None and request.id in unwanted:
                self._free(slot)

    @torch.inference_mode()
    def step(self) -> list[GenerationResult]:
        """Refill free slots, sample one token for every active sequence, return the sequences that ended."""
        self._offloader.require("a step")
        started, self._prefixes.seconds = time.perf_counter(), 0.0
        admitted = self._refill()
        used = self._used
        if not used:
            return []
        positions = self._positions[: round_up(used)]
        self._cache.fit(max(int(positions.max()) + 1, self._step.attention.shortest), used)
        self._store(admitted)
        self.steps += 1
        logits = self._step(
            torch.from_numpy(self._tokens[: len(positions)]).to(self._device),
            torch.from_numpy(positions).to(self._device),
        )
        counts = self._counts[:used]
        uniform = torch.from_numpy(uniforms(self._seeds[:used], counts + self._drawn[:used])).to(self._device)
        sampled, logprobs = sample(logits[:used], uniform, self._sampling)
        if self._top:
            self._note_top(logits[:used])
        tokens = sampled.cpu().numpy()
        index = self._index[:used]
        self._out_tokens[index, counts] = tokens
        drawn = logprobs.cpu().numpy()
        self._out_logprobs[index, counts] = drawn
        # Weights that are not finite leave values in the cache that would spoil every later sequence, masked or not.
        self._tainted = self._tainted or bool(np.isnan(drawn).any())
        self._out_versions[index, counts] = self.version
        self._tokens[:used] = tokens
        self._positions[:used] += 1
        counts += 1
        seconds = time.perf_counter() - started - self._prefixes.seconds
        self.meter.decoded(seconds, used, int(self._positions[:used].sum()))
        stopped = (self._stops[:used] == tokens[:, None]).any(axis=1)
        ended = np.flatnonzero(stopped | (counts >= self._limits[:used]))
        results = [self._result(int(slot), bool(stopped[slot])) for slot in ended]
        for slot in ended:
            self._free(int(slot))
        return results

    def _result(self, slot: int, stopped: bool) -> GenerationResult:
        request = self._requests[slot]
        assert request is not None
        count = int(self._counts[slot])
        return GenerationResult(
            id=request.id,
            tokens=self._out_tokens[slot, :count].copy(),
            logprobs=self._out_logprobs[slot, :count].copy(),
            versions=self._out_versions[slot, :count].copy(),
            finish_reason="stop" if stopped else "length",
            top=self._top.get(request.id, ()),
        )

    def _note_top(self, logits: torch.Tensor) -> None:
        """Keep the most probable tokens of this step for the requests that want them."""
        counts = [request.params.top_logprobs if request else 0 for request in self._requests[: len(logits)]]
        found = most_probable(logits, self._sampling, counts)
        for request, count, top in zip(self._requests, counts, found, strict=False):
            if request is not None and count:
                self._top[request.id].append(top)

    # -- slots ---------------------------------------------------------------------------------------------------

    def _free(self, slot: int) -> None:
        request = self._requests[slot]
        if request is not None:
            self._top.pop(request.id, None)
        self._requests[slot] = None
        self._holes.append(slot)

    def _refill(self) -> list[tuple[int, Prefix]]:
        """Give waiting requests the holes and the slots beyond the last; close the holes that remain.

        Returns the slots that begin with a prepared prefix.
        """
        changed = bool(self._holes)
        admitted: list[tuple[int, Prefix]] = []
        count = min(self.waiting, self.slots - self.active)
        if count:
            changed = True
            beyond = range(self._used, self._used + max(0, count - len(self._holes)))
            targets = sorted(self._holes)[:count] + list(beyond)
            self._holes = sorted(self._holes)[count:]
            self._used += len(beyond)
            admitted = self._admit(targets)
        if self._holes:
            self._close_holes()
        if changed:
            self._sampling = BatchSampling.of(
                self._temperatures[: self._used],
                self._top_k[: self._used],
                self._top_p[: self._used],
                self.vocab_size,
                self._device,
            )
        return admitted

    def _admit(self, targets: list[int]) -> list[tuple[int, Prefix]]:
        """Start the first waiting requests in slots `targets`; see `_refill`."""
        requests = [self._waiting.popleft() for _ in targets]
        self._make_room(requests)
        self._prefixes.prepare(requests, self._waiting)
        admitted = []
        for slot, request in zip(targets, requests, strict=True):
            self._start(slot, request)
            if (prefix := self._prefixes.take(request)) is not None:
                admitted.append((slot, prefix))
        return admitted

    def _store(self, admitted: list[tuple[int, Prefix]]) -> None:
        """Copy prefixes to the slots that begin with them, one copy for all that were prepared together."""
        by_batch: dict[int, list[tuple[int, Prefix]]] = {}
        for slot, prefix in admitted:
            by_batch.setdefault(id(prefix.batch), []).append((slot, prefix))
        for group in by_batch.values():
            entries = torch.tensor([prefix.entry for _, prefix in group], device=self._device)
            slots = torch.tensor([slot for slot, _ in group], device=self._device)
            self._cache.store(group[0][1].batch, entries, slots)

    def _start(self, slot: int, request: GenerationRequest) -> None:
        params, length = request.params, len(request.prompt)
        if params.top_logprobs:
            self._top[request.id] = []
        self._requests[slot] = request
        self._tokens[slot] = request.prompt[-1]
        self._positions[slot] = length - 1
        self._counts[slot] = 0
        self._drawn[slot] = request.drawn
        self._limits[slot] = self._limit(request)
        self._seeds[slot] = np.uint64(request.seed & 0xFFFFFFFFFFFFFFFF)
        self._temperatures[slot] = params.temperature
        self._top_k[slot] = params.top_k
        self._top_p[slot] = params.top_p
        self._stops[slot] = -1
        self._stops[slot, : len(params.stop_token_ids)] = sorted(params.stop_token_ids)

    def _limit(self, request: GenerationRequest) -> int:
        """Most tokens that may be sampled for it."""
        return min(request.params.max_new_tokens, self.context - len(request.prompt))

    def _make_room(self, admitted: list[GenerationRequest]) -> None:
        """Grow the cache and the output arrays to the longest admitted sequence."""
        self._cache.reserve(max(len(request.prompt) + self._limit(request) for request in admitted))
        width = max(map(self._limit, admitted))
        if width > self._out_tokens.shape[1]:
            for name in ("_out_tokens", "_out_logprobs", "_out_versions"):
                setattr(self, name, _widen(getattr(self, name), width, 0))
        stops = max(len(request.params.stop_token_ids) for request in admitted)
        if stops > self._stops.shape[1]:
            self._stops = _widen(self._stops, stops, -1)

    def _close_holes(self) -> None:
        """Move the last sequences into the holes, so that those in flight are the first slots again."""
        holes = set(self._holes)
        remaining = self._used - len(holes)
        targets = sorted(slot for slot in holes if slot < remaining)
        sources = [slot for slot in range(remaining, self._used) if slot not in holes]
        if targets:
            self._cache.move(sources, targets, int(self._positions[sources].max()))
            for name in self._per_slot:
                array = getattr(self, name)
                array[targets] = array[sources]
            for source, target in zip(sources, targets, strict=True):
                self._requests[target] = self._requests[source]
        # Padding rows of a block must stay harmless: position 0 attends to itself only.
        self._tokens[remaining : self._used] = 0
        self._positions[remaining : self._used] = 0
        self._requests[remaining : self._used] = [None] * (self._used - remaining)
        self._used = remaining
        self._holes = []


def _widen(array: np.ndarray, width: int, fill: int) -> np.ndarray:
    wide = np.full((array.shape[0], width), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
