"""`rltrain serve`: a policy on this machine, until a signal comes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rl_api.errors import ActorDied, DeadlineExceeded, InvalidConfig, ModelError, PortInUse, RLTrainError
from rl_api.printable import printable
from rl_serve.arguments import PolicyRef
from rl_serve.keys import read_keys
from rl_serve.loading import Serving, Setup
from rl_serve.policy import Policy, engine_threads, find_policy, models_cache
from rl_trainer.error_text import first_line
from rl_trainer.rollout.engines.vllm_needs import COMMAND, EngineKind, VllmOptions, check_installed
from rl_trainer.run.ray_session import ray_address, ray_session
from rl_trainer.run.stopping import StopRequest

# Loading a large model from a slow disk takes minutes.
START_SECONDS: Final = 900.0
_LOOK_SECONDS: Final = 0.1
# How often it is seen whether the port still answers, and for how long it may not.
_WATCH_SECONDS, _GONE_SECONDS = 2.0, 60.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Options:
    """What the command line says; `port` 0: one that is free."""

    source: str
    host: str
    port: int
    replicas: int
    prefill_replicas: int
    max_context: int
    max_new_tokens: int
    queue: int
    timeout: float
    engine: EngineKind
    tensor_parallel_size: int
    pipeline_parallel_size: int
    model_name: str
    api_key_file: Path | None
    debug: bool


def serve_here(options: Options) -> int:
    """Serve until SIGINT or SIGTERM; the exit status, 128 plus the signal's number.

    Raises:
        InvalidConfig, ModelError, CheckpointError, PortInUse: the options, or what they name, cannot be used.
        DeadlineExceeded: Ray or Ray Serve does not come up.
        ActorDied: it has ended by itself.
    """
    with StopRequest() as stop:
        try:
            _serve(options)
        except (KeyboardInterrupt, Exception):
            # What a signal interrupts inside Ray may come out as another error, or as a KeyboardInterrupt of Ray's own.
            if stop.signal is None:
                raise
        print("rltrain: stopped", file=sys.stderr)
        return stop.exit_code


def _serve(options: Options) -> None:
    if address := ray_address():
        raise InvalidConfig(
            f"RAY_ADDRESS: found {address}; rltrain serve starts a Ray of its own on this machine: unset it"
        )
    vllm = VllmOptions(options.tensor_parallel_size, options.pipeline_parallel_size, COMMAND)
    copies = options.replicas + options.prefill_replicas
    if options.engine == "vllm":
        check_installed(COMMAND, options.prefill_replicas > 0)
        if options.prefill_replicas and vllm.pipeline_parallel_size > 1:
            raise InvalidConfig(
                f"--pipeline-parallel-size: found {vllm.pipeline_parallel_size}, allowed: 1 with --prefill-replicas, as "
                "NIXL hands over no stages"
            )
    elif options.prefill_replicas:
        raise InvalidConfig(
            f"--prefill-replicas: found {options.prefill_replicas}, allowed: 0 with --engine torch"
        )
    elif vllm.devices > 1:
        raise InvalidConfig(
            f"--tensor-parallel-size, --pipeline-parallel-size: found {vllm.tensor_parallel_size} and "
            f"{vllm.pipeline_parallel_size}, allowed: 1 and 1 with --engine torch"
        )
    keys = read_keys(options.api_key_file) if options.api_key_file else None
    port = _free_port(options.host, options.port)
    policy = find_policy(options.source, models_cache(), _tell)
    name = options.model_name or policy.name
    # Read by Ray Serve's proxy and controller, which inherit the environment of the Ray that is started here.
    # A proxy has three times that to start, then it is ended; 5 s are too few on a machine under load.
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "20"
    middlewares = "middlewares_with_prefixes" if options.engine == "vllm" else "middlewares"
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = f"rl_serve.proxy:{middlewares}"
    _tell("starting Ray")
    with ray_session(copies, debug=options.debug, leave=lambda: None):
        # Only now: Ray reads its settings from the environment when it is imported.
        from rl_serve.deployment import failure, running_replicas, start

        if not options.debug:
            logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
        _tell("starting Ray Serve")
        setup = Setup(
            serving=Serving(
                name=name,
                max_context=options.max_context,
                max_new_tokens=options.max_new_tokens,
                queue=options.queue,
                timeout=options.timeout,
                threads=engine_threads(policy, copies),
                engine=options.engine,
                vllm=vllm,
            ),
            gpu=_gpus() >= copies * vllm.devices,
            keys=keys,
        )
        found = PolicyRef(source=str(policy.folder.resolve()), version=policy.version)
        try:
            start(setup, found, options.host, port, options.replicas, options.prefill_replicas)
        except RLTrainError:
            raise
        except Exception as error:  # Ray Serve raises plain RuntimeError and its own kinds
            raise DeadlineExceeded(
                f"starting Ray Serve on this machine: {first_line(error)}; stop other programs if it is overloaded, then "
                "try again (--debug shows Ray's own lines)"
            ) from error
        _tell(f"loading the model{f' in {copies} replicas' if copies > 1 else ''}")
        address = _address(options.host, port)
        deadline = time.monotonic() + START_SECONDS
        while not (_is_ready(address) and running_replicas() >= copies):
            if why := failure():
                raise ActorDied(f"the replicas could not be started: {printable(why, 500)}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"loading {policy.told}: no answer after {START_SECONDS:.0f} s; is there enough memory, and is the "
                    "disk fast enough?"
                )
            time.sleep(_LOOK_SECONDS)
        if keys is None and options.host not in _LOOPBACK:
            _tell(f"warning: everyone who reaches {options.host} may ask: there is no --api-key-file")
        _tell(_ready_line(name, policy, address, bool(keys)))
        _watch(options.host, port)


def _tell(text: str) -> None:
    print(printable(text), flush=True)


def _gpus() -> int:
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


def _free_port(host: str, port: int) -> int:
    """The port, seen to be free before anything is started.

    Raises:
        PortInUse: another program has it, or it may not be used.
        InvalidConfig: there is no such host here.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError):
        raise InvalidConfig(f"--host: found {host}, allowed: an address of this machine") from None
    with socket.socket(family) as probe:
        # Without it a port that a server has just left looks taken for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno == 99:  # EADDRNOTAVAIL
                raise InvalidConfig(f"--host: found {host}, allowed: an address of this machine") from None
            raise PortInUse(
                f"--port {port}: cannot be listened at on {host} ({error.strerror}); choose another one, or 0 for one that "
                "is free"
            ) from None
        return int(probe.getsockname()[1])


def _address(host: str, port: int) -> str:
    """Where a client on this machine asks."""
    reached = _reached(host)
    return f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"


def _reached(host: str) -> str:
    """The address at which this machine reaches a server that listens at `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _is_ready(address: str) -> bool:
    """Whether /healthz says so.

    Raises:
        ModelError: the replica says that it cannot load the model.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address}/healthz", timeout=5) as answer:
            return bool(json.load(answer)["status"] == "ok")
    except urllib.error.HTTPError as error:
        if error.headers.get("x-model-error"):
            raise ModelError(error.read().decode()) from None
        return False
    except (OSError, ValueError, KeyError):
        return False


def _ready_line(name: str, policy: Policy, address: str, keys: bool) -> str:
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello"}]})
    key = " -H 'Authorization: Bearer KEY'" if keys else ""
    return (
        f"serving {name}, policy {policy.version}, at {address}/v1 (Ctrl-C ends it); try: curl {address}/v1/chat/completions"
        f"{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _watch(host: str, port: int) -> None:
    """Until a signal comes, or the port answers no more."""
    reached = _reached(host)
    seen = time.monotonic()
    while True:
        time.sleep(_WATCH_SECONDS)
        with contextlib.suppress(OSError), socket.create_connection((reached, port), timeout=_WATCH_SECONDS):
            seen = time.monotonic()
        if time.monotonic() - seen > _GONE_SECONDS:
            raise ActorDied(f"Ray Serve does not answer at port {port} any more; start it again")
