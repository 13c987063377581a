"""Marks that processes share: whoever is killed or stopped, and whatever is wrong, nobody believes what nobody has seen."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import pytest
from checking_process import Checker, Holder, Wrong, wanted

from rl_trainer.flow import shared_marks
from rl_trainer.flow.node_checks import SLOTS_OF_GROUP, WAIT_SECONDS, check_once, group_of, mark_of, slots_of
from rl_trainer.flow.shared_marks import SharedMarks, marks_file, marks_of, remove_marks


@pytest.fixture(autouse=True)
def of_no_node_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_marks, "_here", {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "marks"


def no_pause(seconds: float) -> None:
    raise AssertionError("nobody is waited for")


class Here:
    """This process, as one of them."""

    def __init__(self, path: Path) -> None:
        self.marks = SharedMarks(path)
        self.held: list[Holder] = []

    def looks(
        self,
        *names: str,
        pause: Callable[[float], None] = no_pause,
        clock: Callable[[], float] = lambda: 0.0,
        right: bool = True,
    ) -> list[str]:
        """Which of the names it has to look at itself; it holds all of them from then on."""
        looked: list[str] = []

        def look(name: str) -> None:
            looked.append(name)
            if not right:
                raise Wrong

        made = [wanted(name, lambda name=name: look(name)) for name in names]
        check_once([one for _, one in made], self.marks, clock, pause)
        self.held += [holder for holder, _ in made]
        return looked


def test_what_one_process_has_found_right_others_believe(path: Path):
    here = Here(path)
    with Checker(path) as first, Checker(path) as second:
        assert first.tell("check a") == "looks"
        assert first.tell("right") == "right"
        assert second.tell("check a") == "right"
        assert here.looks("a", "b") == ["b"]
        assert first.tell("check b") == "right"


def test_the_next_one_looks_where_the_first_is_killed(path: Path):
    here = Here(path)
    with Checker(path) as first, Checker(path) as second:
        assert first.tell("check a") == "looks"
        paused: list[float] = []

        def pause(seconds: float) -> None:
            paused.append(seconds)
            first.kill()

        assert here.looks("a", pause=pause) == ["a"]
        assert len(paused) == 1
        assert second.tell("check a") == "right"


def test_who_is_stopped_is_not_waited_for_and_is_right_all_the_same(path: Path):
    here = Here(path)
    with Checker(path) as first, Checker(path) as second:
        assert first.tell("check a") == "looks"
        first.stop()
        now = [0.0]

        def pause(seconds: float) -> None:
            now[0] += WAIT_SECONDS / 4

        assert here.looks("b", "a", pause=pause, clock=lambda: now[0]) == ["b", "a"]
        assert now[0] == WAIT_SECONDS
        first.go_on()
        assert first.tell("right") == "right"
        assert second.tell("check a") == "right"
        assert here.looks("a") == []


def test_what_is_wrong_everybody_finds(path: Path):
    here = Here(path)
    with Checker(path) as first, Checker(path) as second:
        for process in (first, second):
            assert process.tell("check a") == "looks"
            assert process.tell("wrong") == "wrong"
        with pytest.raises(Wrong):
            here.looks("a", right=False)
        assert first.tell("check a") == "looks"


@pytest.mark.parametrize("killed", [False, True])
def test_what_nobody_holds_any_more_is_looked_at_again(path: Path, killed: bool):
    here = Here(path)
    with Checker(path) as first, Checker(path) as second:
        assert first.tell("check a") == "looks"
        assert first.tell("right") == "right"
        assert second.tell("check a") == "right"
        if killed:
            first.kill()
        else:
            assert first.tell("drop") == "dropped"
        assert here.looks("a") == [], "the second holds it"
        here.held.clear()
        assert second.tell("fork") == "forked"
        assert here.looks("a") == [], "a fork of its has ended, and nothing else"
        here.held.clear()
        assert second.tell("drop") == "dropped"
        assert here.looks("a") == ["a"]


def test_each_holder_of_a_process_counts(path: Path):
    here = Here(path)
    with Checker(path) as other:
        assert here.looks("a") == ["a"]
        assert here.looks("a") == []
        here.held.pop()
        assert other.tell("check a") == "right"
        assert other.tell("drop") == "dropped"
        assert other.tell("check a") == "right"
        assert other.tell("drop") == "dropped"
        here.held.pop()
        assert other.tell("check a") == "looks"


def group(name: str) -> int:
    mark = mark_of(name, 7, "in the store")
    assert mark is not None
    return group_of(mark)


def test_a_slot_that_another_holds_is_not_taken_over(path: Path):
    here = Here(path)
    *some, last = islice(
        (name for name in map(str, count()) if group(name) == group("0")), SLOTS_OF_GROUP + 1
    )
    with Checker(path) as first, Checker(path) as second:
        for name in some:
            assert first.tell(f"check {name}") == "looks"
            assert first.tell("right") == "right"
        assert here.looks(last) == [last]
        assert here.looks(last, *some) == [last]
        here.held.clear()
        for name in some:
            assert second.tell(f"check {name}") == "right"


def test_what_others_look_at_comes_last(path: Path):
    here = Here(path)
    with Checker(path) as first:
        assert first.tell("check a") == "looks"

        def pause(seconds: float) -> None:
            assert any(any(here.marks.read(slot)) for slot in slots_of(group("b"))), "it has looked at it"
            assert first.tell("right") == "right"

        assert here.looks("a", "b", pause=pause) == ["b"]


def test_a_group_is_one_threads_as_well(path: Path):
    marks = SharedMarks(path)
    assert marks.take(3)
    assert not marks.take(3)
    assert marks.take(4)
    marks.leave(3)
    assert marks.take(3)


def test_a_file_is_of_one_node_and_one_user(tmp_path: Path):
    for node in ("first", "second"):  # the first one's Ray is over when this process knows the second
        marks = marks_of(node, tmp_path)
        assert marks is not None
        assert marks_of(node, tmp_path) is marks
        (path,) = tmp_path.iterdir()
        assert path == marks_file(node, tmp_path)
        assert path.name.startswith(f"rltrain-checks-{os.getuid()}-{node}-")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    remove_marks("first", tmp_path)
    assert path.exists()
    for _ in range(2):
        remove_marks("second", tmp_path)
        assert not path.exists()


def test_what_is_somebody_elses_is_not_used(tmp_path: Path):
    path = marks_file("node", tmp_path)
    path.touch(mode=0o666)
    path.chmod(0o666)
    assert marks_of("node", tmp_path) is None
    assert marks_of("node", tmp_path) is None
    (tmp_path / "file").touch(mode=0o600)
    marks_file("link", tmp_path).symlink_to(tmp_path / "file")
    assert marks_of("link", tmp_path) is None
    assert marks_of("node", tmp_path / "none") is None
    assert (tmp_path / "file").stat().st_size == 0


def test_files_that_nobody_uses_are_removed(tmp_path: Path):
    left, used, own = (marks_file(node, tmp_path) for node in ("left", "used", "own"))
    others = tmp_path / "rltrain-checks-x-1"
    others.touch(mode=0o600)
    with Checker(left) as killed, Checker(used) as first:
        for process in (killed, first):
            assert process.tell("check a") == "looks"
            assert process.tell("right") == "right"
        killed.kill()
        marks = marks_of("own", tmp_path)
        assert marks is not None
        assert set(tmp_path.iterdir()) == {used, own, others}


def test_a_file_that_is_removed_meanwhile_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    lock, locked = shared_marks._lock, list[int]()

    def remove_first(file: int, byte: int, kind: int) -> bool:
        if not locked:
            path.unlink()
        locked.append(os.fstat(file).st_ino)
        return lock(file, byte, kind)

    with monkeypatch.context() as patched:
        patched.setattr(shared_marks, "_lock", remove_first)
        here = Here(path)
    assert len(locked) == 2
    assert path.stat().st_ino == locked[-1]
    with Checker(path) as other:
        assert here.looks("a") == ["a"]
        assert other.tell("check a") == "right"


def test_nothing_is_kept_where_keeping_it_was_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch):
    marks, holder, lockf = SharedMarks(path), Holder(), shared_marks.fcntl.lockf

    def interrupted(file: int, kind: int, *place: int) -> None:
        lockf(file, kind, *place)
        if kind & shared_marks.fcntl.LOCK_SH:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shared_marks.fcntl, "lockf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            marks.keep(5, holder)
    assert not marks.is_kept(5)
    marks.keep(5, holder)
    assert marks.is_kept(5)
