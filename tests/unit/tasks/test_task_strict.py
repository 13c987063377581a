"""Code of the user's behind a socket, of another user: what it cannot read, and what a hostile other end cannot do."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from code_container import CODE_USER, code_container
from hanging_host import Host
from hostile_host import HostileHost

from rl_api.errors import DeadlineExceeded, TaskError
from rl_api.task import SOCKET_VARIABLE, TaskSpec
from rl_operator.render.code_container import SOCKET_VARIABLE as OPERATORS_VARIABLE
from rl_trainer.tasks import load_task, strict
from rl_trainer.tasks.answers import CallError
from rl_trainer.tasks.channel import Channel
from rl_trainer.tasks.killable import KillableProcess, TimedOutError


def test_operator_and_trainer_mean_the_same():
    assert OPERATORS_VARIABLE == SOCKET_VARIABLE


@pytest.mark.skipif(
    os.getuid() != 0 or os.getuid() == CODE_USER, reason="another user can be had by root alone"
)
def test_it_reads_neither_our_environment_nor_our_files(elsewhere, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("of-the-driver")
    (tmp_path / "token").chmod(0o440)
    places = [f"/proc/{os.getpid()}/environ", str(tmp_path / "token")]
    shared = KillableProcess().target(HostileHost)
    assert [shared.call(30, "reads", place) for place in places] != [None, None]
    monkeypatch.setenv(SOCKET_VARIABLE, str(elsewhere))
    isolated = KillableProcess().target(HostileHost)
    assert [isolated.call(30, "reads", place) for place in places] == [None, None]
    assert not isolated.call(30, "ends_us", os.getpid())
    assert isolated.call(30, "user") == CODE_USER
    monkeypatch.setenv("JUDGE_KEY", "of-the-run")
    assert isolated.call(30, "variable", "JUDGE_KEY") is None


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("runs", "returned what cannot be sent to the trainer: Runs, allowed: numbers, text"),
        ("pickles", "returned what cannot be read here: 'utf-8' codec can't decode"),
        ("babbles", "returned what cannot be read here: "),
        ("announces", "returned more than 16 MiB"),
        ("closes", "has ended its process ("),
    ],
)
def test_whatever_it_answers_costs_one_call(isolation, what, sentence, tmp_path):
    host = KillableProcess().target(HostileHost)
    with pytest.raises(CallError) as error:
        host.call(30, what, str(tmp_path / "was-run"))
    assert error.value.text.startswith(sentence)
    assert not (tmp_path / "was-run").exists(), "it was run here"
    assert host.call(30, "user") >= 0


@pytest.mark.parametrize("what", ["begins", "says_nothing"])
def test_an_answer_that_does_not_come_has_a_deadline(isolation, what):
    host = KillableProcess().target(HostileHost)
    host.make()
    with pytest.raises(TimedOutError, match=r"^has not returned after 0.5 s and stands "):
        host.call(0.5, what)
    assert host.call(30, "user") >= 0


def test_where_it_stands_is_bounded_whatever_it_says(isolation):
    host = KillableProcess().target(HostileHost)
    host.make()
    with pytest.raises(TimedOutError) as late:
        host.call(0.5, "says_much_of_where")
    assert len(late.value.stands) <= 320
    assert "\x1b" not in late.value.stands


def fake(folder, monkeypatch, *said: bytes | None, ready: bytes | None = b"R"):
    """A process behind a socket at which somebody answers what is `said`, then nothing; None: they close it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "fake"))
    listening.listen()
    monkeypatch.setenv(SOCKET_VARIABLE, str(folder / "fake"))

    def answers():
        end, _ = listening.accept()
        with suppress(EOFError, OSError), closing(listening), closing(end):
            there = Channel(end)
            assert json.loads(there.receive(10**6, 30)) == sys.path
            if ready is not None:
                there.send(ready)
            for one in said:
                there.receive(10**6, 30)
                if one is None:
                    return
                end.sendall(one)
            end.settimeout(30)
            while end.recv(1 << 16):
                pass

    threading.Thread(target=answers, daemon=True).start()
    return KillableProcess().target(Host)


def framed(message: bytes) -> bytes:
    return struct.pack(">Q", len(message)) + message


@pytest.fixture
def short(tmp_path_factory):
    return tmp_path_factory.mktemp("s")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (framed(b"Z"), "returned what cannot be read here: b'Z', which is no answer"),
        (framed(b""), "returned what cannot be read here: b'', which is no answer"),
        (framed(b"Acos\nsystem\n(S'true'\ntR."), "returned what cannot be read here: "),
        (struct.pack(">Q", 10 * 2**30), "returned more than 16 MiB"),
        (framed(b"L"), "returned more than 16 MiB"),
        (framed(b"E\x1b[2Jgone" + b"x" * 500), "has ended its process (\ufffd[2Jgonexxx"),
    ],
)
def test_an_other_end_that_is_not_ours_costs_one_call(short, monkeypatch, said, sentence):
    with pytest.raises(CallError) as error:
        fake(short, monkeypatch, said).make()
    assert error.value.text.startswith(sentence)
    assert len(error.value.text) < 300


def test_a_late_answer_is_not_where_it_stands(short, monkeypatch):
    trace = framed(b"A1") + framed(b'T  File "/a.py", line 7 in f\n')
    host = fake(short, monkeypatch, framed(b"Anull"), b"", trace)
    with pytest.raises(TimedOutError, match=r"stands at /a\.py:7$"):
        host.call(0.3, "add", 1)


def test_an_other_end_that_does_not_say_where(short, monkeypatch):
    monkeypatch.setattr(strict, "TRACE_SECONDS", 0.1)
    with pytest.raises(TimedOutError, match=r"stands still$"):
        fake(short, monkeypatch, framed(b"Anull"), b"").call(0.3, "add", 1)


def test_an_other_end_that_goes(short, monkeypatch):
    with pytest.raises(
        CallError, match=r"its container has ended; is there too little memory in task.resources"
    ):
        fake(short, monkeypatch, None).make()


@pytest.mark.parametrize(
    ("ready", "sentence"),
    [
        (b"Fdid not start (exit code 7)", "did not start (exit code 7)"),
        (b"F\x1b[2J", "\ufffd[2J"),
        (b"x" * 3000, "did not start (somebody else answers for it)"),
    ],
)
def test_a_process_that_does_not_start_there(short, monkeypatch, ready, sentence):
    with pytest.raises(DeadlineExceeded) as error:
        fake(short, monkeypatch, ready=ready).make()
    assert str(error.value).startswith(f"the process for rewards and environments {sentence}")


def test_a_process_that_is_not_heard_of(short, monkeypatch):
    monkeypatch.setattr(strict, "START_SECONDS", 0.1)
    monkeypatch.setattr(strict, "END_SECONDS", 0.1)
    with pytest.raises(DeadlineExceeded, match=r"rewards and environments has not started after 0.1 s$"):
        fake(short, monkeypatch, ready=None).make()


@pytest.mark.parametrize("kind", ["nothing", "link", "file"])
def test_where_nobody_listens(short, monkeypatch, kind, elsewhere):
    place = short / "socket"
    if kind == "link":  # to another socket, that the other user would have us talk to
        place.symlink_to(elsewhere)
    elif kind == "file":
        place.touch()
    monkeypatch.setenv(SOCKET_VARIABLE, str(place))
    monkeypatch.setattr(strict, "CONNECT_SECONDS", 0.3)
    with pytest.raises(
        DeadlineExceeded, match=r"nobody listened at .* for 0.3 s \(.*\); see in the pod why its container"
    ):
        KillableProcess().target(Host).make()


def test_it_waits_for_the_other_container(short, monkeypatch, elsewhere):
    monkeypatch.setenv(SOCKET_VARIABLE, str(short / "socket"))
    threading.Timer(0.3, lambda: os.link(elsewhere, short / "socket")).start()
    assert KillableProcess().target(Host).call(30, "add", 1) == 1


def test_it_leaves_with_the_last_connection(monkeypatch):
    with code_container() as (listening, server):
        monkeypatch.setenv(SOCKET_VARIABLE, str(listening))
        process = KillableProcess()
        host = process.target(Host)
        host.call(30, "add", 1)
        server.terminate()
        assert host.call(30, "add", 1) == 2
        server.terminate()
        del host, process
        assert server.wait(60) == 0


def dead(process):
    """Whether it has ended, and somebody has yet to hear of it; one that is gone since it was listed is not."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return False


def has_children(process):
    """As `dead`."""
    with suppress(psutil.NoSuchProcess):
        return not dead(process) and process.children() != []
    return False


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="root alone makes namespaces")
def test_as_the_first_process_of_a_container_it_leaves_no_dead_ones_and_ends_when_it_is_told(monkeypatch):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    program = [sys.executable, "-m", "rl_trainer.tasks.code_server", str(folder / "socket")]
    environment = os.environ | {"PYTHONPATH": ":".join(filter(None, sys.path))}
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *program], env=environment) as outer:
        try:
            monkeypatch.setenv(SOCKET_VARIABLE, str(folder / "socket"))
            process = KillableProcess()
            host = process.target(HostileHost)
            host.make()
            with pytest.raises(TimedOutError):
                host.call(0.5, "says_nothing")
            assert host.call(30, "user") == 0
            (first,) = psutil.Process(outer.pid).children()
            (server,) = filter(has_children, first.children())
            # The dead process has left the one that guarded it.
            deadline = time.monotonic() + 30
            while any(map(dead, first.children(recursive=True))):
                assert time.monotonic() < deadline, "dead ones are left"
                time.sleep(0.02)
            first.terminate()
            del host, process
            assert outer.wait(60) == 0
            assert not server.is_running()
        finally:
            outer.kill()
            shutil.rmtree(folder)


def test_on_one_machine_there_is_no_other_container(monkeypatch):
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    task = {"environment": "reasoning-gym", "name": "chain_sum", "isolation": "strict"}
    with pytest.raises(
        TaskError, match=r"task.isolation: found 'strict', allowed where another container listens"
    ):
        load_task(TaskSpec.model_validate(task), 0)
