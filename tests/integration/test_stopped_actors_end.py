"""An actor that stands still is gone when it is said, on whatever node: others may have its device then."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from rl_trainer.flow.process_end import Process, started_at

pytestmark = pytest.mark.usefixtures("local_ray")


def test_an_actor_that_is_stopped_is_gone_when_it_is_said() -> None:
    class Asked:  # in here, so that Ray sends it along
        def who(self) -> Process:
            return Process.own()

    actor = ray.remote(Asked).options(num_cpus=0).remote()
    process: Process = ray.get(actor.who.remote(), timeout=120)
    os.kill(process.number, signal.SIGSTOP)
    ray.kill(actor)
    assert process.end(60.0)
    assert started_at(process.number) is None


def test_a_process_is_gone_with_its_node() -> None:
    started = started_at(os.getpid())
    assert started is not None
    assert Process("ab" * 28, os.getpid(), started).end(0.0)
