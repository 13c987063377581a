"""The buffer actor with real samplers: nothing lost, nothing twice, whoever is killed."""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

from rl_api.errors import ActorDied, DeadlineExceeded, RLTrainError
from rl_trainer.buffer.groups import BufferConfig, Handed
from rl_trainer.buffer.handle import Buffer
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.flow.calls import INLINE_BYTES
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.store_room import StoreRoom, node_store_bytes
from rl_trainer.trajectory import Group, Trajectory
from rl_trainer.weights.payload import lent_rows
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module
pytestmark = pytest.mark.usefixtures("local_ray")

LARGE = 20_000  # tokens of a payload that travels by reference


def group(ticket, tokens=5):
    """A group whose content says which ticket it is of."""
    one = Trajectory(
        np.full(tokens, ticket.group_id, np.int32),
        np.arange(tokens) > 0,
        np.full(tokens - 1, 0.5, np.float32),
        np.full(tokens - 1, ticket.version, np.int32),
    )
    return Group.of(ticket.group_id, [one])


def acquire(buffer, sampler, groups, timeout, known_version=-1):
    return Buffer.result(buffer.acquire_ref(sampler, groups, timeout, known_version), "acquiring work")


def put(buffer, sampler, group):
    return Buffer.result(buffer.put_ref(sampler, [group]), "handing in a group")[0]


@ray.remote(num_cpus=0)
class Sampler:
    def __init__(self, buffer, rank):
        self.buffer, self.rank = buffer, rank
        buffer.register(rank)

    def pid(self):
        return os.getpid()

    def ready(self):
        return True

    def hand_over(self, count, size):
        tickets = acquire(self.buffer, self.rank, count, 10.0).tickets
        begun = [Handed(ticket.group_id, ticket.version, b"x" * size) for ticket in tickets]
        said = {}
        given = self.buffer.hand_over(self.rank, begun, said=said)
        assert said == {"way": "inline" if size <= INLINE_BYTES else "reference", "bytes": count * size}
        return given

    def begun(self, count):
        tickets = acquire(self.buffer, self.rank, count, 10.0).tickets
        payloads = fetch_payloads([ticket.begun for ticket in tickets])
        return [(ticket.group_id, len(data)) for ticket, data in zip(tickets, payloads, strict=True)]

    def take_tickets(self, count):
        return [ticket.group_id for ticket in acquire(self.buffer, self.rank, count, 10.0).tickets]

    def sample(self, count, tokens=5):
        done = []
        while len(done) < count:
            for ticket in acquire(self.buffer, self.rank, count - len(done), 10.0).tickets:
                assert put(self.buffer, self.rank, group(ticket, tokens)).accepted
                done.append(ticket.group_id)
        return done

    def sample_until_stopped(self):
        version, weights = -1, []
        while True:
            acquired = acquire(self.buffer, self.rank, 2, 10.0, version)
            if acquired.stop:
                return weights
            if acquired.weights is not None:
                version = acquired.version
                weights.append((version, ray.get(acquired.weights[0])))
            for ticket in acquired.tickets:
                assert ticket.version <= version
                put(self.buffer, self.rank, group(ticket))


def make(weights=None, **config):
    buffer = Buffer.create(BufferConfig(**{"groups_per_step": 4, "capacity": 32, **config}))
    buffer.publish(0, weights)
    return buffer


def kill(actor):
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.pid.remote(), timeout=120)


def ids(batch):
    return [taken.group_id for taken in batch.groups]


def trajectories(batch, way="inline"):
    said = {}
    payloads = fetch_payloads([taken.payload for taken in batch.groups], said=said)
    assert said == {"way": way, "bytes": sum(len(memoryview(one)) for one in payloads)}
    return [taken.trajectories(data)[0] for taken, data in zip(batch.groups, payloads, strict=True)]


@pytest.mark.parametrize(("tokens", "way"), [(5, "inline"), (LARGE, "reference")])
def test_groups_outlive_their_sampler(tokens, way):
    buffer = make(max_staleness=1)
    sampler = Sampler.remote(buffer, 0)
    assert ray.get(sampler.sample.remote(4, tokens)) == [0, 1, 2, 3]
    kill(sampler)
    assert buffer.release(0) == []
    batch = buffer.take(10.0)
    assert ids(batch) == [0, 1, 2, 3]
    for taken, one in zip(batch.groups, trajectories(batch, way), strict=True):
        assert isinstance(taken.payload, ray.ObjectRef) == (tokens == LARGE)
        assert (one.tokens == taken.group_id).all()
        assert len(one.tokens) == tokens


def test_a_killed_samplers_prompts_are_sampled_by_another():
    buffer = make(max_staleness=1, samplers=2)
    first, second = Sampler.remote(buffer, 0), Sampler.remote(buffer, 1)
    assert ray.get(first.take_tickets.remote(3)) == [0, 1, 2]
    kill(first)
    assert buffer.release(0) == [0, 1, 2]
    assert ray.get(second.sample.remote(4)) == [0, 1, 2, 3]
    assert ids(buffer.take(10.0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [5, 2 * INLINE_BYTES])
def test_what_was_handed_over_outlives_both_samplers(size):
    """The one that began it, and the one that took it."""
    buffer = make(max_staleness=1, samplers=3, shared_samplers=1)
    samplers = [Sampler.remote(buffer, rank) for rank in range(3)]
    assert ray.get([sampler.ready.remote() for sampler in samplers])
    assert ray.get(samplers[0].hand_over.remote(2, size)) == [0, 1]
    kill(samplers[0])
    assert ray.get(samplers[1].begun.remote(2)) == [(0, size), (1, size)]
    kill(samplers[1])
    assert buffer.release(1) == [0, 1]
    assert ray.get(samplers[2].begun.remote(2)) == [(0, size), (1, size)]


def test_a_call_that_a_dead_sampler_left_behind_gets_no_tickets():
    buffer = make()
    buffer.register(0)
    assert len(acquire(buffer, 0, 9, 1.0).tickets) == 4
    waiting = buffer.acquire_ref(0, 9, 30.0, 0)  # no budget: it waits
    buffer.snapshot()  # answered: by now it does wait (calls of an async actor may begin in another order)
    buffer.register(0)  # the next life of the same sampler
    assert Buffer.result(waiting, "the old call", 10.0).stop
    assert [t.group_id for t in acquire(buffer, 0, 9, 1.0).tickets] == [0, 1, 2, 3]


def test_weights_reach_every_sampler_and_the_loop_ends():
    buffer = make(weights=[ray.put("w0")], samplers=2)
    samplers = [Sampler.remote(buffer, rank) for rank in range(2)]
    assert ray.get([sampler.ready.remote() for sampler in samplers])
    runs = [sampler.sample_until_stopped.remote() for sampler in samplers]
    for step in range(3):
        batch = buffer.take(120.0)
        assert ids(batch) == [4 * step + i for i in range(4)]
        assert {taken.version for taken in batch.groups} == {step}
        buffer.finish_step(step, None, None)
        buffer.finish_step(step, step + 1, [ray.put(f"w{step + 1}")])  # a driver that repeats itself
    buffer.stop()
    for weights in ray.get(runs, timeout=120):
        assert weights == [(version, f"w{version}") for version, _ in weights]
        assert weights[0][0] == 0


def test_more_samplers_may_wait_than_ray_lets_call_at_a_time_by_itself():
    buffer = make(samplers=2, groups_per_step=1)
    buffer.register(0)
    (ticket,) = acquire(buffer, 0, 1, 1.0).tickets
    waiting = [buffer.acquire_ref(0, 1, 300.0, 0) for _ in range(1_100)]
    assert put(buffer, 0, group(ticket)).accepted
    assert ids(buffer.take(10.0)) == [0]
    buffer.stop()
    assert all(answer.stop for answer in ray.get(waiting, timeout=60))


def test_a_consumer_that_dies_gets_the_same_batch_again():
    buffer = make(max_staleness=1)

    @ray.remote(num_cpus=0)
    def take_and_die(buffer):
        buffer.take(10.0)
        os.kill(os.getpid(), signal.SIGKILL)

    ray.get(Sampler.remote(buffer, 0).sample.remote(8))
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(take_and_die.options(max_retries=0).remote(buffer))
    assert ids(buffer.take(10.0)) == [0, 1, 2, 3]
    buffer.finish_step(0, None, None)
    assert ids(buffer.take(10.0)) == [4, 5, 6, 7]


def test_snapshot_goes_into_a_fresh_buffer():
    buffer = make(max_staleness=2)
    sampler = Sampler.remote(buffer, 0)
    ray.get(sampler.sample.remote(5, LARGE))
    assert ray.get(sampler.take_tickets.remote(2)) == [5, 6]
    buffer.take(10.0)
    buffer.finish_step(0, 1, None)
    state, payloads = buffer.snapshot()
    ray.kill(buffer.actor)

    again = Buffer.create(BufferConfig(groups_per_step=4, capacity=32, max_staleness=2))
    again.restore(json.loads(json.dumps(state)), payloads)
    again.register(0)
    assert acquire(again, 0, 9, 0.2).tickets == []  # not before weights are published
    again.publish(1, None)
    tickets = acquire(again, 0, 3, 5.0).tickets
    assert [(t.group_id, t.version, t.reissued) for t in tickets] == [
        (5, 1, True),
        (6, 1, True),
        (7, 1, False),
    ]
    for ticket in tickets:
        put(again, 0, group(ticket))
    batch = again.take(10.0)
    assert ids(batch) == [4, 5, 6, 7]
    assert [len(one.tokens) for one in trajectories(batch, "inline and reference")] == [LARGE, 5, 5, 5]


def test_waits_end_with_a_sentence():
    buffer = make()
    buffer.register(0)
    acquire(buffer, 0, 3, 1.0)
    with pytest.raises(
        DeadlineExceeded, match="0 of 4 groups are ready, 3 are running in 1 samplers, 1 wait"
    ):
        buffer.take(0.2)
    started = time.monotonic()
    assert acquire(buffer, 0, 3, 0.2).tickets != []
    assert acquire(buffer, 0, 3, 0.2, known_version=0).tickets == []
    assert 0.2 <= time.monotonic() - started < 60.0
    assert buffer.drop(0, 0, "reward_error")
    assert buffer.snapshot()[0]["drops"] == {"reward_error": 1}


def test_a_payload_that_does_not_arrive_is_a_sentence():
    @ray.remote(num_cpus=0)
    def never():
        time.sleep(3600)

    missing = never.remote()
    late = r"^node .*: the groups of a batch did not arrive from the buffer's node within 0 s; look at .* --resume"
    with pytest.raises(DeadlineExceeded, match=late):
        fetch_payloads([b"here", missing], timeout=0.1)
    ray.cancel(missing, force=True)
    with pytest.raises(ActorDied, match=r"a group of a batch was lost .* --resume"):
        fetch_payloads([missing], timeout=120.0)


def test_a_restored_buffer_holds_no_more_than_one_message_of_payloads_itself():
    buffer = make(max_staleness=1)
    sampler = Sampler.remote(buffer, 0)
    ray.get(sampler.sample.remote(4, 2_000))
    state, payloads = buffer.snapshot()
    again = Buffer.create(BufferConfig(groups_per_step=4, capacity=32, max_staleness=1))
    again.restore(state, payloads)
    again.publish(0, None)
    taken = [group.payload for group in again.take(10.0).groups]
    assert sum(len(one) for one in taken if isinstance(one, bytes)) <= INLINE_BYTES
    assert [bytes(one) for one in fetch_payloads(taken)] == payloads


def test_a_mistake_is_the_buffers_own_sentence():
    buffer = make()
    with pytest.raises(RLTrainError, match="sampler 3 asked for work but is not registered"):
        acquire(buffer, 3, 1, 1.0)
    with pytest.raises(RLTrainError, match="no batch is under lease"):
        buffer.finish_step(0, None, None)
    with pytest.raises(RLTrainError, match="commit of step 2, but the batch under lease is step 0"):
        buffer.finish_step(2, None, None)


def test_the_bench_of_many_samplers_small(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    scale = importlib.import_module("scale")
    ray.cloudpickle.register_pickle_by_value(scale)
    size = scale.Size(samplers=20, ranks=4, groups_per_step=8, processes=1, rank_processes=1)
    found = scale.measure(scale.OurLink(size), size, seconds=0.0)
    assert len(found.ids) == len(set(found.ids)) == 8 * len(found.take) + 8 * (scale.STALENESS + 1)
    assert max(found.ids) < 8 * (len(found.take) + 2 * (scale.STALENESS + 1))
    assert found.groups_per_second > 0
    assert found.acquire


def test_a_killed_buffer_is_named():
    buffer = make()
    ray.kill(buffer.actor)
    with pytest.raises(ActorDied, match="the buffer died while taking a batch"):
        buffer.take(120.0)  # the call may be there before the kill is: a shorter wait would end first


def test_what_an_engine_computes_with_stays_in_the_store_while_later_versions_are_put():
    values = torch.arange(500_000, dtype=torch.int32)  # 2 MB: not within an answer
    store = RayStore()
    publisher, receiver = StorePublisher(store, 0), StoreReceiver(store, "here", StoreRoom(1))

    def publish(version):
        tensors = {"weight": LazyTensor.of(values + version)}
        return publisher.publish(Offer(lambda: source_of(tensors)), version)

    def take(published):
        return lent_rows(receiver.receive(published, 60), [("weight", 0)])

    first = take(publish(0))  # nobody has a handle of it any more, and Ray may free it
    last, places = None, set()
    for version in range(1, 9):
        last = take(publish(version))
        places.add(last.data_ptr())
        assert torch.equal(last, values + version)
        assert torch.equal(first, values)
    assert first.data_ptr() not in places
    assert node_store_bytes() > values.nbytes
    assert (
        lent_rows(StoreReceiver(store, "here", StoreRoom(1 << 30)).receive(publish(9), 60), [("weight", 0)])
        is None
    )


def test_the_bench_of_weights_small(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    weights = importlib.import_module("weights")
    config = weights.config_of(0.2)
    learner, samplers = weights.LearnerSide(config), [weights.SamplerSide(config) for _ in range(2)]

    def call(one, method, *arguments):
        found = getattr(one, method)(*arguments)
        return lambda: found

    sent = {}
    for way in (weights.NAIVE, "objectStore", "delta", "adapter"):  # a broadcast needs processes
        # That samplers have what the learner has is looked at there.
        found = weights.measure(learner, samplers, way, share=0.05, repetitions=2, call=call)
        assert len(found) == 2
        assert all(one.total > one.pause > 0 for one in found)
        sent[way] = found[-1].sent
    assert sent["delta"] < 0.1 * sent["objectStore"]
    assert sent["objectStore"] == pytest.approx(learner.size, rel=0.01)
    assert sent["adapter"] < sent["objectStore"] < sent[weights.NAIVE]
    steps = weights.real_steps(1)
    rows = [[100, 1, way, found, 1e9] for way in (weights.NAIVE, "objectStore", "delta")]
    names = [check.name for check in weights.checks_of(rows, steps)]
    assert len(names) == len(set(names)) == 5
    assert weights.checks_of([], steps)[0].passed, steps
