import copy
import pickle
import threading
import time

import pytest

from rl_trainer.tasks.deadline import DeadlineThread, TimedOutError


def test_returns_and_raises_what_the_call_does():
    thread = DeadlineThread()
    assert thread.call(5, lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        thread.call(5, lambda: 1 / 0)
    with pytest.raises(SystemExit):
        thread.call(5, exit)


def test_one_thread_serves_all_calls():
    thread = DeadlineThread()
    assert len({thread.call(5, threading.get_ident) for _ in range(5)}) == 1
    assert thread.call(5, threading.get_ident) != threading.get_ident()


def test_a_call_that_hangs_is_left_behind_with_the_line_it_stands_at():
    thread, release = DeadlineThread(), threading.Event()

    def hangs():
        release.wait()

    line = hangs.__code__.co_firstlineno + 1
    started = time.monotonic()
    with pytest.raises(TimedOutError) as late:
        thread.call(0.05, hangs, file=__file__)
    assert time.monotonic() - started < 5
    assert late.value.where == f"{__file__}:{line}"
    assert thread.call(5, lambda: "next") == "next"
    release.set()


def test_without_a_file_the_innermost_line_is_named():
    thread, release = DeadlineThread(), threading.Event()
    with pytest.raises(TimedOutError) as late:
        thread.call(0.05, release.wait)
    release.set()
    assert late.value.where is not None
    assert "threading.py:" in late.value.where


def test_the_thread_of_a_late_call_ends_when_the_call_returns():
    thread, release, threads = DeadlineThread(), threading.Event(), []

    def hangs():
        threads.append(threading.current_thread())
        release.wait()

    with pytest.raises(TimedOutError):
        thread.call(0.05, hangs)
    release.set()
    threads[0].join(timeout=10)
    assert not threads[0].is_alive()


def test_travels_between_processes_without_its_thread():
    thread = DeadlineThread()
    thread.call(5, int)
    for other in (pickle.loads(pickle.dumps(thread)), copy.deepcopy(thread)):
        assert other.call(5, lambda: 7) == 7
