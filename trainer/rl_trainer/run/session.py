"""What the training loop holds: actors, files and counters of one run, opened together and closed together."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_api import RLTrainingRun
from rl_api.errors import RLTrainError
from rl_api.progress import Progress
from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.algorithms.batch_advantages import kl_in_reward
from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.buffer.actor import Batch, Buffer
from rl_trainer.buffer.state import BufferConfig
from rl_trainer.learner.results import UpdateResult
from rl_trainer.model.shared_folder import share_folder
from rl_trainer.observe.console import Console
from rl_trainer.observe.examples import Example, read_examples, write_examples
from rl_trainer.observe.metrics import MetricsWriter
from rl_trainer.observe.timeline import Span, SpanRecorder, TimelineWriter
from rl_trainer.placement.bundles import bundles
from rl_trainer.placement.places import place_run
from rl_trainer.rollout.engines.vllm_needs import check_installed
from rl_trainer.run.attempt import Attempt
from rl_trainer.run.checkpoints import Checkpoints
from rl_trainer.run.counters import step_record
from rl_trainer.run.inputs import load_inputs
from rl_trainer.run.ray_session import dashboard_sentence, ray_address, ray_session
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.stopping import stop_reason
from rl_trainer.run.supported import check_supported

if TYPE_CHECKING:
    from rl_trainer.rollout.actor import Answer

# Of every answer one number for each sampled token.
TokenArrays = list[npt.NDArray[np.float64]]
# No batch for this long: samplers hang.
STALL_SECONDS = 3600.0
EXAMPLES = 16


class Session(Attempt):
    """One run under way."""

    def __init__(
        self,
        run: RLTrainingRun,
        folder: RunFolder,
        console: Console,
        *,
        debug: bool = False,
        dashboard: bool = False,
    ):
        super().__init__(run, folder, console)
        self.debug, self.dashboard = debug, dashboard
        self.resumed = False
        self.spans = SpanRecorder("driver")
        self._step_spans: list[Span] = []
        self._step_ended = 0.0
        self._weights: list[Any] = []
        self._weights_version = -1
        self._taking: Any = None
        self._kl: float | None = None  # mean over the batch's tokens, where it is part of the reward
        self._alarms: set[str] = set()
        self._checkpoint_wanted = threading.Event()

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _close(self) -> None:
        self.timeline.write(self.spans.drain())

    def _open(self) -> None:
        spec = self.spec
        check_supported(spec)
        address = ray_address()  # refused now if it is none: not when everything is loaded
        if spec.sampler.engine == "vllm" and not address:  # the nodes of a cluster may have other images
            check_installed()
        self.checkpoints = Checkpoints(spec, self.folder, self.remote)
        checkpoint = self.checkpoints.latest(self.console.warning) if self.folder.resume else None
        self._serve(self._checkpoint_wanted.set)
        self._progress = Progress(step=checkpoint.step if checkpoint else 0, max_steps=spec.stop.max_steps)
        self.show_phase("Starting")
        self._launch(self.checkpoints.unpack(checkpoint) if checkpoint is not None else None)
        self.metrics = self._stack.enter_context(MetricsWriter(self.folder.path))
        self.timeline = self._stack.enter_context(TimelineWriter(self.folder.path))
        if checkpoint is not None:
            self.counters = self.checkpoints.restore(checkpoint, self.learners, self.buffer, self.metrics)
            self.resumed = True
            self.counters.resumed_from = self.counters.step
            self.metrics.event("resumed", step=self.counters.step)
            self.console.message(f"resumed from step {self.counters.step}")
        elif self.folder.resume:
            self.metrics.truncate(0)
            self.console.message("no checkpoint to resume from: the run starts at step 0")
        self.folder.write_run(self.run)
        self.console.message(f"status at {self.server.url}/status")
        self._start_clock()

    def _launch(self, model: Path | None) -> None:
        """Starts Ray and the actors, while another thread imports torch and finds model and task."""
        spec, search = self.spec, self.folder.search
        self.console.phase("starting Ray, loading model and task")
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(
                load_inputs, spec, self.folder.path / "model", search, model, self.console.phase
            )
            cpus = sum(bundle.cpus for bundle in bundles(spec))
            session = ray_session(cpus, debug=self.debug, dashboard=self.dashboard, leave=self.console.close)
            found = self._stack.enter_context(session)
            if self.dashboard:
                self.console.message(dashboard_sentence(found.dashboard_url))
            inputs = loading.result()
        self.model_folder, self.task, self.chat = inputs.model, inputs.task, inputs.chat
        self.heldout_prompts = inputs.heldout
        # Only now: these import torch.
        from rl_trainer.learner.actor import Learners
        from rl_trainer.rollout.fleet import Samplers

        self._shared_model = share_folder(self.model_folder)
        self.console.phase("reserving actors")
        placement = place_run(spec)
        if not found.own:  # else they end with Ray, also where it does not answer any more
            self._stack.callback(placement.release)
        self.console.phase("starting actors")
        self.buffer = Buffer.create(
            BufferConfig(
                groups_per_step=spec.algorithm.prompts_per_step,
                capacity=spec.buffer.capacity,
                max_staleness=spec.buffer.max_staleness,
                order=spec.buffer.order,
                on_full=spec.buffer.on_full,
                samplers=placement.samplers,
                steps_per_version=spec.weight_sync.every_steps,
                max_refills=spec.algorithm.dynamic_sampling.max_refills * spec.algorithm.prompts_per_step,
            ),
            **placement.reservation.options("buffer"),
        )
        self.learners = Learners.launch(spec, placement.reservation, search)
        self.samplers = Samplers(
            spec,
            self._shared_model,
            self.buffer,
            placement,
            search,
            tell=self.console.message,
            warn=self.console.warning,
        )
        self.learners.start(self._shared_model)
        self.samplers.wait_ready()

    # -- the loop's verbs ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Reinforcement learning starts: the policy as it is now is the reference, and is kept and evaluated."""
        self.learners.start_reinforcement()
        self.checkpoints.export(self.learners, self.model_folder, self.folder.initial)
        if self.spec.task.evaluation is not None:
            self._publish_weights()
            self._evaluate()
            self.metrics.event("evaluation", step=0, score=self.counters.heldout)
        if self.spec.warm_start is not None and self.spec.checkpoint is not None:
            self.checkpoint()  # or all of the warm start would be lost with the first steps
        self._start_clock()

    def next_batch(self) -> Batch:
        """The next batch of scored groups, as the admission rule lets it be."""
        self.console.phase("training")
        with self.spans.span("wait"):
            call, self._taking = self._taking or self.buffer.actor.take.remote(STALL_SECONDS), None
            batch: Batch = self.samplers.wait_for(call, "buffer", "waiting for groups", STALL_SECONDS + 60)
        for group in batch.groups:
            self._step_spans.extend(group.spans)
        return batch

    def token_estimates(self, batch: Batch) -> tuple[TokenArrays | None, TokenArrays | None]:
        """Of every answer KL estimate and value of each token, where the advantages need them."""
        if not kl_in_reward(self.spec) and self.spec.algorithm.value_model is None:
            return None, None
        found, spans = self.learners.token_estimates(batch.groups)
        self._step_spans.extend(spans)
        if found.kl is not None:
            self._kl = float(np.concatenate(found.kl).mean())
        return found.kl, found.values

    def update(self, batch: Batch, advantages: Sequence[Advantage]) -> UpdateResult:
        """One training step. The weights come along if it is their turn."""
        every, step = self.spec.weight_sync.every_steps, self.counters.step
        version = None if (step + 1) % every else (step + 1) // every
        result, weights, spans = self.learners.update(batch.groups, advantages, step, version)
        if version is not None:
            self._weights, self._weights_version = weights, version
        self._step_spans.extend(spans)
        if self._kl is not None:
            result.metrics["kl"] = self._kl
        self.counters.finish_step(batch, result)
        return result

    def evaluate_if_due(self) -> None:
        """Answers the held-out prompts every `task.evaluation.everySteps` steps."""
        evaluation = self.spec.task.evaluation
        step, every = self.counters.step, self.spec.weight_sync.every_steps
        if evaluation is None or step % every:
            return
        if step - max(self.counters.heldout_step, 0) >= evaluation.every_steps:
            self._evaluate()

    def begin_sampling(self) -> None:
        """Starts the samplers with the weights that there are."""
        self._publish_weights()
        with self.spans.span("publish", version=self._weights_version):
            self.buffer.publish(self._weights_version, self._weights)
        self.samplers.begin()

    def finish_step(self, batch: Batch, rewards: AdvantageStats, update: UpdateResult) -> None:
        """The batch will never be trained on again, the samplers get the newest weights, and the step is recorded."""
        due = self.counters.step % self.spec.weight_sync.every_steps == 0
        version = self._weights_version if due else None
        with self.spans.span("publish", version=self._weights_version):
            buffer = self.buffer.finish_step(batch.step, version, self._weights)
        self._taking = self.buffer.actor.take.remote(STALL_SECONDS)  # on its way while this step is recorded
        self._record(batch, rewards, update, buffer)

    def _record(
        self, batch: Batch, rewards: AdvantageStats, update: UpdateResult, buffer: dict[str, Any]
    ) -> None:
        """Writes the step to metrics, timeline, console and status server."""
        now = time.monotonic()
        self._step_spans.extend(self.spans.drain())
        record = step_record(
            self.spec,
            self.counters,
            batch,
            rewards,
            update,
            buffer,
            self._step_spans,
            wall_seconds=now - self._step_ended,
        )
        self._step_ended = now
        self.metrics.write(record)
        self.timeline.write(self._step_spans)
        self._step_spans = []
        self._raise_alarms(buffer["alarms"])
        self.console.step(record, self.counters.eta(self.spec))
        self._progress = self.counters.progress(self.spec, record)
        self.server.update(self._progress, record)

    def checkpoint_if_due(self) -> None:
        """Writes a checkpoint every `checkpoint.everySteps` steps, and when the status server is asked for one."""
        every = self.spec.checkpoint.every_steps if self.spec.checkpoint else None
        if (every and self.counters.step % every == 0) or self._checkpoint_wanted.is_set():
            self._checkpoint_wanted.clear()
            self.checkpoint()

    def checkpoint(self) -> None:
        """Writes everything that a resumed run needs, unless this step's checkpoint is there already."""
        if self.counters.checkpointed_step != self.counters.step:
            try:
                with self.spans.span("checkpoint"):
                    self._checkpoint = self.checkpoints.save(
                        self.counters, self.learners, self.buffer, self.metrics, self.model_folder
                    )
            except RLTrainError as error:
                self.server.checkpoint_failed(str(error))
                raise
            self.counters.checkpointed_step = self.counters.step
        if self._checkpoint is not None:
            self.server.checkpointed(self._checkpoint)

    def stop_reason(self) -> str | None:
        """Why the run ends now, or None."""
        return stop_reason(
            self.spec.stop,
            step=self.counters.step,
            elapsed=self.counters.elapsed,
            rewards=self.counters.rewards,
            heldout=self.counters.heldout,
            evaluated=self.spec.task.evaluation is not None,
        )

    def finish(self, reason: str) -> dict[str, Any]:
        """Evaluates the last weights, exports the policy and writes summary and report."""
        if self.spec.task.evaluation is not None and self.counters.heldout_step != self.counters.step:
            self._evaluate()
            self.metrics.event("evaluation", step=self.counters.step, score=self.counters.heldout)
        self.buffer.stop()
        self.checkpoints.export(self.learners, self.model_folder, self.folder.final)
        self.timeline.write(self.spans.drain())
        summary = self._summarize(reason)
        self.server.update(
            self._progress.model_copy(update={"phase": "Succeeded", "heldout_score": summary["heldout_end"]})
        )
        self.console.finish(summary, self.folder.path / "report.html")
        return summary

    def sampled_score(self, label: int) -> float:
        """Exact matches of sampled (not greedy) held-out answers, with the learners' weights as they are now."""
        weights, _ = self.learners.publish(-1 - label)
        answers = self.samplers.evaluate(self.heldout_prompts, weights, -1 - label, greedy=False)
        return sum(answer.exact for answer in answers) / len(answers)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _raise_alarms(self, sentences: list[str]) -> None:
        """Tells once of a buffer that stays full or empty, and again when it does so anew."""
        current = {sentence.split(" for ")[0]: sentence for sentence in sentences}
        for name in current.keys() - self._alarms:
            self.console.warning(current[name])
            self.metrics.event("note", step=self.counters.step, text=current[name])
        self._alarms = set(current)

    def _start_clock(self) -> None:
        self.counters.start_clock()
        self._step_ended = time.monotonic()

    def _publish_weights(self) -> None:
        """Puts the learners' weights into the object store under their version, once per version."""
        version = self.counters.step // self.spec.weight_sync.every_steps
        if version != self._weights_version:
            with self.spans.span("publish", version=version):
                self._weights, spans = self.learners.publish(version)
            self._step_spans.extend(spans)
            self._weights_version = version

    def _evaluate(self) -> None:
        evaluation = self.spec.task.evaluation
        assert evaluation is not None
        self.console.phase("evaluating")
        before = self._progress.phase
        self.show_phase("Evaluating")
        with self.spans.span("evaluate"):
            answers = self.samplers.evaluate(
                self.heldout_prompts,
                self._weights,
                self._weights_version,
                max_new_tokens=evaluation.max_new_tokens,
            )
        self.counters.heldout = sum(answer.exact for answer in answers) / len(answers)
        self.counters.heldout_step = self.counters.step
        self._keep_examples(answers[:EXAMPLES])
        self.console.evaluation(self.counters.step, self.counters.heldout)
        self.show_phase(before)

    def _keep_examples(self, answers: list[Answer]) -> None:
        """The first evaluation's answers are `before`; every later one's are `after`."""
        if self.counters.step == 0:
            examples = [
                Example(prompt=a.prompt, expected=a.expected, before=a.text, before_right=a.exact)
                for a in answers
            ]
        else:
            after = {a.prompt: a for a in answers}
            examples = [
                replace(one, after=after[one.prompt].text, after_right=after[one.prompt].exact)
                for one in read_examples(self.folder.path)
                if one.prompt in after
            ]
        write_examples(self.folder.path, examples)
