"""Of the object store's pages those stay that an engine reads all the time."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pytest

from rl_trainer.flow import store_pages
from rl_trainer.flow.store_pages import forget_store_pages, shared_bytes, store_mappings, use_store_pages

SIZE, PAGE = 8 << 20, mmap.PAGESIZE


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked yet where the store is, and nothing of it is used."""
    monkeypatch.setattr(store_pages, "_in_memory", [])
    monkeypatch.setattr(store_pages, "_used", {})


def resident(start: int) -> int:
    """Bytes of the mapping that begins at `start`."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(f"{start:08x}-"))
    return int(re.findall(r"\d+", next(line for line in lines[first:] if line.startswith("Rss:")))[0]) << 10


def test_what_is_used_stays_as_long_as_it_is():
    with NamedTemporaryFile(prefix="plasma", dir="/dev/shm") as file:
        file.truncate(SIZE)
        shared = mmap.mmap(file.fileno(), SIZE)
        shared[:] = b"a" * SIZE
        ((start, _),) = store_mappings(Path("/proc/self/maps").read_text().splitlines())
        whole = np.frombuffer(shared, np.uint8)
        first, second = whole[100 : 2 * PAGE + 100], whole[SIZE // 2 : SIZE // 2 + SIZE // 4]
        for one in (first, second):
            use_store_pages(one)
        used = first.nbytes + second.nbytes
        assert not forget_store_pages(keep=shared_bytes() - used)
        assert resident(start) == SIZE, "no more than may be kept beside it"
        assert forget_store_pages(keep=shared_bytes() - used - 1)
        assert resident(start) == 3 * PAGE + second.nbytes
        del first, one
        forget_store_pages()
        assert resident(start) == second.nbytes
        assert bytes(whole[SIZE - 3 :]) == b"aaa"
        del second
        forget_store_pages()
        assert resident(start) == 0
        assert not store_pages._used


@pytest.mark.parametrize(
    ("used", "found"),
    [
        ([], [(2, 9)]),
        ([(0, 1), (9, 12)], [(2, 9)]),
        ([(0, 3)], [(3, 9)]),
        ([(2, 4), (4, 5), (7, 9)], [(5, 7)]),
        ([(3, 4), (6, 7)], [(2, 3), (4, 6), (7, 9)]),
        ([(8, 12)], [(2, 8)]),
        ([(1, 20)], []),
        ([(3, 8), (4, 5)], [(2, 3), (8, 9)]),
    ],
)
def test_what_lies_between(used: list[tuple[int, int]], found: list[tuple[int, int]]):
    def bytes_of(pages: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(first * PAGE, last * PAGE) for first, last in pages]

    assert list(store_pages._between(bytes_of(used), 2 * PAGE, 9 * PAGE)) == bytes_of(found)


def test_pages_that_are_used_in_part_stay():
    used = [(2 * PAGE + 1, 3 * PAGE + 1), (4 * PAGE - 1, 5 * PAGE)]
    assert list(store_pages._between(used, 0, 7 * PAGE)) == [(0, 2 * PAGE), (5 * PAGE, 7 * PAGE)]
