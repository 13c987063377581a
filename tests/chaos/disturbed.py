"""One real `rltrain run` that is disturbed: started again as often as it ends, and what must hold after each fault."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from fault_plan import WORLDS, Fault, is_stored, shares
from fault_report import Result
from object_store import ObjectStore
from training_runs import Process, RunFiles, merged
from victims import REWARD, Death, Phases, Victims, is_alive

from rl_trainer.checkpoint.remote import fetch
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.storage.remote_folder import RemoteFolder

LIVENESS: Final = 5.0
"""Seconds without a sign of life, in these runs."""

DEADLINE: Final = 240.0
"""For anything that is waited for: a phase, a run's first step or its end, the next step after a resume. Past it something
hangs: a busy machine takes minutes to start a run."""

GONE_SECONDS: Final = 30.0
"""For a run's processes to be gone when its driver is."""

SUPERVISOR_SECONDS: Final = 2.0
"""After so long somebody kills a stopped driver: nothing on its own machine could."""

FREE_SECONDS: Final = 5.0
"""After so long a device that a sampler shared is free when its process is gone."""

BUCKET: Final = "chaos"
ELSEWHERE: Final = """
import os
access = os.access
# As on a node with another disk: learners find no folder of the driver's.
os.access = lambda path, mode, **named: mode != os.W_OK | os.X_OK and access(path, mode, **named)
"""

_ENDLESS: Final = 100_000
_CHECKPOINTED: Final = 6
"""After so many steps the first checkpoint is done, also where it is written meanwhile."""
_WHOLE: Final = 12
"""Steps after which a run that went so far has evaluated and checkpointed as one that goes further."""

_REPLACED: Final = "was replaced; its"
_NAMES: Final = {"sampler": "sampler", "rank": "learner", "buffer": "buffer"}
_SETTINGS: Final[dict[str, Any]] = {
    "task": {
        "rewards": [{"rule": "function", "function": "chaos_reward:reward", "timeout": "30s"}],
        "evaluation": {"everySteps": 4, "samples": 4},
    },
    "checkpoint": {"everySteps": 3},
    "retry": {"limit": 100, "livenessTimeout": f"{LIVENESS:g}s"},
    "stop": {"maxSteps": _ENDLESS},
}


class Disturbed:
    """One run, started again as often as it ends."""

    def __init__(self, folder: Path, world: str, settings: Sequence[str], store: ObjectStore | None = None):
        """`store`: for checkpoints of worlds that keep them there."""
        self.world, self._settings = world, [word for one in settings for word in ("--set", one)]
        self.files = RunFiles(folder, **merged(_SETTINGS, dict(WORLDS[world])))
        self._environment: dict[str, str] = {}
        self._remote = ""
        if is_stored(world):
            assert store is not None, f"{world} keeps its checkpoints in one"
            self._remote = f"s3://{BUCKET}/{folder.parent.name}/{folder.name}"
            self._settings += ["--set", f"checkpoint.storage.s3={self._remote}"]
            (folder / "sitecustomize.py").write_text(ELSEWHERE)
            path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            self._environment = {**store.environment, "PYTHONPATH": path}
        (folder / "chaos_reward.py").write_text(REWARD)
        (folder / "scoring").mkdir(exist_ok=True)
        self.files.feel(delay=0.01)
        self._process: Process
        self._victims: Victims
        self._seen: dict[int, str] = {}
        self._read: tuple[object, list[StepRecord]] = (None, [])

    # -- starting and ending ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts it, or goes on from its last checkpoint."""
        resume = ["--resume"] if self.files.out.exists() else []
        self._process = self.files.start(*resume, *self._settings, **self._environment)
        self._victims = Victims(self._process.process.pid)
        self._phases = Phases(self._victims, self.files.out, self._address)

    def finish(self) -> None:
        """Asks it to stop, as a person would, and waits for its checkpoint. AssertionError: it ends otherwise."""
        self._seen |= self._victims.all()
        self._process.send(signal.SIGTERM)
        outcome = self._process.finish(DEADLINE)
        assert (outcome.code, outcome.err.count("\n")) == (143, 1), f"SIGTERM: {outcome.code} {outcome.err}"
        self._must_be_gone()

    def _end_at_once(self) -> None:
        """As the machine would that loses power; returns when nothing of it is left."""
        self._process.send(signal.SIGKILL)
        self._process.process.wait(DEADLINE)
        self._must_be_gone()

    def close(self) -> None:
        """Ends what is left of it."""
        self._seen |= self._victims.all()
        self._process.kill()
        for pid, title in self._seen.items():
            self._end(pid, title)

    def undisturbed(self, steps: int) -> list[StepRecord]:
        """Trains at least so many steps, and is left alone; one that is shorter goes on."""
        if len(self.steps) < steps:
            steps = -(-steps // _WHOLE) * _WHOLE
            self.files.feel()
            resume = ["--resume"] if self.files.out.exists() else []
            settings = [*resume, *self._settings, "--set", f"stop.maxSteps={steps}"]
            with self.files.start(*settings, **self._environment) as process:
                process.finish(DEADLINE + 2.0 * steps).assert_well()
        return self.steps

    def assert_nothing_lost_or_twice(self) -> None:
        """See `RunFiles`; the last checkpoint is fetched from where it is."""
        if self._remote:
            here = [self.files.out / name for name in ("checkpoints", "model/resumed", "initial")]
            assert not [file for folder in here for file in folder.rglob("*.safetensors")], (
                "tensors went through the driver"
            )
            fetch(CheckpointStore(self.files.out / "checkpoints"), RemoteFolder(self._remote))
        self.files.assert_nothing_lost_or_twice()

    @property
    def steps(self) -> list[StepRecord]:
        """So far."""
        try:
            stat = (self.files.out / "metrics.jsonl").stat()
        except FileNotFoundError:
            return []
        if self._read[0] != (stat.st_mtime_ns, stat.st_size):
            self._read = ((stat.st_mtime_ns, stat.st_size), self.files.steps)
        return self._read[1]

    # -- faults ----------------------------------------------------------------------------------------------------

    def suffer(self, fault: Fault) -> Result:
        """Injects it, and waits until the run trains again. What is not as it must be is in the result."""
        result = Result(fault.number, fault.world, fault.kind, fault.target, fault.phase)
        try:
            self._inject(fault, result)
        except AssertionError as error:
            result.failure = " ".join(str(error).split())[:1000]
        return result

    def _inject(self, fault: Fault, result: Result) -> None:
        resume = fault.phase == "resume"
        self._wait(lambda: len(self.steps) > (_CHECKPOINTED if resume else 0), "its first steps")
        result.step = self.steps[-1].step
        self._seen |= self._victims.all()
        if resume:
            self._end_at_once()
            self.start()
        self._phases.target, self._phases.late = fault.target, fault.which * 2 % 1 >= 0.5
        candidates = self._victims.of(fault.target)  # before: some phases are over in moments
        assert self._phases.wait(fault.phase, DEADLINE, self._runs), (
            f"{fault.phase} never came: {self._state()}"
        )
        if not candidates or not all(map(is_alive, candidates)):
            candidates = self._victims.of(fault.target)
        assert candidates, f"no {fault.target}: {self._state()}"
        victim = candidates[int(fault.which * len(candidates))]
        if resume:
            self._seen |= self._victims.all()
        death = self._death(victim)
        began = time.time()
        os.kill(victim, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        if fault.kind == "pause":
            time.sleep(fault.seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
        elif fault.target == "driver" and fault.kind == "stop":
            time.sleep(SUPERVISOR_SECONDS)
            os.kill(victim, signal.SIGKILL)
        result.how = self._recover(fault, result, began, death)
        if fault.kind == "stop" and fault.target != "driver":
            # Though steps went on without it: somebody must have put another in its place.
            self._wait(
                lambda: not is_alive(victim), f"{fault.target} {victim}, which is stopped, to be replaced"
            )
        # (A rank that is stopped dies as the last of the run's end, which waits a while for what does not answer.)
        replaced = fault.target == "sampler" and fault.kind == "stop"
        killed = fault.target in ("sampler", "rank") and fault.kind == "kill"
        if (killed or replaced) and shares(self.world):
            self._wait(death.look, f"what {fault.target} {victim} had to be taken back")
            result.freed = death.seconds
            assert death.seconds <= FREE_SECONDS, (
                f"what {fault.target} {victim} had was taken back {death.seconds:.1f} s after its death"
            )

    def _death(self, victim: int) -> Death:
        """When the run has taken back what a process had: it says so of samplers, and ends with others."""
        said, process = self._process.outcome().out.count(_REPLACED), self._process
        return Death(
            victim,
            lambda: process.process.poll() is not None or process.outcome().out.count(_REPLACED) > said,
        )

    def _recover(self, fault: Fault, result: Result, began: float, death: Death) -> str:
        """Waits for a step that began after the fault; starts the run again where it has ended."""
        how, deadline = "went on", time.monotonic() + DEADLINE
        while True:
            death.look()
            for record in reversed(self.steps[-20:]):
                if record.time - record.wall_seconds >= began:
                    result.seconds = record.time - began
            if result.seconds == result.seconds:
                return how
            if not self._runs():
                assert how == "went on", f"ended again after the resume: {self._process.outcome()}"
                death.look()
                result.sentence = self._sentence(fault)
                self._must_be_gone()
                self.start()
                how, deadline = "resumed", time.monotonic() + DEADLINE
            assert time.monotonic() < deadline, (
                f"hangs, {how}, {DEADLINE:.0f} s after {fault}: {self._state()}"
            )
            time.sleep(0.02)

    def _sentence(self, fault: Fault) -> str:
        """What the run ended with, which must name what the fault hit."""
        outcome = self._process.outcome()
        if fault.target == "driver" and fault.kind in ("kill", "stop"):
            assert outcome.code == -signal.SIGKILL, (
                f"a killed driver ended with {outcome.code}: {outcome.err}"
            )
            return "(killed)"
        assert outcome.code == 1, f"exit code {outcome.code}: {outcome.err}"
        said = outcome.sentence
        assert fault.kind != "pause", f"a pause of {fault.seconds} s ended the run: {said}"
        assert not said.startswith("unexpected error"), said
        assert _NAMES[fault.target] in said, f"does not name the {fault.target}: {said}"
        return said

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _runs(self) -> bool:
        return self._process.process.poll() is None

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert self._runs(), f"ended while waiting for {what}: {self._process.outcome()}"
            assert time.monotonic() < deadline, (
                f"hangs: {what} has not come in {DEADLINE:.0f} s: {self._state()}"
            )
            time.sleep(0.02)

    def _must_be_gone(self) -> None:
        """Nothing of a run stays behind its driver."""
        deadline = time.monotonic() + GONE_SECONDS
        while left := [f"{pid} {title[:60]}" for pid, title in self._seen.items() if is_alive(pid)]:
            if time.monotonic() > deadline:
                for pid, title in self._seen.items():
                    self._end(pid, title)
                raise AssertionError(
                    f"left behind {GONE_SECONDS:.0f} s after the run's end: {', '.join(left)}"
                )
            time.sleep(0.05)
        self._seen = {}

    def _end(self, pid: int, title: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)

    def _address(self) -> str | None:
        text = self._process.outcome().out
        found = re.search(r"status at (\S+)", text)
        return found[1] if found else None

    def _state(self) -> str:
        """Who does what, and the run's last words."""
        titles = [title for title in self._victims.all().values() if title.startswith("ray::")]
        outcome = self._process.outcome()
        words = (outcome.out + outcome.err)[-300:]
        return f"step {len(self.steps)}, {', '.join(sorted(titles))}, it says: {words}"
