"""Runs that are disturbed, their faults one after the other, several runs at once; each is then looked at as a whole."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from disturbed import BUCKET, Disturbed
from fault_plan import WORLDS, Fault, chapters, is_stored
from fault_report import Campaign, Result, beyond_noise
from object_store import ObjectStore
from training_runs import PROMPTS

from rl_trainer.observe.metrics import StepRecord


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
    _store: ObjectStore | None = None

    def inject(self, faults: Sequence[Fault], folder: Path, *, chapter: int = 10, at_once: int = 1) -> None:
        """Injects `faults` into runs in `folder`, so many at once, each with up to `chapter` of them."""
        end = time.monotonic() + self.seconds
        with self._stored(faults), ThreadPoolExecutor(at_once) as pool:
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

    @contextlib.contextmanager
    def _stored(self, faults: Sequence[Fault]) -> Iterator[None]:
        """Within it there is an object store where runs of `faults` need one; its content stays with the quiet runs."""
        if not any(is_stored(one.world) for one in faults):
            yield
            return
        place = self.quiet / "object-store"
        self._store = ObjectStore(place)
        self._store.start()
        try:
            if not (place / BUCKET).exists():
                self._store.bucket(BUCKET)
            os.environ.update(self._store.environment)
            yield
        finally:
            self._store.stop()

    def _chapter(self, part: Sequence[Fault], folder: Path, end: float) -> None:
        """One run; it is then asked to stop, and looked at as a whole."""
        if self._over.is_set() or time.monotonic() > end:
            return
        name = f"{part[0].number:04d}-{part[0].world}"
        run = Disturbed(folder / name, part[0].world, self.settings, self._store)
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
                home = self.quiet / f"undisturbed-{run.world}"
                quiet = Disturbed(home, run.world, self.settings, self._store)
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
    run.assert_nothing_lost_or_twice()
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
