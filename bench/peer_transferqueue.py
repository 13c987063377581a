"""TransferQueue with SimpleStorage behind `peer_loop`. Runs in bench/.venv-transferqueue.

A request is one measurement: `size`, `batch`, `producers`, `consumers`, `warm`, `seconds`. A producer calls
`client.put`, a consumer `get_meta` in mode fetch and `get_data` (together: one get), then `clear_samples`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

from channel_items import make_items, percentiles
from peer_loop import serve


def fields(items: list[dict[str, Any]], batch: int) -> Any:
    """The first `batch` items as a TensorDict: a row per item; text as bytes."""
    import numpy as np
    import torch
    from tensordict import TensorDict

    columns: dict[str, Any] = {}
    for name, value in items[0].items():
        values = [item[name] for item in items[:batch]]
        if isinstance(value, bytes):
            columns[name] = torch.from_numpy(np.stack([np.frombuffer(v, np.uint8) for v in values]))
        else:
            columns[name] = torch.from_numpy(np.stack([np.asarray(v) for v in values]))
    return TensorDict(columns, batch_size=batch)


class Side:
    """A producer or consumer process."""

    def __init__(self, config: Any) -> None:
        import transfer_queue as tq

        tq.init(config)
        self.client = tq.get_client()

    def ready(self) -> None:
        """Answers when the client is connected."""

    def produce(self, request: dict[str, Any], partition: str, seed: int, start: float) -> list[float]:

        items = make_items(request["size"], seed)
        batch = request["batch"]
        count = max(1, len(items) // batch)
        prepared = [fields(items[index * batch :] or items, batch) for index in range(count)]
        begin, end = start + request["warm"], start + request["warm"] + request["seconds"]
        times: list[float] = []
        wait_until(start)
        for data in itertools.cycle(prepared):
            at = time.monotonic()
            if at >= end:
                return times
            self.client.put(data, partition_id=partition)
            if at >= begin:
                times.append(time.monotonic() - at)
        raise AssertionError

    def consume(self, request: dict[str, Any], partition: str, start: float) -> tuple[int, list[float]]:
        batch = request["batch"]
        names = list(make_items(request["size"], 0)[0])
        begin, end = start + request["warm"], start + request["warm"] + request["seconds"]
        times: list[float] = []
        delivered, total = 0, 0.0
        wait_until(start)
        while (at := time.monotonic()) < end:
            meta = self.client.get_meta(names, batch, partition, mode="fetch", task_name="learn")
            if meta.size == 0:
                time.sleep(0.0005)
                continue
            data = self.client.get_data(meta)
            done = time.monotonic()
            for name in names:
                total += float(data[name].sum())
            self.client.clear_samples(meta)
            if at >= begin and done <= end:
                times.append(done - at)
                delivered += meta.size
        return delivered, times

    def clear(self, partition: str) -> None:
        self.client.clear_partition(partition)


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Start Ray and TransferQueue; the handler runs one measurement."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    logging.disable(logging.INFO)
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    config = OmegaConf.create({"controller": {"polling_mode": True}})
    tq.init(config)
    sides: list[Any] = []
    numbers = itertools.count()
    remote = ray.remote(num_cpus=0)(Side)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        while len(sides) < request["producers"] + request["consumers"]:
            sides.append(remote.remote(config))
        ray.get([side.ready.remote() for side in sides], timeout=120)
        partition = f"bench{next(numbers)}"
        start = time.monotonic() + 1.0  # monotonic is one clock for all processes of a machine
        producers = sides[: request["producers"]]
        consumers = sides[request["producers"] : request["producers"] + request["consumers"]]
        puts = [side.produce.remote(request, partition, seed, start) for seed, side in enumerate(producers)]
        gets = [side.consume.remote(request, partition, start) for side in consumers]
        put_times = ray.get(puts, timeout=120)
        got = ray.get(gets, timeout=120)
        ray.get(consumers[0].clear.remote(partition), timeout=120)
        return {
            "items_per_second": sum(delivered for delivered, _ in got) / request["seconds"],
            "put": percentiles([value for times in put_times for value in times]),
            "get": percentiles([value for _, times in got for value in times]),
        }

    return handle


if __name__ == "__main__":
    serve(prepare)
