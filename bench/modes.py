"""Predicted against measured seconds per step, of twelve small workloads in each placement mode, on two cores.

    python bench/modes.py
    python bench/modes.py --only "equal 16" --only wide --rounds 1     # a short look
    python bench/modes.py --seconds 170                                # a piece; the same command goes on
    python bench/modes.py --exclusive --only "long tail"               # and whether two work on a core at once

A device is a core: learners and samplers are pinned, a shared sampler to the core of its learner. All modes have two:

    disaggregated   one learner, one sampler
    collocated      two learners, each with a sampler on its core
    hybrid          one learner with a sampler on its core, one sampler on the other
    auto            what the planner chooses for these two, from the profile of the disaggregated run

Real runs of the trainer, short ones in turn: each round runs all four, and medians of rounds are compared. A round begins
with the disaggregated run, from whose profile the others are predicted before they run, in another order each time; what
auto is is chosen in the first. A repetition is the mean of its steps after the first `WARM_UP`, so that starting does not
count. All are in one process and one Ray.

Results are kept in FOLDER/modes-runs.json after every run; whole rounds are not run again (--fresh: they are), so that
the whole can be had in pieces of `--seconds`. The report is of workloads that are complete.

Each cell is predicted / measured milliseconds; in brackets how far the prediction is off, and how far one from the
profile of a run in the same placement is.

Targets: each prediction within 10 % of what was measured (what is said of the disaggregated run from its own profile is no
prediction, and is counted by itself; auto counts where it is a run of its own), auto within 3 % of the best of all four,
processor time of two holders of a core at the same time at most 1 % (`--exclusive`, workloads by themselves, as watching
costs time). A core does one thing at a time, so that is told twice: by what both have worked in the same millisecond, and
by what one works while the timeline has the other one at work there.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modes_cores import Cores, pinned
from modes_watch import LOOK_SECONDS
from modes_workloads import MODES, WORKLOADS, Workload, document, write_inputs
from table import Check, add_out, at_least, at_most, report

from rl_api import RLTrainingRun, load_run
from rl_api.planner.forecast import forecast, placed, same
from rl_api.planner.plan import predict
from rl_api.planner.profile import PROFILE_FILE, RunProfile, load_profile
from rl_api.planner.room import placement_of
from rl_api.validation import parse
from rl_trainer.observe.timeline import TIMELINE_FILE, read_timeline
from rl_trainer.run.ray_session import ray_session
from rl_trainer.run.supported import check_supported

WARM_UP = 4
WITHIN, NEAR, EXCLUSIVE, FASTER, FASTER_ON = 0.10, 0.03, 0.01, 0.15, 4
ARMS = (*MODES, "auto")
PROFILED = "disaggregated"
WATCHED = ("collocated", "hybrid")
PARTS = ("generate", "score", "train", "log_probs", "values", "publish", "wait", "lease", "switch")


def load(workload: Workload, mode: str, folder: Path, steps: int) -> RLTrainingRun:
    """The run as a user's file has it."""
    file = folder / "run.json"
    file.write_text(json.dumps(document(workload, mode, folder, steps)))
    return load_run(str(file))


def repetition(run: RLTrainingRun, folder: Path, cores: Cores) -> dict[str, Any]:
    """One run: seconds of a step after the warm-up, and what they went to."""
    from rl_trainer.driver import train
    from rl_trainer.observe.console import Console
    from rl_trainer.run.run_folder import RunFolder
    from rl_trainer.run.stopping import StopRequest

    out, most = folder / "run", run.spec.stop.max_steps
    with (
        StopRequest() as stop,
        RunFolder(out, resume=False, overwrite=True, search=folder) as place,
        Console(run.name, max_steps=most, stream=io.StringIO()) as console,
        cores.watched(),
    ):
        # As `rltrain profile` does: learners leave and come back once, when all steps are measured.
        train(run, place, console, stop, try_switches=not run.spec.shared_samplers)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "event" not in line]
    counted = steps[WARM_UP:]
    seconds = [line["wall_seconds"] for line in counted]
    return {
        "seconds": statistics.mean(seconds),
        "median": statistics.median(seconds),
        "steps": len(counted),
        "parts": {
            part: round(statistics.mean(line[f"time_{part}"] or 0.0 for line in counted), 5) for part in PARTS
        },
        "watched": cores.held(read_timeline(out / TIMELINE_FILE)),
        "profile": json.loads((out / PROFILE_FILE).read_text()),
    }


def plan(
    workload: Workload, profile: RunProfile, folder: Path, before: dict[str, Any] | None
) -> dict[str, Any]:
    """What the planner says of each mode by the profile alone, and what it chooses; `before`: what it chose earlier."""
    predicted = {}
    for mode in MODES:
        spec = load(workload, mode, folder, workload.steps).spec
        predicted[mode] = predict(profile, placement_of(spec)).step_seconds
    if before is not None:
        kept = parse(RLTrainingRun, before["run"], "run").spec
        return {"predicted": predicted | {"auto": predict(profile, placement_of(kept)).step_seconds}}
    run = load(workload, "auto", folder, workload.steps)
    found = forecast(profile, run, check_supported)
    assert found is not None, "the profile is of this run"
    predicted["auto"] = found.best.predicted_step_seconds
    best = found.best.placement
    alike = [mode for mode in MODES if same(found.best, load(workload, mode, folder, workload.steps).spec)]
    # The planner's choice, however little it gains: placement.replan.threshold is for those who change their mind.
    chosen = placed(run, found.best).to_document()
    return {
        "predicted": predicted,
        "chosen": best.words(workload.prompts),
        "same": alike[0] if alike else None,
        "run": chosen,
    }


def runs_of(known: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    """Of one that is chosen and another one as well, those of the other: it is not run twice."""
    alike = known["plan"]["same"] if arm == "auto" and "plan" in known else None
    found: list[dict[str, Any]] = known["runs"][alike or arm]
    return found


def own_runs(known: dict[str, Any]) -> list[str]:
    """Columns with runs of their own: all but auto where what it chose is another one as well."""
    return [arm for arm in ARMS if arm != "auto" or not known["plan"]["same"]]


class Runs:
    """What has been run so far, kept in a file."""

    def __init__(self, file: Path, fresh: bool, until: float) -> None:
        self.file, self.until = file, until
        self.found: dict[str, Any] = json.loads(file.read_text()) if file.exists() and not fresh else {}

    def complete(self, workload: Workload, rounds: int, exclusive: bool) -> bool:
        """Whether nothing of it is left to be run."""
        known = self.found.get(workload.name, {})
        there = known and all(len(runs_of(known, arm)) >= rounds for arm in ARMS)
        return bool(there) and (not exclusive or len(known.get("exclusive", ())) == len(WATCHED))

    def go_on(self, workload: Workload, rounds: int, exclusive: bool, scratch: Path, cores: Cores) -> bool:
        """Runs what is left of a workload; False: time is up."""
        known = self.found.setdefault(workload.name, {"runs": {arm: [] for arm in ARMS}})
        write_inputs(workload, scratch)
        # A round of which a part was run earlier is none: what is compared must be of one time.
        whole = min(len(runs_of(known, arm)) for arm in ARMS)
        for kept in (*known["runs"].values(), known.get("predictions", [])):
            del kept[whole:]
        for number in range(rounds):
            turn = (number + [one.name for one in WORKLOADS].index(workload.name)) % len(ARMS)
            order = [
                "disaggregated",
                *(arm for arm in [*ARMS[turn:], *ARMS[:turn]] if arm != "disaggregated"),
            ]
            for arm in order:
                if len(runs_of(known, arm)) > number or (arm == "auto" and known["plan"]["same"]):
                    continue
                if time.monotonic() > self.until:
                    return False
                if arm == "auto":
                    run = parse(RLTrainingRun, known["plan"]["run"], "run")
                    run = run.model_copy(update={"metadata": load(workload, "auto", scratch, 1).metadata})
                    run = _at(run, scratch, workload)
                else:
                    run = load(workload, arm, scratch, workload.steps)
                cores.watch = False
                self._ran(workload, known, arm, repetition(run, scratch, cores), scratch)
        for mode in WATCHED if exclusive else ():
            if mode in known.setdefault("exclusive", {}):
                continue
            if time.monotonic() > self.until:
                return False
            cores.watch = True
            watched = repetition(load(workload, mode, scratch, workload.steps), scratch, cores)
            known["exclusive"][mode] = watched["watched"] | {"seconds": watched["seconds"]}
            self._keep()
        return True

    def _ran(
        self, workload: Workload, known: dict[str, Any], arm: str, result: dict[str, Any], scratch: Path
    ) -> None:
        profile = result.pop("profile")
        known["runs"][arm].append(result)
        known.setdefault("profiles", {})[arm] = {
            name: value for name, value in profile.items() if name not in ("lengths", "memory")
        }
        if arm == "disaggregated":
            said = plan(workload, load_profile(scratch / "run"), scratch, known.get("plan"))
            known.setdefault("predictions", []).append(said.pop("predicted"))
            known.setdefault("plan", said)
            known.setdefault("profile", profile)
        predicted = known["predictions"][-1][arm]
        print(
            f"{workload.name}, {arm}: {result['seconds']:.4f} s per step, predicted {predicted:.4f} "
            f"({predicted / result['seconds'] - 1:+.0%})",
            file=sys.stderr,
            flush=True,
        )
        self._keep()

    def _keep(self) -> None:
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(self.found, indent=1) + "\n")
        beside.replace(self.file)


def _at(run: RLTrainingRun, scratch: Path, workload: Workload) -> RLTrainingRun:
    """The planned run with the inputs of this process, whose folder is another one than when it was planned."""
    here = load(workload, "auto", scratch, workload.steps).spec
    changed = run.spec.model_copy(
        update={"model": here.model, "given_task": here.given_task, "stop": here.stop}
    )
    return run.model_copy(update={"spec": changed})


def by_itself(known: dict[str, Any], workload: Workload, arm: str) -> float:
    """Predicted seconds of a step from the profile of a run in the same mode: what the model of costs misses, where the
    first profile could not know it."""
    source = known["plan"]["same"] or arm if arm == "auto" else arm
    profile = parse(RunProfile, known["profile"] | known["profiles"][source], "profile")
    with tempfile.TemporaryDirectory() as folder:
        spec = (
            parse(RLTrainingRun, known["plan"]["run"], "run").spec
            if arm == "auto"
            else load(workload, arm, Path(folder), workload.steps).spec
        )
    return predict(profile, placement_of(spec)).step_seconds


def table_of(
    found: dict[str, Any], complete: Sequence[Workload], exclusive: bool
) -> tuple[list[list[Any]], list[Check]]:
    """Rows and checks."""
    rows: list[list[Any]] = []
    checks: list[Check] = []
    measured = {
        one.name: {
            arm: statistics.median(run["seconds"] for run in runs_of(found[one.name], arm)) for arm in ARMS
        }
        for one in complete
    }
    # The mode that a user would have kept for all of them: the least geometric mean.
    kept = min(MODES, key=lambda mode: statistics.geometric_mean(m[mode] for m in measured.values()))
    # Of the run that was profiled, of others, and of all from their own profiles.
    known_already: list[bool] = []
    within: list[bool] = []
    itself: list[bool] = []
    faster = 0
    for one in complete:
        known, seconds = found[one.name], measured[one.name]
        predicted = {arm: statistics.median(said[arm] for said in known["predictions"]) for arm in ARMS}
        errors = {arm: predicted[arm] / seconds[arm] - 1 for arm in ARMS}
        own = {arm: by_itself(known, one, arm) / seconds[arm] - 1 for arm in ARMS}
        for arm in own_runs(known):
            (known_already if arm == PROFILED else within).append(abs(errors[arm]) <= WITHIN)
            itself.append(abs(own[arm]) <= WITHIN)
        best = min(ARMS, key=lambda arm: seconds[arm])
        gain = seconds[kept] / seconds["auto"]
        faster += gain >= 1 + FASTER
        rows.append(
            [
                one.name,
                *(
                    f"{1000 * predicted[arm]:.0f} / {1000 * seconds[arm]:.0f} ({errors[arm]:+.0%}, {own[arm]:+.0%})"
                    for arm in ARMS
                ),
                known["plan"]["chosen"].split(" until")[0],
                best,
                seconds["auto"] / seconds[best],
                gain,
            ]
        )
    near = [row[-2] <= 1 + NEAR for row in rows]
    checks.append(_all(f"predictions of other placements within {WITHIN:.0%}", within))
    checks.append(_all(f"steps of the profiled run, from its profile, within {WITHIN:.0%}", known_already))
    checks.append(_all(f"predictions from a run's own profile within {WITHIN:.0%}", itself))
    checks.append(_all(f"auto within {NEAR:.0%} of the best", near))
    checks.append(at_least(f"workloads on which auto beats {kept} by {FASTER:.0%}", faster, FASTER_ON, ""))
    if exclusive:
        for mode in WATCHED:
            shares = [found[one.name]["exclusive"][mode] for one in complete]
            share = sum(s["overlap"] for s in shares) / max(1e-9, sum(s["total"] for s in shares))
            beside = sum(s["beside"] for s in shares) / max(1e-9, sum(s["total"] for s in shares))
            for what, found_share in (
                ("of two holders in the same millisecond", share),
                ("of an actor while the other one holds the core", beside),
            ):
                checks.append(
                    at_most(f"{mode}: processor time {what}", 100 * found_share, 100 * EXCLUSIVE, " %")
                )
    return rows, checks


def _all(name: str, passed: Sequence[bool]) -> Check:
    return Check(name, all(passed), f"{sum(passed)} of {len(passed)}", f"{len(passed)} of {len(passed)}")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The rows for a page."""
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> bool:
    """Runs what is left, and reports what is complete."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [one.name for one in WORKLOADS]
    parser.add_argument(
        "--rounds", type=int, default=3, help="repetitions of each, all four in turn (default 3)"
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--steps", type=int, help="of a repetition, in place of each workload's own")
    parser.add_argument(
        "--exclusive", action="store_true", help="watch processor times of holders of a core too"
    )
    parser.add_argument("--fresh", action="store_true", help="run again what is there")
    add_out(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    workloads = [one for one in WORKLOADS if not options.only or one.name in options.only]
    if options.steps is not None:
        if options.steps <= WARM_UP:
            parser.error(
                f"--steps: found {options.steps}, allowed: more than the {WARM_UP} that are not counted"
            )
        workloads = [replace(one, steps=options.steps) for one in workloads]
    runs = Runs(options.out / "modes-runs.json", options.fresh, time.monotonic() + options.seconds)
    left = [one for one in workloads if not runs.complete(one, options.rounds, options.exclusive)]
    if left:
        cores = Cores()
        with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as scratch, ray_session(8), pinned(cores):
            for one in left:
                if not runs.go_on(one, options.rounds, options.exclusive, Path(scratch), cores):
                    print("time is up: the same command goes on", file=sys.stderr)
                    break
    complete = [one for one in workloads if runs.complete(one, options.rounds, options.exclusive)]
    if not complete:
        return False
    rows, checks = table_of(runs.found, complete, options.exclusive)
    columns = ["workload", *(f"{arm}, ms" for arm in ARMS), "chosen", "best", "auto / best", "kept / auto"]
    meta = {"rounds": options.rounds, "look_seconds": LOOK_SECONDS, "what": __doc__}
    passed = report("modes", columns, rows, meta, checks, options.out)
    (options.out / "modes.md").write_text(markdown(columns, rows) + "\n")
    return passed and len(complete) == len(workloads)


if __name__ == "__main__":
    sys.exit(not main())
