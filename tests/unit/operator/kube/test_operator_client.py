"""The client against a server of our own: what it sends, when it waits, and what it makes of answers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from rl_operator.kube.client import Api, proxy_of
from rl_operator.kube.wire import ApiError, parsed, path, refusal, retry_after, watch_event
from rl_operator.runtime.metrics import Metrics

POLICY = {"kind": "NetworkPolicy", "metadata": {"name": "sums", "namespace": "team-a"}}
BUSY = {"status": 429, "headers": {"Retry-After": "0"}}


class Server:
    """Answers in order; keeps what it was asked."""

    def __init__(self, *answers: dict[str, Any] | web.Response) -> None:
        self._answers = list(answers)
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        text = await request.text()
        self.bodies.append(json.loads(text) if text else None)
        answer = self._answers.pop(0)
        if isinstance(answer, web.Response):
            return answer
        status, headers = answer.pop("status", 200), answer.pop("headers", None)
        return web.json_response(answer, status=status, headers=headers)

    def ask(self, work: Callable[[Api], Awaitable[Any]], timeout: float = 10.0) -> Any:
        """What `work` returns with a client of this server."""

        async def run() -> Any:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            where = client.Configuration()
            where.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
            where.client_session_kwargs = {"trust_env": False}
            api = Api(client.ApiClient(where), Metrics().api_called, timeout)
            try:
                async with asyncio.timeout(20):
                    return await work(api)
            finally:
                await api.close()
                await runner.cleanup()

        return asyncio.run(run())


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    server = Server(dict(BUSY), {"status": 503, "headers": {"Retry-After": "0"}}, {"kind": "Pod"})
    assert server.ask(lambda api: api.get("Pod", "team-a", "p")) == {"kind": "Pod"}
    assert len(server.requests) == 3


def test_a_server_that_is_busy_for_longer_than_the_deadline_is_an_error() -> None:
    server = Server({"status": 429, "message": "too many", "headers": {"Retry-After": "30"}})
    with pytest.raises(ApiError, match="too many") as found:
        server.ask(lambda api: api.get("Pod", "team-a", "p"))
    assert found.value.passing


def test_lists_are_read_page_by_page() -> None:
    first = {
        "metadata": {"resourceVersion": "7", "continue": "there"},
        "items": [{"metadata": {"name": "a"}}],
    }
    last = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}
    server = Server(first, last)
    found = server.ask(lambda api: api.list("Pod", "team-a", labels="x=y"))
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [("Pod", "a"), ("Pod", "b")]
    assert [dict(request.query) for request in server.requests] == [
        {"limit": "50", "labelSelector": "x=y"},
        {"limit": "50", "labelSelector": "x=y", "continue": "there"},
    ]


def test_what_stays_as_it_is_made_is_posted() -> None:
    server = Server({"kind": "NetworkPolicy"})
    assert server.ask(lambda api: api.create(POLICY)) == {"kind": "NetworkPolicy"}
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", path("NetworkPolicy", "team-a"))
    assert dict(request.query) == {"fieldManager": "rltrain-operator"}
    assert server.bodies == [POLICY]


def test_what_is_deleted_is_this_very_object() -> None:
    server = Server({}, {"status": 409, "message": "the UID in the precondition differs"})

    async def work(api: Api) -> None:
        await api.delete("NetworkPolicy", "team-a", "sums", "u")
        await api.delete("NetworkPolicy", "team-a", "sums", "of another one")

    server.ask(work)
    assert [one["preconditions"] for one in server.bodies] == [{"uid": "u"}, {"uid": "of another one"}]


def test_what_is_new_is_applied_as_something_that_is_not_there() -> None:
    server = Server({"kind": "NetworkPolicy"}, {"kind": "NetworkPolicy"})

    async def work(api: Api) -> None:
        await api.apply(POLICY, new=True)
        await api.apply(POLICY)

    server.ask(work)
    assert [body["metadata"].get("resourceVersion") for body in server.bodies] == ["1", None]
    assert {request.headers["Content-Type"] for request in server.requests} == {
        "application/apply-patch+yaml"
    }
    assert {request.method for request in server.requests} == {"PATCH"}
    assert dict(server.requests[0].query) == {"fieldManager": "rltrain-operator", "force": "true"}


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 409, "reason": "Conflict", "message": "it has changed"},
        {
            "status": 422,
            "reason": "Invalid",
            "message": "metadata.uid: Invalid value",
            "details": {"causes": [{"field": "metadata.uid", "message": "field is immutable"}]},
        },
    ],
)
def test_another_object_of_that_name_is_a_conflict(answer: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as found:
        Server(answer).ask(lambda api: api.apply(POLICY))
    assert (found.value.conflict, found.value.reason) == (True, "Conflict")


@pytest.mark.parametrize(("details", "status"), [({}, 409), ({"causes": [{"field": "spec.replicas"}]}, 422)])
def test_a_test_of_a_json_patch_that_fails_is_a_conflict(details: dict[str, Any], status: int) -> None:
    answer = {
        "status": 422,
        "reason": "Invalid",
        "message": "the server rejected our request",
        "details": details,
    }
    with pytest.raises(ApiError) as found:
        Server(answer).ask(lambda api: api.patch("RayCluster", "team-a", "sums-1", [{"op": "test"}]))
    assert found.value.status == status


def test_the_lease_is_asked_about_before_every_write_and_every_try_of_it() -> None:
    server = Server(dict(BUSY), {"kind": "Pod"}, {"kind": "Lease"})
    left = [1.0, 0.0, -1.0]

    async def work(api: Api) -> None:
        api.lease = lambda: left.pop(0)
        for write in (api.apply(POLICY), api.delete("Pod", "team-a", "p", "u")):
            with pytest.raises(ApiError, match="the lease has run out") as found:
                await write
            assert found.value.reason == "LeaseLost"
        await api.get("Pod", "team-a", "p")
        await api.apply({"kind": "Lease", "metadata": {"name": "l", "namespace": "n"}})

    server.ask(work)
    assert [request.method for request in server.requests] == ["PATCH", "GET", "PATCH"]
    assert left == []


def test_a_write_does_not_wait_for_longer_than_the_lease() -> None:
    async def never(_: Any) -> web.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    server = Server()
    server._answer = never  # type: ignore[method-assign]

    async def work(api: Api) -> None:
        api.lease = lambda: 0.1
        await api.apply(POLICY)

    with pytest.raises(ApiError, match="does not answer"):
        server.ask(work, timeout=math.inf)


def test_a_watch_is_read_line_by_line_however_it_comes() -> None:
    lines = [
        {"type": "ADDED", "object": {"metadata": {"name": "a", "note": "x" * 3_000_000}}},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
        {
            "type": "ERROR",
            "object": {"code": 410, "reason": "Expired", "message": "too old resource version"},
        },
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    server = Server(web.Response(text=text))

    async def work(api: Api) -> list[str]:
        seen = []
        with pytest.raises(ApiError) as found:
            async for change, document in api.watch("Pod", "team-a", "7", labels="x=y"):
                seen.append(f"{change} {document['kind']} {document['metadata'].get('name')}")
        assert found.value.gone
        return seen

    assert server.ask(work) == ["ADDED Pod a", "BOOKMARK Pod None"]
    query = dict(server.requests[0].query)
    assert query.pop("timeoutSeconds") == "60"
    assert query == {
        "watch": "true",
        "resourceVersion": "7",
        "allowWatchBookmarks": "true",
        "labelSelector": "x=y",
    }


def test_a_watch_that_is_refused() -> None:
    with pytest.raises(ApiError) as found:
        Server({"status": 410, "message": "old"}).ask(lambda api: anext(api.watch("Pod", None, "7")))  # type: ignore[arg-type]
    assert found.value.gone


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (("RLTrainingProfile", "ignored", "a"), "/apis/rltrain.dev/v1alpha1/rltrainingprofiles/a"),
        (("Pod", "team-a", "a/b", "log"), "/api/v1/namespaces/team-a/pods/a%2Fb/log"),
        (("RayJob", None), "/apis/ray.io/v1/rayjobs"),
    ],
)
def test_paths(where: tuple[str, ...], found: str) -> None:
    assert path(*where) == found


@pytest.mark.parametrize(
    ("status", "text", "seconds"),
    [
        (429, "3", 3.0),
        (503, "0", 0.2),
        (500, "3", None),
        (429, "", None),
        (429, "Wed, 21 Oct", None),
        (200, "3", None),
    ],
)
def test_when_to_ask_again(status: int, text: str, seconds: float | None) -> None:
    assert retry_after(status, {"Retry-After": text} if text else {}) == seconds


def test_an_object_nested_deeper_than_python_reads_is_read() -> None:
    deep = '{"a":' * 9_000 + "1" + "}" * 9_000
    assert "a" in parsed(f'{{"items": [], "a": {deep}}}')


@pytest.mark.parametrize("text", ["[]", "no json", '"text"', ""])
def test_an_answer_that_is_no_object(text: str) -> None:
    with pytest.raises(ApiError, match="no JSON object"):
        parsed(text)
    assert refusal(502, text).message == (text or "status 502")


@pytest.mark.parametrize("line", ["", "{", "[]", '{"type": "ADDED"}', '{"type": "ADDED", "object": {}}'])
def test_a_broken_event(line: str) -> None:
    with pytest.raises(ApiError, match="broken event") as found:
        watch_event(line)
    assert found.value.passing


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://api.example.com:6443", "http://proxy.example.com:3128"),
        ("https://10.0.0.1", None),
        ("http://api.example.com", None),
        ("", None),
    ],
)
def test_the_proxy_of_the_environment_counts(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", "10.0.0.1,localhost")
    assert proxy_of(url) == proxy
