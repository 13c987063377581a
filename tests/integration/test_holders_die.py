"""Who has a shared device is killed in the middle of what it does there: others have it at once, or the run ends at once;
no prompt is lost or comes twice."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from training_runs import Process, RunFiles, until

FREE_SECONDS = 60.0
"""From the death of who has a device until the console says that others may have it, or the run's process has ended: some
seconds, and half a minute on a busy machine. Who is not known to be dead is given up after twice as long."""

pytestmark = pytest.mark.timeout(1500)

SAMPLERS = ("onload", "generate", "offload", "evaluate", "load")
RANKS = ("onload", "accumulate", "_publish")
"""Of `POINTS`: as a device is taken over, in the midst of a step, and at its end; each costs a restart. The seeded faults of
`make chaos` come to the others, and are held to 5 seconds."""
# Of all processes the first kills itself that comes to a point for which there is a file, and says so.
KILLS_ITSELF = """
import functools, importlib.abc, importlib.util, os, signal, sys
from pathlib import Path

HERE = Path(__file__).parent
POINTS = {
    "rl_trainer.rollout.opening": {"create_engine": "sampler-load"},
    "rl_trainer.rollout.actor": {
        "SamplerActor.onload": "sampler-onload",
        "SamplerActor.offload": "sampler-offload",
        "SamplerActor._advance": lambda it: "sampler-evaluate" if it._evaluations.under_way else "sampler-generate",
    },
    "rl_trainer.learner.actor": {
        f"LearnerActor.{name}": f"rank-{name}"
        for name in ("start", "accumulate", "apply", "_publish", "save_round", "onload", "offload", "restore")
    },
}

def dying(function, point):
    @functools.wraps(function)
    def call(*given, **named):
        name = point if isinstance(point, str) else point(given[0])
        try:
            os.rename(HERE / f"{name}.due", HERE / f"{name}.done")
        except FileNotFoundError:
            return function(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in POINTS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        whole = spec.loader.exec_module
        def exec_module(module):
            whole(module)
            for where, point in POINTS[name].items():
                *owner, attribute = where.split(".")
                holder = getattr(module, owner[0]) if owner else module
                setattr(holder, attribute, dying(getattr(holder, attribute), point))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


class Run:
    """One whose samplers and learners take turns on two devices, and move their tensors in and out."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = RunFiles(
            folder,
            placement={"mode": "collocated", "residency": "swap", "partGroups": 2},
            learner={"replicas": 2},
            sampler={"replicas": 2, "resources": {"cpu": 0.5}},
            task={"evaluation": {"samples": 4, "everySteps": 2}},
            buffer={"maxStaleness": 1},
            retry={"limit": 100},
            stop={"maxSteps": 100_000},
        )
        (folder / "sitecustomize.py").write_text(KILLS_ITSELF)
        self.path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def start(self, *options: str) -> Process:
        """Returns when it has made a step."""
        process = self.files.start(*options, PYTHONPATH=self.path)
        process.wait_for(rises(lambda: len(self.files.steps)))
        return process

    def die(self, point: str) -> float:
        """Returns when the first that comes to `point` dies; that time."""
        self.set_due(point)
        return self.died(point)

    def set_due(self, point: str) -> None:
        """From now on the first that comes to `point` dies."""
        (self.folder / f"{point}.done").unlink(missing_ok=True)
        (self.folder / f"{point}.due").touch()

    def died(self, point: str) -> float:
        """Returns when it has; that time."""
        done = self.folder / f"{point}.done"
        until(done.exists, why=lambda: f"nobody came to {point}")
        return done.stat().st_ctime


def rises(count: Callable[[], int], by: int = 1) -> Callable[[], bool]:
    """Whether it has risen since now."""
    before = count()
    return lambda: count() >= before + by


def test_a_device_is_free_when_its_holder_dies_in_whatever_it_does(tmp_path: Path):
    run = Run(tmp_path)
    process = run.start()

    def replaced() -> int:
        """How many samplers the run has given up since it was started, whose devices were free then."""
        return process.outcome().out.count("died and was replaced; its")

    try:
        for point in SAMPLERS:
            given_up = rises(replaced, by=2 if point == "load" else 1)
            if point == "load":  # what comes in the place of one that is dead
                # Due once: set again after the death it would be there for one more, perhaps for the first of a resume.
                run.set_due("sampler-load")
                # One that was replaced before may be loading still, and be the one that dies there.
                died = max(run.die("sampler-generate"), run.died("sampler-load"))
            else:
                died = run.die(f"sampler-{point}")
            process.wait_for(given_up)
            assert time.time() - died < FREE_SECONDS, point
            process.wait_for(rises(lambda: len(run.files.steps)))
        for point in RANKS:
            died = run.die(f"rank-{point}")
            process.process.wait(200)
            assert time.time() - died < FREE_SECONDS, point
            assert re.match(r"learner [01] died while ", process.outcome().sentence)
            process = run.start("--resume")
        process.send(signal.SIGTERM)
        assert process.finish().code == 143
    finally:
        process.kill()
    run.files.assert_nothing_lost_or_twice()
