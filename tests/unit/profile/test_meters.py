import threading
import time
from queue import SimpleQueue

import pytest
import torch

from rl_trainer.learner.cuda_clock import CudaClock
from rl_trainer.profile import gpu, meters
from rl_trainer.profile.gpu import busy_share, gpu_meter
from rl_trainer.profile.least_squares import LeastSquares
from rl_trainer.profile.meters import BusyMeter, Clock, EngineMeter, LearnerMeter, ProcessMeter


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(meters.time, "perf_counter", lambda: now[0])
    return now


def test_seconds_of_a_block_are_its_own_without_those_of_blocks_inside(clock):
    meter = LearnerMeter()
    with meter.during("passes"):
        clock[0] += 1.0
        with meter.during("log_probs"):
            clock[0] += 2.0
            with meter.during("values"):
                clock[0] += 0.5
        with meter.during("log_probs"):
            clock[0] += 0.25
        clock[0] += 4.0
    with meter.during("reduce"):
        clock[0] += 8.0
    assert meter.drain() == {"passes": 5.0, "log_probs": 2.25, "values": 0.5, "reduce": 8.0}
    assert meter.drain() == {}


class DeviceClock(Clock):
    """Marks moments of a device that works on its own, and is waited for when they are read."""

    def __init__(self):
        self.marked, self.read = 0, 0

    def mark(self):
        self.marked += 1
        return self.marked

    def seconds(self, begin, end):
        self.read += 1
        return 0.5 * (end - begin)


def test_a_device_that_works_on_its_own_is_waited_for_once_the_seconds_are_asked_for():
    clock = DeviceClock()
    meter = LearnerMeter(clock)
    with meter.during("passes"):
        for _ in range(2):
            with meter.during("log_probs"):
                pass
    assert (clock.marked, clock.read) == (6, 0)
    assert meter.drain() == {"passes": 1.5, "log_probs": 1.0}


def test_a_gpu_s_events_are_waited_for_when_they_are_read(monkeypatch):
    events = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.calls = []
            events.append(self)

        def record(self):
            self.calls.append("record")

        def synchronize(self):
            self.calls.append("synchronize")

        def elapsed_time(self, end):
            return 1500.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    meter = LearnerMeter(CudaClock())
    with meter.during("passes"):
        pass
    assert [event.calls for event in events] == [["record"], ["record"]]
    assert meter.drain() == {"passes": 1.5}
    assert events[1].calls == ["record", "synchronize"]


def test_an_engine_tells_apart_decoding_prompts_and_steps_that_are_both():
    meter = EngineMeter()
    for active in (1, 2, 3):
        meter.decoded(0.5 + 0.25 * active, active, 0)
    meter.prefilled(2.0, 100)
    meter.mixed(3.0, 50)  # of which a step as those above is one second
    found = meter.drain()
    decode = LeastSquares(3)
    decode.merge(found["decode"])
    assert decode.fit() == pytest.approx((0.5, 0.25, 0.0))
    assert (found["prefill_seconds"], found["prefill_tokens"]) == (pytest.approx(4.0), 150)
    assert meter.drain()["prefill_tokens"] == 0


def test_a_process_says_what_it_took_since_it_was_asked(monkeypatch):
    wall, cpu = iter([10.0, 14.0, 15.0]), iter([2.0, 8.0, 8.5])
    monkeypatch.setattr(meters.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(meters.time, "process_time", lambda: next(cpu))
    meter = ProcessMeter()
    first, second = meter.drain(), meter.drain()
    assert (first["wall_seconds"], first["cpu_seconds"]) == (4.0, 6.0)
    assert (second["wall_seconds"], second["cpu_seconds"]) == (1.0, 0.5)
    assert first["memory"] > 1e6


def test_a_gpu_is_looked_at_while_its_process_is_at_work_and_one_that_says_nothing_is_left_out():
    looks: SimpleQueue[float | None] = SimpleQueue()
    seen = SimpleQueue()

    def look():
        seen.put(None)
        if (found := looks.get(timeout=60)) is None:
            raise RuntimeError("no driver")
        return found

    meter = ProcessMeter(BusyMeter(look, every=0.0))
    assert "gpu_busy" not in meter.drain()
    looks.put(1.0)
    looks.put(0.25)
    for _ in range(3):  # the third look begins when the second is counted
        seen.get(timeout=60)
    assert meter.drain()["gpu_busy"] == pytest.approx(0.625)
    assert "gpu_busy" not in meter.drain()
    (thread,) = (one for one in threading.enumerate() if one.name == "how busy a GPU is")
    looks.put(None)
    thread.join(60)
    assert not thread.is_alive(), "it is asked no more"
    assert "gpu_busy" not in meter.drain()


def test_a_gpus_share_is_what_its_driver_says_in_percent(monkeypatch):
    monkeypatch.setattr(torch.cuda, "utilization", {0: 85}.__getitem__)  # of any other it raises
    assert busy_share() == 0.85
    monkeypatch.setattr(gpu, "own_device", lambda: "cpu")
    assert gpu_meter() is None
    monkeypatch.setattr(gpu, "own_device", lambda: "cuda")
    meter, deadline = gpu_meter(), time.monotonic() + 60
    while not (found := meter.drain()):
        assert time.monotonic() < deadline
    assert found == {"gpu_busy": 0.85}
