"""What is said of an actor that Ray ended, or that went with its node."""

from __future__ import annotations

import pytest
import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError

from rl_api.errors import ActorDied
from rl_trainer.actors import answer


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
    def get(call: object, timeout: float | None) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(ActorDied, match=f"^sampler 0 died while sampling: {why}; "):
        answer(object(), "sampler 0", "sampling", 5.0)  # type: ignore[arg-type]
