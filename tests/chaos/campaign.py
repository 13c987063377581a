"""Runs that are disturbed: a real `rltrain run` each, its faults one after the other, and what must hold after each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fault_plan import WORLDS, Fault, chapters
from fault_report import Campaign, Result, beyond_noise
from training_runs import PROMPTS, Process, RunFiles, merged
from victims import REWARD, Phases, Victims, is_alive

from rl_trainer.observe.metrics import StepRecord

LIVENESS: Final = 5.0
"""Seconds without a sign of life, in these runs."""

DEADLINE: Final = 90.0
"""For anything that is waited for: a phase, the end of a run, its next step after a resume. Past it something hangs."""

GONE_SECONDS: Final = 30.0
"""For a run's processes to be gone when its driver is."""

SUPERVISOR_SECONDS: Final = 2.0
"""After so long somebody kills a stopped driver: nothing on its own machine could."""

_ENDLESS: Final = 100_000
_WHOLE: Final = 12
"""Steps after which a run that went so far has evaluated and checkpointed as one that goes further."""

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

    def __init__(self, folder: Path, world: str, settings: Sequence[str]):
        self.world, self._settings = world, [word for one in settings for word in ("--set", one)]
        self.files = RunFiles(folder, **merged(_SETTINGS, dict(WORLDS[world])))
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
        self._process = self.files.start(*resume, *self._settings)
        self._victims = Victims(self._process.process.pid)
        self._phases = Phases(self._victims, self.files.out, self._address)

    def finish(self) -> None:
        """Asks it to stop, as a person would, and waits for its checkpoint. AssertionError: it ends otherwise."""
        self._seen |= self._victims.all()
        self._process.send(signal.SIGTERM)
        outcome = self._process.finish(DEADLINE)
        assert (outcome.code, outcome.err.count("\n")) == (143, 1), f"SIGTERM: {outcome.code} {outcome.err}"
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
            with self.files.start(*settings) as process:
                process.finish(60 + 2.0 * steps).assert_well()
        return self.steps

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
        self._wait(lambda: len(self.steps) > 0, "its first step")
        self._seen |= self._victims.all()
        assert self._phases.wait(fault.phase, DEADLINE, self._runs), (
            f"{fault.phase} never came: {self._state()}"
        )
        candidates = self._victims.of(fault.target)
        assert candidates, f"no {fault.target}: {self._state()}"
        victim = candidates[int(fault.which * len(candidates))]
        result.step, began = self.steps[-1].step, time.time()
        os.kill(victim, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        if fault.kind == "pause":
            time.sleep(fault.seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
        elif fault.target == "driver" and fault.kind == "stop":
            time.sleep(SUPERVISOR_SECONDS)
            os.kill(victim, signal.SIGKILL)
        result.how = self._recover(fault, result, began)
        if fault.kind == "stop" and fault.target != "driver":
            # Though steps went on without it: somebody must have put another in its place.
            self._wait(
                lambda: not is_alive(victim), f"{fault.target} {victim}, which is stopped, to be replaced"
            )

    def _recover(self, fault: Fault, result: Result, began: float) -> str:
        """Waits for a step that began after the fault; starts the run again where it has ended."""
        how, deadline = "went on", time.monotonic() + DEADLINE
        while True:
            for record in reversed(self.steps[-20:]):
                if record.time - record.wall_seconds >= began:
                    result.seconds = record.time - began
            if result.seconds == result.seconds:
                return how
            if not self._runs():
                assert how == "went on", f"ended again after the resume: {self._process.outcome()}"
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


@dataclass
class Disturbance:
    """Faults of one campaign, of several runs at once.

    Attributes:
        settings: as of `rltrain run --set`.
        quiet: where the undisturbed runs lie, one of each world, also of earlier calls.
        seconds: no fault begins later.
        tell: told of each fault and each run.
        keep: called when `campaign` has changed.
    """

    campaign: Campaign
    settings: Sequence[str]
    quiet: Path
    seconds: float = float("inf")
    tell: Callable[[str], None] = print
    keep: Callable[[], None] = lambda: None
    _changes: threading.Lock = field(default_factory=threading.Lock)
    _worlds: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    _runs: set[Disturbed] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def inject(self, faults: Sequence[Fault], folder: Path, *, chapter: int = 10, at_once: int = 1) -> None:
        """Injects `faults` into runs in `folder`, so many at once, each with up to `chapter` of them."""
        end = time.monotonic() + self.seconds
        with ThreadPoolExecutor(at_once) as pool:
            try:
                for done in [
                    pool.submit(self._chapter, part, folder, end) for part in chapters(faults, chapter)
                ]:
                    done.result()
            except BaseException:
                self._over.set()
                for run in list(self._runs):
                    run.close()
                raise

    def _chapter(self, part: Sequence[Fault], folder: Path, end: float) -> None:
        """One run; it is then asked to stop, and looked at as a whole."""
        if self._over.is_set() or time.monotonic() > end:
            return
        name = f"{part[0].number:04d}-{part[0].world}"
        run = Disturbed(folder / name, part[0].world, self.settings)
        self._runs.add(run)
        try:
            run.start()
            for fault in part:
                if time.monotonic() > end:
                    break
                result = run.suffer(fault)
                if self._over.is_set():
                    return
                with self._changes:
                    self.campaign.results.append(result)
                    self.keep()
                    self.tell(f"{fault.number:4} {fault.world:12} {fault!s:40} {_told(result)}")
                if result.failure and "hangs" in result.failure:
                    return  # who knows in which state it is: it may not end when it is asked to
            run.finish()
            _judge(run)
            with self._worlds[run.world]:
                quiet = Disturbed(self.quiet / f"undisturbed-{run.world}", run.world, self.settings)
                expected = quiet.undisturbed(len(run.steps))
            self._conclude(*_compared(run, name, expected))
        except AssertionError as error:
            if not self._over.is_set():
                self._conclude("", f"run {name}: {' '.join(str(error).split())[:1000]}")
        finally:
            run.close()
            self._runs.discard(run)

    def _conclude(self, line: str, failure: str) -> None:
        with self._changes:
            self.campaign.runs += [line] if line else []
            self.campaign.failures += [failure] if failure else []
            self.keep()
            self.tell(line or failure)


def _told(result: Result) -> str:
    if result.failure:
        return f"FAILED: {result.failure}"
    return f"{result.how} after {result.seconds:.1f} s {result.sentence}"


def _judge(run: Disturbed) -> None:
    """No prompt lost or twice, and none too old. AssertionError: not so."""
    run.files.assert_nothing_lost_or_twice()
    bound = WORLDS[run.world]["buffer"]["maxStaleness"]
    oldest = max(record.staleness_max for record in run.steps)
    assert oldest <= bound, f"trained on groups of {oldest} versions ago, allowed: {bound}"


def _compared(run: Disturbed, name: str, expected: Sequence[StepRecord]) -> tuple[str, str]:
    """What is said of a run and its learning curve, beside that of one that nobody disturbed; and what is wrong with it."""
    steps = run.steps
    strict = WORLDS[run.world]["buffer"]["maxStaleness"] == 0
    if strict:
        same = [curve(one) == curve(other) for one, other in zip(steps, expected, strict=False)]
        wrong = "" if all(same) else f"differs from the undisturbed run from step {same.index(False) + 1} on"
    else:
        wrong = beyond_noise([one.reward_mean for one in steps], [one.reward_mean for one in expected])
    line = (
        f"run {name}: {len(steps)} steps, {len(steps) * PROMPTS} prompts, each once; reward {steps[-1].reward_mean:.3f}, "
        f"undisturbed {expected[len(steps) - 1].reward_mean:.3f}"
        + (f"; {wrong}" if wrong else ", bit by bit the same curve" if strict else ", within noise")
    )
    return line, f"run {name}: {wrong}" if wrong else ""


def curve(record: StepRecord) -> tuple[object, ...]:
    """What is learned in a step, without times."""
    return record.reward_mean, record.loss, record.grad_norm, record.heldout_score, record.prompts
