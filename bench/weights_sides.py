"""The two sides of `weights.py`, each an actor: a learner that publishes, and samplers that load what comes."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ray
import torch

from rl_api import LoraSpec
from rl_api.run import TinyModelSpec
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.store_pages import KEPT_BYTES, forget_store_pages
from rl_trainer.flow.store_room import StoreRoom
from rl_trainer.model.config import DecoderConfig, parse_config
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.tiny import tiny_config
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports.base import AdapterOffer, Offer
from rl_trainer.weights.transports.collective import Broadcaster
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication

NAIVE = "naive"
WAIT = 300.0  # seconds that anything may take
LORA = LoraSpec(rank=16, alpha=32)


class NaivePublisher:
    """`Publisher` in three lines."""

    def __init__(self) -> None:
        self.sent = 0

    def publish(self, offer: Offer, version: int) -> Publication:
        """All tensors as one file."""
        file = io.BytesIO()
        torch.save(dict(offer.weights().items()), file)
        data = file.getvalue()
        self.sent = len(data)
        return Publication(version, "objectStore", [ray.put(data)])


class NaiveReceiver:
    """`Receiver` in two."""

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, torch.Tensor]:
        """The file opened."""
        found: dict[str, torch.Tensor] = torch.load(
            io.BytesIO(ray.get(publication.blocks[0], timeout=timeout))
        )
        return found


class LearnerSide:
    """A decoder that is published, and changes as training changes it."""

    def __init__(self, config: DecoderConfig) -> None:
        torch.set_num_threads(1)
        self.config = config

    def open(self, way: str) -> int:
        """Begins anew; bytes of the model."""
        self.way, self.store = way, RayStore()
        self.decoder = made(self.config)
        self.size = sum(value.nbytes for value in self.decoder.parameters())
        if way == "adapter":
            self.decoder.add_lora(LORA, seed=0)
        self.publisher: Any = NaivePublisher() if way == NAIVE else create_publisher(way, self.store, rank=0)  # type: ignore[arg-type]
        return self.size

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One training step's changes."""
        for parameter in self.decoder.parameters():
            if self.way != "adapter":
                parameter.view(-1).view(torch.int16)[:: max(1, round(1 / share))].bitwise_xor_(1)
            elif parameter.requires_grad:
                parameter.add_(0.001)

    def publish(self, version: int) -> tuple[Publication, float, int, float]:
        """The publication, seconds, bytes that went into the store, and seconds of processors."""
        before, start, computed = self.store.put_bytes, time.perf_counter(), time.process_time()
        published = self.publisher.publish(self._offer(), version)
        seconds, computed = time.perf_counter() - start, time.process_time() - computed
        sent = self.publisher.sent if self.way == NAIVE else self.store.put_bytes - before
        return published, seconds, sent, computed

    def meeting_point(self) -> tuple[str, int]:
        """Where samplers meet this learner for broadcasts."""
        self.broadcaster = Broadcaster(self.store, ray.util.get_node_ip_address())
        return self.broadcaster.point.address

    def broadcast(self, publication: Publication, invitation: Invitation) -> None:
        """Begins to send what is published."""
        self.broadcaster.send(publication, invitation)

    def _offer(self) -> Offer:
        decoder = self.decoder

        def adapter() -> AdapterOffer | None:
            if self.way != "adapter":
                return None
            tensors = {name: LazyTensor.of(value) for name, value in decoder.adapter_state().items()}
            base = decoder.hf_tensors(merged=False)
            return AdapterOffer(
                lambda: source_of(tensors), lambda: source_of(base), decoder.adapted(), torch.bfloat16
            )

        return Offer(
            lambda: source_of(decoder.hf_tensors()),
            adapter,
            lambda: source_of(decoder.hf_tensors(), as_laid=True),
        )

    @torch.no_grad()
    def digest(self) -> int:
        """Of the weights that samplers are to have; the same in any order."""
        if self.way != "adapter":
            return digest(self.decoder.parameters())
        state, changed, found = self.decoder.adapter_state(), self.decoder.adapted(), 0
        for name, tensor in self.decoder.hf_tensors(merged=False).items():
            value = tensor.make().clone()
            if name in changed:
                changed[name].merge(value, state, into=value)
            found += digest([value])
        return found


class SamplerSide:
    """A decoder into which weights are loaded."""

    def __init__(self, config: DecoderConfig, samplers: int = 1) -> None:
        """`samplers`: how many of them there are."""
        torch.set_num_threads(1)
        self.decoder, self.samplers = Decoder(config, torch.bfloat16), samplers

    def open(self, way: str) -> None:
        """Begins anew."""
        self.receiver: Any = (
            NaiveReceiver()
            if way == NAIVE
            else create_receiver(way, RayStore(), place="bench", lends=StoreRoom(self.samplers))
        )  # type: ignore[arg-type]

    def take(
        self, publication: Publication, invitation: Invitation | None = None, member: int = 0
    ) -> tuple[float, float, float]:
        """Seconds until all of it is here, checked and prepared as the CPU engine does beside decoding, and of loading it;
        by a broadcast if there is an `invitation`. What came the naive way is loaded as it is. The last are of processors,
        for both."""
        start, computed = time.perf_counter(), time.process_time()
        if invitation is not None and (error := self.receiver.join(invitation, member)):
            raise RuntimeError(error)
        tensors = self.receiver.receive(publication, WAIT)
        if isinstance(self.receiver, NaiveReceiver):
            load: Callable[[], None] = partial(self.decoder.load_hf_state_dict, tensors)
        else:
            lent = self.decoder.lent_parameters(tensors)
            load = self.decoder.prepare_hf_state_dict(tensors, lent=lent)
            del tensors
            forget_store_pages(keep=KEPT_BYTES)
        middle = time.perf_counter()
        load()
        return middle - start, time.perf_counter() - middle, time.process_time() - computed

    def digest(self) -> int:
        """See `LearnerSide.digest`."""
        return digest(self.decoder.parameters())


def digest(tensors: Any) -> int:
    """Sum of all bits, taken as whole numbers."""
    return sum(int(value.detach().reshape(-1).view(torch.int16).sum(dtype=torch.int64)) for value in tensors)


def config_of(megabytes: float) -> DecoderConfig:
    """A decoder of about so many bytes in bfloat16."""
    hidden = 64 if megabytes < 4 else 512 if megabytes < 1000 else 1024
    inner, vocabulary = 3 * hidden, 1024
    layer = 2 * (4 * hidden**2 + 3 * hidden * inner)
    layers = max(1, round((megabytes * 1e6 - 2 * vocabulary * hidden) / layer))
    raw = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
    }
    heads = {"num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32}
    return parse_config(tiny_config(TinyModelSpec()) | raw | heads)


@torch.no_grad()
def made(config: DecoderConfig) -> Decoder:
    """With the same random numbers again and again: it is not for their sake."""
    decoder = Decoder(config, torch.bfloat16)
    some = (torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    for parameter in decoder.parameters():
        flat = parameter.view(-1)
        for start in range(0, len(flat), len(some)):
            part = flat[start : start + len(some)]
            part.copy_(some[: len(part)])
    return decoder
