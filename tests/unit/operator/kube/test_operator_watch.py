"""List and watch against an API server that is a list of answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rl_operator.kube import watch as module
from rl_operator.kube.client import Api
from rl_operator.kube.watch import Watch
from rl_operator.kube.wire import BREATH_SECONDS, ApiError

GONE = ApiError(410, "Expired", "too old resource version")
MISSING = ApiError(404, "NotFound", "no such kind")
DENIED = ApiError(403, "Forbidden", "nodes is forbidden")
BROKEN = ApiError(0, "NoAnswer", "the API server does not answer")


def pod(name: str, version: int) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


class Server:
    """Answers to lists and watches, in order; then it says nothing any more."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.done = asyncio.Event()

    def _next(self, asked: str) -> Any:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def pages(self, kind: str, namespace: str | None, *, labels: str) -> AsyncIterator[Any]:
        for page in self._next("list"):
            if isinstance(page, ApiError):
                raise page
            yield page

    async def watch(
        self, kind: str, namespace: str | None, version: str, *, labels: str
    ) -> AsyncIterator[Any]:
        if not self.answers:
            self.asked.append(f"watch {version}")
            self.done.set()
            await asyncio.sleep(3600)
        for event in self._next(f"watch {version}"):
            if isinstance(event, ApiError):
                raise event
            yield event


class Seen:
    """What a watch tells."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def seen(self, kind: str, change: str, document: dict[str, Any]) -> None:
        self.said.append(f"{change} {document['metadata']['name']}")

    def listed(self, kind: str, namespace: str | None, there: set[str] | None, version: int) -> None:
        self.said.append(f"all {sorted(there) if there is not None else None} {version}")


def follow(*answers: Any, optional: bool = False) -> tuple[list[str], list[str]]:
    """What was asked and what was told, when there are no answers left."""

    async def work() -> tuple[list[str], list[str]]:
        server, seen = Server(*answers), Seen()
        watch = Watch(cast(Api, server), seen, "Pod", optional=optional)
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(20):
            await server.done.wait()
        task.cancel()
        assert watch.problem == ""
        return server.asked, seen.said

    return asyncio.run(work())


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(module, "_UNKNOWN_SECONDS", 0.01)
    monkeypatch.setattr(module, "_DENIED_SECONDS", 0.01)


def test_it_lists_page_by_page_and_watches_from_there() -> None:
    asked, said = follow(
        [([pod("a", 3)], "7"), ([pod("b", 5)], "7")],
        [("ADDED", pod("c", 8)), ("DELETED", pod("a", 9))],
    )
    assert asked == ["list", "watch 7", "watch 9"]
    assert said == ["LISTED a", "LISTED b", "all ['uid-a', 'uid-b'] 7", "ADDED c", "DELETED a"]


def test_a_bookmark_moves_the_place_and_is_told_nobody() -> None:
    asked, said = follow([([], "7")], [("BOOKMARK", pod("", 90))])
    assert asked == ["list", "watch 7", "watch 90"]
    assert said == ["all [] 7"]


def test_a_proxy_that_ends_every_watch_at_once_is_not_asked_without_a_pause() -> None:
    began = time.monotonic()
    asked, _ = follow([([], "7")], [], [], [])
    assert asked == ["list", *["watch 7"] * 4]
    assert time.monotonic() - began >= 3 * BREATH_SECONDS


def test_a_connection_that_breaks_is_made_again_where_it_was() -> None:
    asked, _ = follow([([], "7")], [("ADDED", pod("a", 8)), BROKEN], BROKEN, [])
    assert asked == ["list", "watch 7", "watch 8", "watch 8", "watch 8"]


@pytest.mark.parametrize("ended", [GONE, [GONE]])
def test_what_is_forgotten_is_listed_again(ended: Any) -> None:
    asked, said = follow([([pod("a", 3)], "7")], ended, [([pod("b", 20)], "21")])
    assert asked == ["list", "watch 7", "list", "watch 21"]
    assert said[-1] == "all ['uid-b'] 21", "so that what went between the two is known to be gone"


def test_a_list_that_took_too_long_begins_anew_and_forgets_nothing_before_its_end() -> None:
    asked, said = follow([([pod("a", 3)], "7"), GONE], [([pod("a", 3)], "9")])
    assert asked == ["list", "list", "watch 9"]
    assert said == ["LISTED a", "LISTED a", "all ['uid-a'] 9"]


def test_a_kind_that_comes_and_goes() -> None:
    asked, said = follow(MISSING, MISSING, [([pod("a", 3)], "7")], MISSING, MISSING, [([], "9")])
    assert asked == ["list", "list", "list", "watch 7", "list", "list", "watch 9"]
    assert said == ["all None 0", "all None 0", "LISTED a", "all ['uid-a'] 7", "all None 0", "all [] 9"]


def test_what_it_may_do_without_is_seen_as_soon_as_it_may_be(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answers = DENIED, DENIED, DENIED, DENIED, [([pod("a", 3)], "7")], []
    asked, said = follow(*answers, optional=True)
    assert asked == [*["list"] * 5, *["watch 7"] * 2]
    assert said == ["LISTED a", "all ['uid-a'] 7"]
    assert caplog.text == "", "it was said once, as the operator began"
    follow(*answers)
    assert caplog.text.count("cannot be watched") == 4


def test_what_it_may_see_no_more_is_forgotten_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    listed = [([pod("a", 3)], "7")]
    asked, said = follow(listed, DENIED, DENIED, DENIED, listed, [], optional=True)
    assert asked == ["list", "watch 7", *["list"] * 3, "watch 7", "watch 7"]
    assert said == ["LISTED a", "all ['uid-a'] 7", "all None 0", "LISTED a", "all ['uid-a'] 7"]
    assert caplog.text.count("Pods are not seen any more: ") == 1


def test_a_watch_that_hangs_is_told_to_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        server = Server([([], "7")])
        watch = Watch(cast(Api, server), Seen(), "Pod")
        assert watch.problem == "", "it waits for its turn, as one of a candidate does"
        task = asyncio.create_task(watch.run())
        await server.done.wait()
        assert watch.problem == ""
        monkeypatch.setattr(module, "_STUCK_SECONDS", -1.0)
        assert watch.problem.startswith("the watch of Pods hangs for ")
        task.cancel()

    asyncio.run(work())
