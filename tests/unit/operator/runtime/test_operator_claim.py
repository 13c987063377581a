"""What the operator finds out about the claim of a run's checkpoints."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from operator_worlds import SETTINGS

from rl_operator.kube.cache import Store
from rl_operator.kube.client import Api
from rl_operator.model.seen import Claim
from rl_operator.runtime.cluster import Cluster


class Server:
    """Has one claim, or none."""

    def __init__(self, spec: dict[str, Any] | None) -> None:
        self.spec = spec

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind, namespace, name) == ("PersistentVolumeClaim", "team-a", "ckpt")
        return None if self.spec is None else {"spec": self.spec}


@pytest.mark.parametrize(
    ("spec", "exists", "storage_class", "shared"),
    [
        (None, False, None, False),
        ({"accessModes": ["ReadWriteOnce"], "storageClassName": "disk"}, True, "disk", False),
        ({"accessModes": ["ReadWriteOncePod"]}, True, None, False),
        ({"accessModes": ["ReadOnlyMany"]}, True, None, False),
        ({"accessModes": ["ReadWriteOnce", "ReadWriteMany"], "storageClassName": "nfs"}, True, "nfs", True),
    ],
)
def test_whether_a_claim_is_there_and_who_can_mount_it(
    spec: dict[str, Any] | None, exists: bool, storage_class: str | None, shared: bool
) -> None:
    cluster = Cluster(cast(Api, Server(spec)), Store(), SETTINGS)
    assert asyncio.run(cluster._claim("team-a", "ckpt")) == Claim(exists, storage_class, shared)
