"""Weights from a learner to samplers by each way, against `torch.save` through Ray's object store, in the same run.

    python bench/weights.py                                           10 and 100 MB to 1 and 2 samplers
    python bench/weights.py --megabytes 10 100 500 2000 --samplers 1 2 4 8
    python bench/weights.py --ways delta --share 0.1 --repetitions 5

One process has a decoder in bfloat16 and publishes it as a learner does, others have one each and load what they receive as
the CPU engine does. A version's seconds are from the call of the publisher until the last sampler has loaded it; MB/s are
the model's bytes in that time, whatever travelled. The pause is what a sampler's loop stands still for: the longest of the
samplers' loads, as they decode while a version arrives; it is also given as a share of the whole. Between two versions
`--share` of the elements change, one of each two neighbours' last bits, which a real step does to the share that the row
`real steps` finds: AdamW at the default learning rate, on a small decoder with fp32 masters.

`naive` is what one would write first: `torch.save` of the state dict, `ray.put` of its bytes, `torch.load` of what `ray.get`
brings. `of copy` is MB/s over those of one copy of the same bytes from memory to memory, one thread, in the same run.
Ways take turns, and the first version of each, which carries the base and touches memory for the first time, is left out.
Of what this machine's memory has no room for nothing is measured, and it is said.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import ray
import table
import torch
from torch.nn.functional import cross_entropy

from rl_api import LoraSpec
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.model.config import DecoderConfig, parse_config
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.tiny import tiny_config
from rl_trainer.run.ray_session import ray_session
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports.base import AdapterOffer, Offer
from rl_trainer.weights.transports.collective import Broadcaster
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.delta import DeltaPublisher, DeltaReceiver
from rl_trainer.weights.transports.group import Invitation
from rl_trainer.weights.transports.publication import Publication

WAYS = ("objectStore", "collective", "delta", "adapter")
NAIVE = "naive"
COPIED = 256 << 20  # bytes, more than any cache has
WAIT = 300.0  # seconds that anything may take
LORA = LoraSpec(rank=16, alpha=32)
# What each way holds beside the model of the learner and those of the samplers, in models: with the learner and in the
# store, and with each sampler.
EXTRA = {"objectStore": (2, 0), "collective": (2, 2), "delta": (3, 1), "adapter": (2, 1), NAIVE: (4, 2)}


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


class CountingStore(RayStore):
    """Ray's, which adds up what is put."""

    def __init__(self) -> None:
        self.bytes = 0

    def put(self, value: Any) -> ray.ObjectRef[Any]:
        """As `RayStore.put`."""
        for one in value if isinstance(value, list) else [value]:
            self.bytes += getattr(one, "nbytes", 0) or getattr(getattr(one, "block", None), "nbytes", 0)
        return super().put(value)


class LearnerSide:
    """A decoder that is published, and changes as training changes it."""

    def __init__(self, config: DecoderConfig) -> None:
        torch.set_num_threads(1)
        self.config = config

    def open(self, way: str) -> int:
        """Begins anew; bytes of the model."""
        self.way, self.store = way, CountingStore()
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

    def publish(self, version: int) -> tuple[Publication, float, int]:
        """The publication, seconds, and bytes that went into the store."""
        before, start = self.store.bytes, time.perf_counter()
        published = self.publisher.publish(self._offer(), version)
        seconds = time.perf_counter() - start
        sent = self.publisher.sent if self.way == NAIVE else self.store.bytes - before
        return published, seconds, sent

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

        return Offer(lambda: source_of(decoder.hf_tensors()), adapter)

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

    def __init__(self, config: DecoderConfig) -> None:
        torch.set_num_threads(1)
        self.decoder = Decoder(config, torch.bfloat16)

    def open(self, way: str) -> None:
        """Begins anew."""
        self.receiver: Any = (
            NaiveReceiver() if way == NAIVE else create_receiver(way, RayStore(), place="bench")
        )  # type: ignore[arg-type]

    def take(
        self, publication: Publication, invitation: Invitation | None = None, member: int = 0
    ) -> tuple[float, float]:
        """Seconds until all of it is here and checked, and of loading it; by a broadcast if there is an `invitation`."""
        start = time.perf_counter()
        if invitation is not None and (error := self.receiver.join(invitation, member)):
            raise RuntimeError(error)
        tensors = self.receiver.receive(publication, WAIT)
        middle = time.perf_counter()
        self.decoder.load_hf_state_dict(tensors)
        return middle - start, time.perf_counter() - middle

    def digest(self) -> int:
        """See `LearnerSide.digest`."""
        return digest(self.decoder.parameters())


@dataclass(frozen=True)
class Found:
    """One version's way: seconds, and bytes that were put into the store."""

    total: float
    publish: float
    receive: float
    pause: float
    sent: int


def measure(
    learner: Any, samplers: Sequence[Any], way: str, share: float, repetitions: int, call: Callable[..., Any]
) -> list[Found]:
    """Versions by one way; `call(object, method, *arguments)` begins a call of an actor, and its answer gets it."""
    call(learner, "open", way)()
    for answer in [call(sampler, "open", way) for sampler in samplers]:
        answer()
    address = call(learner, "meeting_point")() if way == "collective" else None
    found = []
    for version in range(repetitions + 1):
        if version:
            call(learner, "step", share)()
        start = time.perf_counter()
        publication, publish, sent = call(learner, "publish", version)()
        taken: list[tuple[Any, ...]] = [(publication,)] * len(samplers)
        if address is not None:
            invitation = Invitation(version, "bench", address, len(samplers) + 1, WAIT)
            call(learner, "broadcast", publication, invitation)
            taken = [(publication, invitation, 1 + index) for index in range(len(samplers))]
        answers = [call(one, "take", *what) for one, what in zip(samplers, taken, strict=True)]
        times = [answer() for answer in answers]
        total = time.perf_counter() - start
        if version:
            receive, pause = (max(one[part] for one in times) for part in (0, 1))
            found.append(Found(total, publish, receive, pause, sent))
    expected = call(learner, "digest")()
    for answer in [call(sampler, "digest") for sampler in samplers]:
        assert answer() == expected, f"{way}: a sampler has other weights than the learner"
    return found


def by_ray(actor: Any, method: str, *arguments: Any) -> Callable[[], Any]:
    """A call of a Ray actor."""
    reference = getattr(actor, method).remote(*arguments)
    return lambda: ray.get(reference, timeout=WAIT)


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
    from rl_api.run import TinyModelSpec

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


def copy_speed(size: int) -> float:
    """Bytes/s of one copy of `size` bytes within memory that was touched before."""
    source = np.full(size, 1, np.uint8)
    target = source.copy()
    start = time.perf_counter()
    np.copyto(target, source)
    return size / (time.perf_counter() - start)


@dataclass(frozen=True)
class Step:
    """One real step: elements that changed, of all, and bytes that went into the store, of the model's."""

    changed: float
    sent: float


def real_steps(steps: int, learning_rate: float = 1e-6, store: Any = None) -> list[Step]:
    """What `delta` sends of steps of AdamW on a small decoder, fp32 masters published in bfloat16."""
    config = config_of(2)
    decoder = Decoder(config)
    decoder.initialize(0.02, 0)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=learning_rate)
    store = RayStore() if store is None else store
    publisher, receiver = DeltaPublisher(store, 0), DeltaReceiver(store, "bench")
    generator = torch.Generator().manual_seed(0)
    before: dict[str, torch.Tensor] = {}
    found = []
    for version in range(steps + 1):
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in decoder.hf_tensors().items()}
        publication = publisher.publish(Offer(lambda tensors=tensors: source_of(tensors)), version)  # type: ignore[misc]
        assert publication is not None
        now = {name: value.clone() for name, value in receiver.receive(publication, WAIT).items()}
        assert all(torch.equal(value, tensors[name].make()) for name, value in now.items())
        if before:
            elements = sum(value.numel() for value in now.values())
            changed = sum(int((value != before[name]).sum()) for name, value in now.items())
            found.append(Step(changed / elements, receiver.received / (2 * elements)))
        before = now
        tokens = torch.randint(0, config.vocab_size, (4, 64), generator=generator)
        loss = cross_entropy(decoder(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def room_for(way: str, size: float, samplers: int) -> float:
    """Bytes of memory that a measurement needs."""
    ours, theirs = EXTRA[way]
    return size * (1 + ours + samplers * (1 + theirs))


def rows_of(
    megabytes: Sequence[float], samplers: Sequence[int], options: argparse.Namespace
) -> list[list[Any]]:
    """Every measurement: size, samplers, way, and what was found; prints each when it is there."""
    rows = []
    for size in megabytes:
        config, kinds = config_of(size), (ray.remote(LearnerSide), ray.remote(SamplerSide))
        for count in samplers:
            learner = kinds[0].remote(config)
            others = [kinds[1].remote(config) for _ in range(count)]
            for way in (NAIVE, *options.ways):
                needed, there = room_for(way, size * 1e6, count), psutil.virtual_memory().available
                if needed > 0.8 * there:
                    lacks = f"needs {needed / 1e9:.1f} GB of memory, {there / 1e9:.1f} are there"
                    print(f"{way}, {size:g} MB to {count}: left out, {lacks}")
                    continue
                found = measure(learner, others, way, options.share, options.repetitions, by_ray)
                copy = statistics.median(copy_speed(COPIED) for _ in range(3))
                rows.append([size, count, way, found, copy])
                median = statistics.median(one.total for one in found)
                print(f"{way}, {size:g} MB to {count}: {size / median:,.0f} MB/s", flush=True)
            for actor in (learner, *others):
                ray.kill(actor)
    return rows


def checks_of(rows: Sequence[Sequence[Any]], steps: Sequence[Step]) -> list[table.Check]:
    """The targets, of what was measured."""
    totals = {(size, count, way): _median(found, "total") for size, count, way, found, _ in rows}
    checks = []
    for size, count, way, found, copy in rows:
        where = f"{way}, {size:g} MB to {count}"
        if way == "objectStore" and size >= 100:
            naive = totals.get((size, count, NAIVE))
            if naive is not None:
                checks.append(
                    table.at_least(f"{where}: MB/s over naive", naive / totals[size, count, way], 3)
                )
            speed = size * 1e6 / totals[size, count, way]
            checks.append(table.at_least(f"{where}: MB/s over a copy's", speed / copy, 0.5))
        if way == "objectStore" and count == 8 and (size, 1, way) in totals:
            checks.append(
                table.at_most(
                    f"{where}: seconds over those of 1", totals[size, 8, way] / totals[size, 1, way], 1.5
                )
            )
        if way != NAIVE and size >= 100:
            share = 100 * _median(found, "pause") / _median(found, "total")
            checks.append(table.at_most(f"{where}: pause over all of it", share, 10, " %"))
    ratio = statistics.median(one.sent / one.changed for one in steps)
    checks.append(table.at_most("real steps: bytes sent over bytes of changed elements", ratio, 2))
    return checks


def _median(found: Sequence[Found], part: str) -> float:
    return statistics.median(getattr(one, part) for one in found)


def main() -> int:
    """Measure, print the tables, return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=float, nargs="+", default=[10, 100], metavar="MB", help="sizes of the model"
    )
    parser.add_argument(
        "--samplers", type=int, nargs="+", default=[1, 2], metavar="N", help="that receive each version"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--share", type=float, default=0.03, help="of the elements, which a step changes (default 0.03)"
    )
    parser.add_argument("--repetitions", type=int, default=3, help="versions of each way")
    table.add_out(parser)
    options = parser.parse_args()
    if not 0 < options.share <= 1:
        parser.error(f"--share: found {options.share:g}, allowed: above 0, at most 1")
    if min(options.megabytes) <= 0 or min(options.samplers) < 1 or options.repetitions < 1:
        parser.error("--megabytes, --samplers, --repetitions: found one of 0 or less, allowed: more")
    with ray_session(1 + max(options.samplers)):
        steps = real_steps(5)
        rows = rows_of(options.megabytes, options.samplers, options)
    naive = {(size, count): _median(found, "total") for size, count, way, found, _ in rows if way == NAIVE}
    shown = []
    for size, count, way, found, copy in rows:
        total = _median(found, "total")
        shown.append(
            [
                f"{way}, {size:g} MB to {count}",
                table.spread([size / one.total for one in found]),
                naive[size, count] / total if (size, count) in naive else "",
                size * 1e6 / total / copy,
                *(1000 * _median(found, part) for part in ("publish", "receive", "pause")),
                100 * _median(found, "pause") / total,
                _median(found, "sent") / 1e6,
            ]
        )
    columns = ["", "MB/s", "x naive", "of copy", "publish ms", "receive ms", "pause ms", "pause %", "MB sent"]
    print(
        f"real steps: {100 * statistics.median(one.changed for one in steps):.2f} % of the elements change, "
        f"{100 * statistics.median(one.sent for one in steps):.2f} % of the bytes are sent"
    )
    meta = {"real_steps": [[one.changed, one.sent] for one in steps], "share": options.share}
    return 0 if table.report("weights", columns, shown, meta, checks_of(rows, steps), options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
