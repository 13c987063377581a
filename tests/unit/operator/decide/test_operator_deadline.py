"""How long a run may take: what counts, and what does not."""

from __future__ import annotations

import pytest
from operator_worlds import (
    CRASH,
    Story,
    all_pods,
    condition,
    deleted,
    make_pod,
    make_profile,
    make_ray,
    running_ray,
)
from queued_runs import Queued

from rl_operator.decide.attempt.outcome import had_pods

TOO_LONG = "the attempts took {} s together, more than twice stop.maxDuration and an hour"


def failed(story: Story) -> str | None:
    found = condition(story.look(), "Failed")
    return found[2] if found is not None else None


def test_the_last_second_is_allowed() -> None:
    story = Story({"stop": {"maxDuration": "10m"}})
    story.begin()
    story.train()
    story.wait(2 * 600 + 3600)
    assert failed(story) is None
    story.wait(1)
    assert (
        failed(story) == f"attempt 1 failed: {TOO_LONG.format(4801)} (another attempt would end the same way)"
    )


def test_pods_that_come_and_go_do_not_begin_the_time_anew() -> None:
    story = Story({"stop": {"maxDuration": "10m"}})
    story.begin()
    story.train()
    story.wait(4000)
    story.look(pods=all_pods()[:1])
    story.wait(100)
    story.look(pods=all_pods())
    story.wait(702)
    assert (failed(story) or "").startswith(f"attempt 1 failed: {TOO_LONG.format(4802)}")


def test_all_attempts_count_from_when_they_had_their_pods_to_their_end() -> None:
    story = Story({"stop": {"maxDuration": "10m"}, "retry": {"limit": 9}})
    story.begin()
    story.wait(9000)
    story.fail(CRASH)  # it never had its pods
    story.wait(10)
    story.look(rays=(), pods=())
    story.train(2)
    story.wait(3000)
    story.fail(CRASH.replace("0", "1"), 2)
    story.wait(5000)
    story.look(rays=(), pods=())
    story.look(rays=(running_ray(3),), pods=all_pods(3))
    story.wait(1801)
    assert (failed(story) or "").startswith(f"attempt 3 failed: {TOO_LONG.format(4801)}")


@pytest.mark.parametrize(
    "spec", [{}, {"stop": {"maxDuration": "1s"}, "scheduling": {"queue": "team-a", "integration": "label"}}]
)
def test_a_run_without_a_limit_and_one_that_may_wait_in_a_queue_have_no_deadline(
    spec: dict[str, object],
) -> None:
    story = Story(spec)
    story.begin()
    story.train()
    story.wait(1_000_000)
    assert failed(story) is None


LONGEST = make_profile(default=True, limits={"maxDuration": "10m"}, contact="#gpus")


@pytest.mark.parametrize("change", [{}, {"stop": {"maxDuration": "99h"}}, {"sampler": {"replicas": 0}}])
def test_the_profiles_limit_holds_whatever_becomes_of_the_spec(change: dict[str, object]) -> None:
    story = Story(profiles=[LONGEST])
    story.begin()
    story.train()
    story.set(change)
    story.wait(600 + 120)
    assert failed(story) is None, "its grace is for a last checkpoint"
    story.wait(1)
    assert failed(story) == (
        "attempt 1 failed: the attempts took 721 s together, more than the 10m that the profile allows (another attempt "
        "would end the same way)"
    )


def test_pods_that_never_are_ready_hold_their_nodes_all_the_same() -> None:
    """By an image whose probe fails, or a Service under the head's name, devices could be had for ever."""
    story = Story(profiles=[LONGEST])
    story.begin()
    story.wait(50_000)  # for nodes, which is nobody's to blame
    waiting = make_pod("head", ready=False)
    assert story.look(rays=(make_ray(),), pods=(waiting,)).status.phase == "Starting"
    story.look(pods=(waiting, make_pod("learner", ready=False, started=story.now)))
    story.wait(600 + 120)
    assert failed(story) is None
    story.wait(1)
    assert "took 721 s together, more than the 10m that the profile allows" in (failed(story) or "")


def test_time_in_a_queue_is_none_with_pods() -> None:
    story = Story({"scheduling": {"queue": "team-a", "integration": "label"}}, profiles=[LONGEST])
    story.begin()
    story.train()
    story.wait(300)
    story.look(rays=(running_ray(held=True),), pods=())
    story.wait(100_000)
    assert failed(story) is None
    story.look(rays=(running_ray(),), pods=all_pods())
    story.wait(420)
    assert failed(story) is None
    story.wait(1)
    assert "took 721 s together, more than the 10m that the profile allows" in (failed(story) or "")


def test_time_before_an_eviction_counts() -> None:
    run = Queued(limits={"maxDuration": "10m"})
    run.admit()
    run.train()
    for _ in range(2):
        run.story.wait(200)
        run.evict()
        decision = run.story.answered("done")
        assert [kind for kind, _ in deleted(decision)] == ["RayJob"]
        run.story.wait(10)
        decision = run.look(rays=(), pods=())
        assert [change.to for change in decision.tell_queue] == ["Released"]
        run.queue(reserved=False, admitted=False, assigned={})
        run.story.wait(100_000)
        run.admit()
        run.story.wait(1000)  # for nodes
        run.train()
    assert run.look().status.attempts[0].held_seconds == 420
    run.story.wait(300)
    assert failed(run.story) is None
    run.story.wait(1)
    assert "took 721 s together, more than the 10m that the profile allows" in (failed(run.story) or "")


def test_time_before_an_eviction_counts_where_the_attempt_ends_without_pods() -> None:
    run = Queued(limits={"maxDuration": "10m"})
    run.admit()
    run.train()
    run.story.wait(200)
    run.evict()
    run.story.answered("done")
    run.look(rays=(), pods=())
    run.queue(reserved=False, admitted=False, assigned={})
    run.story.wait(100_000)
    run.story.set({"suspend": True})
    decision = run.look()
    assert decision.status.attempts[0].end_time is not None
    assert had_pods(decision.status.attempts[0]) == 200


def test_time_before_an_eviction_that_an_older_operator_began_counts() -> None:
    run = Queued(limits={"maxDuration": "10m"})
    run.admit()
    run.train()
    ready = run.look().status.attempts[0].ready_time
    run.story.wait(200)
    run.evict()
    run.story.answered("done")
    run.look(rays=(), pods=())
    # That one has left the time as it was.
    attempt = run.story.run["status"]["attempts"][0]
    attempt["readyTime"], attempt["heldSeconds"] = ready.isoformat() if ready is not None else None, 0
    run.queue(reserved=False, admitted=False, assigned={})
    run.story.wait(1000)
    run.admit()
    assert run.look().status.attempts[0].held_seconds == 200
