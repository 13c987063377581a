"""A run whose reward is called behind a socket, by another user where that can be had: it trains as it does without."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from code_container import CODE_USER, code_container, code_server
from training_runs import PROMPTS, RunFiles, below

from rl_api.task import SOCKET_VARIABLE


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the other user sees as well, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="isolated-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def users_below(pid: int) -> set[int]:
    """Of the processes below one."""
    found = set()
    for child, _ in below(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(child.uids().real)
    return found


def test_a_run_with_isolated_rewards_trains_the_same_weights(folder: Path) -> None:
    with code_container() as (listening, server):
        isolated = RunFiles(folder / "isolated", task={"isolation": "strict"}, stop={"maxSteps": 3})
        # The second step does not end before it was looked at; the other user notes in this folder who waits.
        isolated.folder.chmod(0o777)
        isolated.feel({PROMPTS: "holdFirst"})
        with isolated.start(**{SOCKET_VARIABLE: str(listening)}) as process:
            process.wait_for(lambda: len(isolated.steps) >= 1)
            assert users_below(server.pid) == {CODE_USER}
            assert not [command for _, command in below(process.process.pid) if "tasks.worker" in command]
            (isolated.folder / "let-go").touch()
            process.finish().assert_well()
    shared = RunFiles(folder / "shared", stop={"maxSteps": 3})
    with shared.start() as process:
        process.finish().assert_well()
    assert isolated.weights == shared.weights


def test_a_run_whose_container_was_killed_says_so(folder: Path) -> None:
    with code_container() as (listening, server), ExitStack() as stack:
        run = RunFiles(folder / "run", task={"isolation": "strict"}, stop={"maxSteps": 1000})
        run.feel(delay=0.02)
        with run.start(**{SOCKET_VARIABLE: str(listening)}) as process:
            process.wait_for(lambda: len(run.steps) >= 1)
            server.kill()  # as it is where it takes too much memory
            server.wait()
            stack.enter_context(code_server(listening))  # as the kubelet starts it again
            ended = process.finish()
    assert ended.code == 3
    assert (
        "reward moody_reward:reward has ended its process (its container has ended; is there too little"
        in ended.err
    )
