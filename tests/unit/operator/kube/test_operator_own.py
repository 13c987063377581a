from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rl_operator.kube.own import delete_owned
from rl_operator.kube.wire import ApiError
from rl_operator.model.decision import Target


class Forbids:
    """An API server that lets nothing be read."""

    async def find(self, kind: str, namespace: str, name: str) -> Any:
        raise ApiError(403, "Forbidden", f"may not get {kind}")


def delete(kind: str) -> None:
    asyncio.run(delete_owned(Forbids(), Target(kind, "sums-1"), "team-a", "uid"))  # type: ignore[arg-type]


def test_a_gang_scheduler_that_the_operator_has_no_rights_for_has_nothing_of_ours() -> None:
    delete("PodGroup.v1alpha1.scheduling.x-k8s.io")


def test_what_else_may_not_be_looked_up_is_an_error() -> None:
    with pytest.raises(ApiError, match="may not get ConfigMap"):
        delete("ConfigMap")
