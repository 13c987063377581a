"""Who writes what of the learners' tensors, and in which files: pure, and the same on every rank.

Model folders hold whole tensors, as other tools expect them, dealt out over the ranks; of everything else each rank writes
the rows that it holds. A file that is the only one of its kind has the plain name (`optimizer.safetensors`), several are
numbered as Hugging Face numbers them (`optimizer-00001-of-00004.safetensors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHARD_BYTES = 5 * 10**9
"""Bytes of tensors in one file of a model folder at most, as Hugging Face cuts them; a larger tensor has its own."""

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Shard:
    """A file: the rank that writes it, and its tensors."""

    name: str
    owner: int
    tensors: tuple[str, ...]


def deal(sizes: Mapping[str, int], owners: int) -> dict[str, int]:
    """An owner for each name: in order, always the one that has the fewest bytes so far."""
    loads, found = [0] * owners, {}
    for name, size in sizes.items():
        found[name] = loads.index(min(loads))
        loads[found[name]] += size
    return found


def model_shards(base: str, sizes: Mapping[str, int], owners: int, limit: int = SHARD_BYTES) -> list[Shard]:
    """The files of whole tensors: each of one owner, each with `limit` bytes at most.

    Args:
        base: path and beginning of the files' names, such as model/model.
        sizes: bytes by name, in the order of the files.
        owners: ranks that write.
        limit: of one file; a larger tensor has one of its own.
    """
    owner = deal(sizes, owners)
    cuts: list[tuple[int, list[str]]] = []
    for rank in range(owners):
        filled = limit + 1
        for name in (name for name in sizes if owner[name] == rank):
            if filled + sizes[name] > limit:
                cuts.append((rank, []))
                filled = 0
            cuts[-1][1].append(name)
            filled += sizes[name]
    cuts = cuts or [(0, [])]
    return [
        Shard(shard_name(base, index, len(cuts)), rank, tuple(names))
        for index, (rank, names) in enumerate(cuts)
    ]


def shard_name(base: str, index: int, count: int) -> str:
    """Name of file `index`, counted from 0, of `count`."""
    return f"{base}{SUFFIX}" if count == 1 else f"{base}-{index + 1:05d}-of-{count:05d}{SUFFIX}"


def shards_of(base: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that `shard_name` has made of `base`, in order."""
    numbered = re.compile(re.escape(base) + r"(-\d{5,}-of-\d{5,})?" + re.escape(SUFFIX))
    return tuple(sorted(name for name in names if numbered.fullmatch(name)))
