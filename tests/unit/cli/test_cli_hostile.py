"""What a run, its pods or a cluster may say: nothing of it steers the terminal of who looks at it."""

from __future__ import annotations

import contextlib
import io
import math
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from hostile import HOSTILE, steering
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import rl_cli.logs
import rl_cli.report
import rl_cli.steer
import rl_cli.watch
from rl_api.errors import RLTrainError
from rl_cli.failures import ClusterError
from rl_cli.logs import split
from rl_cli.main import _say
from rl_cli.screen import Screen, all_runs, one_run
from rl_cli.view import line, row

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([1e300, -1e300, 10**400, math.inf, math.nan, True])
)
ANYTHING = st.recursive(
    st.one_of(st.none(), HOSTILE, NUMBERS, st.just("Training")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(HOSTILE, inner, max_size=3)),
    max_leaves=6,
)
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["Accepted", "Training", "Failed", "ClusterReady"]),
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "message": ANYTHING,
    }
)
PROGRESS = (
    "step",
    "maxSteps",
    "reward",
    "heldoutScore",
    "tokensPerSecond",
    "totalTokensPerSecond",
    "samplerCpus",
    "learnerGpuBusy",
    "objectStoreBytes",
    "betweenNodesBytes",
    "bufferFill",
    "staleness",
    "etaSeconds",
    "updatedAt",
)
ATTEMPT = st.fixed_dictionaries(
    dict.fromkeys(("number", "endTime", "fromStep", "toStep", "reason"), ANYTHING)
)
STATUS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.one_of(ANYTHING, st.sampled_from(["Training", "Failed"])),
        "conditions": st.one_of(ANYTHING, st.lists(CONDITION, max_size=3)),
        "progress": st.one_of(
            ANYTHING, st.fixed_dictionaries({}, optional=dict.fromkeys(PROGRESS, ANYTHING))
        ),
        "attempts": st.one_of(ANYTHING, st.lists(ATTEMPT, max_size=3)),
        "checkpoint": st.one_of(ANYTHING, st.fixed_dictionaries({"uri": HOSTILE, "step": ANYTHING})),
        "roles": st.one_of(
            ANYTHING,
            st.dictionaries(
                st.sampled_from(["sampler", "learner"]),
                st.fixed_dictionaries({"ready": ANYTHING, "desired": ANYTHING, "reason": ANYTHING}),
            ),
        ),
    },
)


def run(status: Any, name: str = "arithmetic") -> dict[str, Any]:
    stop = {"maxSteps": 50, "targetReward": 0.5}
    return {
        "metadata": {"name": name, "namespace": "team-a", "uid": "u"},
        "spec": {"stop": stop},
        "status": status,
    }


class Terminal:
    """Both streams of a command."""

    def __enter__(self) -> Terminal:
        self.out, self.err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict") for _ in "12")
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(contextlib.redirect_stdout(self.out))
        self._stack.enter_context(contextlib.redirect_stderr(self.err))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def text(self) -> str:
        self.out.flush()
        self.err.flush()
        return b"".join(one.buffer.getvalue() for one in (self.out, self.err)).decode()  # type: ignore[attr-defined]


@pytest.mark.no_cover  # long, and other tests run these lines
@settings(max_examples=300, deadline=None)
@given(st.one_of(STATUS, ANYTHING))
def test_watch_shows_any_status(status: Any) -> None:
    shown = row(run(status), NOW)
    for text in (line(shown, with_namespace=True), *shown.facts().values(), *shown.ended):
        assert steering(text) == []
        assert "\n" not in text
        assert len(text) < 5000
    for view in (
        one_run(shown, {"u": [0.1]}, NOW, 100),
        all_runs([shown, shown], NOW, 120, with_namespace=True),
    ):
        console = Console(file=io.StringIO(), width=120)
        console.print(view)
        assert steering(console.file.getvalue()) == []  # type: ignore[attr-defined]


@settings(deadline=None)
@given(STATUS, HOSTILE)
def test_watch_on_a_pipe(status: Any, message: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    with Terminal() as terminal, Screen("arithmetic", "team-a", stream) as screen:
        screen.show([row(run(status), NOW)])
        screen.say(message)
    stream.flush()
    assert steering(stream.buffer.getvalue().decode()) == []  # type: ignore[attr-defined]
    assert steering(terminal.text) == []


def pod(name: str = "head") -> dict[str, Any]:
    labels = {"rltrain.dev/role": "head", "rltrain.dev/attempt": "1"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"phase": "Running"}}


class Cluster:
    """A cluster with one run, whose pod says `log`."""

    namespace = "team-a"

    def __init__(self, found: dict[str, Any], log: bytes = b"") -> None:
        self.found, self.said = found, log

    def run(self, namespace: str, name: str) -> dict[str, Any]:
        return self.found

    def pods(self, namespace: str, name: str) -> list[dict[str, Any]]:
        return [pod()] if self.said else []

    def log(self, *_: object, **__: object) -> Iterator[bytes]:
        return split(iter([self.said]))

    def patch_run(self, *_: object) -> None:
        pass

    delete_run = patch_run


def command(module: Any, function: Any, cluster: Cluster, **args: Any) -> str:
    """What a person sees of a command, errors included."""
    with Terminal() as terminal, patch.object(module, "connect", lambda _: cluster):
        try:
            function(Namespace(name="arithmetic", run="arithmetic", namespace=None, **args))
        except RLTrainError as error:
            _say(str(error), 1)
        except ClusterError as error:
            _say(str(error), 1)
    return terminal.text


@given(st.one_of(HOSTILE.map(lambda text: text.encode(errors="replace")), st.binary(min_size=1)))
def test_logs(log: bytes) -> None:
    arguments = {"role": "head", "follow": False, "tail": None, "pod": True}
    assert steering(command(rl_cli.logs, rl_cli.logs._logs, Cluster(run({}), log), **arguments)) == []


@settings(deadline=None)
@given(STATUS)
def test_commands_about_a_run(status: Any) -> None:
    cluster = Cluster(run(status))
    told = [
        command(rl_cli.logs, rl_cli.logs._logs, cluster, role="head", follow=False, tail=None, pod=True),
        command(rl_cli.report, rl_cli.report._from_cluster, cluster, out=None),
        command(rl_cli.steer, rl_cli.steer._suspend, cluster, suspend=True),
        command(rl_cli.steer, rl_cli.steer._cancel, cluster, yes=True, timeout=0),
    ]
    for text in told:
        assert text
        assert steering(text) == []


@given(HOSTILE)
def test_what_went_wrong(text: str) -> None:
    with Terminal() as terminal:
        assert _say(text, 3) == 3
    assert steering(terminal.text) == []


def test_a_line_that_never_ends_is_given_up() -> None:
    pieces = [b"x" * (1 << 19)] * 5
    assert [len(one) for one in split(iter(pieces))] == [3 << 19, 2 << 19]


@pytest.mark.parametrize("log", [b"step 1\r\n", b"\x1b[32mstep 1\x1b[0m\n"])
def test_a_log_stays_readable(log: bytes) -> None:
    arguments = {"role": "head", "follow": False, "tail": None, "pod": True}
    assert command(rl_cli.logs, rl_cli.logs._logs, Cluster(run({}), log), **arguments) == "step 1\n"
