from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from rl_api.errors import ActorDied
from rl_trainer.rollout import fleet
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.rollout.handle import SamplerHandle, SamplerLeft
from rl_trainer.rollout.leaving import Door, ask_to_leave, main


@contextmanager
def a_door(at: Path, groups: int) -> Iterator[list[str]]:
    """A sampler that gives so many groups back at each notice; yields the notices."""
    heard: list[str] = []

    def leave() -> int:
        heard.append("leave")
        return groups

    door = Door(at, leave)
    try:
        yield heard
    finally:
        door.close()


def hook(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command that the kubelet runs."""
    command = [sys.executable, "-m", "rl_trainer.rollout.leaving", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_hook_ends_when_the_sampler_has_given_its_groups_back(tmp_path: Path):
    with a_door(tmp_path / "leave", 3) as heard:
        ended = hook(str(tmp_path / "leave"), "20")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 unfinished groups are given back\n", "")
    assert heard == ["leave"]


def test_whoever_asks_again_is_answered_again(tmp_path: Path):
    with a_door(tmp_path / "leave", 0) as heard:
        for _ in range(2):
            assert ask_to_leave(tmp_path / "leave", 5.0) == "0 unfinished groups are given back"
    assert heard == ["leave", "leave"]


def test_a_sampler_that_comes_after_a_dead_one_listens_in_its_place(tmp_path: Path):
    with a_door(tmp_path / "leave", 1), a_door(tmp_path / "leave", 2) as heard:
        assert ask_to_leave(tmp_path / "leave", 5.0).startswith("2 ")
    assert heard == ["leave"]


def test_a_pod_without_a_sampler_goes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path / "leave"), "20"]) == 1
    assert capsys.readouterr().err.startswith("no groups are given back: ")
    with a_door(tmp_path / "leave", 1):
        pass  # its process has died: the socket's file is still there
    assert (tmp_path / "leave").exists()
    assert main([str(tmp_path / "leave"), "20"]) == 1


def test_a_sampler_that_hangs_holds_the_pod_up_no_longer_than_it_may(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    done = threading.Event()

    def leave() -> int:
        done.wait(30)
        return 0

    door = Door(tmp_path / "leave", leave)
    try:
        assert main([str(tmp_path / "leave"), "0.2"]) == 1
        assert capsys.readouterr().err == "the sampler has not given its groups back within 0.2 s\n"
    finally:
        done.set()
        door.close()


def test_a_sampler_that_dies_meanwhile_has_given_nothing_back(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(tmp_path / "leave"))
        dying.listen()
        threading.Thread(target=lambda: dying.accept()[0].close(), daemon=True).start()
        with pytest.raises(OSError, match="the sampler died, or the run's buffer is gone"):
            ask_to_leave(tmp_path / "leave", 5.0)


def test_where_the_buffer_is_gone_the_pod_goes_as_well(tmp_path: Path):
    door = Door(tmp_path / "leave", lambda: None)
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="the run's buffer is gone"):
                ask_to_leave(tmp_path / "leave", 5.0)
    finally:
        door.close()


def test_the_hook_needs_nothing_but_the_standard_library():
    """What it imports costs seconds of the pod's grace."""
    listing = "import sys, rl_trainer.rollout.leaving; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert not {"rl_api", "pydantic", "ray", "torch", "numpy"} & set(found.stdout.split())


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            SamplerLeft("sampler 0 is told to go with its pod and has given 2 unfinished groups back"),
            [
                "sampler 0 is told to go with its pod and has given 2 unfinished groups back: others sample them again",
                "sampler 0 has gone with its node, 1 left",
            ],
        ),
        (
            ActorDied("sampler 0 died"),
            ["sampler 0 has gone with its node, 1 left; its 1 unfinished groups are sampled again"],
        ),
        (None, ["sampler 0 has gone with its node, 1 left; its 1 unfinished groups are sampled again"]),
    ],
    ids=["left", "died", "not known yet"],
)
def test_what_a_sampler_said_last_is_heard_though_its_node_is_gone_before_anybody_waited_for_it(
    monkeypatch: pytest.MonkeyPatch, end: ActorDied | None, says: list[str]
):
    """The driver was at something else, a broadcast, for longer than the pod's grace."""
    samplers: Any = Samplers.__new__(Samplers)
    warned, groups = list[str](), {0: [7]}
    samplers._elasticity = MagicMock(most=None, least=1)
    samplers._places, samplers._failures, samplers._few_since, samplers._next_look = {}, {}, None, 0.0
    samplers._warn, samplers._gave_up = warned.append, False
    samplers._buffer = SimpleNamespace(release=lambda rank: groups.pop(rank, []))
    samplers._samplers = {
        rank: SamplerHandle(f"actor {rank}", cast(Any, f"run {rank}"), None, f"node {rank}", 0.0)
        for rank in (0, 1)
    }

    def answer(call: str, *_: object) -> None:
        assert (call, bool(end)) == ("run 0", True), "nobody waits for who has not ended"
        raise cast(ActorDied, end)

    monkeypatch.setattr(fleet, "nodes_of", lambda places: {0: None, 1: "node 1"})
    monkeypatch.setattr(fleet, "answer", answer)
    monkeypatch.setattr(fleet.ray, "kill", lambda actor: None)
    monkeypatch.setattr(
        fleet.ray, "wait", lambda calls, timeout: ([one for one in calls if end and one == "run 0"], [])
    )
    samplers.look()
    assert warned == says
    assert sorted(samplers._samplers) == [1]
    assert groups == {}
