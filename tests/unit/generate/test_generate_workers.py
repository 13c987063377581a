"""A job on a cluster begins when its workers are there."""

from __future__ import annotations

from typing import Any

import pytest

from rl_api.errors import DeadlineExceeded
from rl_generate import local

HEAD = {"Alive": True, "Resources": {"head": 1.0}}
WORKER = {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}}
DEAD = {"Alive": False, "Resources": {"CPU": 2.0, "GPU": 1.0}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LOOK_SECONDS", 0.0)
    monkeypatch.setenv("RLTRAIN_WORKERS", "2")


def test_it_waits_for_all_workers_that_are_alive() -> None:
    seen: list[list[dict[str, Any]]] = [[HEAD], [HEAD, WORKER, DEAD], [HEAD, WORKER, DEAD, WORKER]]
    local.wait_for_workers(lambda: seen.pop(0))
    assert not seen, "it went on with fewer"


def test_workers_that_do_not_come_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_WORKERS_SECONDS", -1.0)
    with pytest.raises(DeadlineExceeded, match=r"1 of 2 workers have joined Ray"):
        local.wait_for_workers(lambda: [HEAD, WORKER])


def test_elsewhere_it_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLTRAIN_WORKERS")
    local.wait_for_workers(lambda: pytest.fail("it has looked"))
