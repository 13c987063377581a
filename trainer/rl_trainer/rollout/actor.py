"""The Ray actor around one engine: takes tickets, rolls groups out, scores them, puts them into the buffer.

One thread (`run`) owns the engine. Evaluations come in through another thread and are handed over as jobs; both kinds of
sequences share the engine's batch. A third one hears that the pod is told to go (`leaving.py`), and gives its groups back
whatever the first one does meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ray
import torch

from rl_api import RunSpec
from rl_api.errors import ActorDied, DeadlineExceeded, TaskError
from rl_api.handing_over import hands_over
from rl_api.roles import LEAVE_VARIABLE
from rl_trainer.buffer.actor import Acquired, Buffer
from rl_trainer.buffer.groups import Handed, Ticket
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.flow.pulse import Pulse
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.store_pages import KEPT_BYTES, forget_store_pages
from rl_trainer.flow.turns import sampler_device
from rl_trainer.flow.worker import Worker
from rl_trainer.model.chat import Chat
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.arrival import Arrival
from rl_trainer.rollout.engines.base import SamplingParams
from rl_trainer.rollout.evaluation import Evaluation
from rl_trainer.rollout.handed import dump_begun, load_begun
from rl_trainer.rollout.handle import SamplerLeft
from rl_trainer.rollout.leaving import Door
from rl_trainer.rollout.loop import GroupFailure, GroupRollout, Member, PromptTooLong, Rollouts, stop_tokens
from rl_trainer.rollout.measuring import SamplerMeter, Stretch
from rl_trainer.rollout.opening import open_engine
from rl_trainer.rollout.task_workers import TaskWorkers
from rl_trainer.tasks import Answer, Prompt, Score, load_task
from rl_trainer.tasks.rows import PromptData
from rl_trainer.tasks.split import heldout_count
from rl_trainer.trajectory import Group
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.create import create_receiver
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication

# The buffer answers an empty-handed `acquire` after this long; the sampler asks again.
POLL_SECONDS = 5.0
# How long a sampler that leaves waits for the buffer to take what is finished, and to take the rest back. It takes
# milliseconds, unless the buffer is about to go as well: the pod must not be kept for that.
PUT_SECONDS, RELEASE_SECONDS = 2.0, 5.0
# Where that many prompts in a row are left out, because they are too long, the next ones will be as well.
MOST_TOO_LONG = 1000
TOO_LONG = "prompt_too_long"


class SamplerActor(Worker):
    """One sampler. Threads: `run` (the loop) and one for calls from the driver."""

    def __init__(
        self,
        rank: int,
        spec: RunSpec,
        model: SharedFolder,
        buffer: Buffer,
        search: Path | None,
        data: PromptData | None,
        other_pods: Sequence[int] = (),
        workers: TaskWorkers = TaskWorkers(),  # noqa: B008 - frozen
    ):
        """`other_pods`: bundles of its placement group in which the rest of its engine is; `workers`: of the task."""
        super().__init__(f"sampler {rank}")
        torch.set_num_threads(spec.sampler.threads)
        self.rank, self.spec, self.buffer = rank, spec, buffer
        pulse = Pulse(buffer.actor, spec.retry.liveness_timeout.seconds)
        pulse.begin(f"sampler {rank}")  # while it loads, too
        heldout = heldout_count(spec)
        self.task = load_task(
            spec.task,
            spec.seed,
            search=search,
            heldout=heldout,
            data=data,
            simulators=workers.targets(spec),
            caller=rank,
        )
        place = f"sampler {rank} on node {ray.util.get_node_ip_address()}"
        self._store = RayStore()
        self.receiver = create_receiver(spec.weight_sync.transport, self._store, place=place)
        with model.opened() as folder:
            # What may be refused first: a server that the engine has claimed by then would be nobody's to give back.
            tokenizer = load_tokenizer(folder)
            chat = Chat.of(tokenizer, spec.task)
            stop = tokenizer.stop_ids | stop_tokens(tokenizer, spec.sampler.stop)
            self._swaps = rank < spec.shared_samplers and spec.placement.residency == "swap"
            self.engine = open_engine(
                spec, rank, model, folder, buffer.actor, other_pods=other_pods, swaps=self._swaps
            )
        self._wake = threading.Event()
        self.rollouts = Rollouts(
            self.engine, chat, self.task, max_turns=spec.task.max_turns, wake=self._wake.set
        )
        sampler = spec.sampler
        self.params = SamplingParams(
            sampler.max_new_tokens, sampler.temperature, sampler.top_p, sampler.top_k, stop
        )
        self._meter = SamplerMeter(self.engine, self.spans)
        self._stretch = Stretch(self.engine, self.spans)
        self._arrival = Arrival(
            self.receiver, self.engine.prepare_weights, spec.weight_sync.timeout.seconds, self._wake.set
        )
        self._jobs: deque[Evaluation] = deque()
        self._evaluation: Evaluation | None = None
        self._held: deque[Acquired] = deque()
        self._puts: list[Future[Any]] = []
        self._device = sampler_device(
            spec,
            rank,
            buffer.actor,
            self.spans,
            wake=self._wake.set,
            arrive=self._take_device,
            leave=self._leave_device,
        )
        self._hands_over = hands_over(spec) and rank < spec.shared_samplers
        self._sampling = False
        # Version of the published weights in the engine; None: the model folder's.
        self._loaded: int | None = None
        self._leaving, self._given_back = threading.Event(), threading.Event()
        self._unfinished = 0
        self._too_long = 0  # prompts one after the other
        if at := os.environ.get(LEAVE_VARIABLE):
            Door(Path(at), self.leave)

    def ready(self) -> int:
        """Answers once the model and the task are loaded; the rank."""
        return self.rank

    # -- calls from the driver -------------------------------------------------------------------------------------

    def evaluate(
        self,
        prompts: list[Prompt],
        published: Publication,
        *,
        greedy: bool,
        max_new_tokens: int | None,
        timeout: float,
    ) -> list[Answer]:
        """Answers `prompts` with the weights `published`, while training rollouts go on.

        Raises DeadlineExceeded when not all are answered after `timeout` seconds.
        """
        params = replace(self.params, max_new_tokens=max_new_tokens or self.params.max_new_tokens)
        if greedy:
            params = replace(params, temperature=0.0, top_p=1.0, top_k=0)
        job = Evaluation(prompts, published, params)
        if not prompts:
            return []
        self._jobs.append(job)
        self._wake.set()
        if self._leaving.is_set():  # `run` may have looked at its jobs for the last time
            raise self._left()
        return job.result(f"sampler {self.rank}", timeout)

    def join(self, invitation: Invitation, member: int) -> str | None:
        """See `CollectiveReceiver.join`; meanwhile sampling goes on."""
        assert isinstance(self.receiver, CollectiveReceiver), "only such runs broadcast"
        return self.receiver.join(invitation, member)

    def begin(self) -> None:
        """Weights are published: from now on tickets are taken."""
        if self._leaving.is_set():
            return
        self.buffer.register(self.rank)
        self._sampling = True
        self._wake.set()

    def close(self) -> None:
        """The run is over: what the engine has outside of this process is given back. Not where one sampler leaves: another
        run would have the server before the next one."""
        self.engine.close()

    def run(self) -> None:
        """Samples until the buffer says stop; before `begin`, only evaluates.

        Raises:
            RewardError: a reward failed and `task.onRewardError` is stop.
            SamplerLeft: it was told to leave.
            TaskError: a prompt does not fit the model and `task.onLongPrompt` is fail, or none does.
        """
        try:
            self._run()
        except BaseException:
            self._hands_over = False  # nobody goes on
            with suppress(Exception):  # why it ends is what is to be told; a dead sampler's device is free
                self._device.close()
            raise
        self._hands_over = False
        self._device.close()

    def _run(self) -> None:
        work: Future[Acquired] | None = None
        watch: Future[Acquired] | None = None
        while True:
            if self._leaving.is_set():
                self._stretch.end()
                raise self._end_jobs(self._left())
            for future in [future for future in (work, watch) if future is not None and future.done()]:
                work = None if future is work else work
                watch = None if future is watch else watch
                acquired = future.result()
                if acquired.stop:
                    self._stretch.end()
                    if self._leaving.is_set():  # since the look above: `leave` has had it released
                        raise self._end_jobs(self._left())
                    return
                if acquired.tickets or not self._is_older(acquired):
                    self._held.append(acquired)
            begun = self.rollouts.may_advance
            ours = self._device.is_ours(bool(begun or self._held or self._jobs), begun, self._can_move)
            if ours and not self._device.is_waited_for:
                self._start_what_may_start()
            # Last of all before it waits: an answer that brought nothing to do must not be waited on.
            if self._sampling:
                wanted = self._groups_wanted()
                if work is None and wanted > 0:
                    work = self._acquire(wanted)
                elif watch is None and wanted == 0:
                    watch = self._acquire(0)
            if ours and self.rollouts.may_advance:
                self._advance()
            else:
                self._stretch.end()
                delay = self.rollouts.seconds_to_next_reply()
                self._wake.wait(POLL_SECONDS if delay is None else min(delay, POLL_SECONDS))
            self._wake.clear()
            self._check_puts()

    def _can_move(self) -> bool:
        """Whether nothing is left to do here once what is begun is handed over: no evaluation, and no weights to load."""
        if not self._hands_over or self._jobs or self._evaluation is not None:
            return False
        return all(one.weights is None for one in self._held) and self.rollouts.can_move

    def _take_device(self) -> None:
        """The device is this sampler's now. What was to be begun there others may have meanwhile."""
        if self._hands_over and (tickets := [one for acquired in self._held for one in acquired.tickets]):
            own = self.buffer.owned(self.rank, tickets)
            self._held = deque(
                replace(acquired, tickets=[one for one in acquired.tickets if one in own])
                for acquired in self._held
            )
        if self._swaps:
            self.onload()

    def _leave_device(self) -> None:
        """Learners get the device now: what is begun here goes on elsewhere, if the run has it so."""
        self._stretch.end()
        if self._hands_over and not self._leaving.is_set():
            self._hand_over()
        if self._swaps:
            self.offload()

    def offload(self) -> int:
        """See `Engine.offload`; for the thread of `run` alone, which does it as leases say."""
        return self._moved("offload", self.engine.offload)

    def onload(self) -> int:
        """See `Engine.onload`; for the thread of `run` alone."""
        return self._moved("onload", self.engine.onload)

    def _hand_over(self) -> None:
        started = time.time()
        groups = self.rollouts.hand_over(lambda key: isinstance(key, Ticket))
        begun = [
            Handed(ticket.group_id, group.oldest_version, dump_begun(group), ticket.issue)
            for group in groups
            for ticket in [cast(Ticket, group.key)]
        ]
        tickets = [ticket for acquired in self._held for ticket in acquired.tickets]
        self._held = deque(
            replace(acquired, tickets=[]) for acquired in self._held if acquired.weights is not None
        )
        if begun or tickets:
            bare = [Handed(one.group_id, None, issue=one.issue) for one in tickets]
            self.buffer.hand_over(self.rank, [*begun, *bare])
            self.spans.add("hand over", started, time.time(), groups=len(begun) + len(tickets))

    def leave(self) -> int | None:
        """The pod is told to go: nothing is begun here any more, and what is unfinished goes back at once, to be sampled by
        others. How many groups these are; None: the buffer does not answer."""
        self._leaving.set()
        self._wake.set()
        try:
            wait(list(self._puts), PUT_SECONDS)
            self._unfinished += len(self.buffer.release(self.rank, RELEASE_SECONDS, lives=True))
        except (ActorDied, DeadlineExceeded):
            return None
        finally:
            self._given_back.set()
        return self._unfinished

    def _left(self) -> SamplerLeft:
        self._given_back.wait(2 * (PUT_SECONDS + RELEASE_SECONDS))
        groups = f"{self._unfinished} unfinished group{'' if self._unfinished == 1 else 's'}"
        return SamplerLeft(f"sampler {self.rank} is told to go with its pod and has given {groups} back")

    def _end_jobs(self, error: Exception) -> Exception:
        """Evaluations are for others now; `error` says why."""
        jobs = [*self._jobs] if self._evaluation is None else [self._evaluation, *self._jobs]
        for job in jobs:
            job.fail(error)
        return error

    # -- the loop's parts ------------------------------------------------------------------------------------------

    def _groups_wanted(self) -> int:
        if self._held or self._jobs or self._evaluation is not None or self._device.is_waited_for:
            return 0
        if self.spec.buffer.max_staleness == 0 and not hands_over(self.spec):
            # All of the step's share at once: then the engine's batches, and so the results, are the same in every run.
            return self.spec.algorithm.prompts_per_step if self.rollouts.groups == 0 else 0
        free = self.engine.slots - self.rollouts.members_in_engine - self.rollouts.waiting_for_tools
        return max(0, -(-free // self.spec.algorithm.group_size))

    def _acquire(self, groups: int) -> Future[Acquired]:
        # What is held comes to be loaded: it is not sent again while that has to wait.
        held = [acquired.version for acquired in self._held if acquired.weights is not None]
        known = max(held, default=-1 if self._loaded is None else self._loaded)
        reference = self.buffer.acquire_ref(self.rank, groups, POLL_SECONDS, known)
        future: Future[Acquired] = reference.future()
        future.add_done_callback(lambda _: self._wake.set())
        return future

    def _start_what_may_start(self) -> None:
        job = self._jobs[0] if self._jobs and self._evaluation is None else None
        if job is not None and self._load(job.published, job.published.version):
            self._evaluation = self._jobs.popleft()
            for i, prompt in enumerate(job.prompts):
                self._start((job, i), prompt, 1, job.params)
        while self._held:
            acquired = self._held[0]
            if not self._is_older(acquired) and not self._load(acquired.weights, acquired.version):
                return
            self._held.popleft()
            for ticket in acquired.tickets:
                prompt, begun = self.task.prompt(ticket.group_id), None
                if ticket.begun is not None:
                    begun = load_begun(fetch_payloads([ticket.begun])[0])
                self._start(ticket, prompt, self.spec.algorithm.group_size, self.params, begun)

    def _start(
        self,
        key: Ticket | tuple[Evaluation, int],
        prompt: Prompt,
        members: int,
        params: SamplingParams,
        begun: Sequence[Member] | None = None,
    ) -> None:
        """Begins a group, or leaves its prompt out where that is too long and `task.onLongPrompt` says so."""
        try:
            self.rollouts.start(key, prompt, members, params, self.spec.seed, begun)
        except PromptTooLong as error:
            self._too_long += 1
            if self.spec.task.on_long_prompt == "fail":
                raise
            if self._too_long >= MOST_TOO_LONG:
                raise TaskError(
                    f"{MOST_TOO_LONG} prompts one after the other are too long, the last: {error}"
                ) from None
            if isinstance(key, Ticket):
                self.buffer.drop(self.rank, key.group_id, TOO_LONG)
            else:
                self._settle(key, "", Score(0.0, False), str(error))
        else:
            self._too_long = 0

    def _load(self, published: Publication | None, version: int) -> bool:
        """Swaps to `version` if that may happen now: it is here, there is no evaluation, and no group if so configured."""
        if version == self._loaded:
            return True
        assert published is not None, "the buffer sends weights that a sampler does not have"
        self._arrival.want(published)
        if self._evaluation is not None:
            return False
        if self.spec.weight_sync.swap == "betweenGroups" and self.rollouts.groups:
            return False
        load = self._arrival.take(published)
        if load is None:  # the loop goes on, and is woken
            return False
        self._stretch.end()
        with self.spans.span("load weights", version=version) as noted:
            load()
            noted["bytes"], self._store.taken_bytes = self._store.taken_bytes, 0
            forget_store_pages(keep=KEPT_BYTES)
            self._loaded = version
        return True

    def _is_older(self, acquired: Acquired) -> bool:
        """Whether the answer was overtaken by newer weights, which serve its tickets as well."""
        return self._loaded is not None and acquired.version <= self._loaded

    def _advance(self) -> None:
        self._stretch.begin()
        done: list[Group] = []
        for group in self.rollouts.advance():
            if isinstance(group, GroupFailure):
                self._failed(group)
            elif isinstance(group.key, Ticket):
                done.append(self._finished(group.key, group))
            else:
                self._answered(group)
        if done:
            self._puts.append(self.buffer.put_ref(self.rank, done).future())
        if self._stretch.is_long:
            self._stretch.end()

    def _finished(self, ticket: Ticket, group: GroupRollout) -> Group:
        self._stretch.scored(group.score_seconds)
        self._stretch.end()
        self._meter.finished(group)
        priority = group.prompt.priority if self.spec.buffer.order == "priority" else 0.0
        return Group.of(
            ticket.group_id,
            group.trajectories(),
            priority=priority,
            spans=self.spans.drain(),
            issue=ticket.issue,
        )

    def _answered(self, group: GroupRollout) -> None:
        member = group.members[0]
        assert member.score is not None
        self._settle(group.key, member.text, member.score)

    def _settle(self, key: object, text: str, score: Score, error: str | None = None) -> None:
        """One held-out prompt is done with."""
        job, i = cast(tuple[Evaluation, int], key)
        if job.settle(i, text, score, error):
            self._evaluation = None

    def _failed(self, failure: GroupFailure) -> None:
        dropped = self.spec.task.on_reward_error == "drop"
        if isinstance(failure.key, Ticket):
            if not dropped:
                raise failure.error
            self.buffer.drop(self.rank, failure.key.group_id, "reward_error")
        elif dropped:
            self._settle(failure.key, "", Score(0.0, False), str(failure.error))
        else:
            job, _ = cast(tuple[Evaluation, int], failure.key)
            self.rollouts.abort(lambda key: isinstance(key, tuple) and key[0] is job)
            self._evaluation = None
            job.fail(failure.error)

    def _check_puts(self) -> None:
        for future in [future for future in self._puts if future.done()]:
            self._puts.remove(future)
            future.result()
