from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    NOW,
    failed_ray,
    make_pod,
    make_ray,
    make_run,
    running_ray,
    training,
)

from rl_api.progress import Attempt, RunStatus
from rl_operator.decide.attempt.outcome import Outcome, back_off, code_of, failures, final_word, outcome
from rl_operator.model.seen import Container, Event, World

KILLED = (Container("ray", ended="OOMKilled", exit_code=137),)

EXIT = "Job entrypoint command failed with exit code {}, last available logs:\nrltrain: said so\n"


@pytest.mark.parametrize(
    ("ray", "pods", "code", "sentence", "mendable"),
    [
        (
            make_ray(deployment_status="Complete", job_status="SUCCEEDED"),
            (),
            "Succeeded",
            "the run is done",
            True,
        ),
        (
            make_ray(deployment_status="Complete", job_status="STOPPED"),
            (),
            "Stopped",
            "the Ray job was stopped by somebody",
            True,
        ),
        (failed_ray(EXIT.format(2)), (), "InvalidInput", "said so", False),
        (failed_ray(EXIT.format(3)), (), "RewardFailed", "said so", False),
        (failed_ray(EXIT.format(130)), (), "Interrupted", "the driver was told to stop", True),
        (failed_ray(EXIT.format(143)), (), "Interrupted", "the driver was told to stop", True),
        (failed_ray(EXIT.format(1)), (), "AppFailed", "said so", True),
        (
            failed_ray("cannot submit", reason="SubmissionFailed"),
            (),
            "SubmissionFailed",
            "cannot submit",
            True,
        ),
        (failed_ray("", reason="SubmissionFailed"), (), "SubmissionFailed", "KubeRay says no more", True),
        (
            failed_ray("The job supervisor actor died."),
            (),
            "HeadLost",
            "the driver died with its head: The job supervisor actor died.",
            True,
        ),
        (failed_ray("no word"), (), "AppFailed", "no word", True),
        (failed_ray(EXIT.format(1) + "supervisor"), (), "AppFailed", "said so", True),
        (failed_ray(EXIT.format(1), reason=""), (), "AppFailed", "said so", True),
        (
            make_ray(deployment_status="ValidationFailed", message="too many characters"),
            (),
            "Refused",
            "KubeRay refuses the RayJob: too many characters",
            False,
        ),
        (
            failed_ray(EXIT.format(1)),
            (make_pod("learner", gone=True, reason="Evicted", message="low on memory"),),
            "Evicted",
            "learner: pod sums-1-learner-0 was taken away (Evicted: low on memory)",
            True,
        ),
        (
            failed_ray(
                EXIT.format(1)
                + "\nrltrain: sampler 0 died while sampling: the node ran out of memory; add --resume"
            ),
            (make_pod("sampler"), make_pod("head")),
            "OutOfMemory",
            "sampler 0 died while sampling: the node ran out of memory (limit 1536Mi); raise "
            "sampler.resources.memory, or lower sampler.maxSequences or sampler.maxNewTokens",
            True,
        ),
        (
            failed_ray(EXIT.format(1)),
            (make_pod("learner", deleting=NOW, reason="DeletionByTaintManager", message="unreachable"),),
            "NodeLost",
            "learner: node node-1 of pod sums-1-learner-0 was lost (DeletionByTaintManager: unreachable)",
            True,
        ),
        (
            running_ray(),
            (make_pod("head", phase="Failed", ready=False, containers=KILLED),),
            "OutOfMemory",
            "head: pod sums-1-head-0 was killed because it used more than its memory limit of 1536Mi; lower "
            "buffer.capacity or ask your platform team for more memory for heads (of a program of yours: raise "
            "trainer.resources.memory)",
            True,
        ),
        (
            running_ray(),
            (make_pod("sampler", containers=KILLED), make_pod("head", phase="Failed", ready=False)),
            "HeadLost",
            "the head pod on node node-1 is gone, and the driver with it",
            True,
        ),
    ],
)
def test_how_attempts_end(ray: Any, pods: Any, code: str, sentence: str, mendable: bool) -> None:
    found = outcome(World(run=make_run(), rays=(ray,), pods=pods), 1)
    assert found is not None
    assert (found.code, found.sentence, found.mendable) == (code, sentence, mendable)


@pytest.mark.parametrize(
    "ray",
    [
        make_ray(),
        running_ray(),
        replace(running_ray(), kind="RayCluster"),
        failed_ray("x").__class__(**{**failed_ray("x").__dict__, "deleting": True}),
    ],
)
def test_what_goes_on(ray: Any) -> None:
    assert outcome(World(run=make_run(), rays=(ray,), pods=(make_pod("head"),)), 1) is None


def test_pods_of_another_attempt_explain_nothing() -> None:
    pod = make_pod("learner", attempt=2, containers=KILLED)
    found = outcome(World(run=make_run(), rays=(failed_ray(EXIT.format(1)),), pods=(pod,)), 1)
    assert found is not None
    assert found.code == "AppFailed"


@pytest.mark.parametrize(
    ("role", "ready", "about", "reason"),
    [
        (
            "learner",
            False,
            "learner",
            "NodeLost: learner: node node-1 of pod sums-1-learner-0 was lost: it does not answer",
        ),
        # It has come back.
        ("learner", True, "learner", "AppFailed: sampler 0: weights of version 7 did not arrive"),
        ("learner", False, "sampler", "AppFailed: sampler 0: weights of version 7 did not arrive"),
        (
            "sampler",
            False,
            "sampler",
            "NodeLost: sampler: node node-1 of pod sums-1-sampler-0 was lost: it does not answer",
        ),
    ],
)
def test_a_node_that_does_not_answer_explains_what_the_driver_waited_for(
    role: str, ready: bool, about: str, reason: str
) -> None:
    """Whoever is first to give up names what it waited for: here a version whose learner is frozen."""
    message = EXIT.format(1).replace("said so", "sampler 0: weights of version 7 did not arrive")
    event = Event("Pod", f"sums-1-{about}-0", "NodeNotReady", "Node is not ready")
    world = World(
        run=make_run(),
        rays=(failed_ray(message),),
        pods=(make_pod(role, phase="Running", ready=ready),),
        events=(event,),
    )
    found = outcome(world, 1)
    assert found is not None
    assert f"{found.code}: {found.sentence}" == reason


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("learner 0 died while training", "AppFailed: learner 0 died while training"),
        (
            "samplers: 0 left, at least 1 must be there",
            "OutOfMemory: sampler: pod sums-1-sampler-0 was killed",
        ),
    ],
)
def test_a_lost_sampler_explains_only_an_end_that_is_about_samplers(says: str, reason: str) -> None:
    story = training()
    killed = (Container("ray", ended="OOMKilled", exit_code=137),)
    message = f"Job entrypoint command failed with exit code 1, last available logs:\nrltrain: {says}\n"
    decision = story.look(
        rays=(failed_ray(message),), pods=(make_pod("sampler", gone=True, containers=killed),)
    )
    assert str(decision.status.attempts[0].reason).startswith(reason)


@pytest.mark.parametrize(
    "ray",
    [
        failed_ray(EXIT.format(2)),
        make_ray(deployment_status="Complete", job_status="STOPPED"),
    ],
)
def test_what_ends_while_its_queue_holds_it_has_lost_its_quota(ray: Any) -> None:
    found = outcome(World(run=make_run(), rays=(replace(ray, held=True),)), 1)
    assert found is not None
    assert (found.code, found.mendable) == ("QuotaTaken", True)
    assert found.sentence == "it was suspended by its queue, or by somebody, and ended by that"


def ended(*reasons: str | None, step: int = 5) -> list[Attempt]:
    return [
        Attempt(number=number, reason=reason, to_step=step, end_time=None if reason is None else NOW)
        for number, reason in enumerate(reasons, 1)
    ]


def test_which_attempts_have_failed() -> None:
    attempts = ended("AppFailed: a", "Suspended: b", "QuotaTaken: c", "HeadLost: d", "Succeeded: e", None)
    assert [attempt.number for attempt in failures(attempts)] == [1, 4]
    assert [code_of(attempt) for attempt in attempts[3:]] == ["HeadLost", "Succeeded", ""]


@pytest.mark.parametrize(
    ("reasons", "limit", "word"),
    [
        (["AppFailed: a"], 1, None),
        (["AppFailed: a"], 0, "spec.retry.limit is 0"),
        (["AppFailed: a", "AppFailed: b"], 1, "it was the last of 2 attempts"),
        (["AppFailed: a", "AppFailed: b"], 2, None),
        (["AppFailed: a", "AppFailed: a"], 2, "it failed twice in the same way at the same step"),
        (["AppFailed: a", "AppFailed: b", "AppFailed: a"], 9, None),
        (
            ["AppFailed: b", "AppFailed: a", "AppFailed: a"],
            9,
            "it failed twice in the same way at the same step",
        ),
        (
            ["AppFailed: a", "Suspended: b", "AppFailed: a"],
            9,
            "it failed twice in the same way at the same step",
        ),
        (["HeadLost: a", "HeadLost: a"], 9, None),
        (["OutOfMemory: a", "OutOfMemory: b"], 9, "it ran out of memory twice"),
        (["OutOfMemory: a", "AppFailed: b", "OutOfMemory: a"], 9, None),
        (["OutOfMemory: a", "AppFailed: b"], 9, None),
    ],
)
def test_whether_there_is_another_attempt(reasons: list[str], limit: int, word: str | None) -> None:
    attempts = ended(*reasons)
    end = Outcome(code_of(attempts[-1]), "")
    assert final_word(RunStatus(attempts=attempts), end, limit) == word
    assert (
        final_word(RunStatus(attempts=attempts), replace(end, mendable=False), limit)
        == "another attempt would end the same way"
    )


def test_the_same_failure_at_another_step_may_be_another() -> None:
    attempts = [*ended("AppFailed: a", step=5), *ended("AppFailed: a", step=6)]
    assert final_word(RunStatus(attempts=attempts), Outcome("AppFailed", "a"), 9) is None


def test_back_off_grows_to_five_minutes() -> None:
    assert [back_off(failed) for failed in range(8)] == [10, 10, 20, 40, 80, 160, 300, 300]
