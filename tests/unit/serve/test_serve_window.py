"""What was answered in the last minutes, over replicas that come and go; and how often clients may ask."""

from __future__ import annotations

import pytest

from rl_serve.errors import ApiError
from rl_serve.limits import RequestLimits
from rl_serve.status import DEAD_SECONDS, SILENT_SECONDS, ReplicaReport, Replicas, status_body
from rl_serve.window import SECONDS, Answered, Window, add_up

NOW = 1_700_000_000.0


def answered(version: str = "a", code: int = 200, latency: float = 1.0, tokens: int = 11) -> Answered:
    return Answered(version, code, 4, tokens, latency, latency / 2)


def test_windows_add_up_and_the_past_is_forgotten() -> None:
    one, other = Window(), Window()
    for number in range(100):
        one.note(answered(latency=0.01 * (number + 1)), NOW)
    other.note(answered("b"), NOW)
    other.note(answered("a", code=504), NOW)
    for code in (400, 429, 499):
        other.note(answered("a", code=code), NOW)
    other.note(answered(""), NOW)
    found = add_up([one.slices(NOW), other.slices(NOW)], NOW)
    assert set(found) == {"a", "b"}
    body = found["a"].body()
    assert (body["requests"], body["errors"], body["tokens"]) == (101, 1, 101 * 11)
    assert body["latency"]["p50"] == pytest.approx(0.5, rel=0.05)
    assert body["latency"]["p95"] == pytest.approx(0.95, rel=0.05)
    assert body["tpot"]["p50"] == pytest.approx(0.025, rel=0.05)
    assert set(add_up([one.slices(NOW + SECONDS - 1)], NOW + SECONDS - 1)) == {"a"}
    assert add_up([one.slices(NOW + SECONDS + 20)], NOW + SECONDS + 20) == {}


def test_what_a_replica_has_answered_counts_on_when_it_is_gone() -> None:
    now = NOW
    replicas = Replicas(lambda: now)

    def hear(name: str, version: str | None, error: str | None = None) -> None:
        window = Window()
        if version is not None:
            window.note(answered(version), now)
        gone = version is not None
        replicas.hear(ReplicaReport(name, version, None, error, window.slices(now), gone=gone))

    hear("r1", "a")
    now += SILENT_SECONDS + 1
    hear("r2", None, "damaged")
    body = status_body(replicas, [], "", {}, {"c": {"score": 1.0, "n": 3}})
    (told,) = body["replicas"]
    assert told == {"id": "r2", "version": None, "loading": None, "error": "damaged", "retryable": False}
    assert body["versions"]["a"]["requests"] == 1
    assert (body["versions"]["c"]["requests"], body["versions"]["c"]["probe"]["n"]) == (0, 3)
    now += SECONDS + DEAD_SECONDS + 1
    assert status_body(replicas, [], "", {}, {})["versions"] == {}


def test_a_replica_that_dies_under_traffic_has_failed_what_it_was_answering() -> None:
    now = NOW
    replicas = Replicas(lambda: now)

    def hear(
        name: str, version: str, under_way: dict[str, int], *, busy: bool = True, gone: bool = False
    ) -> None:
        window = Window()
        for _ in range(9 * busy):
            window.note(answered(version), now)
        replicas.hear(ReplicaReport(name, version, None, None, window.slices(now), under_way, gone))

    def counted(version: str) -> tuple[int, int, int]:
        tally = replicas.tallies()[version]
        return tally.requests, tally.errors, tally.deaths

    hear("dies", "a", {"a": 3, "before": 2})
    hear("dies between two answers", "b", {})
    hear("dies while nobody asks", "c", {}, busy=False)
    hear("ends", "d", {"d": 3})
    hear("ends", "d", {}, gone=True)
    hear("ends", "d", {"d": 3})  # said before, and late
    hear("is slow", "e", {"e": 3})
    replicas.hear(ReplicaReport("dies loading", "f", "next", None, {}, {"f": 2}))
    assert [one.id for one in replicas.here()] == [
        "dies",
        "dies between two answers",
        "dies loading",
        "dies while nobody asks",
        "is slow",
    ]
    assert counted("a") == (9, 0, 0)
    now += SILENT_SECONDS + 1
    assert (replicas.here(), counted("a")) == ([], (9, 0, 0)), "silent, and perhaps not dead"
    now += DEAD_SECONDS - SILENT_SECONDS
    assert (counted("a"), counted("before")) == ((12, 3, 1), (2, 2, 0))
    assert (counted("b"), counted("c"), counted("d")) == ((10, 1, 1), (0, 0, 1), (9, 0, 0))
    assert counted("e") == (12, 3, 1)
    assert (counted("f"), counted("next")) == ((2, 2, 0), (0, 0, 1))
    hear("is slow", "e", {})
    assert counted("e") == (9, 0, 0)
    body = status_body(replicas, [], "", {}, {})["versions"]["a"]
    assert (body["requests"], body["errors"], body["deaths"]) == (12, 3, 1)
    now += SECONDS + DEAD_SECONDS + 1
    assert replicas.tallies() == {}


def test_limits_are_shared_and_say_when_to_come_again() -> None:
    now = 0.0
    limits = RequestLimits(4, 1, lambda: now)
    limits.check("ann")
    with pytest.raises(ApiError, match="1 in a second with one key") as early:
        limits.check("ann")
    assert (early.value.status, early.value.retry_after) == (429, 1)
    for key in ("bob", "cid", "dan"):
        limits.check(key)
    with pytest.raises(ApiError, match="4 in a second of all clients together"):
        limits.check("eve")
    now = 1.0
    limits.check("eve")
    limits.replicas = 4
    now = 2.0
    with pytest.raises(ApiError) as early:
        limits.check("eve")
    assert early.value.retry_after == 3
    now = 5.0
    limits.check("eve")
    RequestLimits(None, None, lambda: now).check(None)
