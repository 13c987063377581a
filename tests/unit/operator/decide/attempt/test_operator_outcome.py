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

from rl_operator.decide.attempt.outcome import back_off, outcome
from rl_operator.model.seen import Container, World

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


def test_back_off_grows_to_five_minutes() -> None:
    assert [back_off(failed) for failed in range(8)] == [10, 10, 20, 40, 80, 160, 300, 300]
