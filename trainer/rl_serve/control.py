"""The control application: what the operator asks, and what replicas ask of the head, which alone has checkpoints."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from rl_api.errors import CheckpointError, InvalidConfig, ModelError, RLTrainError, Unavailable
from rl_api.printable import printable
from rl_api.validation import parse
from rl_serve.answers import dumps
from rl_serve.arguments import Arguments, AskProbe, Evaluate, PolicyRef
from rl_serve.catalog import Listed, checkpoints_of
from rl_serve.errors import ApiError
from rl_serve.faults import passes
from rl_serve.fields import parse_object
from rl_serve.gate.criteria import Gate, parse_gate
from rl_serve.http import read_body
from rl_serve.keeper import Keeper
from rl_serve.keys import KeyFolder
from rl_serve.shelf import Shelf
from rl_serve.status import Fetched, ReplicaReport, Replicas, brief, status_body
from rl_serve.trials import Trials
from rl_trainer.error_text import first_line, reason
from rl_trainer.model.shared_folder import share_folder

logger = logging.getLogger(__name__)

# How old what is said of checkpoints may be.
_FRESH_SECONDS: Final = 3.0
_FIXED_AGAIN_SECONDS: Final = 30.0
# For so long a policy stays in the object store: replicas that start together are given the same one.
_SHARED_SECONDS: Final = 300.0
_MOST_BYTES: Final = 2**20
_ROUTES: Final = {"/status": "GET", "/evaluate": "POST", "/probe": "POST"}


class Control:
    """The deployment's class; Ray Serve carries it."""

    def __init__(self, arguments: Arguments, cache: Path, application: str, deployment: str) -> None:
        self._arguments = arguments
        self._token = _read_token(Path(arguments.control_token_file))
        self._shelf = Shelf(cache, lambda text: logger.info("%s", text))
        self._replicas = Replicas(time.time)
        self._keeper = Keeper(
            arguments.source.folder, arguments.service, os.environ.get("RLTRAIN_SERVICE_UID", ""), time.time
        )
        self._keys = KeyFolder(Path(arguments.keys_folder)) if arguments.keys_folder is not None else None
        self._renewing: asyncio.Task[None] | None = None
        self._trials = Trials(arguments, self._shelf, self._keeper, cache, application, deployment)
        self._listed: tuple[list[Listed], str] = [], ""
        self._looked = -1e9
        self._looking = asyncio.Lock()
        self._shared: dict[PolicyRef, asyncio.Task[Fetched]] = {}

    # -- for replicas --------------------------------------------------------------------------------------------

    async def report(self, report: ReplicaReport) -> int:
        """What a replica says of itself; how many there are."""
        self._replicas.hear(report)
        self._renew_pin()
        return len(self._replicas.here())

    async def fetch(self, policy: PolicyRef) -> Fetched:
        """The verified folder of a policy, through the object store, or the error that says why there is none."""
        task = self._shared.get(policy)
        if task is None:
            task = self._shared[policy] = asyncio.create_task(asyncio.to_thread(self._share, policy))
            loop = asyncio.get_running_loop()
            task.add_done_callback(
                lambda done: loop.call_later(
                    0
                    if done.cancelled() or done.exception() or done.result().folder is None
                    else _SHARED_SECONDS,
                    self._shared.pop,
                    policy,
                    None,
                )
            )
        return await asyncio.shield(task)

    def _share(self, policy: PolicyRef) -> Fetched:
        try:
            self._keeper.ask(policy)
            return Fetched(share_folder(self._shelf.folder(policy)))
        except RLTrainError as error:
            return Fetched(error=_told(error)(str(error)))
        except Exception as error:
            logger.exception("%s could not be fetched", policy.version)
            return Fetched(
                error=_told(error)(f"{policy.source}: {type(error).__name__}: {first_line(error)}")
            )

    # -- for the operator ----------------------------------------------------------------------------------------

    async def __call__(self, request: HttpRequest) -> Response:
        """Answer one HTTP request."""
        try:
            self._check_token(request.headers.get("authorization"))
            status, content = await self._route(request)
        except ApiError as error:
            status, content = error.status, error.body()
        except InvalidConfig as error:
            status, content = 400, ApiError(str(error)).body()
        except Exception:
            logger.exception("a request has failed")
            status, content = (
                500,
                ApiError("the server has failed to answer; its log says why", status=500).body(),
            )
        return Response(dumps(content), status, media_type="application/json")

    async def _route(self, request: HttpRequest) -> tuple[int, Mapping[str, Any]]:
        path = request.url.path.removeprefix(request.scope.get("root_path", "")).rstrip("/")
        if path not in _ROUTES:
            raise ApiError(
                f"there is nothing at {printable(path or '/', 80)}; allowed: {', '.join(_ROUTES)}",
                status=404,
                code="not_found",
            )
        if request.method != _ROUTES[path]:
            raise ApiError(
                f"found {printable(request.method, 20)}, allowed here: {_ROUTES[path]}",
                status=405,
                code="method_not_allowed",
            )
        if path == "/status":
            return 200, await self._status()
        body = parse_object(await read_body(request, _MOST_BYTES))
        return 202, self._evaluate(body) if path == "/evaluate" else self._probe(body)

    def _evaluate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        asked = parse(Evaluate, body, "body")
        gate = parse_gate(asked.gate)
        if asked.candidate.digest is None:
            raise InvalidConfig("body.candidate.digest: found null, allowed: a SHA-256")
        if gate == Gate():
            raise InvalidConfig(
                "body.gate: found nothing to look at, allowed: heldOut, probe, latency, agreement"
            )
        if gate.probe is not None and self._arguments.probe is None:
            raise InvalidConfig("body.gate.probe: found in a service that has no probe")
        return self._trials.evaluate(asked.candidate, asked.serving, gate, asked.gate).body()

    def _probe(self, body: dict[str, Any]) -> Mapping[str, Any]:
        asked = parse(AskProbe, body, "body")
        if self._arguments.probe is None:
            raise InvalidConfig("body: found in a service that has no probe")
        self._trials.probe(asked.version)
        return {"version": asked.version}

    async def _status(self) -> Mapping[str, Any]:
        self._renew_pin()
        checkpoints, problem = await self._checkpoints()
        problem = "; ".join(filter(None, (problem, self._keeper.problem)))
        self._trials.forget({one.version for one in self._replicas.here() if one.version is not None})
        evaluations = {digest: one.shown for digest, one in self._trials.evaluations.items()}
        body = status_body(self._replicas, checkpoints, problem, evaluations, self._trials.probes)
        return {**body, "keys": brief(self._key_problem())}

    def _key_problem(self) -> str:
        """Why keys that somebody has written down are none: who made the Secret sees no log of a replica."""
        if self._keys is None:
            return ""
        known = self._keys()
        return "; ".join(filter(None, (self._keys.problem, "" if known else "nobody may ask")))

    async def _checkpoints(self) -> tuple[list[Listed], str]:
        """What was found lately; who asks meanwhile waits for the same look."""
        async with self._looking:
            fixed = self._arguments.source.checkpoint
            if fixed is not None and self._listed[0]:
                return self._listed
            fresh = _FRESH_SECONDS if fixed is None else _FIXED_AGAIN_SECONDS
            if time.monotonic() - self._looked > fresh:
                self._listed = await asyncio.to_thread(self._look)
                self._looked = time.monotonic()
            return self._listed

    def _renew_pin(self) -> None:
        """As long as somebody speaks to the control the service is there, and needs what it serves."""
        if self._keeper.due and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(asyncio.to_thread(self._keeper.renew))

    def _look(self) -> tuple[list[Listed], str]:
        source = self._arguments.source
        if source.checkpoint is None:
            return checkpoints_of(source.folder or "")
        try:
            return [self._shelf.named(source.checkpoint)], ""
        except RLTrainError as error:
            return [], str(error)

    def _check_token(self, authorization: str | None) -> None:
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() != "bearer" or not same:
            raise ApiError(
                "found no token, or another one; send the operator's as the header Authorization: Bearer TOKEN",
                status=401,
                code="invalid_token",
            )


def _told(error: Exception) -> type[RLTrainError]:
    """As what a replica is told of it, which knows no other kinds."""
    if passes(error):
        return Unavailable
    return ModelError if isinstance(error, ModelError) else CheckpointError


def _read_token(path: Path) -> bytes:
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise InvalidConfig(f"args.controlTokenFile: {path} cannot be read ({reason(error)})") from None
    if not token:
        raise InvalidConfig(f"args.controlTokenFile: {path} is empty, allowed: a token")
    return token
