"""The routes: from a Starlette request to a response, whatever happens in between. Ray Serve carries both."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rl_api.printable import printable
from rl_serve.answers import DONE, Delta, Form, Usage, dumps, event, failure, model, models
from rl_serve.errors import ApiError
from rl_serve.generation import Generator, Job
from rl_serve.keys import check_key
from rl_serve.requests import Request, parse_chat, parse_completion

logger = logging.getLogger(__name__)

VERSION_HEADER: Final = "x-policy-version"
_MOST_BYTES: Final = 8 * 2**20
_PARSERS: Final = {"/v1/chat/completions": parse_chat, "/v1/completions": parse_completion}


class Api:
    """The HTTP interface of one replica.

    Args:
        generator: answers.
        version: of the policy; every response names it.
        keys: digests of API keys, as of `read_keys`; none: everyone may ask.
    """

    def __init__(self, generator: Generator, version: str, keys: frozenset[str]) -> None:
        self.generator, self.version, self._keys = generator, version, keys
        self._created = int(time.time())

    async def __call__(self, request: HttpRequest) -> Response:
        """The response to any request; raises nothing but what ends the task."""
        try:
            return await self._route(request)
        except ApiError as error:
            return self.refusal(error)
        except ClientDisconnect:
            return self.refusal(ApiError("the client has gone", status=499, code=None))
        except Exception:
            # What it was stands in the replica's log; a client is told nothing of the server's inside.
            logger.exception("a request has failed")
            return self.refusal(
                ApiError("the server has failed to answer; its log says why", status=500, code=None)
            )

    def refusal(self, error: ApiError) -> Response:
        """An error as a response."""
        headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
        return self._json(error.body(), error.status, headers)

    async def _route(self, request: HttpRequest) -> Response:
        path = request.url.path.rstrip("/")
        if path == "/healthz":
            _allow(request, "GET", "HEAD")
            return self._health()
        check_key(request.headers.get("authorization"), self._keys)
        if path in _PARSERS:
            _allow(request, "POST")
            _check_type(request)
            found = _PARSERS[path](await _body(request), self.generator.limits)
            return await self._answer(found)
        limits = self.generator.limits
        if path == "/v1/models":
            _allow(request, "GET", "HEAD")
            return self._json(models(limits.model, self.version, self._created, limits.context))
        if path == f"/v1/models/{limits.model}":
            _allow(request, "GET", "HEAD")
            return self._json(model(limits.model, self.version, self._created, limits.context))
        raise ApiError(
            f"there is nothing at {printable(path or '/', 80)}; allowed: {', '.join(_PARSERS)}, /v1/models, "
            f"/v1/models/{limits.model}, /healthz",
            status=404,
            code="not_found",
        )

    def _health(self) -> Response:
        """200 only where a request that comes now is answered without delay: the policy is there, and places are free."""
        admission, sentence = self.generator.admission, self.generator.failure
        if not sentence and admission.full:
            sentence = "the queue is full"
        state = {
            "status": sentence or "ok",
            "policy_version": self.version,
            "running": min(admission.taken, admission.slots),
            "waiting": max(0, admission.taken - admission.slots),
            "tokens": self.generator.tokens,
        }
        return self._json(state, 503 if sentence else 200)

    async def _answer(self, request: Request) -> Response:
        form = Form(
            id=f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.generator.limits.model,
            version=self.version,
            chat=request.chat,
            logprobs=request.logprobs,
            decode=lambda token: self.generator.tokenizer.decode([token]),
        )
        job = self.generator.start(request)
        if not request.stream:
            try:
                whole, usage = await _whole(job, request.sequences)
            finally:
                job.close()
            return self._json(form.whole(whole, usage))
        deltas = job.deltas()
        try:
            # Only with the first piece it is sure that there is an answer: until then an error has a status of its own.
            first = await anext(deltas)
        except BaseException:
            job.close()
            raise
        events = _events(form, job, first, deltas, request)
        return _Stream(events, job, {VERSION_HEADER: self.version, "cache-control": "no-cache"})

    def _json(
        self, content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        said = {VERSION_HEADER: self.version, **(headers or {})}
        return Response(dumps(content), status, said, "application/json")


class _Stream(StreamingResponse):
    """Events, and an end of the job whatever happens, also where nobody ever asked for the first one."""

    def __init__(self, events: AsyncIterator[bytes], job: Job, headers: Mapping[str, str]) -> None:
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.close()


async def _whole(job: Job, count: int) -> tuple[list[Delta], Usage]:
    """All answers, one delta for each."""
    pieces: list[list[Delta]] = [[] for _ in range(count)]
    async for delta in job.deltas():
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


async def _events(
    form: Form, job: Job, first: Delta, rest: AsyncIterator[Delta], request: Request
) -> AsyncIterator[bytes]:
    try:
        if form.chat:
            for index in range(request.sequences):
                yield event(form.opening(index))
        yield event(form.event(first))
        async for delta in rest:
            yield event(form.event(delta))
        if request.include_usage:
            yield event(form.closing(job.usage))
        yield DONE
    except ApiError as error:
        yield failure(error)


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


async def _body(request: HttpRequest) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > _MOST_BYTES:
            raise ApiError(
                f"the request's body: found more than {_MOST_BYTES:,} bytes, allowed: at most as many",
                status=413,
                code="request_too_large",
            )
    return bytes(found)
