"""All samplers as the driver sees them: started, watched, replaced when their process dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from rl_api import RunSpec
from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.actors import answer, answers
from rl_trainer.channel.buffer import Buffer
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.placement.groups import Reservation
from rl_trainer.sampler.actor import Answer, SamplerActor
from rl_trainer.stopping import RESUME_HINT
from rl_trainer.tasks import Prompt
from rl_trainer.weights.payload import WeightsPayload

START_TIMEOUT = 300.0
EVALUATION_TIMEOUT = 1800.0


class Samplers:
    """Sampler actors by rank. A dead one is replaced, its groups go back to the buffer, and training goes on."""

    def __init__(
        self,
        spec: RunSpec,
        model: SharedFolder,
        buffer: Buffer,
        reservation: Reservation,
        search: Path | None,
        warn: Callable[[str], None],
    ):
        """Starts the processes; returns at once.

        Args:
            spec: the run.
            model: model folder every sampler opens.
            buffer: where tickets come from.
            reservation: bundles named `sampler 0`, `sampler 1`, ...
            search: folder from which reward modules are imported.
            warn: told, in a sentence, of every replacement.
        """
        self._spec, self._model, self._buffer = spec, model, buffer
        self._reservation, self._search, self._warn = reservation, search, warn
        self.begun = False
        self._restarts = 0
        self._runs: dict[int, ray.ObjectRef[None]] = {}
        self.actors = {rank: self._launch(rank) for rank in range(spec.sampler.replicas)}

    def wait_ready(self) -> None:
        """Returns when every sampler has loaded model and task, and evaluates."""
        for rank, actor in self.actors.items():
            answer(actor.ready.remote(), f"sampler {rank}", "loading model and task", START_TIMEOUT)
            self._runs[rank] = actor.run.remote()

    def begin(self) -> None:
        """Lets all samplers take tickets, once weights are published."""
        self.begun = True
        calls = [actor.begin.remote() for actor in self.actors.values()]
        answers(calls, "sampler", "beginning to sample", START_TIMEOUT)

    def wait_for(self, call: ray.ObjectRef[Any], actor: str, phase: str, timeout: float) -> Any:
        """The result of `call`, replacing samplers that die in the meantime.

        Raises:
            ActorDied: samplers died more than `retry.limit` times since the last call that was answered.
            DeadlineExceeded: no result after `timeout` seconds.
            RLTrainError: a sampler or the actor itself gave up with this sentence.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            done, _ = ray.wait([call, *self._runs.values()], timeout=max(0.0, left))
            if call in done:
                self._restarts = 0
                return answer(call, actor, phase, 60.0)
            if not done:
                raise DeadlineExceeded(
                    f"{actor}: no answer after {timeout:.0f} s while {phase}; {RESUME_HINT}"
                )
            for rank in [rank for rank, run in self._runs.items() if run in done]:
                try:
                    answer(self._runs[rank], f"sampler {rank}", "sampling", 60.0)
                except ActorDied as error:
                    self._replace(rank, error)

    def evaluate(
        self,
        prompts: Sequence[Prompt],
        weights: list[ray.ObjectRef[WeightsPayload]],
        version: int,
        *,
        greedy: bool = True,
        max_new_tokens: int | None = None,
    ) -> list[Answer]:
        """Answers to `prompts`, in order, by all samplers together."""
        ranks = len(self.actors)

        def ask(rank: int) -> ray.ObjectRef[list[Answer]]:
            return self.actors[
                rank
            ].evaluate.remote(  # type: ignore[no-any-return]
                list(prompts[rank::ranks]),
                weights,
                version,
                greedy=greedy,
                max_new_tokens=max_new_tokens,
                timeout=EVALUATION_TIMEOUT,
            )

        asked = dict(self.actors)
        calls = {rank: ask(rank) for rank in asked}
        found: list[Answer | None] = [None] * len(prompts)
        for rank, call in calls.items():
            try:
                part = self._evaluated(rank, call)
            except ActorDied as error:
                if self.actors[rank] is asked[rank]:
                    self._replace(rank, error)
                part = self._evaluated(rank, ask(rank))
            found[rank::ranks] = part
        return [one for one in found if one is not None]

    def _evaluated(self, rank: int, call: ray.ObjectRef[list[Answer]]) -> list[Answer]:
        part: list[Answer] = self.wait_for(call, f"sampler {rank}", "evaluating", EVALUATION_TIMEOUT + 60)
        return part

    def _launch(self, rank: int) -> Any:
        options = self._reservation.options(f"sampler {rank}")
        # Two threads: the loop, and calls of the driver.
        remote = ray.remote(SamplerActor).options(max_concurrency=3, **options)
        return remote.remote(rank, self._spec, self._model, self._buffer, self._search)

    def _replace(self, rank: int, error: ActorDied) -> None:
        self._restarts += 1
        limit = self._spec.retry.limit
        if self._restarts > limit:
            raise ActorDied(
                f"{error}; samplers died {self._restarts} times without a batch in between (retry.limit is {limit})"
            ) from error
        lost = self._buffer.release(rank)
        self._warn(
            f"sampler {rank} died and was replaced; its {len(lost)} unfinished groups are sampled again"
        )
        self.actors[rank] = self._launch(rank)
        self._runs[rank] = self.actors[rank].run.remote()
        if self.begun:
            self.actors[rank].begin.remote()
