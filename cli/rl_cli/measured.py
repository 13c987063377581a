"""What the run of a folder measured, for `rltrain plan --measured`."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl_api import load_run
from rl_api.errors import InvalidConfig
from rl_api.planner.of_run import under_limit
from rl_api.planner.profile import load_profile
from rl_api.run import RunSpec
from rl_api.sizes.run_plan import Place, RunPlan, learner_layout, refuse_others
from rl_api.sizes.step_seconds import (
    StepMeasured,
    StepSeconds,
    planned_work,
    refuse_servers,
    scaled,
    step_work,
)
from rl_cli.model_shape import shape_of

if TYPE_CHECKING:
    from rl_trainer.observe.metrics import StepRecord

WARM_UP = 2
"""First steps that are not counted where there are more than twice as many: caches are cold, and samplers begin."""

MOST_TIMES = 10
"""So many times larger or smaller a model may be before its times say little: small ones leave devices idle."""


@dataclass(frozen=True)
class Profile:
    """What a planned run's step would take, what that was taken from, as words, and sentences on why it may be far off."""

    seconds: StepSeconds
    source: str
    warnings: tuple[str, ...] = ()


def profile(folder: Path, spec: RunSpec, plan: RunPlan) -> Profile:
    """Seconds of a step of `spec`, whose plan is `plan`, by what the run of `folder` measured.

    Answers are taken to be as long as those measured, under its own sampler.maxNewTokens (`_length`).

    Raises:
        InvalidConfig: the folder is none of a run of rltrain's own trainer that finished a step, or a server decodes for
            one of the two.
        ModelError: the configuration of its model cannot be read any more.
    """
    # Belong to the trainer, which writes these files; without torch.
    from rl_trainer.observe.metrics import METRICS_FILE, read_metrics
    from rl_trainer.observe.timeline import TIMELINE_FILE, read_timeline
    from rl_trainer.run.attempts_file import learner_gpus
    from rl_trainer.run.run_folder import RUN_FILE

    if not (folder / RUN_FILE).is_file():
        raise InvalidConfig(f"--measured: found {folder} without {RUN_FILE}, allowed: the folder of a run")
    ran = load_run(folder / RUN_FILE).spec
    refuse_others(ran)
    refuse_servers(ran, str(folder))
    refuse_servers(spec, "the run that is planned")
    records = read_metrics(folder / METRICS_FILE)
    records = records[WARM_UP:] if len(records) > 2 * WARM_UP else records
    steps = [
        StepMeasured(
            record.time_generate,
            record.time_score,
            _learning(record),
            record.time_publish,
            answers=record.samples_per_second * record.wall_seconds,
            tokens=record.completion_tokens,
        )
        for record in records
    ]
    steps = [step for step in steps if _is_whole(step)]
    if not steps:
        raise InvalidConfig(
            f"--measured: found no step with times in {folder / METRICS_FILE}, allowed: the folder of a run that has trained"
        )
    checkpoints = [
        span.end - span.start
        for span in read_timeline(folder / TIMELINE_FILE)
        if (span.actor, span.name) == ("driver", "checkpoint")
    ]
    shape = shape_of(ran.model)
    ranks = ran.learner.ranks_per_replica
    layout = learner_layout(ran, shape, Place(ran.learner.replicas, ranks, None))
    answers, tokens = _mean([step.answers for step in steps]), _mean([step.tokens for step in steps])
    # Samplers come and go in a run that scales them.
    seen = [record.samplers for record in records if record.samplers > 0]
    samplers = _mean(seen) if seen else ran.sampler.replicas
    measured = step_work(
        ran,
        shape,
        layout,
        samplers=samplers,
        sampler_devices=ran.sampler.devices,
        answers=answers,
        tokens=tokens,
    )
    cut = [record.truncated_fraction for record in records if math.isfinite(record.truncated_fraction)]
    length = _length(folder, ran, spec.sampler.max_new_tokens, tokens / answers, _mean(cut) if cut else 0.0)
    planned, wanted = planned_work(spec, plan, length)
    gpus, asked = learner_gpus(folder), ran.learner.resources
    if gpus is None and asked is not None and asked.accelerators is not None:
        gpus = asked.accelerators > 0
    on = "devices that it has not recorded" if gpus is None else "GPUs" if gpus else "CPUs"
    source = (
        f"{len(steps)} steps of {folder} ({shape.family}, {shape.parameters:,} parameters, learners on {on}, "
        f"ranks: {layout.ranks}, samplers: {samplers:.3g}, {tokens / answers:,.0f} tokens per answer)"
    )
    warnings = _far_off(folder, gpus, shape.parameters, plan)
    return Profile(scaled(steps, checkpoints, measured, planned, wanted), source, warnings)


def _length(folder: Path, ran: RunSpec, limit: int, mean: float, cut: float) -> float:
    """Tokens of an answer with the longest one allowed at `limit`: see `under_limit`. `mean`: of those measured, of which
    the share `cut` ended at their limit.

    How long single answers were is in the run's profile; without one, none gets shorter than the mean with a lower limit.
    """
    measured = ran.sampler.max_new_tokens
    with suppress(InvalidConfig):
        lengths = load_profile(folder).lengths
        return mean * sum(under_limit(lengths, measured, limit)) / max(1, sum(lengths))
    return min(mean, float(limit)) if limit <= measured else mean + cut * (limit - measured)


def _far_off(folder: Path, gpus: bool | None, parameters: int, plan: RunPlan) -> tuple[str, ...]:
    """Sentences on what differs so much that nothing is proportional any more; devices that nobody knows do not."""
    found = []
    [place] = [role.place for role in plan.roles if role.name == "learner"]
    planned: bool | None = place.accelerated
    if place.device is None:
        # A profile says so without their size; a run on this machine takes what is there.
        planned = None if place.sees_folder else place.accelerators > 0
    if None not in (gpus, planned) and gpus != planned:
        had, has = ("GPUs", "CPUs") if gpus else ("CPUs", "GPUs")
        found.append(
            f"--measured: the learners of {folder} were on {had}, and those of this run are on {has}, which have another "
            "speed: measure a run on the same devices"
        )
    least, most = sorted((parameters, plan.shape.parameters))
    if most > MOST_TIMES * least:
        found.append(
            f"--measured: the model of {folder} has {parameters:,} parameters and that of this run "
            f"{plan.shape.parameters:,}, more than {MOST_TIMES} times apart: measure a model of about its size"
        )
    return tuple(found)


def _learning(record: StepRecord) -> float:
    """Seconds of a step's passes: training, and those before it, which earlier versions counted as training."""
    before = (record.time_log_probs, record.time_values)
    return record.time_train + math.fsum(one for one in before if math.isfinite(one))


def _is_whole(step: StepMeasured) -> bool:
    times = (step.generate, step.score, step.train, step.publish)
    return all(map(math.isfinite, (*times, step.answers))) and step.answers > 0 and step.tokens > 0


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)
