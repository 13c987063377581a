"""A status lists a bounded number of attempts, and all that follows from attempts follows from it still."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_worlds import CRASH, NOW, Story, all_pods, condition, running_ray

from rl_api.progress import MOST_ATTEMPTS, Attempt, RunStatus
from rl_operator.decide.attempt.listed import listed
from rl_operator.decide.attempt.outcome import Outcome, code_of, failed_so_far, final_word, had_pods

ENDS = st.sampled_from(
    ["Suspended: a", "Suspended: a", "QuotaTaken: a", "AppFailed: a", "AppFailed: b", "OutOfMemory: a"]
)


def attempt(number: int, reason: str, seconds: int | None) -> Attempt:
    end = NOW + timedelta(seconds=seconds or 0)
    ready = NOW if seconds is not None else None
    return Attempt(
        number=number, start_time=NOW, ready_time=ready, end_time=end, reason=reason, to_step=number % 2
    )


def seconds_of(status: RunStatus) -> float:
    earlier = status.earlier.seconds if status.earlier is not None else 0.0
    return earlier + sum(had_pods(one) for one in status.attempts)


@pytest.mark.no_cover  # long, and other tests run these lines
@given(
    st.lists(st.tuples(ENDS, st.none() | st.integers(0, 10**6)), min_size=MOST_ATTEMPTS, max_size=130),
    st.integers(0, 100),
)
def test_what_is_no_longer_listed_still_counts(ends: list[tuple[str, int | None]], limit: int) -> None:
    kept, every = RunStatus(), list[Attempt]()
    for number, (reason, seconds) in enumerate(ends, 1):
        one = attempt(number, reason, seconds)
        every.append(one)
        kept = kept.model_copy(update={"attempts": [*kept.attempts, one]})
        whole, end = RunStatus(attempts=every), Outcome(code_of(one), "")
        # As it is when an attempt ends: the status was written when it had begun.
        assert failed_so_far(kept) == failed_so_far(whole)
        if code_of(one) not in ("Suspended", "QuotaTaken"):
            assert final_word(kept, end, limit) == final_word(whole, end, limit)
        kept = listed(kept)
        assert len(kept.attempts) == min(number, MOST_ATTEMPTS)
        assert (kept.attempts[0], kept.attempts[-1]) == (every[0], one)
        assert failed_so_far(kept) == failed_so_far(whole)
        assert seconds_of(kept) == seconds_of(whole)
        assert listed(kept) is kept
    numbers = [one.number for one in kept.attempts]
    assert numbers == sorted(numbers)


def test_what_an_earlier_version_listed_is_cut_at_once() -> None:
    status = RunStatus(attempts=[attempt(number, "Suspended: a", 1) for number in range(1, 201)])
    found = listed(status)
    assert [one.number for one in found.attempts] == [1, *range(152, 201)]
    assert found.earlier is not None
    assert (found.earlier.failed, found.earlier.seconds) == (0, 150.0)


def test_a_run_that_is_suspended_and_resumed_for_months_goes_on_as_ever() -> None:
    story = Story({"stop": {"maxDuration": "1h"}, "retry": {"limit": 1}})
    for number in range(1, 71):
        story.set({"suspend": False})
        decision = story.look(rays=(), pods=())
        assert decision.status.attempts[-1].number == number
        assert len(decision.status.attempts) <= MOST_ATTEMPTS
        story.train(number)
        story.wait(100)
        if number == 2:
            story.fail(CRASH, number)
            story.wait(60)
            continue
        story.set({"suspend": True})
        story.answered("done", attempt=number)
        story.look(rays=(), pods=())
        assert condition(story.look(), "Suspended") is not None
    assert len(story.run["status"]["attempts"]) == MOST_ATTEMPTS
    assert story.run["status"]["attempts"][0]["number"] == 1
    story.set({"suspend": False})
    story.look()
    story.look(rays=(running_ray(71),), pods=all_pods(71))
    story.wait(2 * 3600 + 3600 - 7000 + 1)
    found = condition(story.look(), "Failed")
    assert found is not None
    assert "the attempts took 10801 s together" in found[2]
    assert [target.name for target in (story.last.delete if story.last else ())] == ["sums-71"]


def test_failures_of_long_ago_still_count_against_the_limit() -> None:
    story = Story({"retry": {"limit": 3}})
    for number in range(1, 71):
        story.set({"suspend": False})
        story.look(rays=(), pods=())
        story.train(number)
        if number in (2, 3, 4, 70):
            decision = story.fail(CRASH.replace("0", str(number)), number)
            story.wait(60)
            continue
        story.set({"suspend": True})
        story.answered("done", attempt=number)
        story.look(rays=(), pods=())
    assert [one.number for one in decision.status.attempts][:3] == [1, 4, 23]
    found = condition(decision, "Failed")
    assert found is not None
    assert "it was the last of 4 attempts" in found[2]
