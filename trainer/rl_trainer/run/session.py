"""A run under way, as the training loop speaks of it: every verb of `driver.py` is a method of `Session`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_api import CheckpointStatus, RLTrainingRun
from rl_api.errors import RLTrainError
from rl_api.handing_over import staying_sentence
from rl_api.parts import part_groups, parts_sentence
from rl_api.progress import Progress
from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.algorithms.batch_advantages import kl_in_reward
from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.buffer.actor import Batch
from rl_trainer.learner.group import Learners
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.observe.console import Console
from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.placement.bundles import bundles
from rl_trainer.placement.held_time import HeldTime
from rl_trainer.placement.places import Placement, nodes_now, place_run
from rl_trainer.placement.store_use import StoreUse
from rl_trainer.profile.meters import ProcessMeter
from rl_trainer.rollout.engines.vllm_needs import check_installed
from rl_trainer.run.actors import Actors
from rl_trainer.run.agreement import check_agreement
from rl_trainer.run.attempt import Attempt
from rl_trainer.run.checkpoints import Checkpoints
from rl_trainer.run.counters import Counters, step_record
from rl_trainer.run.ending import CheckpointRequests, is_over
from rl_trainer.run.evaluation import exact_share, keep_examples
from rl_trainer.run.inputs import load_inputs
from rl_trainer.run.planning import Planning
from rl_trainer.run.profiler import Profiler
from rl_trainer.run.ray_session import dashboard_sentence, ray_address, ray_session
from rl_trainer.run.recorder import Recorder
from rl_trainer.run.resuming import samplers_reach, share_resumed
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.step import Step
from rl_trainer.run.supported import check_supported, long_sequences

# Of every answer one number for each sampled token.
TokenArrays = list[npt.NDArray[np.float64]]


class Session(Attempt):
    """One run under way: its inputs, its actors, what is recorded of it, its checkpoints and its counters."""

    def __init__(
        self,
        run: RLTrainingRun,
        folder: RunFolder,
        console: Console,
        *,
        debug: bool = False,
        dashboard: bool = False,
        try_switches: bool = False,
    ):
        """An attempt, which begins with the block that it is opened for.

        Args:
            run: what to train.
            folder: its folder.
            console: tells how it goes.
            debug: Ray's own lines are shown.
            dashboard: Ray has its dashboard.
            try_switches: the profile says too what a run that shares no device cannot know: what it takes learners to leave
                one and to come back, what it costs to compute at once, and what passes cost however few tokens they have.
        """
        super().__init__(run, folder, console)
        self.debug, self.dashboard, self.try_switches = debug, dashboard, try_switches
        self.resumed = False
        self._step = Step()  # the one under way, or the last one
        self._requests = CheckpointRequests()
        self._process, self._store_use = ProcessMeter(), StoreUse()

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _close(self, error: BaseException | None) -> None:
        if not isinstance(error, Exception):  # the run has ended, or is to end at once
            self.checkpoints.give_up()
        elif self.checkpoints.unfinished_step is not None:
            # What ended the run came after what learners have copied: that is still good.
            try:
                self._wait_for_checkpoint()
            except RLTrainError as problem:
                self.console.warning(str(problem))
        self.recorder.timeline.write(self.actors.drain_spans())
        self.profiler.write()

    def _open(self) -> None:
        spec = self.spec
        check_supported(spec)
        for sentence in (long_sequences(spec), parts_sentence(spec), staying_sentence(spec)):
            if sentence is not None:
                self.console.warning(sentence)
        address = ray_address()  # refused now if it is none: not when everything is loaded
        if spec.sampler.engine == "vllm" and not address:  # the nodes of a cluster may have other images
            check_installed()
        self.checkpoints = Checkpoints(spec, self.folder, self.remote, self.console.warning)
        checkpoint = self.checkpoints.latest(self.console.warning) if self.folder.resume else None
        self._serve(self._requests.ask)
        self._progress = Progress(step=checkpoint.step if checkpoint else 0, max_steps=spec.stop.max_steps)
        self.show_phase("Starting")
        self._launch(self.checkpoints.unpack(checkpoint) if checkpoint is not None else None)
        checkpoint = self.checkpoints.resumed  # an earlier one, where learners have found that damaged
        self.recorder = self._stack.enter_context(Recorder(self.folder.path, self.console, self.server))
        self.profiler = Profiler(spec, self.folder.path, self.console.warning, self.folder.planned_by)
        self.planning = self._stack.enter_context(
            Planning(
                self.run,
                self.console.message,
                self.console.warning,
                on_cluster=self.folder.attempt is not None,
                left=self.folder.placements_left,
                by_prior=self.folder.by_prior,
            )
        )
        metrics = self.recorder.metrics
        if checkpoint is not None:
            self.actors.restore(self.checkpoints.read(checkpoint), self.checkpoints.initial)
            metrics.truncate(checkpoint.metadata["metrics_position"])
            self.counters = Counters.load(checkpoint.metadata["counters"])
            self.resumed = True
            metrics.event("resumed", step=self.counters.step)
            self.console.message(f"resumed from step {self.counters.step}")
        elif self.folder.resume:
            metrics.truncate(0)
            self.console.message("no checkpoint to resume from: the run starts at step 0")
        self.folder.write_run(self.run)
        self.console.message(f"status at {self.server.url}/status")
        self._start_clock()

    def _launch(self, model: Path | None) -> None:
        """Starts Ray and the actors, while another thread finds model and task."""
        spec, search = self.spec, self.folder.search
        self.console.phase("starting Ray, loading model and task")
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(
                load_inputs, spec, self.folder.path / "model", search, model, self.console.phase
            )
            cpus = sum(bundle.cpus for bundle in bundles(spec))
            session = ray_session(cpus, debug=self.debug, dashboard=self.dashboard, leave=self.console.close)
            found = self._stack.enter_context(session)
            if self.folder.attempt is not None:
                self.held = HeldTime(nodes_now)
            if self.dashboard:
                self.console.message(dashboard_sentence(found.dashboard_url))
            self.inputs = loading.result()
        if self.inputs.left_out:
            self.console.warning(self.inputs.left_out)
        self.checkpoints.lineage = self.inputs.lineage
        self.console.phase("reserving actors")
        placement = place_run(spec, self.console.warning)
        if not found.own:  # else they end with Ray, also where it does not answer any more
            self._stack.callback(placement.release)
        self.learner_gpus = placement.learner_gpus
        self.console.phase("starting actors")
        resumed = self.checkpoints.resumed
        self.actors = Actors.start(
            spec,
            self.inputs.model,
            search,
            self.inputs.data,
            placement,
            SpanRecorder("driver"),
            tell=self.console.message,
            warn=self.console.warning,
            # Before they are waited for: a sampler has its server while others still load, or fail to.
            begun=lambda samplers: self._stack.callback(self._give_back, samplers.close),
            weights=self._resumed if resumed is not None and resumed.elsewhere else None,
            reward_model=self.inputs.reward_model,
            shape=self.inputs.shape,
        )
        if sentence := self.checkpoints.ask_learners(self.actors.learners.reach):
            self.console.warning(sentence)

    def _resumed(self, learners: Learners, placement: Placement) -> SharedFolder:
        reach = partial(samplers_reach, placement)
        return share_resumed(self.checkpoints, learners, reach, self.inputs.model, self.console.warning)

    def _give_back(self, close: Callable[[], None]) -> None:
        """What is outside of the run, a server, by `close`: not where another attempt will want it."""
        if is_over(self.ended_by, self.folder.attempt, self.spec.retry.limit, self._requests.recent):
            close()

    def _start_clock(self) -> None:
        self.counters.start_clock()
        self.recorder.start_clock()

    # -- the loop's verbs ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Reinforcement learning starts: the policy as it is now is the reference, and is kept and evaluated."""
        self.actors.learners.start_reinforcement()
        self._export(self.folder.initial)
        if self.spec.task.evaluation is not None:
            self.actors.publish(self.counters.step)
            self._evaluate()
            self.recorder.metrics.event("evaluation", step=0, score=self.counters.heldout)
        if self.spec.warm_start is not None and self.spec.checkpoint is not None:
            self.checkpoint()  # or all of the warm start would be lost with the first steps
        self._start_clock()

    def begin_sampling(self) -> None:
        """Starts the samplers with the weights that there are."""
        self.actors.begin_sampling(self.counters.step)

    def parts(self) -> Iterator[Batch]:
        """The next batch of scored groups, as the admission rule lets it be: whole, or in parts, each while others of it are
        still sampled (`rl_api.parts`)."""
        self.console.phase("training")
        self._step = Step()
        size, step = part_groups(self.spec), self.spec.algorithm.prompts_per_step
        for begin in range(0, step, size):
            yield self.actors.next_part(begin, begin + size, self._look_at_checkpoint)

    def token_estimates(self, part: Batch) -> tuple[TokenArrays | None, TokenArrays | None]:
        """Of every answer KL estimate and value of each token, where the advantages need them."""
        if not kl_in_reward(self.spec) and self.spec.algorithm.value_model is None:
            return None, None
        found = self.actors.token_estimates(part)
        self._step.kl.extend(found.kl or ())
        return found.kl, found.values

    def learn(self, part: Batch, advantages: Sequence[Advantage], rewards: AdvantageStats) -> None:
        """Gradients of a part of the step; of one that is the whole step also its update."""
        self._step.parts.append(part)
        self._step.rewards.append(rewards)
        step, look = self.counters.step, self._look_at_checkpoint
        if len(part.groups) == self.spec.algorithm.prompts_per_step:
            self._step.result = self.actors.update(part, advantages, step, look)
        else:
            self.actors.accumulate(part, advantages, step, look)

    def update(self) -> None:
        """Ends the training step: with the weights that its parts make."""
        step, batch = self._step, self._step.batch
        if step.result is None:
            step.result = self.actors.apply(self.counters.step, self._look_at_checkpoint)
        self._look_at_checkpoint()
        check_agreement(self.spec, self.counters.step, batch.groups, step.result.metrics)
        if step.mean_kl is not None:
            step.result.metrics["kl"] = step.mean_kl
        self.counters.finish_step(batch, step.result)

    def evaluate_if_due(self) -> None:
        """Answers the held-out prompts every `task.evaluation.everySteps` steps."""
        evaluation = self.spec.task.evaluation
        step, every = self.counters.step, self.spec.weight_sync.every_steps
        if evaluation is None or step % every:
            return
        if step - max(self.counters.heldout_step, 0) >= evaluation.every_steps:
            self._evaluate()

    def finish_step(self) -> None:
        """The batch will never be trained on again, the samplers get the newest weights, and the step is recorded."""
        batch, rewards, update = self._step.batch, self._step.stats, self._step.result
        assert update is not None, "the step was updated"
        buffer = self.actors.finish_step(batch, self.counters.step)
        seconds, ended = self.recorder.step_seconds(), time.time()
        self.actors.spans.measured(**self._process.drain())
        spans = self.actors.drain_spans()
        shape = self.inputs.shape
        record = step_record(self.spec, self.counters, batch, rewards, update, buffer, spans, seconds, shape)
        record = replace(
            record, predicted_seconds=self.planning.predicted, store_bytes=self._store_use.look()
        )
        self._progress = self.counters.progress(self.spec, record, self.planning.wanted, self.folder.first)
        self.recorder.step(record, spans, buffer["alarms"], self._progress)
        self.profiler.step(batch.groups, spans, (ended - seconds, ended))
        measured = self.profiler.measurements.steps
        if said := self.planning.step(measured, self.profiler.profile, self.counters.pace):
            self.recorder.metrics.event("note", step=record.step, text=said)
        if self.held is not None:
            self.held.look()

    def checkpoint_if_due(self) -> None:
        """Writes a checkpoint every `checkpoint.everySteps` steps, and when the status server is asked for one.

        The first kind may be written while the next steps run (`checkpoint.asynchronous`).

        Raises PlacementChanged: the run goes on from this one with another placement.
        """
        self._look_at_checkpoint()
        every = self.spec.checkpoint.every_steps if self.spec.checkpoint else None
        if self.planning.due and self.counters.step % (every or 1) == 0 and self.stop_reason() is None:
            self.checkpoint()
            raise self.planning.change()
        if self._requests.take():
            self.checkpoint()
            self._requests.answered()
        elif every and self.counters.step % every == 0:
            self._begin_checkpoint(background=True)
            if not self.checkpoints.in_background:
                self.checkpoint()

    def checkpoint(self) -> None:
        """Writes everything that a resumed run needs, unless this step's checkpoint is there already; returns when it is."""
        self._begin_checkpoint(background=False)
        if self.checkpoints.unfinished_step is not None:
            self._wait_for_checkpoint()
        if self._checkpoint is not None:
            self.server.checkpointed(self._checkpoint)

    def _begin_checkpoint(self, *, background: bool) -> None:
        step = self.counters.step
        if step in (self.counters.checkpointed_step, self.checkpoints.unfinished_step):
            return
        if self.checkpoints.unfinished_step is not None:
            self._wait_for_checkpoint()
        with self._checkpointing():
            self.checkpoints.begin(
                self.counters,
                self.actors.state(),
                self.recorder.metrics,
                self.inputs.model,
                background=background,
            )

    def _look_at_checkpoint(self) -> bool:
        """Ends a checkpoint that is written by now: it is none before. Returns whether one is still being written."""
        if self.checkpoints.unfinished_step is not None:
            with self._telling():
                self._show(self.checkpoints.finished())
        return self.checkpoints.unfinished_step is not None

    def _wait_for_checkpoint(self) -> None:
        with self._checkpointing():
            self._show(self.checkpoints.wait())

    def _show(self, found: CheckpointStatus | None) -> None:
        if found is not None:
            self._checkpoint, self.counters.checkpointed_step = found, found.step
            self.server.show_checkpoint(found)

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        with self._telling(), self.actors.spans.span("checkpoint"):
            yield

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except RLTrainError as error:
            self.server.checkpoint_failed(str(error))
            raise

    def stop_reason(self) -> str | None:
        """Why the run ends now, or None."""
        return self.counters.stop_reason(self.spec)

    def finish(self, reason: str) -> dict[str, Any]:
        """Evaluates the last weights, exports the policy and writes summary and report."""
        if self.spec.task.evaluation is not None and self.counters.heldout_step != self.counters.step:
            self._evaluate()
            self.recorder.metrics.event("evaluation", step=self.counters.step, score=self.counters.heldout)
        self.actors.buffer.stop()
        if self.try_switches and not self.spec.shared_samplers:  # else they are measured all the time
            learners = self.actors.learners
            self.profiler.try_contention(partial(self.actors.contention, model=self.inputs.model))
            self.profiler.try_fixed(partial(self.actors.fixed_tokens, model=self.inputs.model))
            self.profiler.try_switches(learners.offload, learners.onload)
        self._export(self.folder.final)
        self.recorder.timeline.write(self.actors.drain_spans())
        summary = self._summarize(reason)
        self.server.update(
            self._progress.model_copy(update={"phase": "Succeeded", "heldout_score": summary["heldout_end"]})
        )
        self.console.finish(summary, self.folder.path / "report.html")
        return summary

    # -- parts -----------------------------------------------------------------------------------------------------

    def _export(self, target: Path) -> None:
        if self.checkpoints.unfinished_step is not None:
            self._wait_for_checkpoint()  # learners write one thing at a time
        self.checkpoints.export(self.actors.learners.state(), self.inputs.model, target)

    def _evaluate(self) -> None:
        evaluation = self.spec.task.evaluation
        assert evaluation is not None
        self.console.phase("evaluating")
        before = self._progress.phase
        self.show_phase("Evaluating")
        answers = self.actors.answers(self.inputs.heldout, evaluation.max_new_tokens)
        step, score = self.counters.step, exact_share(answers)
        self.counters.heldout, self.counters.heldout_step = score, step
        keep_examples(self.folder.path, answers, first=step == 0)
        self.console.evaluation(step, score)
        self.show_phase(before)
