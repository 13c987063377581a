"""The mean of four processes' tensors, by the object store and by torch.distributed.

python examples/tutorials/04_all_reduce.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from show import Clock, Row, ray_here, table

RANKS = 4
SIZES = (1_000, 100_000, 4_000_000)


@ray.remote(num_cpus=1)
class Rank:
    """One of the processes whose tensors are averaged."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank

    def address(self) -> str:
        """Where the others find this one: for all of them that of rank 0."""
        import socket

        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, address: str, ranks: int) -> None:
        """Ray has started and placed the process; from here on torch.distributed moves the numbers."""
        dist.init_process_group(
            "gloo", init_method=address, rank=self.rank, world_size=ranks, timeout=timedelta(seconds=60)
        )

    def make(self, size: int) -> None:
        """A tensor of its own, [size]."""
        self.tensor = torch.full((size,), float(self.rank))

    def give(self) -> list[Any]:
        """The tensor in the object store: in a list, or the caller would get the tensor and not the reference."""
        return [ray.put(self.tensor.numpy())]

    def take(self, references: list[Any]) -> float:
        """The mean of all tensors, read from the store: each rank reads `ranks` of them. Returns its first number."""
        found = [torch.from_numpy(one.copy()) for one in ray.get(references, timeout=60)]
        self.tensor = torch.stack(found).mean(dim=0)
        return float(self.tensor[0])

    def reduce(self) -> float:
        """The mean by a collective: each rank sends and receives two tensors' worth, whatever their number."""
        dist.all_reduce(self.tensor)
        self.tensor /= dist.get_world_size()
        return float(self.tensor[0])


def main(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Rows: size, milliseconds of both ways (the better of three), and how many times faster the collective is."""
    ranks = [Rank.remote(rank) for rank in range(RANKS)]
    address = ray.get(ranks[0].address.remote(), timeout=60)
    ray.get([rank.join.remote(address, RANKS) for rank in ranks], timeout=60)
    mean, rows = sum(range(RANKS)) / RANKS, []
    for size in sizes:
        seconds: dict[str, list[float]] = {"store": [], "collective": []}
        for _ in range(3):
            ray.get([rank.make.remote(size) for rank in ranks], timeout=60)
            with Clock() as store:
                references = [
                    one for given in ray.get([rank.give.remote() for rank in ranks]) for one in given
                ]
                assert set(ray.get([rank.take.remote(references) for rank in ranks], timeout=60)) == {mean}
            ray.get([rank.make.remote(size) for rank in ranks], timeout=60)
            with Clock() as collective:
                assert set(ray.get([rank.reduce.remote() for rank in ranks], timeout=60)) == {mean}
            seconds["store"].append(store.seconds)
            seconds["collective"].append(collective.seconds)
        best = {way: min(times) * 1e3 for way, times in seconds.items()}
        rows.append(
            {
                "numbers": f"{size:,}",
                "object store, ms": f"{best['store']:.1f}",
                "all_reduce, ms": f"{best['collective']:.1f}",
                "times": f"{best['store'] / best['collective']:.1f}",
            }
        )
    table(rows, f"Mean over {RANKS} processes")
    for rank in ranks:
        ray.kill(rank)
    return rows


if __name__ == "__main__":
    with ray_here(cpus=RANKS):
        main()
