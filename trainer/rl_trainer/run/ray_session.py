"""Ray, started quietly here or joined at RAY_ADDRESS."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from rl_api.errors import DeadlineExceeded, InvalidConfig, RLTrainError
from rl_trainer.error_text import STOPPED_AT_ONCE, first_line
from rl_trainer.flow.shared_marks import remove_marks
from rl_trainer.run.local_ray.processes import (
    START_SECONDS,
    fork_server,
    forked_workers,
    known_ports,
    only_needed_processes,
    own_group,
    patient,
    quick_start,
    silent_deaths,
)
from rl_trainer.run.local_ray.unheard_signals import unheard_signals

# How long RAY_ADDRESS may refuse connections: a head that is just starting gets there in this time.
JOIN_SECONDS = 10.0
# Read by Ray when it is imported or started: no usage reports, no advice on standard error, and a head node that
# answers no more is given up within seconds instead of a minute.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    "RAY_agent_register_timeout_ms": f"{START_SECONDS * 1000:.0f}",
    # What nobody refers to is freed at once, not once a second: the next object is then written over its pages, in a tenth
    # of the time of pages that are new. Of one node; where there are several, each free is a call to all of them.
    "RAY_free_objects_period_milliseconds": "0",
}
# The same for a cluster that is there already: Ray would try for minutes whether its head answers.
_JOIN_SETTINGS = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_py_gcs_connect_timeout_s": "15"}


class RaySession(NamedTuple):
    """The Ray of a run."""

    own: bool
    """It ends with the block, and every actor with it."""
    dashboard_url: str
    """Where Ray's own dashboard is; empty: there is none."""


@contextmanager
def ray_session(
    cpus: float, *, debug: bool = False, dashboard: bool = False, leave: Callable[[], None] | None = None
) -> Iterator[RaySession]:
    """Joins the cluster at RAY_ADDRESS, or starts Ray on this machine for the length of the block.

    Inside another session, or where the program has initialised Ray itself, it uses that Ray and leaves it running.

    Args:
        cpus: CPU cores that the run's actors ask for. A local Ray offers at least as many: on a small machine
            they share cores instead of waiting for ones that never come.
        debug: show Ray's own log lines.
        dashboard: a Ray that is started here has its dashboard.
        leave: what to do before this process ends at once, because a signal came while Ray was starting here and did not
            answer. Without it the signal waits.

    Raises:
        InvalidConfig: RAY_ADDRESS is no address.
        DeadlineExceeded: no cluster answers there, or Ray does not come up here.
    """
    address = ray_address()
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield RaySession(own=False, dashboard_url="")
        return
    forks = [fork_server] if not address and not debug and sys.platform == "linux" else []
    with quick_start(*forks):
        with _our_sigterm():
            url = _join(address, debug) if address else _start(cpus, debug, dashboard, leave)
        node = ""
        try:
            node = "" if address else ray.get_runtime_context().get_node_id()
            yield RaySession(not address, f"http://{url}" if url else "")
        finally:
            ray.shutdown()
            if node:
                remove_marks(node)


@contextmanager
def _our_sigterm() -> Iterator[None]:
    """Ray has a handler of its own meanwhile, which raises SystemExit: then ours hears of the signal."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        if callable(handler):
            handler(signal.SIGTERM, None)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _start(cpus: float, debug: bool, dashboard: bool, leave: Callable[[], None] | None) -> str:
    import ray

    before = _children()
    try:
        with contextlib.ExitStack() as stack:
            if leave is not None:
                stack.enter_context(_ending_at_once(before, leave))
            stack.enter_context(_muted(debug))
            changes = [patient, own_group] if debug else [patient, own_group, forked_workers]
            # Ray's own agents are there for those who look: a dashboard's pages are also about them.
            changes.append(known_ports if debug or dashboard else only_needed_processes)
            stack.enter_context(quick_start(*changes))
            cores = max(os.cpu_count() or 1, math.ceil(cpus))
            # "local": never a cluster that somebody else has started on this machine.
            context = ray.init(
                address="local", num_cpus=cores, include_dashboard=dashboard, **_options(debug)
            )
            return context.dashboard_url or ""
    except Exception as error:  # Ray raises plain Exception, RuntimeError and its own kinds
        ray.shutdown()
        _kill(_children() - before)
        raise DeadlineExceeded(
            f"starting Ray {'and its dashboard ' if dashboard else ''}on this machine: {first_line(error)}; stop other "
            "programs if it is overloaded, look for free space in /tmp and /dev/shm, then try again (--debug shows Ray's "
            "own lines)"
        ) from error


@contextmanager
def _ending_at_once(before: set[psutil.Process], leave: Callable[[], None]) -> Iterator[None]:
    """A signal that nobody hears ends this process as one that is heard does, and with it what it started meanwhile."""
    with os.fdopen(os.dup(2), "w") as error:

        def end(number: int) -> None:
            leave()
            print(f"rltrain: {STOPPED_AT_ONCE}", file=error, flush=True)
            _kill(_children() - before)  # last: Ray may end this process when it misses them
            os._exit(128 + number)

        with unheard_signals(end):
            yield


def _join(address: str, debug: bool) -> str:
    import ray

    if address != "auto":
        _probe(address)
    missing = {name: value for name, value in _JOIN_SETTINGS.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        with _muted(debug):
            return ray.init(address=address, **_options(debug)).dashboard_url or ""
    except Exception as error:
        raise _unreachable(address, first_line(error)) from error
    finally:
        for name in missing:
            os.environ.pop(name, None)


def dashboard_sentence(url: str) -> str:
    """Where Ray's own dashboard is, for people; `url` as in `RaySession`."""
    if not url:
        return "--dashboard: the Ray that this run has joined has none"
    # Ray says so itself when it starts: newer versions let in only who has the token of their user.
    token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    return f"Ray's dashboard at {url}" + (
        " (`ray get-auth-token` prints the token it asks for)" if token else ""
    )


def ray_address() -> str:
    """The cluster to join, empty: Ray is started here.

    Raises:
        InvalidConfig: RAY_ADDRESS is no address.
    """
    address = os.environ.get("RAY_ADDRESS", "").strip()
    if address in ("", "local"):
        return ""
    if address != "auto":
        scheme, host, port = _parts(address)
        if scheme not in ("", "ray") or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidConfig(
                f"RAY_ADDRESS: found {address}, allowed: host:port (such as head:6379), ray://host:port, auto, or nothing "
                "to start Ray on this machine"
            )
    return address


def _parts(address: str) -> tuple[str, str, str]:
    scheme, _, place = address.rpartition("://")
    host, _, port = place.partition("/")[0].rpartition(":")
    return scheme, host.strip("[]"), port


def _probe(address: str) -> None:
    """Whether anything listens there at all: Ray itself would try for minutes, and loudly."""
    _, host, port = _parts(address)
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=max(1.0, deadline - time.monotonic())):
                return
        except OSError as error:
            if isinstance(error, socket.gaierror) or time.monotonic() > deadline:
                raise _unreachable(address, error.strerror or "no answer") from None
            time.sleep(0.5)


def _unreachable(address: str, why: str) -> RLTrainError:
    return DeadlineExceeded(
        f"RAY_ADDRESS={address}: no Ray cluster could be joined there ({why}); start one, correct the address, or unset "
        "RAY_ADDRESS to start Ray on this machine"
    )


def _options(debug: bool) -> dict[str, Any]:
    level = logging.INFO if debug else logging.CRITICAL
    return {"log_to_driver": debug, "logging_level": level, "configure_logging": True}


@contextmanager
def _muted(debug: bool) -> Iterator[None]:
    """Whatever the log level, Ray's C++ part writes to file descriptor 2 when it does not get on."""
    if debug:
        yield
        return
    kept = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silent, 2)
        with quick_start(silent_deaths):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(silent)


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
