"""What alerts of a fleet must do: runs that wait or starve, accelerators that nobody uses."""

from __future__ import annotations

from typing import Final

from alert_cases import ONE, RUN, Case, trains, waits

FILL: Final = f"rltrain_run_buffer_fill_ratio{{{RUN}}}"
WAITED: Final = f"rltrain_run_waited_seconds{{{RUN}}}"
EVICTIONS: Final = f"rltrain_run_evictions{{{RUN}}}"
DRAINS: Final = f"rltrain_run_drains{{{RUN}}}"
SAMPLERS: Final = f"rltrain_run_sampler_busy_ratio{{{RUN}}}"
LEARNERS: Final = f"rltrain_run_learner_busy_ratio{{{RUN}}}"
UNSAVED: Final = f"rltrain_run_unsaved_accelerator_seconds{{{RUN}}}"
STEP: Final = f"rltrain_run_step{{{RUN}}}"
GPU: Final = "nvidia.com/gpu"
COHORT: Final = {"cohort": "ml", "resource": GPU}


def holds(minutes: int = 600) -> dict[str, str]:
    """A run with accelerators of two pools."""
    return {f'rltrain_run_accelerators{{{RUN}, pool="{pool}"}}': f"4x{minutes}" for pool in ("h100", "l4")}


def became(**by_outcome: str) -> dict[str, str]:
    """Accelerator seconds of a team, by what became of them, on two pools."""
    metric = "rltrain_team_accelerator_seconds_total"
    return {
        f'{metric}{{namespace="a", pool="{pool}", outcome="{outcome}", pod="operator"}}': values
        for outcome, values in by_outcome.items()
        for pool in ("h100", "l4")
    }


def quota(reserved: str, queue: str = "team-a", cohort: str = "ml", resource: str = GPU) -> dict[str, str]:
    """A queue of eight accelerators, and how many of them are reserved, as two replicas of Kueue say it."""
    found = {}
    for role in ("leader", "follower"):
        labels = f'cluster_queue="{queue}", cohort="{cohort}", flavor="h100", resource="{resource}", replica_role="{role}"'
        found[f"kueue_cluster_queue_nominal_quota{{{labels}}}"] = "8x300"
        found[f"kueue_cluster_queue_resource_reservation{{{labels}}}"] = reserved
    return found


def pending(values: str, queue: str = "team-b", resource: str = GPU) -> dict[str, str]:
    """How much of a resource workloads wait for in a queue."""
    labels = f'cluster_queue="{queue}", resource="{resource}", replica_role="leader"'
    return {f"kueue_cluster_queue_resource_pending{{{labels}}}": values}


FLEET: Final = [
    Case(
        "RLTrainRunStarved",
        "it waits, was evicted, and waits again",
        {WAITED: "90000+60x400 114000x60 114000+60x1200"} | waits("Queued", "Admitted"),
        {450: [], 1400: [], 1500: [ONE]},
    ),
    Case(
        "RLTrainRunStarved",
        "no node takes its pods",
        {WAITED: "172000+60x200"} | waits("Unschedulable"),
        {15: [], 30: [ONE]},
    ),
    Case(
        "RLTrainRunStarved",
        "it has waited long, and its pods start",
        {WAITED: "200000x60"} | waits("Starting") | holds(),
        {50: []},
    ),
    Case(
        "RLTrainRunStarved",
        "it has waited long, and is suspended",
        {WAITED: "200000x60"} | waits("Suspended"),
        {50: []},
    ),
    Case("RLTrainRunStarved", "it has waited long, and trains", {WAITED: "200000x60"}, {50: []}),
    Case(
        "RLTrainRunEvictedOften",
        "three times in five hours, and never again",
        {EVICTIONS: "0x100 1x100 2x100 3x600", DRAINS: "0x900"},
        {250: [], 305: [ONE], 450: [ONE], 700: []},
    ),
    Case(
        "RLTrainRunEvictedOften",
        "its nodes are drained one after another",
        {EVICTIONS: "1x100 2x100 3x100 4x300", DRAINS: "0x100 1x100 2x100 3x300"},
        {305: [], 400: []},
    ),
    Case(
        "RLTrainRunEvictedOften",
        "once in three hours",
        {EVICTIONS: "4x180 5x180 6x180", DRAINS: "4x540"},
        {170: [], 350: [], 530: []},
    ),
    Case(
        "RLTrainRunLearnersStarve",
        "its samplers get slower",
        {LEARNERS: "0.7x60 0.1x150"} | trains(),
        {60: [], 120: [], 140: [ONE]},
    ),
    Case("RLTrainRunLearnersStarve", "one slow step", {LEARNERS: "0.7x60 0.1x20 0.7x60"} | trains(), {75: [], 130: []}),
    Case("RLTrainRunLearnersStarve", "it evaluates", {LEARNERS: "0.1x120"} | trains("Evaluating"), {110: []}),
    Case(
        "RLTrainRunSamplersStarve",
        "they wait for the learner",
        {SAMPLERS: "0.9x60 0.1x150"} | trains(),
        {60: [], 120: [], 140: [ONE]},
    ),
    Case("RLTrainRunSamplersStarve", "they work", {SAMPLERS: "0.3x150"} | trains(), {140: []}),
    Case(
        "RLTrainRunBufferFull",
        "after an hour in which it is never emptied",
        {FILL: "0.5x60 1x120"} | trains(),
        {60: [], 130: [], 140: [ONE]},
    ),
    Case("RLTrainRunBufferFull", "full and half full in turn", {FILL: "1 0.5 " * 90} | trains(), {170: []}),
    Case("RLTrainRunBufferFull", "a run that evaluates", {FILL: "1x180"} | trains("Evaluating"), {170: []}),
    Case(
        "RLTrainRunBufferEmpty",
        "samplers do not come after",
        {FILL: "0.5x60 0x120", LEARNERS: "0.6x60 0.1x120"} | trains(),
        {60: [], 130: [], 140: [ONE]},
    ),
    Case(
        "RLTrainRunBufferEmpty",
        "a step takes all that was made for it, and learners work",
        {FILL: "0x180", LEARNERS: "0.4x180"} | trains(),
        {170: []},
    ),
    Case(
        "RLTrainRunBufferEmpty",
        "a little is always there",
        {FILL: "0.2x180", LEARNERS: "0.1x180"} | trains(),
        {170: []},
    ),
    Case(
        "RLTrainRunBufferEmpty",
        "a run that starts",
        {FILL: "0x180", LEARNERS: "0.1x180"} | trains("Starting"),
        {170: []},
    ),
    Case(
        "RLTrainRunUnsaved",
        "64 accelerators for an hour, then a checkpoint",
        {UNSAVED: "0+3840x70 0x60"},
        {45: [], 56: [], 60: [ONE], 75: []},
    ),
    Case("RLTrainRunUnsaved", "one for a day", {UNSAVED: "0+60x1440"}, {1430: []}),
    Case(
        "RLTrainRunAcceleratorsIdle",
        "steps stop",
        {STEP: "0+1x60 60x120", SAMPLERS: "0.9x180", LEARNERS: "0.9x180"} | holds() | trains(),
        {60: [], 118: [], 122: [ONE]},
    ),
    Case(
        "RLTrainRunAcceleratorsIdle",
        "an environment that takes all the time",
        {STEP: "0+1x180", SAMPLERS: "0.9x60 0.02x120", LEARNERS: "0.5x60 0.01x120"} | holds() | trains(),
        {60: [], 88: [], 92: [ONE]},
    ),
    Case(
        "RLTrainRunAcceleratorsIdle",
        "learners alone work",
        {STEP: "0+1x180", SAMPLERS: "0x180", LEARNERS: "0.3x180"} | holds() | trains(),
        {170: []},
    ),
    Case(
        "RLTrainRunAcceleratorsIdle",
        "its pods do not come to train",
        holds() | trains("Starting") | waits("Starting"),
        {29: [], 31: [ONE]},
    ),
    Case(
        "RLTrainRunAcceleratorsIdle",
        "a program that says nothing of its steps",
        {STEP: "0x180"} | holds() | trains(),
        {170: []},
    ),
    Case(
        "RLTrainRunAcceleratorsIdle",
        "a driver that tells its steps, and not who works",
        {STEP: "0+1x60 60x120"} | holds() | trains(),
        {60: [], 85: [], 118: [], 122: [ONE]},
    ),
    Case("RLTrainRunAcceleratorsIdle", "it waits in its queue", waits("Queued", "Admitted"), {170: []}),
    Case(
        "RLTrainTeamLosesTime",
        "a third of what it has is lost to evictions",
        became(trained="0+6000x100", started="0+600x100", evicted="0+4000x100", failed="0+300x100"),
        {10: [], 20: [{"namespace": "a", "outcome": "evicted"}], 90: [{"namespace": "a", "outcome": "evicted"}]},
    ),
    Case(
        "RLTrainTeamLosesTime",
        "little is lost",
        became(trained="0+6000x100", started="0+3000x100", evicted="0+600x100", failed="0+600x100"),
        {90: []},
    ),
    Case(
        "RLTrainTeamLosesTime",
        "a small run that fails at once is all that it has",
        became(trained="0x100", started="0+30x100", evicted="0x100", failed="0+60x100"),
        {90: []},
    ),
    Case(
        "RLTrainQuotaUnused",
        "a team that wants it cannot have it",
        quota("8x30 2x120") | quota("8x150", "team-b") | pending("16x150"),
        {30: [], 90: [], 92: [COHORT]},
    ),
    Case(
        "RLTrainQuotaUnused",
        "little is left over",
        quota("6x150") | quota("8x150", "team-b") | pending("16x150"),
        {140: []},
    ),
    Case("RLTrainQuotaUnused", "nobody waits", quota("0x150") | quota("8x150", "team-b") | pending("0x150"), {140: []}),
    Case(
        "RLTrainQuotaUnused",
        "those who wait want something else",
        quota("0x150") | quota("8x150", "team-b") | pending("9x150", resource="cpu")
        | quota("8x150", "team-b", resource="cpu"),
        {140: []},
    ),
    Case(
        "RLTrainQuotaUnused",
        "queues without a cohort, of which one is empty and another is full",
        quota("0x150", cohort="") | quota("8x150", "team-b", cohort="") | pending("16x150"),
        {140: []},
    ),
    Case(
        "RLTrainQuotaUnused",
        "a queue without a cohort, whose own workloads do not fit",
        quota("2x150", cohort="") | quota("8x150", "team-b", cohort="") | pending("16x150", "team-a"),
        {140: [{"cluster_queue": "team-a", "resource": GPU}]},
    ),
    Case(
        "RLTrainQuotaUnused",
        "another cohort has it",
        quota("0x150", cohort="vision") | quota("8x150", "team-b") | pending("16x150"),
        {140: []},
    ),
]  # fmt: skip
