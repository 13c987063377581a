"""What is given back of the object store's memory keeps its content, and no other memory is touched."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from platform import release
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
from ray.exceptions import GetTimeoutError, ObjectLostError

from rl_trainer.flow import ray_store, store_pages
from rl_trainer.flow.store_pages import (
    forget_store_pages,
    places_in_store,
    recall_store_pages,
    shared_bytes,
    store_mappings,
)

SIZE = 8 << 20


def resident(start: int) -> int:
    """KB of the mapping that begins at `start`."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(f"{start:08x}-"))
    return int(re.findall(r"\d+", next(line for line in lines[first:] if line.startswith("Rss:")))[0])


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked yet where the store is."""
    monkeypatch.setattr(store_pages, "_in_memory", [])
    monkeypatch.setattr(store_pages, "_stores", [])


def test_shared_mappings_of_a_store_and_no_others():
    assert store_mappings(
        [
            "7f0000000000-7f0000010000 rw-s 00000000 00:18 5   /dev/shm/plasmaAbC123 (deleted)",
            "7f0000010000-7f0000020000 rw-p 00000000 00:18 5   /dev/shm/plasmaAbC123 (deleted)",
            "7f0000020000-7f0000030000 rw-s 00000000 00:18 6   /dev/shm/another",
            "7f0000030000-7f0000040000 rw-s 00000000 00:18 7   /lib/plasma/file",
            "7f0000040000-7f0000050000 rw-p 00000000 00:00 0 ",
        ]
    ) == [(0x7F0000000000, 0x7F0000010000)]


def test_the_content_is_there_afterwards(tmp_path: Path):
    content = bytes(range(256)) * (SIZE // 256)
    with (tmp_path / "plasmaTest").open("w+b") as file:
        file.truncate(SIZE)
        with mmap.mmap(file.fileno(), SIZE) as shared:
            shared[:] = content
            ((start, _),) = [
                place
                for place in store_mappings(Path("/proc/self/maps").read_text().splitlines())
                if place[1] - place[0] == SIZE
            ]
            assert resident(start) == SIZE >> 10
            forget_store_pages(keep=1 << 40)
            assert resident(start) == 0
            assert shared[:] == content


def test_some_pages_in_memory_may_stay():
    with NamedTemporaryFile(prefix="plasma", dir="/dev/shm") as file:
        file.truncate(SIZE)
        with mmap.mmap(file.fileno(), SIZE) as shared:
            shared[:] = b"a" * SIZE
            ((start, _),) = store_mappings(Path("/proc/self/maps").read_text().splitlines())
            assert shared_bytes() >= SIZE
            for _ in range(2):  # the second time it is known where the store is
                forget_store_pages(keep=shared_bytes())
                assert resident(start) == SIZE >> 10
            forget_store_pages(keep=SIZE - 1)
            assert resident(start) == 0
            assert shared[:] == b"a" * SIZE


def test_forgotten_pages_are_recalled_with_their_content():
    with NamedTemporaryFile(prefix="plasma", dir="/dev/shm") as file:
        file.truncate(SIZE)
        with mmap.mmap(file.fileno(), SIZE) as shared:
            shared[:] = b"a" * SIZE
            ((start, _),) = store_mappings(Path("/proc/self/maps").read_text().splitlines())
            assert forget_store_pages()
            recall_store_pages(start + 5, SIZE // 2 - 5)
            kernel = tuple(map(int, re.findall(r"\d+", release())[:2]))
            found, wanted = resident(start), SIZE >> 11 if kernel >= (5, 14) else 0
            assert wanted <= found <= wanted + 64, "the kernel may have some of its neighbours"
            assert shared[:] == b"a" * SIZE
    recall_store_pages(start, SIZE)  # where nothing is any more


def test_a_place_in_a_store_has_one_name_however_it_is_mapped(tmp_path: Path):
    none, half = tmp_path / "none", SIZE // 2
    with NamedTemporaryFile(prefix="plasma", dir="/dev/shm") as file:
        file.truncate(SIZE)
        whole = np.frombuffer(mmap.mmap(file.fileno(), SIZE), np.uint8)
        arrays = [whole[half:], whole[half : half + 9], whole[half + 9 :]]
        assert places_in_store(arrays, none) == [None] * 3
        found = places_in_store([*arrays, np.zeros(9, np.uint8)])
        assert len(set(found)) == 4 and found[3] is None
        assert places_in_store(arrays, none) == found[:3], "the list of mappings is read once"
        again = np.frombuffer(mmap.mmap(file.fileno(), half, offset=half), np.uint8)
        assert places_in_store([again, again[:9], again[9:]]) == found[:3], "and where there is something new"
    with (tmp_path / "plasmaTest").open("w+b") as disk:
        disk.truncate(SIZE)
        array = np.frombuffer(mmap.mmap(disk.fileno(), SIZE), np.uint8)
        assert places_in_store([array]) == [None], "not in memory"


def test_the_place_is_recalled_that_came_next_the_last_time(monkeypatch: pytest.MonkeyPatch):
    recalled: list[tuple[int, int]] = []
    monkeypatch.setattr(ray_store, "recall_store_pages", lambda *place: recalled.append(place))
    places = ray_store._Places()
    for place in (10, 20, 50, 60, 10, 30, 50, 60, 10):
        places.recall()
        places.add(place, place + 1)
    assert recalled == [(20, 21), (60, 61), (10, 11)], "after 30 nothing had come yet"
    places.add(0, 0)  # something else
    places.recall()
    assert len(recalled) == 3
    assert not places.known


@pytest.mark.parametrize("error", [GetTimeoutError("late"), ObjectLostError("0" * 56, None, "")])
def test_weights_are_published_though_nobody_knows_where_they_are(
    monkeypatch: pytest.MonkeyPatch, error: Exception
):
    waited: list[float] = []

    def get(reference: object, timeout: float) -> object:
        waited.append(timeout)
        raise error

    monkeypatch.setattr(ray_store, "forget_store_pages", lambda keep: 1)
    monkeypatch.setattr(ray_store.ray, "put", lambda value: "a reference")
    monkeypatch.setattr(ray_store.ray, "get", get)
    store = ray_store.RayStore()
    assert store.put(np.zeros(8)) == "a reference"
    assert store.put_bytes == 64
    assert len(waited) == 1 and waited[0] <= 1.0, "it waits no longer for what only saves time"
    assert not store._places.known


def test_without_a_list_of_mappings_nothing_happens(tmp_path: Path):
    forget_store_pages(tmp_path / "none")
    assert shared_bytes(tmp_path / "none") == 0
