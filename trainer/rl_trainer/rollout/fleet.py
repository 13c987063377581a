"""All samplers as the driver sees them: started, watched, replaced when they die, more or fewer as nodes come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import ray

from rl_api import RunSpec
from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.buffer.handle import Buffer
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.flow.calls import answer
from rl_trainer.flow.pulse import Watch
from rl_trainer.flow.worker_group import Handle, WorkerGroup
from rl_trainer.model.shared_folder import SharedFolder, share_folder
from rl_trainer.placement.elastic import changes, check_enough, free_rank
from rl_trainer.placement.groups import Reservation
from rl_trainer.placement.places import Placement, nodes_of
from rl_trainer.rollout.answers import scored
from rl_trainer.rollout.handle import SamplerHandle, SamplerLeft, SamplerSilent, seat_of, start_timeout
from rl_trainer.rollout.launching import SamplerLauncher, wait_for_end
from rl_trainer.rollout.task_workers import TaskWorkers
from rl_trainer.tasks import Answer, Prompt
from rl_trainer.tasks.rows import PromptData
from rl_trainer.weights.transports.publication import Publication

# How long an ended run waits for its server to be given back.
CLOSE_SECONDS = 15.0
EVALUATION_TIMEOUT = 1800.0
# How often the driver looks for nodes that came or went.
LOOK_SECONDS = 2.0


class Samplers:
    """Sampler actors by rank. When one dies its groups go back to the buffer, and training goes on."""

    def __init__(
        self,
        spec: RunSpec,
        model: SharedFolder,
        buffer: Buffer,
        placement: Placement,
        search: Path | None,
        data: PromptData | None,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        watch: Watch | None = None,
        workers: TaskWorkers = TaskWorkers(),  # noqa: B008 - frozen
    ):
        """Starts the processes; returns at once.

        Args:
            spec: the run.
            model: model folder every sampler opens; those that come later get it anew, so that the object store need not
                keep it.
            buffer: where tickets come from.
            placement: bundles named `sampler 0`, `sampler 1`, ..., or a place for each.
            search: folder from which reward modules are imported.
            data: what the task's file or data set holds: the driver alone may read it.
            tell: told, in a sentence, of every sampler that joins.
            warn: told, in a sentence, of every sampler that was lost.
            watch: knows who stands still.
            workers: of the task.
        """
        self._watch = watch
        self._spec, self._buffer = spec, buffer
        self._model = model if model.uri else model.path
        self._placement, self._tell, self._warn = placement, tell, warn
        launcher = SamplerLauncher(spec, buffer, placement, search, ray.put(data), workers, watch)
        self._launch = launcher.launch
        self._elasticity = placement.elasticity
        self._places = placement.places
        self._start_timeout = start_timeout(spec, model.size)
        self.begun = False
        self._restarts = 0
        self._gave_up = False  # too many have died, or the buffer has: the run is over
        self._failures: dict[int, int] = {}
        self._few_since: float | None = None
        self._next_look = 0.0
        nodes = nodes_of(self._places) if self._elasticity else {}
        self._samplers = {
            rank: self._launch(rank, nodes.get(rank), model) for rank in range(placement.samplers)
        }

    @property
    def ready(self) -> list[int]:
        """Ranks of those that take part."""
        return sorted(rank for rank, one in self._samplers.items() if one.ready is None and one.died is None)

    @property
    def workers(self) -> WorkerGroup:
        """Those that take part."""
        return WorkerGroup("sampler", {rank: self._samplers[rank].actor for rank in self.ready}, self._watch)

    @property
    def nodes(self) -> int:
        """On how many nodes they are. Without nodes for samplers nobody says; one is what it is on a single machine."""
        if self._elasticity is None:
            return 1
        return len({self._samplers[rank].node for rank in self.ready})

    @property
    def accelerated(self) -> bool:
        """Whether learner and samplers have GPUs."""
        return all(self.gpus)

    @property
    def gpus(self) -> list[float]:
        """Those of a learner, and of each sampler."""
        ranks = [*self._samplers]
        options = [self._placement.reservation.options("learner 0"), *map(self._placement.sampler, ranks)]
        return [cast(float, one["num_gpus"]) for one in options]

    def have_ended(self, within: float) -> bool:
        """Whether all have stopped sampling, as the buffer has told them; waits no longer than `within` seconds for that."""
        runs = [one.run for one in self._samplers.values()]
        return not ray.wait(runs, num_returns=len(runs), timeout=within)[1]

    def wait_ready(self) -> None:
        """Returns when every sampler has loaded model and task, and evaluates."""
        calls = {rank: one.ready for rank, one in sorted(self._samplers.items()) if one.ready is not None}
        Handle("sampler", calls, self._watch).wait("loading model and task", self._start_timeout)
        for one in self._samplers.values():
            one.ready = None

    def begin(self) -> None:
        """Lets all samplers take tickets, once weights are published."""
        self.begun = True
        calls = {rank: (self._samplers[rank], self._let_begin(rank)) for rank in self.ready}
        for rank, (one, call) in calls.items():
            try:
                self.wait_for(call, f"sampler {rank}", "beginning to sample", self._start_timeout)
            except ActorDied as error:
                self._lost(rank, one, error)
        if self._elasticity is not None:
            self._tell(f"{self._count()} from the beginning")

    def wait_for(
        self,
        call: ray.ObjectRef[Any],
        actor: str,
        phase: str,
        timeout: float,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> Any:
        """The result of `call`; meanwhile samplers that die are replaced, and others join where nodes come for them.

        `meanwhile`: see `Handle.wait`.

        Raises:
            ActorDied: samplers died more than `retry.limit` times since the last call that was answered.
            DeadlineExceeded: no result after `timeout` seconds, or too few samplers for too long.
            RLTrainError: a sampler or the actor itself gave up with this sentence.
        """
        result = Handle.of(actor, call).wait(phase, timeout, meanwhile, company=self)[0]
        self._restarts = 0
        return result

    def evaluate(
        self,
        prompts: Sequence[Prompt],
        published: Publication,
        *,
        greedy: bool = True,
        max_new_tokens: int | None = None,
    ) -> list[Answer]:
        """Answers to `prompts`, in order, by all samplers together, with the weights `published`.

        Raises:
            RewardError: a reward failed; with `task.onRewardError: drop` such prompts are left out, and it is raised if
                none is left.
        """

        def ask(rank: int, part: Sequence[Prompt]) -> ray.ObjectRef[list[Answer]]:
            return self.workers.one(
                rank,
                "evaluate",
                list(part),
                published,
                greedy=greedy,
                max_new_tokens=max_new_tokens,
                timeout=EVALUATION_TIMEOUT,
            ).call

        ranks = self._wait_for_one()
        found: list[Answer | None] = [None] * len(prompts)
        parts = {rank: slice(index, None, len(ranks)) for index, rank in enumerate(ranks)}
        calls = {rank: (self._samplers[rank], ask(rank, prompts[part])) for rank, part in parts.items()}
        for rank, (one, call) in calls.items():
            part, asked = parts[rank], rank
            while True:
                try:
                    name = f"sampler {asked}"
                    found[part] = self.wait_for(call, name, "evaluating", EVALUATION_TIMEOUT + 60)
                    break
                except ActorDied as error:
                    self._lost(asked, one, error)
                ranks = self._wait_for_one()
                asked = rank if rank in ranks else ranks[0]
                one, call = self._samplers[asked], ask(asked, prompts[part])
        return scored([one for one in found if one is not None], self._warn)

    def _wait_for_one(self) -> list[int]:
        """The ranks that take part, as soon as there is one. Where all were lost, `look` keeps the deadline."""
        deadline = time.monotonic() + self._start_timeout + EVALUATION_TIMEOUT
        while not self.ready:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"samplers: none is left to evaluate; {RESUME_HINT}")
            ready = [one.ready for one in self._loading.values()]
            ray.wait(ready, timeout=LOOK_SECONDS) if ready else time.sleep(LOOK_SECONDS)
            self.check_alive(self._loading, "waiting for a sampler that evaluates")
            self.look()
        return self.ready

    @property
    def _loading(self) -> dict[int, SamplerHandle]:
        """Those that do not take part yet, by rank."""
        return {
            rank: one for rank, one in self._samplers.items() if one.ready is not None and one.died is None
        }

    # -- who is looked after while others are waited for: a `Company` -----------------------------------------------

    @property
    def runs(self) -> dict[ray.ObjectRef[Any], int]:
        """See `Company.runs`: of those that live."""
        there = self._samplers.items()
        return {one.run: rank for rank, one in there if one.died is None and not one.ended}

    @property
    def patience(self) -> float:
        """Seconds to wait before somebody is looked for: nodes that come and go, who loads, or who stands still."""
        nodes = LOOK_SECONDS if self._elasticity or self._loading else math.inf
        return min(nodes, self._watch.pulse.every) if self._watch is not None else nodes

    def check_alive(self, ranks: Iterable[int], phase: str) -> None:
        """Replaces those of these ranks that stand still.

        Raises:
            DeadlineExceeded: it is the buffer or a learner.
        """
        if self._watch is None:
            return
        silent, ours = self._watch.look(), {f"sampler {rank}": rank for rank in ranks}
        for actor in sorted(name for name in silent if not name.startswith("sampler ")):
            raise DeadlineExceeded(self._watch.silence(actor, phase))
        for actor in sorted(silent & ours.keys()):
            self._died(ours[actor], SamplerSilent(self._watch.silence(actor, "sampling")))

    def close(self) -> None:
        """Has samplers give back what they have outside of the run, a server, those too that are still loading; whoever does
        not answer is not waited for."""
        if self._spec.sampler.engine != "endpoint":
            return
        there = {rank: one.actor for rank, one in self._samplers.items() if one.died is None}
        WorkerGroup("sampler", there).all("close").settle(CLOSE_SECONDS)

    # -- coming and going ------------------------------------------------------------------------------------------

    def _died(self, rank: int, error: ActorDied) -> None:
        """The process of a sampler is gone. Perhaps its node is as well, of which Ray may hear a little later."""
        one = self._samplers[rank]
        one.died, one.error = time.monotonic(), error
        if self._elasticity is None:
            self._replace(rank, None)
            return
        one.unfinished += self._release(rank)
        if isinstance(error, SamplerLeft):
            self._warn(f"{error}: others sample them again")

    def ended(self, rank: int) -> None:
        """The loop of a sampler has ended: the buffer has told it to stop, or it has left, or is gone."""
        one = self._samplers[rank]
        try:
            answer(one.run, f"sampler {rank}", "sampling", 60.0)
            one.ended = True
        except ActorDied as error:
            self._died(rank, error)

    def _lost(self, rank: int, one: SamplerHandle, error: ActorDied) -> None:
        """A call to `one` was not answered: it has died now, or was seen to die before and another may be in its place."""
        if self._gave_up:
            raise error
        if self._samplers.get(rank) is one and one.died is None:
            self._died(rank, error)

    def _replace(self, rank: int, node: str | None) -> None:
        """Starts a dead sampler anew in its place."""
        one, limit = self._samplers[rank], self._spec.retry.limit
        self._restarts += 1
        if self._restarts > limit:
            self._gave_up = True
            raise ActorDied(
                f"{one.error}; samplers died {self._restarts} times without a batch in between (retry.limit is {limit})"
            ) from one.error
        unfinished = self._end(rank)
        silent = isinstance(one.error, SamplerSilent)
        what = "gave no sign of life" if silent else "died"
        self._warn(
            f"sampler {rank} {what} and was replaced; its {unfinished} unfinished groups are sampled again"
        )
        self._failures[rank] = self._failures.get(rank, 0) + 1
        self._samplers[rank] = self._launch(rank, node, share_folder(self._model))
        if self.begun and self._elasticity is None:
            # It is asked at once, and takes tickets when it has loaded everything; until then `_join` holds its deadline.
            self._let_begin(rank)

    def _let_begin(self, rank: int) -> ray.ObjectRef[None]:
        one = self._samplers[rank]
        one.begun = True
        return WorkerGroup("sampler", {rank: one.actor}).one(rank, "begin").call

    def _end(self, rank: int) -> int:
        """Forgets a sampler and gives its groups to others; how many these are."""
        one = self._samplers.pop(rank)
        ray.kill(one.actor)  # one that lives after all would keep its place
        return one.unfinished + self._release(rank, waits=one.shares and not one.is_gone)

    def _release(self, rank: int, waits: bool = False) -> int:
        """Groups that the buffer takes back from a sampler. One that is gone itself is the end: a sampler that died with it
        must not be taken for one that others stand in for.

        `waits`: for the end of its process, which was killed and has a device till then; others get that at once.
        """
        try:
            if waits:
                wait_for_end(f"sampler {rank}", self._buffer)
            return len(self._buffer.release(rank))
        except (ActorDied, DeadlineExceeded):
            self._gave_up = True
            raise

    def look(self) -> None:
        """Lets those take part that have loaded everything; every few seconds, where nodes come and go, gives samplers up
        whose node is gone, and starts others where there are new ones."""
        for rank, one in list(self._loading.items()):
            self._join(rank, one)
        now = time.monotonic()
        if self._elasticity is None or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        nodes = nodes_of(self._places)
        seats = [
            seat_of(rank, node, self._samplers.get(rank), self._failures.get(rank, 0))
            for rank, node in nodes.items()
        ]
        plan = changes(seats, now, self._elasticity.most)
        for rank in plan.lost:
            one = self._samplers[rank]
            if one.died is None and ray.wait([one.run], timeout=0)[0]:
                self.ended(rank)  # nobody had waited for it since it left
            left, unfinished = isinstance(one.error, SamplerLeft), self._end(rank)
            rest = "" if left else f"; its {unfinished} unfinished groups are sampled again"
            self._warn(f"sampler {rank} has gone with its node, {len(self._samplers)} left{rest}")
        for rank in plan.crashed:
            self._replace(rank, nodes[rank])
        if plan.start:
            model = share_folder(self._model)
            self._samplers |= {rank: self._launch(rank, nodes[rank], model) for rank in plan.start}
        for rank in plan.give_back:
            self._places.pop(rank).release()
        if plan.ask:
            self._places[free_rank(list(self._places))] = Reservation(list(self._elasticity.bundles))
        there = sum(node is not None for node in nodes.values())
        self._few_since = check_enough(
            there, self._elasticity.least, self._few_since, now, self._elasticity.timeout
        )

    def _join(self, rank: int, one: SamplerHandle) -> None:
        """Lets a sampler that has loaded everything take part."""
        if not ray.wait([one.ready], timeout=0)[0]:
            if one.shares and self._buffer.waits(f"sampler {rank}"):
                one.started = time.monotonic()  # it has a deadline for that itself
            if time.monotonic() - one.started > self._start_timeout:
                self._died(rank, ActorDied(f"sampler {rank} did not load within {self._start_timeout:.0f} s"))
            return
        try:
            answer(one.ready, f"sampler {rank}", "loading model and task", 60.0)
        except ActorDied as error:
            self._died(rank, error)
            return
        one.ready = None
        self._failures.pop(rank, None)
        if self.begun and not one.begun:
            self._let_begin(rank)
        if self._elasticity is None:
            return  # it was replaced, which was said
        self._tell(f"sampler {rank} joined: {self._count()} now")

    def _count(self) -> str:
        """Of those that take part, in words."""
        count = len(self.ready)
        return f"{count} sampler{'' if count == 1 else 's'}"
