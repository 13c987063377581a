"""The Ray actor around one engine: takes tickets, rolls groups out, scores them, puts them into the buffer.

One thread (`run`) owns the engine. Evaluations come in through another thread and are handed over as jobs; both kinds of
sequences share the engine's batch. A third one hears that the pod is told to go (`leaving.py`), and gives its groups back
whatever the first one does meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch

from rl_api import RunSpec
from rl_api.errors import TaskError
from rl_api.handing_over import hands_over
from rl_api.roles import LEAVE_VARIABLE
from rl_trainer.buffer.groups import Ticket
from rl_trainer.buffer.handle import Buffer
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.flow.pulse import Pulse
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.store_pages import KEPT_BYTES, forget_store_pages
from rl_trainer.flow.store_room import StoreRoom
from rl_trainer.flow.turns import sampler_device
from rl_trainer.flow.worker import Worker
from rl_trainer.model.chat import Chat
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.placement.own_device import own_device, own_node
from rl_trainer.profile.gpu import gpu_meter
from rl_trainer.rollout.arrival import Arrival
from rl_trainer.rollout.delivery import Delivery
from rl_trainer.rollout.engines.base import SamplingParams
from rl_trainer.rollout.evaluation import Evaluation, Evaluations
from rl_trainer.rollout.group_rollout import GroupFailure, GroupRollout, Member
from rl_trainer.rollout.handed import handed, load_begun
from rl_trainer.rollout.leaving import Door
from rl_trainer.rollout.loop import PromptTooLong, Rollouts, stop_tokens
from rl_trainer.rollout.measuring import SamplerMeter, Stretch, WeightsReading
from rl_trainer.rollout.opening import open_engine
from rl_trainer.rollout.supply import POLL_SECONDS, Supply, is_older
from rl_trainer.rollout.task_workers import TaskWorkers
from rl_trainer.tasks import Answer, Prompt, Score, load_task
from rl_trainer.tasks.rows import PromptData
from rl_trainer.tasks.split import heldout_count
from rl_trainer.trajectory import Group
from rl_trainer.weights.transports.base import never
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.create import create_receiver
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication

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
        simulators, scorers = workers.targets(spec), workers.scorers(spec)
        self.task = load_task(
            spec.task,
            spec.seed,
            search=search,
            heldout=heldout_count(spec),
            data=data,
            simulators=simulators,
            scorers=scorers,
            caller=rank,
        )
        place = f"sampler {rank} on node {ray.util.get_node_ip_address()}"
        self._store = RayStore()
        with model.opened() as folder:
            # What may be refused first: a server that the engine has claimed by then would be nobody's to give back.
            tokenizer = load_tokenizer(folder)
            chat = Chat.of(tokenizer, spec.task)
            stop = tokenizer.stop_ids | stop_tokens(tokenizer, spec.sampler.stop)
            self._swaps = rank < spec.shared_samplers and spec.placement.residency == "swap"
            self.engine = open_engine(
                spec, rank, model, folder, buffer.actor, other_pods=other_pods, swaps=self._swaps
            )
        # vLLM and servers have their own memory, and who gives his back in turn gives back what is his own.
        borrows = spec.sampler.engine == "torch" and not self._swaps
        lends = StoreRoom(spec.sampler.replicas) if borrows else never
        self.receiver = create_receiver(
            spec.weight_sync.transport, self._store, place=place, lends=lends, device=own_device()
        )
        self._wake = threading.Event()
        self.rollouts = Rollouts(
            self.engine, chat, self.task, max_turns=spec.task.max_turns, wake=self._wake.set
        )
        sampler = spec.sampler
        self.params = SamplingParams(
            sampler.max_new_tokens, sampler.temperature, sampler.top_p, sampler.top_k, stop
        )
        self._meter = SamplerMeter(self.engine, self.spans, simulators, scorers, gpu_meter())
        self._reading = WeightsReading(self._store, self.receiver, own_node())
        self._stretch = Stretch(self.engine, self.spans)
        self._arrival = Arrival(
            self.receiver, self.engine.prepare_weights, spec.weight_sync.timeout.seconds, self._wake.set
        )
        self._evaluations = Evaluations()
        self._supply = Supply(buffer, rank, self._wake.set)
        self._delivery = Delivery(buffer, rank, self._wake.set)
        self._device = sampler_device(
            spec,
            rank,
            buffer.actor,
            self.spans,
            wake=self._wake.set,
            arrive=self._take_device,
            leave=self._leave_device,
        )
        gives = hands_over(spec)
        self._hands_over = gives and rank < spec.shared_samplers
        self._takes_whole_steps = spec.buffer.max_staleness == 0 and not gives
        self._sampling = False
        # Version of the published weights in the engine; None: the model folder's.
        self._loaded: int | None = None
        self._too_long = 0  # prompts one after the other
        if at := os.environ.get(LEAVE_VARIABLE):
            Door(Path(at), self._delivery.leave_and_end)

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
        self._evaluations.ask(job)
        self._wake.set()
        if self._delivery.leaves:  # `run` may have looked at them for the last time
            raise self._delivery.left()
        return job.result(f"sampler {self.rank}", timeout)

    def join(self, invitation: Invitation, member: int) -> str | None:
        """See `CollectiveReceiver.join`; meanwhile sampling goes on."""
        assert isinstance(self.receiver, CollectiveReceiver), "only such runs broadcast"
        return self.receiver.join(invitation, member)

    def begin(self) -> None:
        """Weights are published: from now on tickets are taken."""
        if self._delivery.leaves:
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
        while not self._delivery.leaves and self._supply.hear(self._loaded):
            self._hand_on(self.rollouts.deliver_scores())  # whoever has the device
            self._meter.look(self.rollouts)
            begun = self.rollouts.may_advance
            needed = bool(begun or self._supply.held or self._evaluations.waits)
            ours = self._device.take_or_leave(needed, begun, self._can_move)
            if ours and not self._device.is_waited_for:
                self._start_what_may_start()
            # Last of all before it waits: an answer that brought nothing to do must not be waited on.
            if self._sampling:
                self._supply.ask(self._groups_wanted(), self._loaded)
            if ours and self.rollouts.may_advance:
                self._advance()
            else:
                self._stretch.end()
                delay = self.rollouts.seconds_to_next_reply()
                self._wake.wait(POLL_SECONDS if delay is None else min(delay, POLL_SECONDS))
            self._wake.clear()
            self._delivery.check()
        self._stretch.end()
        if self._delivery.leaves:  # also since the look above: then `leave` has had it released
            left = self._delivery.left()
            self._evaluations.fail_all(left)
            raise left

    def _can_move(self) -> bool:
        """Whether nothing is left to do here once what is begun is handed over: no evaluation, and no weights to load."""
        if not self._hands_over or self._evaluations:
            return False
        return not self._supply.brings_weights and self.rollouts.can_move

    def _take_device(self) -> None:
        """The device is this sampler's now. What was to be begun there others may have meanwhile."""
        if self._hands_over:
            self._supply.leave_out_lost()
        if self._swaps:
            self.onload()

    def _leave_device(self) -> None:
        """Learners get the device now: what is begun here goes on elsewhere, if the run has it so."""
        self._stretch.end()
        if self._hands_over and not self._delivery.leaves:
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
        begun = self.rollouts.hand_over(lambda key: isinstance(key, Ticket))
        groups = handed(begun, self._supply.give_up_tickets())
        stay = [key for key in self.rollouts.keys if isinstance(key, Ticket)]
        said: dict[str, Any] = {"groups": len(groups)}
        if groups or stay:
            self.buffer.hand_over(self.rank, groups, stay, said)
        if groups:
            self.spans.add("hand over", started, time.time(), **said)

    # -- the loop's parts ------------------------------------------------------------------------------------------

    def _groups_wanted(self) -> int:
        if self._supply.held or self._evaluations or self._device.is_waited_for:
            return 0
        if self._takes_whole_steps:
            # All of the step's share at once: then the engine's batches, and so the results, are the same in every run.
            return self.spec.algorithm.prompts_per_step if self.rollouts.groups == 0 else 0
        free = self.engine.slots - self.rollouts.members_in_engine - self.rollouts.waiting_for_tools
        return max(0, -(-free // self.spec.algorithm.group_size))

    def _start_what_may_start(self) -> None:
        job = self._evaluations.next
        if job is not None and self._load(job.published, job.published.version):
            for key, prompt in self._evaluations.begin():
                self._start(key, prompt, 1, job.params)
        held = self._supply.held
        while held:
            if not is_older(held[0], self._loaded) and not self._load(held[0].weights, held[0].version):
                return
            acquired = held.popleft()
            for ticket in acquired.tickets:
                prompt, begun = self.task.prompt(ticket.group_id), None
                if ticket.begun is not None:
                    with self.spans.span("fetch", groups=1, source="buffer") as said:
                        begun = load_begun(fetch_payloads([ticket.begun], said=said)[0])
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
                self._evaluations.settle(key, "", Score(0.0, False), str(error))
        else:
            self._too_long = 0

    def _load(self, published: Publication | None, version: int) -> bool:
        """Swaps to `version` if that may happen now: it is here, there is no evaluation, and no group if so configured."""
        if version == self._loaded:
            return True
        assert published is not None, "the buffer sends weights that a sampler does not have"
        self._arrival.want(published)
        if self._evaluations.under_way:
            return False
        if self.spec.weight_sync.swap == "betweenGroups" and self.rollouts.groups:
            return False
        load = self._arrival.take(published)
        if load is None:  # the loop goes on, and is woken
            return False
        self._stretch.end()
        with self.spans.span("load weights", version=version, way=published.way, source="learner 0") as noted:
            load()
            noted |= self._reading.read(published)
            forget_store_pages(keep=KEPT_BYTES)
            self._loaded = version
        return True

    def _advance(self) -> None:
        self._stretch.begin()
        groups = self.rollouts.advance()
        # Of all members, whenever their group is finished: a stretch may end before.
        self._stretch.scored(self.rollouts.drain_score_seconds())
        self._hand_on(groups)
        if self._stretch.is_long:
            self._stretch.end()

    def _hand_on(self, groups: Sequence[GroupRollout | GroupFailure]) -> None:
        """What is complete goes to the buffer, or to who has asked for it."""
        done: list[Group] = []
        for group in groups:
            if isinstance(group, GroupFailure):
                self._failed(group)
            elif isinstance(group.key, Ticket):
                done.append(self._finished(group.key, group))
            else:
                self._answered(group)
        if done:
            with self.spans.span("put", groups=len(done)) as said:
                self._delivery.put(done, said)

    def _finished(self, ticket: Ticket, group: GroupRollout) -> Group:
        self._stretch.end()
        self._meter.finished(group)
        priority = group.prompt.priority if self.spec.buffer.order == "priority" else 0.0
        return Group.of(
            ticket.group_id,
            group.trajectories(),
            priority=priority,
            spans=self._meter.drain(self.rollouts),
            issue=ticket.issue,
            node=self._reading.node,
        )

    def _answered(self, group: GroupRollout) -> None:
        member = group.members[0]
        assert member.score is not None
        self._evaluations.settle(group.key, member.text, member.score)

    def _failed(self, failure: GroupFailure) -> None:
        dropped = self.spec.task.on_reward_error == "drop"
        if isinstance(failure.key, Ticket):
            if not dropped:
                raise failure.error
            self.buffer.drop(self.rank, failure.key.group_id, "reward_error")
        elif dropped:
            self._evaluations.settle(failure.key, "", Score(0.0, False), str(failure.error))
        else:
            self.rollouts.abort(self._evaluations.has)
            self._evaluations.fail(failure.error)
