import pytest

from rl_trainer.flow.metering import FillAlarm, RateMeter, WaitMeter


def test_rate_over_the_window():
    meter = RateMeter(window=10.0)
    assert meter.rate(5.0) == 0.0
    for second in range(100):
        meter.add(float(second), 3)
    assert meter.rate(100.0) == pytest.approx(3.0, rel=0.15)
    assert meter.total == 300
    assert meter.rate(200.0) == 0.0
    assert len(meter._buckets) == 0


def test_rate_before_the_window_is_over():
    meter = RateMeter(window=30.0)
    meter.add(0.0, 4)
    meter.add(2.0, 4)
    assert meter.rate(2.0) == pytest.approx(4.0)


def test_waits():
    waits = WaitMeter()
    waits.add(1.0)
    waits.add(3.0)
    assert waits.as_dict() == {"seconds": 4.0, "count": 2, "longest": 3.0}


def test_alarm_only_after_the_bound_and_without_a_break():
    alarm = FillAlarm(bound=10.0)
    alarm.observe(0.0, 4, 4)
    assert alarm.sentences(10.0) == []
    assert alarm.sentences(11.0) == [
        "the buffer has been full for 11 s; learning is the slower side: add learners, or take fewer samplers"
    ]
    alarm.observe(12.0, 3, 4)
    alarm.observe(13.0, 4, 4)
    assert alarm.sentences(20.0) == []
    alarm.observe(21.0, 0, 4)
    assert alarm.sentences(40.0, "channel x")[0].startswith("the channel x has been empty for 19 s; sampling")
