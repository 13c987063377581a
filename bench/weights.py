"""Weights from a learner to samplers by each way, against `torch.save` through Ray's object store, in the same run.

    python bench/weights.py                                           10 and 100 MB to 1 and 2 samplers
    python bench/weights.py --megabytes 10 100 500 2000 --samplers 1 2 4 8
    python bench/weights.py --ways delta --share 0.1 --repetitions 5

One process has a decoder in bfloat16 and publishes it as a learner does, others have one each and load what they receive as
the CPU engine does. A version's seconds are from the call of the publisher until the last sampler has loaded it; MB/s are
the model's bytes in that time, whatever travelled. The pause is what a sampler's loop stands still for: the longest of the
samplers' loads, as they decode while a version arrives and is copied to a second set of parameters; it is also given as a
share of the whole. On a machine that does other work only the processors' time of a version, the learner's and one
sampler's, can be compared. Between two versions
`--share` of the elements change, one of each two neighbours' last bits, which a real step does to the share that the row
`real steps` finds: AdamW at the default learning rate, on a small decoder with fp32 masters.

`naive` is what one would write first: `torch.save` of the state dict, `ray.put` of its bytes, `torch.load` of what `ray.get`
brings. `of copy` is MB/s over those of one copy of the same bytes from memory to memory, one thread, in the same run.
Ways take turns, and the first two versions of each, which carry the base and touch memory for the first time, are left out.
Of what this machine's memory has no room for nothing is measured, and it is said.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import psutil
import ray
import table
import torch
from torch.nn.functional import cross_entropy
from weights_sides import NAIVE, WAIT, LearnerSide, SamplerSide, config_of

from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.store_pages import recall_store_pages
from rl_trainer.model.decoder import Decoder
from rl_trainer.run.ray_session import ray_session
from rl_trainer.weights.payload import checksum_of
from rl_trainer.weights.source import source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.delta import DeltaPublisher, DeltaReceiver
from rl_trainer.weights.transports.invitation import Invitation

WAYS = ("objectStore", "collective", "delta", "adapter", "ipc")
COPIED = 256 << 20  # bytes, more than any cache has
# What each way holds beside the model of the learner and those of the samplers, in models: with the learner and in the
# store, and with each sampler.
EXTRA = {
    **{"objectStore": (2, 1), "collective": (2, 3), "delta": (3, 2), "adapter": (2, 2)},
    **{"ipc": (2, 1), NAIVE: (4, 2)},
}
# Versions of each way that are left out: two are in the store in turn, and each touches memory for the first time.
FIRST = 2


@dataclass(frozen=True)
class Found:
    """One version's way: seconds, bytes put into the store, and seconds of processors of the learner and of a sampler."""

    total: float
    publish: float
    receive: float
    pause: float
    sent: int
    learner: float
    sampler: float


def measure(
    learner: Any, samplers: Sequence[Any], way: str, share: float, repetitions: int, call: Callable[..., Any]
) -> list[Found]:
    """Versions by one way; `call(object, method, *arguments)` begins a call of an actor, and its answer gets it."""
    call(learner, "open", way)()
    for answer in [call(sampler, "open", way) for sampler in samplers]:
        answer()
    address = call(learner, "meeting_point")() if way == "collective" else None
    found = []
    for version in range(repetitions + FIRST):
        if version:
            call(learner, "step", share)()
        start = time.perf_counter()
        publication, publish, sent, learning = call(learner, "publish", version)()
        taken: list[tuple[Any, ...]] = [(publication,)] * len(samplers)
        if address is not None:
            invitation = Invitation(version, "bench", address, len(samplers) + 1, WAIT)
            call(learner, "broadcast", publication, invitation)
            taken = [(publication, invitation, 1 + index) for index in range(len(samplers))]
        answers = [call(one, "take", *what) for one, what in zip(samplers, taken, strict=True)]
        times = [answer() for answer in answers]
        total = time.perf_counter() - start
        if version >= FIRST:
            receive, pause, sampling = (max(one[part] for one in times) for part in (0, 1, 2))
            found.append(Found(total, publish, receive, pause, sent, learning, sampling))
    expected = call(learner, "digest")()
    for answer in [call(sampler, "digest") for sampler in samplers]:
        assert answer() == expected, f"{way}: a sampler has other weights than the learner"
    return found


def by_ray(actor: Any, method: str, *arguments: Any) -> Callable[[], Any]:
    """A call of a Ray actor."""
    reference = getattr(actor, method).remote(*arguments)
    return lambda: ray.get(reference, timeout=WAIT)


def copy_speed(size: int) -> float:
    """Bytes/s of one copy of `size` bytes within memory that was touched before."""
    source = np.full(size, 1, np.uint8)
    target = source.copy()
    start = time.perf_counter()
    np.copyto(target, source)
    return size / (time.perf_counter() - start)


def milliseconds_of(size: int = 100_000_000) -> dict[str, float]:
    """Of a processor, for `size` bytes: what a version cannot do without, and what pages of shared memory add to a copy."""
    source, target = np.full(size, 1, np.uint8), np.full(size, 2, np.uint8)
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE

    def timed(work: Callable[[], Any]) -> float:
        start = time.thread_time()
        work()
        return 1000 * (time.thread_time() - start)

    found = {
        "copy": statistics.median(timed(lambda: np.copyto(target, source)) for _ in range(5)),
        "checksum": statistics.median(timed(lambda: checksum_of(source)) for _ in range(5)),
    }
    with TemporaryFile(dir="/dev/shm") as file:
        file.truncate(pages)
        shared = mmap.mmap(file.fileno(), pages)
    array = np.frombuffer(shared, np.uint8, size)
    copy = partial(np.copyto, array, source)
    found["copy to new pages"] = timed(copy)
    found["copy to mapped pages"] = timed(copy)
    shared.madvise(mmap.MADV_DONTNEED)
    found["copy to pages given back"] = timed(copy)
    shared.madvise(mmap.MADV_DONTNEED)
    found["copy to pages recalled at once"] = timed(
        partial(recall_store_pages, array.ctypes.data, size)
    ) + timed(copy)
    return found


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
            others = [kinds[1].remote(config, count) for _ in range(count)]
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
                *(1000 * _median(found, part) for part in ("learner", "sampler")),
                _median(found, "sent") / 1e6,
            ]
        )
    columns = ["", "MB/s", "x naive", "of copy", "publish ms", "receive ms", "pause ms", "pause %"]
    columns += ["learner cpu ms", "sampler cpu ms", "MB sent"]
    bounds = milliseconds_of()
    print("100 MB, ms of a processor: " + ", ".join(f"{kind} {value:.1f}" for kind, value in bounds.items()))
    print(
        f"real steps: {100 * statistics.median(one.changed for one in steps):.2f} % of the elements change, "
        f"{100 * statistics.median(one.sent for one in steps):.2f} % of the bytes are sent"
    )
    meta = {
        "real_steps": [[one.changed, one.sent] for one in steps],
        "share": options.share,
        "milliseconds": bounds,
    }
    return 0 if table.report("weights", columns, shown, meta, checks_of(rows, steps), options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
