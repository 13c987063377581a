"""Seconds of a training step, from what another run of the trainer measured. Pure.

Each part of a step is taken to grow with what it works through, on devices that are as fast as those measured:

    decoding    tokens of answers x active parameters / devices of samplers
    scoring     answers / samplers
    training    tokens of answers x active parameters x passes / ranks
    publishing  bytes of the weights
    checkpoint  its bytes

A forward pass takes 2 operations per parameter and token, a backward pass 4 (Kaplan et al. 2020, arXiv 2001.08361, section
2.1): passes are counted in forward ones. Prompts are taken to be as long in proportion to answers as those measured;
attention, whose part grows with the length of sequences, to be as small a part of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_api.errors import InvalidConfig
from rl_api.run import RunSpec
from rl_api.sizes.learner import LearnerLayout, checkpoint_bytes
from rl_api.sizes.run_plan import RunPlan
from rl_api.sizes.shape import ModelShape


@dataclass(frozen=True)
class StepMeasured:
    """One step that a run recorded: seconds by part, and what it trained on.

    Attributes:
        generate: that a sampler decoded, the mean of samplers. score: the same of scoring answers.
        train: of the slowest learner.
        publish: from the new weights to their being there for samplers.
        answers: trained on. tokens: theirs, without prompts.
    """

    generate: float
    score: float
    train: float
    publish: float
    answers: float
    tokens: float


@dataclass(frozen=True)
class Work:
    """What a step of a run works through, and over how many devices: the divisors and factors of the formulas above."""

    decoded: float
    scored: float
    trained: float
    published: float
    checkpoint: float
    overlaps: bool
    """Whether samplers go on while learners train."""


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step of a planned run by its parts; `checkpoint`: that one holds training up, None: none was measured."""

    generate: float
    score: float
    train: float
    publish: float
    checkpoint: float | None
    tokens: float
    """Of the answers of a step."""
    overlaps: bool

    @property
    def total(self) -> float:
        """Of a step without a checkpoint: its parts one after the other, or the slower of sampling and learning where these
        overlap."""
        sampling, learning = self.generate + self.score, self.train + self.publish
        return max(sampling, learning) if self.overlaps else sampling + learning


def refuse_servers(spec: RunSpec, whose: str, option: str = "--measured") -> None:
    """Raises InvalidConfig where a server decodes for the run; `whose`: whose spec it is, `option`: what asks for times."""
    if spec.sampler.engine == "endpoint":
        raise InvalidConfig(
            f"{option}: found sampler.engine endpoint in {whose}, allowed: torch or vllm; "
            "a server outside the run decodes, and its time is not known"
        )


def step_work(
    spec: RunSpec,
    shape: ModelShape,
    learner: LearnerLayout,
    *,
    samplers: float,
    sampler_devices: int,
    answers: float,
    tokens: float,
) -> Work:
    """What a step of `spec` works through.

    Args:
        spec: the run.
        shape: of its model.
        learner: how its learners are spread.
        samplers: how many there are, > 0.
        sampler_devices: of each, > 0; see `refuse_servers`.
        answers: of a step.
        tokens: of these answers.
    """
    active = tokens * shape.active_parameters
    # A backward pass is two, or with frozen weights, which need no gradients of their own, one.
    policy = (3 if learner.trained is None else 2) + learner.checkpointing
    passes = policy + learner.reference + learner.critic * (3 + learner.checkpointing)
    return Work(
        decoded=active / (samplers * sampler_devices),
        scored=answers / samplers,
        trained=active * passes * spec.algorithm.epochs / learner.ranks,
        published=shape.parameters * learner.width,
        checkpoint=checkpoint_bytes(shape, learner),
        overlaps=spec.buffer.max_staleness > 0,
    )


def planned_work(spec: RunSpec, plan: RunPlan, mean_length: float) -> tuple[Work, float]:
    """What a step of a planned run works through if its answers have `mean_length` tokens on average; and their tokens. For
    runs that decode themselves, see `refuse_servers`."""
    answers = float(spec.algorithm.prompts_per_step * spec.algorithm.group_size)
    tokens = answers * mean_length
    [pods] = [role.place.pods for role in plan.roles if role.name == "sampler"]
    work = step_work(
        spec,
        plan.shape,
        plan.learner_layout,
        samplers=pods,
        sampler_devices=plan.sampler_layout.devices,
        answers=answers,
        tokens=tokens,
    )
    return work, tokens


def scaled(
    steps: Sequence[StepMeasured], checkpoints: Sequence[float], measured: Work, planned: Work, tokens: float
) -> StepSeconds:
    """What a step of the planned run would take.

    Args:
        steps: at least one, of a run whose steps on average work through `measured`.
        checkpoints: seconds of those that this run wrote, possibly none.
        measured: the mean of `steps`.
        planned: a step of the run that is planned, whose answers have `tokens` in all.
    """
    count = len(steps)
    return StepSeconds(
        generate=sum(step.generate for step in steps) / count * planned.decoded / measured.decoded,
        score=sum(step.score for step in steps) / count * planned.scored / measured.scored,
        train=sum(step.train for step in steps) / count * planned.trained / measured.trained,
        publish=sum(step.publish for step in steps) / count * planned.published / measured.published,
        checkpoint=(
            sum(checkpoints) / len(checkpoints) * planned.checkpoint / measured.checkpoint
            if checkpoints
            else None
        ),
        tokens=tokens,
        overlaps=planned.overlaps,
    )
