"""The actors of one run: buffer, learners and samplers, started together; and how weights pass between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_api import RunSpec
from rl_api.handing_over import hands_over, keeps_devices
from rl_api.parts import part_groups
from rl_api.planner.profile import RunProfile
from rl_api.sizes.shape import ModelShape
from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.buffer.actor import Batch
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.handle import ANSWER_SECONDS, Buffer
from rl_trainer.buffer.payloads import Arrivals
from rl_trainer.checkpoint.state import LearnerState, RunState, SavedLearners
from rl_trainer.flow.leases import device_name
from rl_trainer.flow.pulse import Pulse, Watch
from rl_trainer.flow.turns import Turn
from rl_trainer.learner.group import Learners
from rl_trainer.learner.results import TokenEstimates, UpdateResult
from rl_trainer.model.excerpt import Excerpt
from rl_trainer.model.shared_folder import SharedFolder, share_folder, stored_folder
from rl_trainer.observe.timeline import Span, SpanRecorder
from rl_trainer.placement.places import Placement
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.rollout.task_workers import TaskWorkers
from rl_trainer.run.broadcasts import Broadcasts
from rl_trainer.run.remote_run import INITIAL
from rl_trainer.run.residency import with_residency
from rl_trainer.run.trials import contend, excerpts, fixed_tokens
from rl_trainer.tasks import Answer, Prompt
from rl_trainer.tasks.rows import PromptData
from rl_trainer.weights.transports.publication import Publication

# No batch for this long, besides what lost workers may take to be placed again: samplers hang.
STALL_SECONDS = 3600.0
# For samplers to end the step of their engines that they are at.
ENDED_SECONDS = 30.0


@dataclass
class Actors:
    """All actors of a run; `spans` is the driver's own record, to which theirs are added.

    Weights have a version: 0 before the first step, +1 every `weightSync.everySteps` steps.
    """

    spec: RunSpec
    buffer: Buffer
    learners: Learners
    samplers: Samplers
    broadcasts: Broadcasts
    spans: SpanRecorder
    _theirs: list[Span] = field(default_factory=list)
    _arrivals: Arrivals = field(default_factory=Arrivals)
    _published: Publication | None = None
    _taking: Any = None

    @classmethod
    def start(
        cls,
        spec: RunSpec,
        model: Path,
        search: Path | None,
        data: PromptData | None,
        placement: Placement,
        spans: SpanRecorder,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        begun: Callable[[Samplers], object] = lambda samplers: None,
        weights: Callable[[Learners, Placement], SharedFolder] | None = None,
        reward_model: Path | None = None,
        shape: ModelShape | None = None,
    ) -> Actors:
        """Starts all of them; returns when they have loaded model and task.

        `data`: what the task's file or data set holds. `begun`: is told of the samplers before they are waited for, whatever
        becomes of them. `weights`: finds out what is opened instead of `model`. `reward_model`: the folder of
        `task.rewardModel`. `shape`: of the model, if its family is known.
        """
        limit = spec.retry.liveness_timeout.seconds
        buffer = Buffer.create(
            BufferConfig(
                groups_per_step=spec.algorithm.prompts_per_step,
                capacity=spec.buffer.capacity,
                max_staleness=spec.buffer.max_staleness,
                order=spec.buffer.order,
                on_full=spec.buffer.on_full,
                samplers=placement.samplers,
                steps_per_version=spec.weight_sync.every_steps,
                shared_samplers=spec.shared_samplers if hands_over(spec) else 0,
                all_move=keeps_devices(spec),
                hand_over_at=spec.placement.hand_over_at if hands_over(spec) else None,
                max_refills=spec.algorithm.dynamic_sampling.max_refills * spec.algorithm.prompts_per_step,
            ),
            patience=min(ANSWER_SECONDS, limit),
            **placement.reservation.options("buffer"),
        )
        watch = Watch(Pulse(buffer.actor, limit))
        learners = Learners.launch(spec, placement.reservation, search, watch)
        if placement.learner_gpus:
            spec = with_residency(spec, shape, learners)
        folder = share_folder(model) if weights is None else weights(learners, placement)
        shared = [device_name(rank) for rank in range(spec.shared_samplers)]
        swapped = bool(shared) and spec.placement.residency == "swap"
        if swapped:  # before samplers are there, which find the devices free and take their memory
            learners.start(folder)
            learners.offload()
        judge = None if reward_model is None else share_folder(reward_model)
        workers = TaskWorkers.launch(spec, placement.reservation, search, judge)
        samplers = Samplers(
            spec, folder, buffer, placement, search, data, tell=tell, warn=warn, watch=watch, workers=workers
        )
        begun(samplers)
        if shared:
            learners.turn = Turn(buffer.actor, shared, samplers.wait_for, spans, patience=buffer.patience)
            if swapped:
                learners.turn.move(learners.onload, learners.offload)
        if not swapped:  # in a turn, as samplers load on the same devices
            learners.start(folder, [f"sampler {rank}" for rank in range(placement.samplers)])
        workers.wait_ready()
        samplers.wait_ready()
        broadcasts = Broadcasts(spec, learners, samplers, warn)
        return cls(spec, buffer, learners, samplers, broadcasts, spans)

    # -- the loop --------------------------------------------------------------------------------------------------

    def next_part(self, begin: int, end: int, meanwhile: Callable[[], bool]) -> Batch:
        """The scored groups `begin` up to `end` (not included) of the next batch, as the admission rule lets it be; parts
        are asked for in order. `meanwhile`: see `Samplers.wait_for`."""
        with self.spans.span("wait"):
            call, self._taking = self._taking or self._take(begin, end), None
            part: Batch = self.samplers.wait_for(
                call, "buffer", "waiting for groups", self._stall + 60, meanwhile
            )
        for group in part.groups:
            self._theirs.extend(group.spans)
        return self._placed(part)

    def _placed(self, part: Batch) -> Batch:
        """The part with payloads that came inside the call where they are now: learners get those from this process."""
        groups = [
            self._arrivals.here(group) if isinstance(group.payload, bytes) else group for group in part.groups
        ]
        self.spans.measured(elsewhere_bytes=self._arrivals.drain())
        return replace(part, groups=groups)

    def _take(self, begin: int, end: int) -> Any:
        last = end >= self.spec.algorithm.prompts_per_step
        return self.buffer.take_ref(self._stall, begin, None if last else end)

    @property
    def _stall(self) -> float:
        return STALL_SECONDS + self.spec.placement.timeout.seconds

    def token_estimates(self, batch: Batch) -> TokenEstimates:
        """See `Learners.token_estimates`."""
        found, spans = self.learners.token_estimates(batch.groups)
        self._theirs.extend(spans)
        return found

    def update(
        self,
        batch: Batch,
        advantages: Sequence[Advantage],
        step: int,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> UpdateResult:
        """Training step number `step`, counted from 0. The weights come along if it is their turn. `meanwhile`: see
        `Handle.wait`."""
        version = self._version_after(step)
        return self._updated(*self.learners.update(batch.groups, advantages, step, version, meanwhile))

    def accumulate(
        self,
        part: Batch,
        advantages: Sequence[Advantage],
        step: int,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> None:
        """A part of training step number `step`, which `apply` ends. `meanwhile`: see `Handle.wait`."""
        self._theirs.extend(self.learners.accumulate(part.groups, advantages, step, meanwhile))

    def apply(self, step: int, meanwhile: Callable[[], bool] = lambda: False) -> UpdateResult:
        """Ends training step number `step`, whose parts were accumulated; as `update`."""
        return self._updated(*self.learners.apply(self._version_after(step), meanwhile))

    def _version_after(self, step: int) -> int | None:
        """Of the weights that training step number `step` makes; None: they are not published."""
        every = self.spec.weight_sync.every_steps
        return None if (step + 1) % every else (step + 1) // every

    def _updated(
        self, result: UpdateResult, published: Publication | None, spans: Sequence[Span]
    ) -> UpdateResult:
        if published is not None:
            self._published = self.broadcasts.spread(published)
        self._theirs.extend(spans)
        return result

    def finish_step(self, batch: Batch, step: int) -> dict[str, Any]:
        """The batch will never be trained on again, and the samplers get weights if there are newer ones after `step` steps.

        Returns:
            What the buffer says of itself.
        """
        newer = self._published if step % self.spec.weight_sync.every_steps == 0 else None
        with self.spans.span("publish", version=self._version):
            said = self.buffer.finish_step(batch.step, None if newer is None else newer.version, newer)
        self.spans.measured(elsewhere_bytes=said["elsewhere_bytes"])
        self._taking = self._take(0, part_groups(self.spec))  # on its way while this step is recorded
        return said

    def begin_sampling(self, step: int) -> None:
        """Starts the samplers with the weights after `step` steps."""
        published = self.publish(step)
        with self.spans.span("publish", version=published.version):
            self.buffer.publish(published.version, published)
        self.samplers.begin()

    def publish(self, step: int) -> Publication:
        """The learners' weights after `step` steps, published once per version."""
        version = step // self.spec.weight_sync.every_steps
        if self._published is None or version != self._published.version:
            with self.spans.span("publish", version=version):
                published, spans = self.learners.publish(version)
                self._published = self.broadcasts.spread(published)
            self._theirs.extend(spans)
        return self._published

    @property
    def _version(self) -> int:
        return -1 if self._published is None else self._published.version

    def answers(self, prompts: Sequence[Prompt], max_new_tokens: int | None) -> list[Answer]:
        """Greedy answers with the published weights."""
        with self.spans.span("evaluate"):
            assert self._published is not None, "weights are published before they are evaluated"
            return self.samplers.evaluate(prompts, self._published, max_new_tokens=max_new_tokens)

    def sampled_answers(self, prompts: Sequence[Prompt], label: int) -> list[Answer]:
        """Answers at the run's temperature with the weights as they are now, known by `label`, which is below -1."""
        published, _ = self.learners.publish(label)
        return self.samplers.evaluate(prompts, published, greedy=False)

    def contention(self, profile: RunProfile, model: Path) -> dict[str, float] | None:
        """By role how much slower its work gets for each other process that computes at once: tried, when samplers have been
        told to stop. None where that is not known: on GPUs, and of engines and models that are not ours."""
        groups = {"learner": self.learners.workers, "sampler": self.samplers.workers}
        return contend(groups, self._tried(profile, model)) or None

    def fixed_tokens(self, profile: RunProfile, model: Path) -> float | None:
        """See `trials.fixed_tokens`: tried, when samplers have been told to stop. None where that is not known: as with
        `contention`, and of LoRA, whose passes are others."""
        work = self._tried(profile, model).get("learner")
        return None if work is None or self.spec.learner.lora else fixed_tokens(self.learners.workers, work)

    def _tried(self, profile: RunProfile, model: Path) -> dict[str, Excerpt]:
        known = self.spec.sampler.engine == "torch" and not any(self.samplers.gpus)
        work = excerpts(self.spec, profile, model) if known else {}
        return work if work and self.samplers.have_ended(ENDED_SECONDS) else {}

    def drain_spans(self) -> list[Span]:
        """What driver and actors did since the last call."""
        found, self._theirs = [*self._theirs, *self.spans.drain()], []
        return found

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state(self) -> RunState[LearnerState]:
        """All that a checkpoint holds of them. One moment: the buffer's is one snapshot, and no step is under way.

        What learners hold comes when it is written: before their next step.
        """
        snapshot, payloads = self.buffer.snapshot()
        return RunState(self.learners.state(), self.learners.random_states(), snapshot, payloads)

    def restore(self, state: RunState[SavedLearners], initial: Path | None) -> None:
        """The inverse of `state`; the weights came with the model folder. `initial`: see `Learner.resume`."""
        saved = state.learners
        shared = {part: _shared(saved, names) for part, names in saved.parts.items()}
        begun = [name for name in saved.digests if name.startswith(f"{INITIAL}/")]
        base = None
        if initial is not None:
            base = _shared(saved, begun, INITIAL) if begun else share_folder(initial)
        self.learners.restore(saved, shared, base, state.random_states)
        self.buffer.restore(state.buffer, state.payloads)


def _shared(saved: SavedLearners, names: Collection[str], within: str = "") -> SharedFolder:
    """Some of its files, for learners to open; `within`: the folder in it whose files they are."""
    if not saved.uri:
        return share_folder(saved.folder, names)
    return stored_folder(saved.uri, {name: saved.digests[name] for name in names}, within=within)
