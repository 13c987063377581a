"""What is said of an actor that Ray ended, or that went with its node."""

from __future__ import annotations

import errno
import os
import traceback

import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectReconstructionFailedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
)

from rl_api.errors import ActorDied, ModelError, RLTrainError
from rl_trainer.flow.calls import answer
from rl_trainer.flow.worker_group import Handle


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OutOfMemoryError("Memory on the node was 0.5GB / 0.5GB"), "the node ran out of memory"),
        (NodeDiedError("unreachable"), "its node was lost"),
    ],
)
def test_deaths_that_are_no_actor_errors_of_ray(
    error: RayError, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ActorDied, match=f"^sampler 0 died while sampling: {why}; "):
        answered(error, monkeypatch)


LOST = ObjectReconstructionFailedError("00ff", None, "")


def failed(cause: Exception) -> RayTaskError:
    """What Ray answers for an actor whose method has raised."""
    return RayTaskError("update", "Traceback ...", cause, proctitle="ray", ip="10.0.0.1")


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        LocalRayletDiedError(),
        failed(LOST),
        failed(OSError("Broken pipe")),
    ],
    ids=lambda error: type(getattr(error, "cause", error)).__name__,
)
def test_what_goes_with_a_node_or_with_ray_itself(error: RayError, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ActorDied,
        match=r"^sampler 0 was cut off while sampling: Ray lost an object or a process of its own \(",
    ) as raised:
        answered(error, monkeypatch)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "error", [OSError(errno.EPIPE, os.strerror(errno.EPIPE)), OSError("image file is truncated")]
)
def test_a_file_or_a_connection_of_the_user_is_not_the_store_of_a_node(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RLTrainError, match=r"^sampler 0 failed while sampling: \w+: .*; --debug") as raised:
        answered(failed(error), monkeypatch)
    assert not isinstance(raised.value, ActorDied)


@pytest.mark.parametrize(
    ("raised", "kind", "sentence"),
    [
        (ModelError("no model: none at all"), ModelError, "^no model: none at all$"),
        (ValueError("a mistake of ours"), ActorDied, "^sampler 0 died while sampling: "),
    ],
)
def test_what_a_constructor_raised(
    raised: Exception, kind: type[RLTrainError], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=sentence):
        answered(not_begun(raised), monkeypatch)


def test_what_the_constructors_of_several_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(call: object, timeout: float | None) -> None:
        raise not_begun(ModelError("no model: none at all"))

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda calls, **_: (list(calls)[:1], list(calls)[1:]))
    with pytest.raises(ModelError, match=r"^no model: none at all$"):
        Handle("learner", {0: "first", 1: "second"}).wait("starting", 5.0)  # type: ignore[dict-item]


@pytest.mark.parametrize("lost", [LOST, failed(LOST), failed(OSError("Broken pipe"))])
def test_who_was_cut_off_because_another_died_is_not_the_reason(
    lost: RayError, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"first": lost, "second": LOST, "third": OutOfMemoryError("Memory on the node was 0.5GB / 0.5GB")}

    def get(call: str, timeout: float | None) -> None:
        raise said[call]

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(
        ray, "wait", lambda calls, num_returns=1, timeout=None: (calls[:num_returns], calls[num_returns:])
    )
    with pytest.raises(ActorDied, match=r"^learner 2 died while updating: the node ran out of memory; "):
        Handle("learner", dict(enumerate(said))).wait("updating", 5.0)  # type: ignore[arg-type]


def not_begun(raised: Exception) -> ActorDiedError:
    """What Ray answers for an actor whose constructor has raised."""
    try:
        raise raised
    except Exception:
        text = traceback.format_exc()
    cause = RayTaskError("SamplerActor.__init__", text, raised, proctitle="ray::SamplerActor", ip="10.0.0.1")
    return ActorDiedError(cause)


def answered(error: RayError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that Ray answers with `error`."""

    def get(call: object, timeout: float | None) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    answer(object(), "sampler 0", "sampling", 5.0)  # type: ignore[arg-type]
