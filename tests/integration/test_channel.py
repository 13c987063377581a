"""The channel with real processes: exactly once, whoever is killed."""

import os
import signal
import sys
import time

import numpy as np
import pytest
import ray
from training_runs import until

from rl_api.errors import ActorDied, DeadlineExceeded, InvalidConfig, RLTrainError
from rl_trainer.flow.channel import Channel, ChannelClosed
from rl_trainer.flow.chunks import decode, pack, split, unpack
from rl_trainer.flow.liveness import Progress
from rl_trainer.flow.worker import Worker
from rl_trainer.flow.worker_group import WorkerGroup

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module

BIG = 300_000  # bytes of an item that travels by reference


pytestmark = pytest.mark.usefixtures("local_ray")


@ray.remote(num_cpus=0)
class Producer:
    def __init__(self, channel, name="p"):
        self.channel, self.name = channel, name

    def pid(self):
        return os.getpid()

    def put(self, count, size=0, first=0, flush=True, **options):
        for index in range(first, first + count):
            data = np.full(size or (BIG if index % 7 == 6 else 10), index % 251, np.uint8)
            self.channel.put((self.name, index, data), **options)
        return self.channel.flush(30) if flush else None

    def put_one_after_the_window_is_empty(self, size):
        self.channel.put((self.name, 0, np.zeros(size, np.uint8)))
        with self.channel._sender._condition:
            assert self.channel._sender._condition.wait_for(
                lambda: not self.channel._sender._unacknowledged, 30
            )
        return [ray.put(np.zeros(size, np.uint8))]  # another of its objects, lost as that one is


@ray.remote(num_cpus=0)
class Consumer:
    def __init__(self, channel):
        self.channel = channel

    def pid(self):
        return os.getpid()

    def get(self, count, timeout=30, pause=0.0):
        items = []
        for _ in range(count):
            items.append(key(self.channel.get(timeout)))
            time.sleep(pause)
        return items

    def drain(self):
        items = []
        while True:
            try:
                items.append(key(self.channel.get(30)))
            except ChannelClosed:
                return items


def key(item):
    name, index, data = item
    assert (data == index % 251).all()
    return name, index


def kill(actor):
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.pid.remote(), timeout=120)


@ray.remote(num_cpus=0, max_calls=1)  # each look from a new process, as a new consumer's is
def is_lost(refs):
    try:
        ray.get(refs[0], timeout=120)
    except ray.exceptions.ObjectLostError:
        return True
    return False


def await_loss(refs):
    """Ray takes a moment to lose what a killed process owned; till then it can still be fetched."""
    deadline = time.monotonic() + 240
    while not ray.get(is_lost.remote(refs), timeout=240):
        assert time.monotonic() < deadline


def expected(name, count, first=0):
    return [(name, index) for index in range(first, first + count)]


def test_each_item_once_and_each_producers_order_is_kept():
    channel = Channel.create("many", capacity=64)
    producers = [Producer.remote(channel, name) for name in "abc"]
    consumers = [Consumer.remote(channel) for _ in range(2)]
    drained = [consumer.drain.remote() for consumer in consumers]
    assert ray.get([producer.put.remote(400) for producer in producers], timeout=60) == [(400, 0)] * 3
    channel.close()
    got = ray.get(drained, timeout=60)
    assert sorted(got[0] + got[1]) == sorted(item for name in "abc" for item in expected(name, 400))
    for items in got:
        for name in "abc":
            mine = [index for producer, index in items if producer == name]
            assert mine == sorted(mine)
    assert channel.metrics()["delivered"] == 1200


def test_a_killed_consumers_undelivered_items_go_to_the_next():
    channel = Channel.create("consumer-dies", capacity=256)
    ray.get(Producer.remote(channel).put.remote(120))
    first = Consumer.remote(channel)
    delivered = ray.get(first.get.remote(40))
    until(lambda: channel.size() < 80)  # it fetches ahead: what it asked for last may be on the way still
    assert channel.metrics()["leased"] > 0
    kill(first)
    channel.close()
    rest = ray.get(Consumer.remote(channel).drain.remote(), timeout=60)
    assert delivered == expected("p", 40)
    assert sorted(rest) == expected("p", 80, first=40)


def test_a_stopped_consumer_keeps_its_items():
    channel = Channel.create("consumer-stops", capacity=256)
    ray.get(Producer.remote(channel).put.remote(50))
    slow = Consumer.remote(channel)
    got = ray.get(slow.get.remote(30))
    until(lambda: channel.size() < 20)  # it has some ahead: its call may be on the way still
    pid = ray.get(slow.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    try:
        channel.close()
        quick = Consumer.remote(channel).drain.remote()
        ready, _ = ray.wait([quick], timeout=2)
        assert not ready  # the stopped one's items are neither given away nor forgotten
    finally:
        os.kill(pid, signal.SIGCONT)
    got += ray.get(slow.drain.remote(), timeout=60)
    got += ray.get(quick, timeout=60)
    assert sorted(got) == expected("p", 50)


def test_what_a_killed_producer_had_flushed_is_delivered():
    channel = Channel.create("producer-dies", capacity=256)
    producer = Producer.remote(channel)
    assert ray.get(producer.put.remote(60)) == (60, 0)
    kill(producer)
    channel.close()
    assert ray.get(Consumer.remote(channel).drain.remote(), timeout=60) == expected("p", 60)


def test_flushed_items_survive_although_a_consumer_had_fetched_their_lost_copy():
    channel = Channel.create("recover", capacity=256)
    producer = Producer.remote(channel)
    ray.get(producer.put_one_after_the_window_is_empty.remote(BIG))
    progress = Progress("by-hand")  # a consumer that is alive
    lease = leased_by_hand(channel, progress)[0][0][0]
    assert ray.get(producer.put.remote(0)) == (1, 0)  # flush only
    kill(producer)
    adopted = ray.get(channel.actor.recover.remote("by-hand", lease))
    block, *buffers = ray.get(adopted[0], timeout=30)
    assert decode(split(block, buffers, 0, 1)[0])[:2] == ("p", 0)
    assert ray.get(channel.actor.recover.remote("by-hand", lease + 1)) is None
    progress.close()


def leased_by_hand(channel, progress):
    ray.get(channel.actor.attach.remote("by-hand", progress.path, ray.get_runtime_context().get_node_id()))
    message = pack(("by-hand", 9, 10.0, 0, False), references=False)
    return unpack(ray.get(channel.actor.pull.remote(message)))


def test_what_a_killed_producer_had_not_flushed_is_counted_not_awaited():
    channel = Channel.create("unflushed", capacity=256)
    producer = Producer.remote(channel)
    refs = ray.get(producer.put_one_after_the_window_is_empty.remote(BIG))
    kill(producer)
    await_loss(refs)
    other = Producer.remote(channel, "q")
    ray.get(other.put.remote(3))
    channel.close()
    assert ray.get(Consumer.remote(channel).drain.remote(), timeout=60) == expected("q", 3)
    assert channel.metrics()["drops"] == {"lost_with_producer": 1}


def test_a_slow_consumer_does_not_hoard():
    channel = Channel.create("slow", capacity=1024)
    ray.get(Producer.remote(channel).put.remote(100, size=10))
    slow, quick = Consumer.remote(channel), Consumer.remote(channel)
    first = ray.get(slow.get.remote(8, pause=0.1), timeout=60)
    channel.close()
    quick_ref = quick.drain.remote()
    until(lambda: channel.size() == 0)  # all that the slow one has not fetched ahead
    rest = ray.get(slow.drain.remote(), timeout=60)
    assert sorted(first + rest + ray.get(quick_ref, timeout=60)) == expected("p", 100)
    assert len(rest) < 5


def test_back_pressure_ends_in_a_sentence():
    channel = Channel.create("full", capacity=4)
    put = 0
    with pytest.raises(DeadlineExceeded, match="channel full stayed full; look at its consumers"):
        while put < 100:
            channel.put(put, timeout=0.3)
            put += 1
    assert put <= 8  # the capacity, and as many on the way
    assert channel.size() <= 4
    assert [channel.get(30) for _ in range(put)] == list(range(put))
    with pytest.raises(DeadlineExceeded, match="channel full stayed empty"):
        channel.get(0.2)
    channel.put("after", timeout=30)  # an expired wait left nothing behind
    assert channel.get(30) == "after"


def test_batches_by_count_and_by_weight():
    channel = Channel.create("batches")
    channel.put_many(range(5))
    assert channel.get_many(2, timeout=30, least=2) == [0, 1]
    assert channel.get_many(9, timeout=30, least=3) == [2, 3, 4]
    with pytest.raises(DeadlineExceeded):
        channel.get_many(9, timeout=0.2, least=2)
    for item, weight in enumerate([3, 4, 5, 20, 1]):
        channel.put(item, weight=weight)
    channel.flush()
    got = [channel.get_many(9, timeout=30, least=1, most_weight=8) for _ in range(3)]
    rest = 5 - sum(map(len, got))
    assert [item for batch in got for item in batch] == list(range(5 - rest))
    weights = dict(enumerate([3, 4, 5, 20, 1]))
    assert all(sum(weights[i] for i in batch) <= 8 or len(batch) == 1 for batch in got)


def test_the_last_batch_of_a_closed_channel_may_be_short():
    channel = Channel.create("short")
    channel.put_many(range(5))
    channel.close()
    assert channel.get_many(3, timeout=30, least=3) == [0, 1, 2]
    assert channel.get_many(3, timeout=30, least=3) == [3, 4]
    with pytest.raises(ChannelClosed):
        channel.get_many(3, timeout=30, least=3)


def test_priorities():
    channel = Channel.create("priority", order="priority")
    for item, priority in (("low", 0.0), ("high", 5.0), ("middle", 2.0), ("high 2", 5.0)):
        channel.put(item, priority=priority)
    channel.flush()
    assert [channel.get(30) for _ in range(4)] == ["high", "high 2", "middle", "low"]


@pytest.mark.parametrize(
    ("on_full", "kept", "drops"),
    [("reject", list(range(8)), {"rejected": 12}), ("dropOldest", list(range(12, 20)), {"buffer_full": 12})],
)
def test_policies_when_full(on_full, kept, drops):
    channel = Channel.create(on_full, capacity=8, on_full=on_full)
    for item in range(20):
        channel.put(item)
    refused = 12 if on_full == "reject" else 0
    assert channel.flush() == (20 - refused, refused)
    assert channel.metrics()["drops"] == drops
    assert [channel.get(30) for _ in range(8)] == kept


def test_big_arrays_are_views_of_the_object_store():
    channel = Channel.create("views")
    data = np.arange(100_000)
    channel.put({"big": data, "small": np.arange(3)})
    data[:] = -1  # put has its own copy
    item = channel.get(30)
    np.testing.assert_array_equal(item["big"], np.arange(100_000))
    assert not item["big"].flags.writeable


def test_leaving_gives_items_back_at_once():
    channel = Channel.create("leaving")
    channel.put_many(range(40))
    channel.flush()
    assert [channel.get(30) for _ in range(30)] == list(range(30))
    channel.leave()
    assert channel.size() == 10
    assert [channel.get(30) for _ in range(10)] == list(range(30, 40))


def test_after_closing():
    channel = Channel.create("closing")
    channel.put(1)
    channel.close()
    with pytest.raises(RLTrainError, match="channel closing is closed: nothing can be put"):
        for _ in range(2):
            channel.put(2)
            channel.flush()
    assert channel.get(30) == 1
    with pytest.raises(ChannelClosed, match="closed and empty"):
        channel.get(30)


def test_a_killed_channel_is_named():
    channel = Channel.create("gone")
    channel.put(1)
    assert channel.get(30) == 1
    ray.kill(channel.actor)
    with pytest.raises(ActorDied, match="channel gone died while"):
        for _ in range(3):
            channel.get(30)
    with pytest.raises(ActorDied, match="channel gone died while putting items"):
        for _ in range(3):
            channel.put(1, timeout=60)
            channel.flush(60)


@ray.remote(num_cpus=0)
class Hand(Worker):
    """Sends and takes, and remembers what it has taken."""

    def make(self, count):
        return self.send(np.arange(count, dtype=np.float64))

    def total(self, parcel):
        return float(self.recv(parcel, 30.0).sum())

    def fail(self):
        raise RLTrainError("the second hand has nothing")

    def pid(self):
        return os.getpid()


def test_workers_of_a_group_hand_values_to_each_other():
    group = WorkerGroup("hand", [Hand.remote(f"hand {rank}") for rank in range(2)])
    small, large = (group.one(0, "make", count).wait("making", 60)[0] for count in (10, 100_000))
    assert (small.way, large.way) == ("inline", "reference")
    assert group.each("total", [(small,), (large,)]).wait("adding", 60) == [45.0, 100_000 * 99_999 / 2]
    assert group.offload().wait("moving tensors out", 60) == [0, 0]
    with pytest.raises(RLTrainError, match=r"^the second hand has nothing$"):
        group.one(1, "fail").wait("failing", 60)
    os.kill(group.one(0, "pid").wait("asking", 60)[0], signal.SIGKILL)
    with pytest.raises(ActorDied, match=r"^hand 0 died while making: its process was killed"):
        group.all("make", 10).wait("making", 60)


def least_urgent_first(waiting):
    if waiting[0].priority < 0:
        raise ValueError("a negative one")
    return min(range(len(waiting)), key=lambda index: waiting[index].priority)


def test_what_leaves_next_is_for_a_policy_of_the_users():
    channel = Channel.create("chosen", order=least_urgent_first)
    for priority in (2.0, 1.0, 3.0):
        channel.put(priority, priority)
        channel.flush()
    assert [channel.get() for _ in range(3)] == [1.0, 2.0, 3.0]
    channel.put("x", -1.0)
    channel.flush()
    with pytest.raises(RLTrainError, match=r"least_urgent_first raised ValueError: a negative one$"):
        channel.get(20)
    with pytest.raises(InvalidConfig, match="found lifo, allowed: fifo, priority, a function"):
        Channel.create("other", order="lifo")
