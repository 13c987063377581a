"""One replica of the application: an engine and its HTTP interface, and from time to time another policy in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import ray
from ray import serve
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_serve.answers import dumps
from rl_serve.arguments import PolicyRef, parse_user_config
from rl_serve.errors import ApiError
from rl_serve.generation import Generator
from rl_serve.holder import Holder
from rl_serve.http import Api
from rl_serve.keys import KeyFolder
from rl_serve.limits import RequestLimits
from rl_serve.loading import Loader, Setup
from rl_serve.metrics import Metrics
from rl_serve.prefill import Handover, Prefill, Remote
from rl_serve.requests import parse_chat, parse_completion
from rl_serve.status import Fetched, ReplicaReport
from rl_serve.window import Answered, Window
from rl_trainer.error_text import first_line
from rl_trainer.placement.own_device import own_device
from rl_trainer.rollout.engines.vllm_needs import Transfer, check_installed

logger = logging.getLogger(__name__)

# Loading a large model from a slow disk, and through a slow network, takes minutes.
LOAD_SECONDS: Final = 1800.0
_FETCH_SECONDS: Final = 900.0
CONTROL: Final = "control"
_REPORT_SECONDS: Final = 1.0
_GOODBYE_SECONDS: Final = 5.0


@dataclass
class _Opened:
    """What exists from the first `reconfigure` on: only then there is the event loop that requests come in on."""

    loader: Loader
    holder: Holder[Generator]
    api: Api
    limits: RequestLimits
    metrics: Metrics
    window: Window = field(default_factory=Window)


class PolicyReplica:
    """One replica. `user_config` names its policy; see `rl_serve.arguments`.

    Where there is nobody to tell why the first policy cannot be loaded, it answers everything with that sentence.

    Args:
        setup: what it is told.
        prefill: handle of the replicas that compute prompts; None: there are none.
    """

    def __init__(self, setup: Setup, prefill: Any = None) -> None:
        self._reporter: asyncio.Task[None] | None = None
        self._busy = asyncio.Event()
        self._told: dict[str, int] = {}
        device = own_device() if setup.gpu else "cpu"
        self._prefill = prefill
        role, vllm = self._transfers(), setup.serving.vllm
        if setup.serving.engine == "vllm":
            # Said before there is a policy, and by the machine that it is true of.
            check_installed(vllm.asker, role is not None)
        if role is not None:
            vllm = replace(vllm, transfer=Transfer(role, ray.util.get_node_ip_address()))
        self._setup = replace(setup, serving=replace(setup.serving, device=device, vllm=vllm))
        self._control: Any = None
        self._opened: _Opened | None = None
        context = serve.get_replica_context()
        self._id = context.replica_id.unique_id

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Serve another policy as soon as it is loaded: Ray Serve gives a replica no requests until this returns.

        The first one is waited for, so that no request comes before it can be answered.

        Raises:
            InvalidConfig: `user_config` is none.
            RLTrainError: the first policy cannot be loaded.
        """
        policy, first = parse_user_config(user_config), self._opened is None
        opened = self._open()
        opened.holder.want(policy)
        if not first or policy is None:
            return
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await opened.holder.settled()
        except TimeoutError:
            opened.holder.error = (
                f"{policy.version} was not loaded after {LOAD_SECONDS:.0f} s; is there enough memory, and is the disk fast "
                "enough?"
            )
            opened.holder.retryable = True
        # Without a copy for prompts the others go on: one that has no policy is no reason to refuse it.
        if opened.holder.error is not None and self._setup.control and self._is_counted:
            with contextlib.suppress(DeadlineExceeded):
                await self._tell()
            raise RLTrainError(opened.holder.error)

    async def __call__(self, request: HttpRequest) -> Response:
        """Answer one HTTP request."""
        opened = self._open()
        if opened.holder.server is None and opened.holder.error is not None:
            error = ApiError(opened.holder.error, status=500, code="model_error")
            return Response(error.message, error.status, {"x-model-error": "1"}, media_type="text/plain")
        return await opened.api(request)

    async def __del__(self) -> None:
        """Called by Ray Serve when all answers of a replica that shall end have ended: it has not died."""
        if self._reporter is not None:
            self._reporter.cancel()
            with contextlib.suppress(DeadlineExceeded):
                await self._tell(gone=True, seconds=_GOODBYE_SECONDS)

    async def answer(self, content: str | list[dict[str, str]], tokens: int) -> dict[str, Any]:
        """The greedy answer, at most `tokens` long, to a text or to messages: `version` of the policy, and `text`.

        Text None: not now. Asked by the head, so it is no request of a client's, and counts as none.
        """
        server = self._open().holder.server
        if server is None:
            return {"version": None, "text": None}
        asked = {"prompt": content} if isinstance(content, str) else {"messages": content}
        body = dumps({**asked, "max_tokens": min(tokens, server.limits.max_new_tokens), "temperature": 0})
        read = parse_completion if isinstance(content, str) else parse_chat
        try:
            job = server.start(read(body, server.limits))
        except ApiError as error:
            # One that does not fit is answered with nothing; else there is no place now.
            return {"version": server.version, "text": "" if error.status == 400 else None}
        try:
            text = "".join([delta.text async for delta in job.deltas()])
            return {"version": job.version, "text": text}
        except ApiError:
            return {"version": job.version, "text": None}
        finally:
            job.close()

    def check_health(self) -> None:
        """Called by Ray Serve now and then; a replica that raises is replaced."""
        server = None if self._opened is None else self._opened.holder.server
        if server is not None and server.failure:
            raise RuntimeError(server.failure)

    def _open(self) -> _Opened:
        if self._opened is None:
            setup = self._setup
            metrics, prefill = Metrics(setup.service), None
            if self._prefill is not None:
                prefill = Prefill(Remote(self._prefill), setup.least_prefill, metrics.prefill)
            loader = Loader(setup.serving, self._fetched if setup.control else _here, prefill)
            holder = Holder(loader, loader.free)
            keys = KeyFolder(setup.keys_folder) if setup.keys_folder else lambda: setup.keys
            stamped = setup.serving.answers == "stamp"
            limits = RequestLimits(
                setup.requests_per_second, setup.requests_per_second_per_key, time.monotonic
            )
            api = Api(
                lambda: holder.server,
                keys,
                limit=limits.check,
                stamped=stamped,
                began=self._began,
                ended=self._ended,
            )
            self._opened = _Opened(loader, holder, api, limits, metrics)
            if setup.control and self._is_counted:
                self._reporter = asyncio.create_task(self._report())
        return self._opened

    _is_counted = True
    """Whether it answers clients, and the head counts it."""

    def _transfers(self) -> Literal["kv_producer", "kv_consumer"] | None:
        """What its engine exchanges with those of others."""
        return None if self._prefill is None else "kv_consumer"

    def _began(self) -> None:
        """Told at once by who has told of none: should it die now, the head knows what was under way."""
        if not self._told:
            self._busy.set()

    def _ended(self, answered: Answered) -> None:
        opened = self._open()
        opened.window.note(answered, time.time())
        opened.metrics.note(answered)

    # -- the head ------------------------------------------------------------------------------------------------

    async def _fetched(self, policy: PolicyRef) -> AbstractContextManager[Path]:
        """The policy's folder, which the head has verified."""
        found: Fetched = await self._ask("fetch", policy, seconds=_FETCH_SECONDS)
        if found.folder is None:
            raise found.error
        folder: AbstractContextManager[Path] = found.folder.opened()
        return folder

    async def _report(self) -> None:
        """Tell the head what was answered, until the end."""
        while True:
            with contextlib.suppress(DeadlineExceeded):  # it is being replaced: what counts is told again
                await self._tell()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._busy.wait(), _REPORT_SECONDS)

    async def _tell(self, *, gone: bool = False, seconds: float = 30.0) -> None:
        opened = self._open()
        holder = opened.holder
        self._busy.clear()
        self._told = dict(opened.api.under_way)
        report = ReplicaReport(
            id=self._id,
            version=None if holder.server is None else holder.server.version,
            loading=holder.loading,
            error=holder.error,
            retryable=holder.error is not None and holder.retryable,
            slices=opened.window.slices(time.time()),
            under_way=self._told,
            gone=gone,
        )
        admission = opened.loader.admission
        running = min(admission.taken, admission.slots)
        opened.metrics.places(running, admission.taken - running)
        opened.limits.replicas = max(1, await self._ask("report", report, seconds))

    async def _ask(self, method: str, argument: Any, seconds: float) -> Any:
        """A method of the control application.

        Raises:
            DeadlineExceeded: it does not answer.
        """
        try:
            async with asyncio.timeout(seconds):
                if self._control is None:  # which asks Ray Serve's controller whether there is one
                    get = serve.get_deployment_handle
                    self._control = await asyncio.to_thread(get, CONTROL, self._setup.control)
                return await getattr(self._control, method).remote(argument)
        except Exception as error:  # of Ray and Ray Serve: a dozen kinds
            why = first_line(error) or type(error).__name__
            raise DeadlineExceeded(
                f"the application {self._setup.control} on the head does not answer ({why})"
            ) from None


class PrefillReplica(PolicyReplica):
    """Computes prompts for the replicas that write answers, with the policy that they have, and answers no client."""

    _is_counted = False

    def _transfers(self) -> Literal["kv_producer", "kv_consumer"] | None:
        return "kv_producer"

    async def prefill(self, prompt: list[int]) -> Handover:
        """Compute a prompt, and keep its keys and values for who asks."""
        server = self._open().holder.server
        return (
            Handover(refusal="there is no policy yet") if server is None else await server.hand_over(prompt)
        )

    async def has_policy(self) -> bool:
        """Whether it has one, and so can be asked."""
        return self._open().holder.server is not None


async def _here(policy: PolicyRef) -> AbstractContextManager[Path]:
    return contextlib.nullcontext(Path(policy.source))
