"""The driver's small HTTP server: `/status`, `/metrics`, `/healthz` and `POST /checkpoint`, on a thread."""

from __future__ import annotations

import errno
import hmac
import json
import math
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rl_api.errors import InvalidConfig, PortInUse
from rl_api.progress import WISH_HEADER, CheckpointStatus, Progress
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.run.status_metrics import Reading
from rl_trainer.storage.files import Closes

MAX_BODY = 64 * 1024
# Who asks for a checkpoint waits for it at most so long.
CHECKPOINT_SECONDS = 120.0
# Who has asked within WATCHED_SECONDS will ask again: the end of a run waits LINGER_SECONDS for that, so that an operator
# that pulls does not miss the last step.
WATCHED_SECONDS = 30.0
LINGER_SECONDS = 5.0
# Whoever gave the run a token will ask as well, an operator that is just being replaced a little later.
PATIENCE_SECONDS = 60.0
_PATHS = {"/status": "GET", "/metrics": "GET", "/healthz": "GET", "/checkpoint": "POST"}


class StatusServer(Closes):
    """Serves the state of one run until `close`.

    `GET /status` answers the contract's `Progress` (camelCase) with one more key, `checkpoint`: the newest
    good one or null. `GET /metrics` is Prometheus text. `POST /checkpoint` asks the driver for a checkpoint
    and answers when it is complete; an optional body `{"timeoutSeconds": 30}` shortens the wait. With the header
    `Idempotency-Key` the same request may be brought again, after a lost connection or by another operator: the driver is
    asked once, and what it has written for it is the answer, which carries the key as `id`.
    `GET /healthz` answers without a token, for probes. Errors are JSON: `{"error": "a sentence"}`.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        on_checkpoint: Callable[[], None] = lambda: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Bind and start to serve.

        Args:
            name: name of the run, a label of every metric.
            host: address to listen at; the default is reached from this machine only.
            port: 0 takes any free one, see `port`.
            token: bearer token that every request but `/healthz` must carry; None: no token.
            on_checkpoint: called from a server thread when a checkpoint is asked for; sets a flag that the
                driver looks at after each step, and returns at once.
            patience: with a token, seconds that `close` waits at most for the last status to be read.

        Raises:
            PortInUse: another program listens at the port.
            InvalidConfig: the address or the port cannot be used on this machine.
        """
        self._state = Reading(name)
        self._token, self._on_checkpoint, self._patience = token, on_checkpoint, patience
        self._acknowledged = threading.Condition()
        self._acknowledgements = 0
        self._failure: tuple[int, str] | None = None  # HTTP status and sentence
        self._wish: str | None = None  # key of the request that the driver was asked for last
        self._granted: dict[str | None, dict[str, Any]] = {}  # answer to the last one that it wrote, by key
        self._closing = False
        self._last_read = -math.inf
        self.reading = 0  # counts what was shown
        self._got = -1  # the newest of them that somebody has
        self._shown = threading.Condition()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._state)
        self._http = _bind(host, port, self)
        self.host = host
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.1,), name="status-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Address to open, without a path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def update(self, progress: Progress, record: StepRecord | None = None) -> None:
        """Show a new reading; `record` when a step was finished since the last one. Cheap."""
        self._state.update(progress, record)
        self._changed()

    def show_checkpoint(self, checkpoint: CheckpointStatus) -> None:
        """Show a complete checkpoint. Who waits for one that was asked for waits on."""
        self._state.checkpoint = checkpoint
        self._changed()

    def checkpointed(self, checkpoint: CheckpointStatus) -> None:
        """Show a complete checkpoint and answer those who wait for one."""
        self.show_checkpoint(checkpoint)
        self._acknowledge(None)

    def checkpoint_failed(self, reason: str, *, final: bool = False) -> None:
        """Answer those who wait for a checkpoint that there is none, as `reason` says; `final`: nor will there be."""
        self._acknowledge((409 if final else 500, reason))

    def close(self) -> None:
        """Stop serving and free the port; who still waits for a checkpoint is told. Safe to call twice.

        The last status is served first: with a token until it is read, for a minute at most, as nothing else of a run
        outlives it where an operator can see it; without one for 5 s at most, where somebody keeps asking.
        """
        if not self._closing:
            watched = time.monotonic() - self._last_read < WATCHED_SECONDS
            patience = self._patience if self._token else LINGER_SECONDS if watched else 0.0
            with self._shown:
                self._shown.wait_for(lambda: self._got == self.reading, patience)
        with self._acknowledged:
            if self._closing:
                return
            self._closing = True
            self._acknowledged.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=5)

    def authorized(self, header: str | None) -> bool:
        """Whether an `Authorization` header carries the token; takes the same time however wrong it is."""
        if self._token is None:
            return True
        return hmac.compare_digest((header or "").encode(), f"Bearer {self._token}".encode())

    def status(self) -> dict[str, Any]:
        """Return what `/status` answers."""
        checkpoint = self._state.checkpoint
        document = self._state.progress.to_document()
        return document | {"checkpoint": checkpoint.to_document() if checkpoint else None}

    def _changed(self) -> None:
        with self._shown:
            self.reading += 1

    def is_read(self) -> int:
        """Somebody asks for the status. Returns which one it is, for `was_read`."""
        self._last_read = (
            time.monotonic()
        )  # now: who has the answer may end the run before its thread goes on
        return self.reading

    def was_read(self, reading: int) -> None:
        """Somebody has got the status; `reading`: which one."""
        with self._shown:
            self._got = max(self._got, reading)
            self._shown.notify_all()

    def metrics(self) -> bytes:
        """Return what `/metrics` answers."""
        return generate_latest(self._registry)

    def request_checkpoint(
        self, timeout: float | None = None, wish: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Ask the driver for a checkpoint and wait for it; returns HTTP status and answer.

        Args:
            timeout: seconds to wait, at most and else `CHECKPOINT_SECONDS`.
            wish: key of the request; one that was brought before is not brought again, None: it has none.
        """
        seconds = CHECKPOINT_SECONDS if timeout is None else min(timeout, CHECKPOINT_SECONDS)
        with self._acknowledged:
            if wish in self._granted:
                return 200, self._granted[wish]
            before, known = self._acknowledgements, wish is not None and wish == self._wish
            self._wish = wish or self._wish
        if not known:
            self._on_checkpoint()
        with self._acknowledged:
            if not self._acknowledged.wait_for(
                lambda: self._acknowledgements != before or self._closing, seconds
            ):
                return 504, {
                    "error": f"the driver wrote no checkpoint within {seconds:g} s; it writes one after "
                    "the step it is in: ask again or wait longer (timeoutSeconds)"
                }
            if self._acknowledgements == before:
                return 503, {"error": "the run is ending; its last checkpoint is in the run folder"}
            if self._failure is not None:
                return self._failure[0], {"error": self._failure[1]}
            return 200, self._granted.get(wish, {"checkpoint": self.status()["checkpoint"]})

    def _acknowledge(self, failure: tuple[int, str] | None) -> None:
        with self._acknowledged:
            self._acknowledgements += 1
            if failure is None and self._wish is not None:
                self._granted = {self._wish: {"checkpoint": self.status()["checkpoint"], "id": self._wish}}
            self._wish = None
            self._failure = failure
            self._acknowledged.notify_all()


class _Server(ThreadingTCPServer):
    """Not http.server's own class, which looks up its name on binding: that can take seconds."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, owner: StatusServer) -> None:
        self.owner = owner
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is not news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "rltrain"
    sys_version = ""
    timeout = 30  # seconds a client may take to send its request

    def do_GET(self) -> None:
        """Answer a read."""
        owner, path = self.server.owner, self._path("GET")
        if path == "/healthz":
            self._send(200, b"ok\n", "text/plain; charset=utf-8")
        elif path == "/status":
            reading = owner.is_read()
            self._json(200, owner.status())
            owner.was_read(reading)
        elif path == "/metrics":
            self._send(200, owner.metrics(), CONTENT_TYPE_LATEST)

    def do_POST(self) -> None:
        """Answer a request for a checkpoint."""
        text = self._read()
        if text is None or self._path("POST") != "/checkpoint":
            return
        try:
            timeout = _timeout(text)
        except ValueError:
            self.send_error(400, 'the body must be empty or {"timeoutSeconds": a number of seconds > 0}')
            return
        self._json(*self.server.owner.request_checkpoint(timeout, self.headers.get(WISH_HEADER)))

    def _path(self, method: str) -> str | None:
        """Return the path when it may be answered; else answer why not and return None."""
        path = self.path.partition("?")[0]
        if path != "/healthz" and not self.server.owner.authorized(self.headers.get("Authorization")):
            self.send_error(401, "a bearer token is needed: Authorization: Bearer TOKEN")
        elif path not in _PATHS:
            self.send_error(404, f"no such path; there are {', '.join(_PATHS)}")
        elif _PATHS[path] != method:
            self.send_error(405, f"{path} takes {_PATHS[path]}, not {method}")
        else:
            return path
        return None

    def _read(self) -> bytes | None:
        """Return the request's body; None after having answered that it is too long."""
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if 0 <= length <= MAX_BODY:
            return self.rfile.read(length)
        self.close_connection = True  # what follows on this connection cannot be told apart
        self.send_error(400, f"the body must be JSON of at most {MAX_BODY} bytes")
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an error as JSON, also those that the base class finds."""
        self._json(code, {"error": message or self.responses[HTTPStatus(code)][0]})

    def _json(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, (json.dumps(document) + "\n").encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if status == 405:
            self.send_header("Allow", _PATHS[self.path.partition("?")[0]])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal belongs to the run's progress."""


def _timeout(body: bytes) -> float | None:
    """Return `timeoutSeconds` of a request's body, None when it has none; ValueError for anything else."""
    document = json.loads(body or b"{}")
    if not isinstance(document, dict) or document.keys() - {"timeoutSeconds"}:
        raise ValueError
    seconds = document.get("timeoutSeconds")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError
    return float(seconds)


def _bind(host: str, port: int, owner: StatusServer) -> _Server:
    try:
        return _Server(host, port, owner)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"spec.server.port: port {port} is taken by another program; set another port, or 0 for any "
                "free one"
            ) from error
        if error.errno == errno.EACCES:
            raise InvalidConfig(
                f"spec.server.port: port {port} needs privileges; set one from 1024 to 65535, or 0 for any "
                "free one"
            ) from error
        raise InvalidConfig(
            f"the status server cannot listen at {host}:{port} ({error.strerror or error})"
        ) from error
