"""Weights arrive on a thread of their own, one version at a time, and what goes wrong is told to who asks."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch

from rl_api.errors import DeadlineExceeded, ModelError
from rl_trainer.rollout.arrival import Arrival
from rl_trainer.weights.transports.publication import Publication

SECONDS = 10.0


class Gate:
    """A receiver that holds each version back until it is let through."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.open = threading.Semaphore(0)
        self.error: Exception | None = None

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, torch.Tensor]:
        self.asked.append(publication.version)
        assert self.open.acquire(timeout=SECONDS)
        if self.error is not None:
            raise self.error
        return {"version": torch.tensor(publication.version)}


def version(number: int) -> Publication:
    return Publication(number, "objectStore", [])


def as_it_is(tensors: Mapping[str, torch.Tensor], version: int) -> Mapping[str, torch.Tensor]:
    return tensors


def test_a_version_is_taken_once_it_is_here():
    gate, woken = Gate(), threading.Event()
    arrival = Arrival(gate, as_it_is, SECONDS, woken.set)
    assert arrival.take(version(3)) is None
    assert arrival.take(version(3)) is None
    gate.open.release()
    assert woken.wait(SECONDS)
    found = arrival.take(version(3))
    assert found is not None
    assert found["version"] == 3
    assert gate.asked == [3]


def test_another_version_waits_for_the_one_that_is_arriving_and_takes_its_place():
    gate, woken = Gate(), threading.Event()
    arrival = Arrival(gate, as_it_is, SECONDS, woken.set)
    arrival.want(version(3))
    assert arrival.take(version(4)) is None
    gate.open.release()
    assert woken.wait(SECONDS)
    woken.clear()
    assert arrival.take(version(4)) is None, "only now it is asked for"
    gate.open.release()
    assert woken.wait(SECONDS)
    found = arrival.take(version(4))
    assert found is not None
    assert found["version"] == 4
    assert gate.asked == [3, 4]


def test_what_fails_is_raised_where_it_is_taken_and_can_be_asked_for_again():
    gate, woken = Gate(), threading.Event()
    arrival = Arrival(gate, as_it_is, SECONDS, woken.set)
    gate.error = DeadlineExceeded("it did not arrive")
    arrival.want(version(3))
    gate.open.release()
    assert woken.wait(SECONDS)
    with pytest.raises(DeadlineExceeded, match="it did not arrive"):
        arrival.take(version(3))
    gate.error = None
    assert arrival.take(version(3)) is None
    gate.open.release()


def test_what_can_be_done_ahead_is_done_where_it_arrives():
    gate, woken, names = Gate(), threading.Event(), list[str]()

    def prepare(tensors: Mapping[str, torch.Tensor], version: int) -> str:
        names.append(threading.current_thread().name)
        if version == 4:
            raise ModelError("a tensor is missing")
        return f"{version}: {int(tensors['version'])}"

    arrival = Arrival(gate, prepare, SECONDS, woken.set)
    gate.open.release(2)
    arrival.want(version(3))
    assert woken.wait(SECONDS)
    assert arrival.take(version(3)) == "3: 3"
    woken.clear()
    arrival.want(version(4))
    assert woken.wait(SECONDS)
    with pytest.raises(ModelError, match="a tensor is missing"):
        arrival.take(version(4))
    assert names == ["weights of version 3", "weights of version 4"]
