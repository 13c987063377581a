"""The routes: from a Starlette request to a response, whatever happens in between. Ray Serve carries both."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rl_api.printable import printable
from rl_serve.answers import DONE, Delta, Form, Usage, dumps, event, failure, model, models
from rl_serve.errors import ApiError
from rl_serve.generation import Generator
from rl_serve.job import Job
from rl_serve.keys import check_key
from rl_serve.requests import Request, parse_chat, parse_completion
from rl_serve.window import Answered

logger = logging.getLogger(__name__)

VERSION_HEADER: Final = "x-policy-version"
NO_POLICY: Final = "there is no policy yet"
# A client that has gone before its answer was whole; nobody hears it.
GONE: Final = 499
_NO_POLICY_SECONDS: Final = 5
_MOST_BYTES: Final = 8 * 2**20
_PARSERS: Final = {"/v1/chat/completions": parse_chat, "/v1/completions": parse_completion}


@dataclass
class _Watch:
    """What is to be said of one request when it has ended."""

    began: float
    version: str = ""
    job: Job | None = None
    first: float | None = None


class Api:
    """The HTTP interface of one replica.

    Args:
        serving: who answers now; None: there is no policy yet. Every response names the policy's version.
        keys: digests of API keys, as of `read_keys`; None: everyone may ask.
        limit: raises ApiError where a request, with a key or None, comes too early.
        stamped: answers say which version wrote which of their tokens.
        began: hears of each request that a policy is to answer.
        ended: hears of each answer that has ended, well or not.
    """

    def __init__(
        self,
        serving: Callable[[], Generator | None],
        keys: Callable[[], frozenset[str] | None],
        *,
        limit: Callable[[str | None], None] = lambda key: None,
        stamped: bool = False,
        began: Callable[[], None] = lambda: None,
        ended: Callable[[Answered], None] = lambda answered: None,
    ) -> None:
        self._serving, self._keys, self._limit = serving, keys, limit
        self._stamped, self._began, self._ended = stamped, began, ended
        self._created = int(time.time())
        self.under_way: Counter[str] = Counter()
        """Requests that have not ended, by the version that was to answer them."""

    async def __call__(self, request: HttpRequest) -> Response:
        """The response to any request; raises nothing but what ends the task."""
        try:
            return await self._route(request)
        except ApiError as error:
            return self.refusal(error)
        except ClientDisconnect:
            return self.refusal(ApiError("the client has gone", status=GONE, code=None))
        except Exception:
            logger.exception("a request has failed")
            return self.refusal(_failed())

    def refusal(self, error: ApiError) -> Response:
        """An error as a response."""
        headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
        generator = self._serving()
        if error.version is None and generator is not None:
            error.version = generator.version
        return self._json(error.body(), error.version, error.status, headers)

    async def _route(self, request: HttpRequest) -> Response:
        path = request.url.path.rstrip("/")
        if path == "/healthz":
            _allow(request, "GET", "HEAD")
            return self._health()
        key = check_key(request.headers.get("authorization"), self._keys())
        if path in _PARSERS:
            _allow(request, "POST")
            _check_type(request)
            watch = _Watch(time.monotonic())
            try:
                self._limit(key)
                body = await read_body(request)
                # It begins with who serves now: nothing waits until then, or the generator waits for it.
                generator = self._generator()
                self._begin(watch, generator.version)
                return await self._answer(generator, _PARSERS[path](body, generator.limits), watch)
            except BaseException as error:
                self._end(watch, _code_of(error))
                if isinstance(error, ApiError):
                    error.version = _version_of(watch)
                raise
        generator = self._generator()
        limits = generator.limits
        about = (limits.model, generator.version, self._created, limits.context)
        if path == "/v1/models":
            _allow(request, "GET", "HEAD")
            return self._json(models(*about), generator.version)
        if path == f"/v1/models/{limits.model}":
            _allow(request, "GET", "HEAD")
            return self._json(model(*about), generator.version)
        raise ApiError(
            f"there is nothing at {printable(path or '/', 80)}; allowed: {', '.join(_PARSERS)}, /v1/models, "
            f"/v1/models/{limits.model}, /healthz",
            status=404,
            code="not_found",
        )

    def _generator(self) -> Generator:
        found = self._serving()
        if found is None:
            raise ApiError(NO_POLICY, status=503, code="no_policy", retry_after=_NO_POLICY_SECONDS)
        return found

    def _health(self) -> Response:
        """200 only where a request that comes now is answered without delay: the policy is there, and places are free."""
        generator = self._serving()
        if generator is None:
            return self._json({"status": NO_POLICY, "policy_version": None}, None, 503)
        admission, sentence = generator.admission, generator.failure
        if not sentence and admission.full:
            sentence = "the queue is full"
        state = {
            "status": sentence or "ok",
            "policy_version": generator.version,
            "running": min(admission.taken, admission.slots),
            "waiting": max(0, admission.taken - admission.slots),
            "tokens": generator.tokens,
        }
        return self._json(state, generator.version, 503 if sentence else 200)

    async def _answer(self, generator: Generator, request: Request, watch: _Watch) -> Response:
        job = watch.job = await generator.begin(request)
        if not request.stream:
            try:
                whole, usage = await _whole(job, request.sequences, watch)
            finally:
                job.close()
            form = self._form(generator, request, job)
            self._end(watch, 200)
            marks = job.versions if self._stamped else None
            return self._json(form.whole(whole, usage, marks), job.version)
        deltas = job.deltas()
        try:
            # Only with the first piece it is sure that there is an answer: until then an error has a status of its own.
            first = await anext(deltas)
        except BaseException:
            job.close()
            raise
        watch.first = time.monotonic()
        events = self._events(self._form(generator, request, job), job, first, deltas, request, watch)
        headers = {VERSION_HEADER: job.version, "cache-control": "no-cache"}
        return _Stream(events, job, headers, lambda: self._end(watch, GONE))

    def _form(self, generator: Generator, request: Request, job: Job) -> Form:
        return Form(
            id=f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=generator.limits.model,
            version=job.version,
            chat=request.chat,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs > 0,
            decode=lambda token: generator.tokenizer.decode([token]),
        )

    async def _events(
        self,
        form: Form,
        job: Job,
        first: Delta,
        rest: AsyncIterator[Delta],
        request: Request,
        watch: _Watch,
    ) -> AsyncIterator[bytes]:
        left = request.sequences
        try:
            if form.chat:
                for index in range(request.sequences):
                    yield event(form.opening(index))
            async for delta in _chain(first, rest):
                left -= delta.finish_reason is not None
                yield event(form.event(delta, job.versions if self._stamped and not left else None))
            if request.include_usage:
                yield event(form.closing(job.usage))
            self._end(watch, 200)
            yield DONE
        except Exception as found:
            if not isinstance(found, ApiError):
                logger.exception("a stream has failed")
            error = found if isinstance(found, ApiError) else _failed()
            error.version = form.version
            self._end(watch, error.status)
            yield failure(error)

    def _begin(self, watch: _Watch, version: str) -> None:
        watch.version = version
        self.under_way[version] += 1
        self._began()

    def _end(self, watch: _Watch, code: int) -> None:
        """Says that a request has ended; once, as what comes after its first end is no news."""
        if watch.began < 0:
            return
        if watch.version:
            self.under_way[watch.version] -= 1
        self.under_way += Counter()  # leaves out those that are none
        now, job = time.monotonic(), watch.job
        usage = Usage(0, 0) if job is None else job.usage
        version = _version_of(watch) or ""
        ttft = None if watch.first is None else watch.first - watch.began
        latency = now - watch.began
        self._ended(Answered(version, code, usage.prompt, usage.completion, latency, ttft, usage.prefilled))
        watch.began = -1.0

    def _json(
        self,
        content: Mapping[str, Any],
        version: str | None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        said = {} if version is None else {VERSION_HEADER: version}
        return Response(dumps(content), status, {**said, **(headers or {})}, "application/json")


class _Stream(StreamingResponse):
    """Events, and an end of the job whatever happens, also where nobody ever asked for the first one."""

    def __init__(
        self, events: AsyncIterator[bytes], job: Job, headers: Mapping[str, str], gone: Callable[[], None]
    ) -> None:
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._job, self._gone = job, gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gone()
            self._job.close()


def _version_of(watch: _Watch) -> str | None:
    """The policy that was to answer; None: it has not come so far."""
    return (watch.version or None) if watch.job is None else watch.job.version


def _code_of(error: BaseException) -> int:
    """The status of a request that has ended so."""
    if isinstance(error, ApiError):
        return error.status
    # Ray Serve ends the task of a client that has gone.
    return GONE if isinstance(error, ClientDisconnect | asyncio.CancelledError) else 500


def _failed() -> ApiError:
    """What it was stands in the replica's log; a client is told nothing of the server's inside."""
    return ApiError("the server has failed to answer; its log says why", status=500, code=None)


async def _chain(first: Delta, rest: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
    yield first
    async for delta in rest:
        yield delta


async def _whole(job: Job, count: int, watch: _Watch) -> tuple[list[Delta], Usage]:
    """All answers, one delta for each."""
    pieces: list[list[Delta]] = [[] for _ in range(count)]
    async for delta in job.deltas():
        if watch.first is None:
            watch.first = time.monotonic()
        pieces[delta.index].append(delta)
    whole = [
        Delta(
            index,
            "".join(delta.text for delta in found),
            tuple(token for delta in found for token in delta.tokens),
            found[-1].finish_reason,
        )
        for index, found in enumerate(pieces)
    ]
    return whole, job.usage


def _allow(request: HttpRequest, *methods: str) -> None:
    if request.method not in methods:
        raise ApiError(
            f"found {printable(request.method, 20)}, allowed here: {methods[0]}",
            status=405,
            code="method_not_allowed",
        )


def _check_type(request: HttpRequest) -> None:
    """Only JSON: a page that is open in a browser can send everything else to a server on the same machine unasked."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != "application/json":
        raise ApiError(
            f"the header Content-Type: found {printable(found or 'nothing', 40)}, allowed: application/json",
            status=415,
            code="invalid_content_type",
        )


async def read_body(request: HttpRequest, most: int = _MOST_BYTES) -> bytes:
    """A request's body. Raises ApiError when it has more than `most` bytes."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise ApiError(
                f"the request's body: found more than {most:,} bytes, allowed: at most as many",
                status=413,
                code="request_too_large",
            )
    return bytes(found)
