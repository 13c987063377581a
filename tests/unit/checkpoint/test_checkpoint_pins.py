"""Pins of policy services: what they keep from being deleted, their bounds, and what hostile ones can do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl_api.errors import InvalidConfig
from rl_trainer.checkpoint.pins import (
    FOLDER,
    HELD_SECONDS,
    LARGEST,
    MOST_FILES,
    LocalPins,
    Pin,
    Pinned,
    PinPlace,
    RemotePins,
    dump_pin,
    held,
    parse_pin,
    pinned,
)
from rl_trainer.checkpoint.remote import mirror
from rl_trainer.checkpoint.remote import steps as remote_steps
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.storage.remote_folder import RemoteFolder

NOW = 1_800_000_000.0
NO_DIGEST = "0" * 64


def pin(renewed: float, *checkpoints: tuple[int, str]) -> Pin:
    found = [Pinned(step=step, digest=digest, asked=renewed) for step, digest in checkpoints]
    return Pin(service="chat", renewed=renewed, checkpoints=found)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of training stands still."""
    for module in ("store", "remote"):
        monkeypatch.setattr(f"rl_trainer.checkpoint.{module}.time.time", lambda: NOW)


@pytest.fixture
def remote(any_scheme: None) -> RemoteFolder:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return RemoteFolder("memory://bucket/runs/one")


def store_of(folder: Path, told: list[str] | None = None, keep: int = 1) -> CheckpointStore:
    return CheckpointStore(folder, keep, tell=[].append if told is None else told.append)


def save(store: CheckpointStore, step: int, content: bytes = b"x") -> tuple[int, str]:
    made = store.save(step, {"weights": content})
    return made.step, made.digest


def steps(store: CheckpointStore) -> list[int]:
    return [one.step for one in store.list()]


@pytest.mark.usefixtures("now")
def test_what_is_pinned_stays_as_long_as_its_pin_is_renewed(tmp_path: Path) -> None:
    told: list[str] = []
    store = store_of(tmp_path, told, keep=2)
    first, second = save(store, 10), save(store, 20)
    place = LocalPins(tmp_path)
    place.write("chat.json", dump_pin(pin(NOW - HELD_SECONDS, first)))
    for step in (30, 40):
        save(store, step)
    assert steps(store) == [10, 30, 40]  # as many as without the pin, and the pinned one
    place.write("chat.json", dump_pin(pin(NOW - HELD_SECONDS - 1, first)))
    save(store, 50)
    assert steps(store) == [40, 50]
    assert told == []
    assert second[0] == 20


@pytest.mark.usefixtures("now")
def test_a_pin_is_of_one_checkpoint_and_not_of_its_step(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    old = save(store, 10)
    new = save(store, 10, b"other")
    assert old != new
    LocalPins(tmp_path).write("chat.json", dump_pin(pin(NOW, old)))
    save(store, 20)
    assert steps(store) == [20]


@pytest.mark.usefixtures("now")
def test_a_continuation_that_was_given_up_goes_all_the_same(tmp_path: Path, remote: RemoteFolder) -> None:
    store = store_of(tmp_path, keep=3)
    save(store, 10)
    later = save(store, 40)
    mirror(store, remote)
    LocalPins(tmp_path).write("chat.json", dump_pin(pin(NOW, later)))
    RemotePins(remote).write("chat.json", dump_pin(pin(NOW, later)))
    save(store, 20)
    mirror(store, remote)
    newest = store.load_latest()
    assert newest is not None
    assert (steps(store), newest.step, remote_steps(remote)) == ([10, 20], 20, [20])


@pytest.mark.usefixtures("now")
def test_copies_elsewhere_are_pinned_there(tmp_path: Path, remote: RemoteFolder) -> None:
    told: list[str] = []
    store = store_of(tmp_path, told)
    first = save(store, 10)
    mirror(store, remote)
    RemotePins(remote).write("chat.json", dump_pin(pin(NOW, first, (20, NO_DIGEST))))
    RemotePins(remote).write("huge.json", b" " * (LARGEST + 1))
    for step in (20, 30):
        save(store, step)
        mirror(store, remote)
    assert remote_steps(remote) == [10, 30]
    assert told == [".pins/huge.json is disregarded: it is larger than 4,096 bytes"]
    RemotePins(remote).write("chat.json", dump_pin(pin(NOW)))
    save(store, 40)
    mirror(store, remote)
    assert remote_steps(remote) == [40]


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    path.symlink_to("chat.json")


def an_endless_file(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def nobodys_file(path: Path) -> None:
    path.write_bytes(b"{}")


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("make", [a_pipe, a_folder, a_link, an_endless_file, a_huge_file, nobodys_file])
def test_what_is_no_pin_is_disregarded_and_the_others_count(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    told: list[str] = []
    store = store_of(tmp_path, told)
    first = save(store, 10)
    LocalPins(tmp_path).write("chat.json", dump_pin(pin(NOW, first)))
    make(tmp_path / FOLDER / "a-\x1b[2J.json")
    for step in (20, 30):
        save(store, step)
    assert steps(store) == [10, 30]
    (sentence,) = told  # once, however often it is looked at
    assert sentence.startswith(".pins/a-�[2J.json is disregarded: ")


@pytest.mark.usefixtures("now")
def test_a_place_of_pins_that_is_none_stops_no_run(tmp_path: Path) -> None:
    told: list[str] = []
    store = store_of(tmp_path, told)
    (tmp_path / FOLDER).write_text("")
    for step in (10, 20):
        save(store, step)
    assert steps(store) == [20]
    assert told == [
        "the pins of services cannot be read (Not a directory): their checkpoints are not kept for them"
    ]


@pytest.mark.usefixtures("now")
def test_many_pins_keep_few_checkpoints_and_do_not_fill_the_log(tmp_path: Path) -> None:
    told: list[str] = []
    store = store_of(tmp_path, told, keep=200)
    saved = [save(store, step) for step in range(1, 101)]
    place = LocalPins(tmp_path)
    for number in range(20):
        place.write(f"{number:03}.json", dump_pin(pin(NOW - number, *saved[4 * number : 4 * number + 4])))
    store.keep = 1
    save(store, 200)
    assert steps(store) == [*range(1, 4 * MOST_FILES + 1), 200]
    assert told == ["20 services have pinned checkpoints, allowed: 16; those renewed last count"]
    for number in range(1000):
        (tmp_path / FOLDER / f"junk-{number}.json").touch()
    save(store, 201)
    assert len(told) <= 32
    assert 201 in steps(store)


WHOLE: dict[str, Any] = json.loads(dump_pin(pin(NOW, (10, NO_DIGEST))))
ONE = WHOLE["checkpoints"][0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it is no JSON"),
        (b"[" * LARGEST, "it is no JSON"),
        (b"9" * LARGEST, "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (json.dumps(WHOLE | {"checkpoints": [ONE] * 5}).encode(), "pin.checkpoints: "),
        (json.dumps(WHOLE | {"renewed": float("nan")}).encode(), "pin.renewed: "),
        (json.dumps(WHOLE | {"renewed": float("inf")}).encode(), "pin.renewed: "),
        (json.dumps(WHOLE | {"renewed": "now"}).encode(), "pin.renewed: "),
        (json.dumps(WHOLE | {"checkpoints": [ONE | {"step": -1}]}).encode(), "pin.checkpoints[0].step: "),
        (
            json.dumps(WHOLE | {"checkpoints": [ONE | {"digest": "../.."}]}).encode(),
            "pin.checkpoints[0].digest: ",
        ),
    ],
)
def test_pins_that_are_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        parse_pin(content)
    assert str(error.value).startswith(sentence)


def test_no_pin_holds_for_ever() -> None:
    told: list[str] = []
    future = pin(NOW + 3601, (10, NO_DIGEST))
    assert held({"a.json": future}, NOW, told.append) == frozenset()
    assert told == [".pins/a.json is disregarded: it claims to have been renewed in the future"]
    assert held({"a.json": future}, NOW + 2, told.append) == {(10, NO_DIGEST)}


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_there_and_back(tmp_path: Path, remote: RemoteFolder, kind: str) -> None:
    place: PinPlace = LocalPins(tmp_path) if kind == "local" else RemotePins(remote)
    told: list[str] = []
    assert (place.names(), place.read("chat.json"), pinned(place, NOW, told.append)) == (
        [],
        None,
        frozenset(),
    )
    for one in (pin(NOW, (1, NO_DIGEST)), pin(NOW, (2, NO_DIGEST))):
        place.write("chat.json", dump_pin(one))
        assert place.names() == ["chat.json"]
        assert parse_pin(place.read("chat.json") or b"") == one
    assert pinned(place, NOW, told.append) == {(2, NO_DIGEST)}
    assert told == []


def test_a_pin_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").mkdir()
    place = LocalPins(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        place.write("chat.json", b"{}")
    assert list((tmp_path / "elsewhere").iterdir()) == []
