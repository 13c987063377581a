"""What Ray starts on this machine: only what a run needs, with time to do so. Ray has no settings for it.

All of it changes private parts of Ray, so it goes through `quick_start`, which knows the version it was written for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from rl_trainer.run.local_ray import start_worker

# The Ray whose private parts these are; constraints.txt has it, and `make test-ray` runs with another.
WRITTEN_FOR = "2.60."
# How long Ray may take to start here.
START_SECONDS = 120.0
# Processes that Ray starts beside the two it needs: autoscaler, reader of the actors' logs, dashboard. A run on one
# machine uses none of them, and together they take as much of its start as torch does.
_NEEDLESS = ("start_monitor", "start_log_monitor", "start_api_server")
# The agents beside each node, by the option that holds their command, with the program that Ray would start.
_AGENTS = {
    "--dashboard_agent_command=": ("dashboard", "dashboard/agent.py"),
    "--runtime_env_agent_command=": ("runtime_env", "_private/runtime_env/agent/main.py"),
}
_AGENTS_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
# Below those that systems give to whoever asks for any: agents take seconds to open theirs. Above those of Ray's workers.
_PORTS = range(30_000, 32_768)
_HERE = Path(__file__).parent


@contextmanager
def quick_start(*changes: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """All `changes` at once, or none of them where Ray is of another version: it starts as it is, some seconds later."""
    import ray

    with contextlib.ExitStack() as stack:
        if ray.__version__.startswith(WRITTEN_FOR):
            for change in changes:
                stack.enter_context(change())
        yield


@contextmanager
def only_needed_processes() -> Iterator[None]:
    """The methods that start the others do nothing meanwhile; agents, which a node must have, become idle ones."""
    from ray._private import services
    from ray._private.node import Node

    with contextlib.ExitStack() as stack:
        for name in _NEEDLESS:
            stack.enter_context(_replaced(Node, name, _nothing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents))
        yield


@contextmanager
def patient() -> Iterator[None]:
    """Ray gives its node 30 seconds to appear, fixed in its code: too few on a machine under load."""
    from ray._private import services

    deadline = time.monotonic() + START_SECONDS

    def patient(look: Callable[..., Any]) -> Callable[..., Any]:
        def get_node(*arguments: Any) -> Any:
            while True:
                try:
                    return look(*arguments)
                except RuntimeError:
                    if not _raylet_lives() or time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)

        return get_node

    with _replaced(services, "get_node", patient):
        yield


@contextmanager
def own_group() -> Iterator[None]:
    """Ray's processes are not in our process group: a signal to that, from a terminal or `timeout`, is for us alone, and
    Ray stays until the step at hand has ended. (A kill of ours ends them all the same: they share our fate.)
    """
    from ray._private import services

    def grouped(popen: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(popen, process_group=0)

    with _replaced(services, "ConsolePopen", grouped):
        yield


@contextmanager
def known_ports() -> Iterator[None]:
    """Ray gives a node's agents 15 seconds to say at which ports they serve, fixed in its code, then the node ends: too few
    on a machine under load. So they are told their ports, and what they would write about them is there before they are.
    """
    from ray._private.node import Node

    def start(start_raylet: Callable[..., Any]) -> Callable[..., Any]:
        def start_raylet_with_ports(node: Any, *arguments: Any, **named: Any) -> Any:
            for name, port in zip(_AGENTS_PORTS, _free_ports(len(_AGENTS_PORTS)), strict=True):
                setattr(node._ray_params, name, port)
                Path(node._session_dir, f"{name}_{node._node_id}").write_text(str(port))
            return start_raylet(node, *arguments, **named)

        return start_raylet_with_ports

    with _replaced(Node, "start_raylet", start):
        yield


@contextmanager
def silent_deaths() -> Iterator[None]:
    """A thread of Ray prints whole logs of processes that died: what they mean, we say in a sentence."""
    from ray._private import worker

    with _replaced(worker, "listen_error_messages", _nothing):
        yield


@contextmanager
def fork_server() -> Iterator[None]:
    """Meanwhile there is a process that forks workers for one node of Ray, see `forked_workers` (`fork_server.py`)."""
    with (
        tempfile.TemporaryDirectory(prefix="rltrain-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = os.path.join(folder, "socket")  # not in TMPDIR: a socket's path must be short
        listener.bind(path)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, str(_HERE / "fork_server.py"), str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            process_group=0,  # as the rest of Ray, see `own_group`
        )
        listener.close()  # who asks hears at once when it has died
        another = os.environ.get(start_worker.SOCKET)
        os.environ[start_worker.SOCKET] = path
        try:
            yield
        finally:
            if os.environ.get(start_worker.SOCKET) == path:  # not that of one that was started since
                os.environ.pop(start_worker.SOCKET)
                if another is not None:
                    os.environ[start_worker.SOCKET] = another
            process.kill()
            process.communicate()


@contextmanager
def forked_workers() -> Iterator[None]:
    """The node that Ray starts in the block asks the fork server for its workers, as long as there is one."""
    from ray._private.node import Node

    def start(start_raylet: Callable[..., Any]) -> Callable[..., Any]:
        def start_forking_raylet(node: Any, *arguments: Any, **named: Any) -> Any:
            node._ray_params.setup_worker_path = start_worker.__file__
            return start_raylet(node, *arguments, **named)

        return start_forking_raylet

    with _replaced(Node, "start_raylet", start):
        yield


def _without_agents(start_process: Callable[..., Any]) -> Callable[..., Any]:
    from ray._private.services import RAY_PATH

    def start(command: list[str], *arguments: Any, **named: Any) -> Any:
        changed = list(command)
        for number, argument in enumerate(command):
            for option, (name, program) in _AGENTS.items():
                if argument.startswith(option):
                    ours = subprocess.list2cmdline([str(_HERE / "idle_agent.py"), name])
                    changed[number] = argument.replace(os.path.join(RAY_PATH, program), ours)
        return start_process(changed, *arguments, **named)

    return start


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` becomes `make(owner.name)` for the length of the block."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _free_ports(count: int, among: Sequence[int] = _PORTS) -> list[int]:
    """So many different ports that nobody listens at now."""
    found: list[int] = []
    for port in random.sample(among, len(among)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} of the ports {among[0]} to {among[-1]} are free")


def _nothing(original: Any) -> Callable[..., None]:
    return lambda *_, **__: None


def _raylet_lives() -> bool:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
