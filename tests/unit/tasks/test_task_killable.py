import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from code_container import CODE_USER
from hanging_host import Host

from rl_api.errors import DeadlineExceeded, TaskError
from rl_trainer.tasks import process
from rl_trainer.tasks.answers import CallError
from rl_trainer.tasks.killable import KillableProcess, LocalTarget, TimedOutError


@pytest.fixture
def everybodys():
    """A folder into which the other user may write as well."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def line_after(function) -> str:
    return f"{os.path.relpath(function.__code__.co_filename)}:{function.__code__.co_firstlineno + 1}"


def gone(pid: int) -> bool:
    """Waits for a process to end."""
    try:
        psutil.Process(pid).wait(30)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_an_object_lives_there_from_call_to_call(isolation):
    asked = KillableProcess()
    host, other = asked.target(Host, 3), asked.target(Host)
    assert [host.call(30, "add", 1), host.call(30, "add", 1), other.call(30, "add", 1)] == [4, 5, 1]
    assert host.call(30, "pid") == other.call(30, "pid") != os.getpid()
    assert psutil.Process(host.call(30, "pid")).uids().real == (
        CODE_USER if isolation == "strict" else os.getuid()
    )
    assert not host.call(30, "has_torch_or_ray")


def test_what_it_raises_is_a_sentence_with_its_line(isolation):
    host = KillableProcess().target(Host)
    with pytest.raises(CallError) as error:
        host.call(30, "fails")
    assert error.value.text == f"raised KeyError: 'here' ({line_after(Host.fails)})"
    with pytest.raises(CallError, match=r"^raised SystemExit: enough \("):
        host.call(30, "leaves")
    with pytest.raises(TaskError, match=r"^task.args: wrong$"):
        host.call(30, "refuses")
    assert host.call(30, "add", 1) == 1


def test_here_it_raises_the_same():
    host = LocalTarget(Host())
    assert host.call(30, "add", 2) == 2
    with pytest.raises(CallError, match=r"^raised KeyError: 'here' \(.*:\d+\)$"):
        host.call(30, "fails")
    with pytest.raises(TaskError):
        host.call(30, "refuses")


@pytest.mark.parametrize("method", ["loops", "sleeps", "computes_in_c"])
def test_a_call_that_hangs_is_killed_with_its_process(isolation, method):
    host = KillableProcess().target(Host)
    for seconds in (1, 10, 60):  # on a busy machine it has not come to its loop after the first
        pid, epoch = host.call(30, "pid"), host.epoch
        host.call(30, "add", 1)
        with pytest.raises(TimedOutError) as late:
            host.call(seconds, method)
        assert gone(pid)
        if "hanging_host.py:" in late.value.stands:
            break
    line = int(late.value.stands.rpartition(":")[2])
    begin = getattr(Host, method).__code__.co_firstlineno
    assert late.value.stands.startswith("stands at tests/support/hanging_host.py:")
    assert begin < line <= begin + 2
    assert host.epoch > epoch
    assert host.call(30, "add", 1) == 1  # another object, in another process
    assert host.call(30, "pid") != pid


def test_what_a_call_has_started_ends_with_it(isolation, everybodys):
    host, pid = KillableProcess().target(Host), everybodys / "pid"
    for seconds in (2, 20, 60):  # on a busy machine there is no child after the first
        host.make()
        with pytest.raises(TimedOutError):
            host.call(seconds, "starts_a_child", str(pid))
        if pid.exists() and pid.read_text():
            break
    assert gone(int(pid.read_text()))


def test_only_the_process_that_was_asked_answers(isolation):
    host = KillableProcess().target(Host)
    assert host.call(30, "forks") > 0
    assert [host.call(30, "add", 1), host.call(30, "add", 1)] == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("ends", 3), "has ended its process (exit code 3)"),
        (("is_killed",), "has ended its process (SIGKILL, is there too little memory?)"),
    ],
)
def test_a_process_that_ends_is_replaced(isolation, call, message):
    host = KillableProcess().target(Host)
    with pytest.raises(CallError) as error:
        host.call(30, *call)
    assert error.value.text == message
    assert host.call(30, "add", 1) == 1


def test_values_that_cannot_travel(isolation):
    host = KillableProcess().target(Host)
    with pytest.raises(CallError, match=r"^cannot be given its arguments: "):
        host.call(30, "add", lambda: 0)
    with pytest.raises(CallError, match=r"^returned what cannot be sent to the trainer: "):
        host.call(30, "returns_a_function")
    assert host.call(30, "add", 1) == 1


def test_calls_of_several_threads_wait_for_each_other(isolation):
    host = KillableProcess().target(Host)
    threads = [threading.Thread(target=host.call, args=(60, "add", 1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert host.call(30, "add", 0) == 8


def test_it_ends_when_nobody_has_it_any_more(isolation):
    asked = KillableProcess()
    pid = asked.target(Host).call(30, "pid")
    del asked
    assert gone(pid)


def test_what_calls_have_left_behind_ends_also_where_the_process_was_killed_before():
    """As Ray does it at the end of a worker: it kills the worker's own children, and then the worker."""
    program = (
        f"import os, signal, sys; sys.path[:] = {sys.path!r}\n"
        "from hanging_host import Host\nfrom rl_trainer.tasks.killable import KillableProcess\n"
        "host = KillableProcess().target(Host)\n"
        "print(host.call(60, 'leaves_a_child'), flush=True)\n"
        "pid = host.call(60, 'pid')\n"
        "os.kill(pid, signal.SIGKILL)\n"
        "os.waitpid(pid, 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as asker:
        left = int(asker.stdout.readline())
        assert asker.wait(60) == -signal.SIGKILL
    assert gone(left)


@pytest.mark.parametrize("method", ["pid", "computes_in_c", "starts_a_child"])
def test_it_ends_with_the_process_that_asks_however_that_ends(isolation, method, everybodys):
    file = everybodys / "child"
    arguments = {"starts_a_child": f", {str(file)!r}"}.get(method, "")
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from hanging_host import Host\nfrom rl_trainer.tasks.killable import KillableProcess\n"
        "host = KillableProcess().target(Host)\n"
        "print(host.call(60, 'pid'), flush=True)\n"
        f"host.call(60, {method!r}{arguments})\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        if method == "pid":  # the call has returned: it waits for the next
            assert parent.stdout.readline() == "done\n"
        if method == "starts_a_child":
            deadline = time.monotonic() + 30
            while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
                parent.poll()
                time.sleep(0.01)
        parent.kill()
    assert gone(pid)
    if method == "starts_a_child":
        assert gone(int(file.read_text()))


def test_a_process_that_does_not_start(monkeypatch):
    monkeypatch.setattr(process, "_PROGRAM", "raise SystemExit(7)")
    with pytest.raises(DeadlineExceeded, match=r"did not start \(exit code 7\); look for a node"):
        KillableProcess().target(Host).make()
    monkeypatch.setattr(process, "_PROGRAM", "import time; time.sleep(1000)")
    monkeypatch.setattr(process, "START_SECONDS", 0.2)
    with pytest.raises(DeadlineExceeded, match=r"has not started after 0.2 s; look for a node"):
        KillableProcess().target(Host).make()
