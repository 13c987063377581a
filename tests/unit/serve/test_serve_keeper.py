"""The pin of a service: what is in it, what a later head finds, and that serving goes on without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl_serve.arguments import PolicyRef
from rl_serve.keeper import RENEW_SECONDS, Keeper, last_asked
from rl_trainer.checkpoint.pins import LocalPins, Pin, Pinned, RemotePins, dump_pin, parse_pin
from rl_trainer.storage.remote_folder import RemoteFolder

START = 1_800_000_000.0
NAME = "chat-uid.json"


class Clock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        self.now += 1
        return self.now


def digest(step: int) -> str:
    return f"{step:064x}"


def policy(run: Path | str, step: int) -> PolicyRef:
    base = run if isinstance(run, str) else f"{run}/checkpoints"
    return PolicyRef(source=f"{base}/step-{step:08d}", digest=digest(step), version=f"v{step}")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def keeper(run: Path | str, clock: Clock) -> Keeper:
    return Keeper(str(run), "chat", "uid", clock)


def written(run: Path) -> Pin:
    return parse_pin(LocalPins(run / "checkpoints").read(NAME) or b"")


def steps(run: Path) -> set[int]:
    return {one.step for one in written(run).checkpoints}


def test_the_served_ones_and_the_candidate_are_pinned(run: Path, clock: Clock) -> None:
    made = keeper(run, clock)
    made.ask(policy(run, 10))
    made.ask(policy(run, 20))
    for candidate in (30, 40, 50):
        made.ask(policy(run, candidate), candidate=True)
        made.ask(policy(run, 20))
    assert steps(run) == {10, 20, 50}  # candidates that were refused do not push out the one to go back to
    made.ask(policy(run, 50))
    made.ask(policy(run, 60), candidate=True)
    assert steps(run) == {10, 20, 50, 60}
    made.ask(policy(run, 20), candidate=True)
    assert steps(run) == {10, 20, 50, 60}  # it has been served
    made.ask(policy(run, 60))
    assert steps(run) == {20, 50, 60}
    assert made.problem == ""


def test_the_next_head_keeps_what_the_one_before_has_pinned(run: Path, clock: Clock) -> None:
    first = keeper(run, clock)
    first.ask(policy(run, 10))
    first.ask(policy(run, 20))
    second = keeper(run, clock)
    assert second.due
    second.renew()
    assert steps(run) == {10, 20}
    assert written(run).renewed == clock.now
    assert not second.due
    clock.now += RENEW_SECONDS
    assert second.due
    # In a roll-out both are there.
    second.ask(policy(run, 30))
    first.renew()
    assert steps(run) == {10, 20, 30}
    os.unlink(run / "checkpoints" / ".pins" / NAME)
    clock.now += RENEW_SECONDS
    second.renew()
    assert steps(run) == {10, 20, 30}


def test_services_of_one_name_have_pins_of_their_own(run: Path, clock: Clock) -> None:
    Keeper(str(run), "a/../b", "1", clock).ask(policy(run, 10))
    Keeper(str(run), "a/../b", "2", clock).ask(policy(run, 20))
    assert LocalPins(run / "checkpoints").names() == ["a----b-1.json", "a----b-2.json"]


@pytest.mark.parametrize("content", [b"", b"[" * 4096, b" " * 10_000])
def test_a_broken_pin_is_written_anew(run: Path, clock: Clock, content: bytes) -> None:
    LocalPins(run / "checkpoints").write(NAME, content)
    keeper(run, clock).ask(policy(run, 10))
    assert steps(run) == {10}


def test_what_claims_the_future_has_no_precedence_for_long(run: Path, clock: Clock) -> None:
    false = [Pinned(step=step, digest=digest(step), asked=2 * START) for step in (1, 2, 3)]
    LocalPins(run / "checkpoints").write(
        NAME, dump_pin(Pin(service="chat", renewed=START, checkpoints=false))
    )
    made = keeper(run, clock)
    for step in (10, 20, 30):
        made.ask(policy(run, step))
    assert steps(run) == {10, 20, 30}


def test_what_is_no_checkpoint_of_the_run_is_not_pinned(run: Path, clock: Clock) -> None:
    made = keeper(run, clock)
    for source in ("s3://bucket/step-00000010", f"{run}/checkpoints/final", f"{run}/step-00000010"):
        made.ask(PolicyRef(source=source, digest=digest(10), version="v"))
    made.ask(PolicyRef(source=policy(run, 10).source, digest=None, version="v"))
    made.ask(policy(run, 10**40))
    made.renew()
    fixed = Keeper(None, "chat", "uid", clock)
    fixed.ask(policy(run, 10))
    assert not fixed.due
    assert list((run / "checkpoints").iterdir()) == []


def test_where_no_pin_can_be_written_it_is_said_once(
    run: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    folder = run / "checkpoints" / ".pins"
    folder.write_text("")  # a file in the way; root may write to folders without rights
    made = keeper(run, clock)
    for _ in range(3):
        made.ask(policy(run, 10))
    assert made.problem == (
        "training may delete checkpoints that are served, as they cannot be pinned: "
        f"{folder} cannot be written (Not a directory)"
    )
    assert [one.getMessage() for one in caplog.records if "cannot be pinned" in one.getMessage()] == [
        made.problem
    ]
    folder.unlink()
    made.ask(policy(run, 20))
    assert (made.problem, steps(run)) == ("", {10, 20})


@pytest.mark.usefixtures("any_scheme")
def test_a_pin_in_an_object_store(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    MemoryFileSystem.store.clear()
    uri = "memory://bucket/run"
    monkeypatch.setattr("rl_serve.keeper.is_s3", lambda found: found.startswith("memory://"))
    made = keeper(uri + "/", clock)
    made.ask(policy(uri, 10))
    found = parse_pin(RemotePins(RemoteFolder(uri)).read(NAME) or b"")
    assert [one.step for one in found.checkpoints] == [10]
    refused = PermissionError(13, "Access Denied")

    def deny(*_: object, **__: object) -> None:
        raise refused

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", deny)
    made.ask(policy(uri, 20))
    assert made.problem.startswith(
        "training may delete checkpoints that are served, as they cannot be pinned: memory://bucket/run/.pins cannot be "
        "written: Access Denied. "
    )


def test_a_served_checkpoint_is_no_candidate() -> None:
    def one(asked: float, *, candidate: bool) -> Pinned:
        return Pinned(step=1, digest=digest(1), asked=asked, candidate=candidate)

    for both in (
        [one(1, candidate=True), one(2, candidate=False)],
        [one(2, candidate=False), one(1, candidate=True)],
    ):
        assert last_asked(both, 3) == [one(2, candidate=False)]
