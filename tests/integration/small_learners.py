"""Learner actors of a small model, groups for them, and what they hold."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_api import RunSpec
from rl_trainer.checkpoint.manifest import sha256_of
from rl_trainer.flow.pulse import Watch
from rl_trainer.learner.group import Learners
from rl_trainer.model.folder import opened_tensors
from rl_trainer.model.resolve import resolve_model
from rl_trainer.model.shared_folder import share_folder
from rl_trainer.placement.groups import Bundle, Reservation, wait_for_all
from rl_trainer.trajectory import Group, Trajectory


def spec(replicas: int, parallelism: str = "ddp", context: int = 1, **algorithm: object) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny", "tiny": {"hiddenSize": 32, "layers": 2, "intermediateSize": 64}},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {
                "learningRate": 1e-3,
                "groupSize": 4,
                "promptsPerStep": 3,
                "kl": {"coefficient": 0.05},
                **algorithm,
            },
            "learner": {
                "replicas": replicas,
                "tokensPerMicroBatch": 64,
                "parallelism": parallelism,
                "contextSize": context,
            },
        }
    )


def groups(seed: int) -> list[Group]:
    rng = np.random.default_rng(seed)
    made = []
    for group_id in range(3):
        trajectories = []
        for _ in range(4):
            length = int(rng.integers(8, 24))
            mask = np.zeros(length, dtype=np.bool_)
            mask[5:] = True
            trajectories.append(
                Trajectory(
                    rng.integers(3, 60, length).astype(np.int32),
                    mask,
                    rng.normal(-4, 0.1, length - 5).astype(np.float32),
                    np.zeros(length - 5, dtype=np.int32),
                )
            )
        made.append(Group.of(group_id, trajectories))
    return made


def launch(
    replicas: int,
    cache: Path,
    parallelism: str = "ddp",
    watch: Watch | None = None,
    context: int = 1,
    **algorithm: object,
) -> tuple[Learners, Any]:
    run = spec(replicas, parallelism, context, **algorithm)
    reservation = Reservation([Bundle(f"learner {rank}", 1) for rank in range(replicas)])
    wait_for_all([reservation], 30)
    learners = Learners.launch(run, reservation, watch=watch)
    learners.start(share_folder(resolve_model("tiny", cache, run.model.tiny, 0, None)))
    return learners, reservation


def received(learners: Learners, part: str) -> dict[str, np.ndarray]:
    """What they write of a part, whole."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = learners.write(folder, {part: part}).wait()
        assert sorted(path.name for path in folder.iterdir()) == sorted(written.digests)
        for file, (size, digest) in written.digests.items():
            assert (size, digest) == ((folder / file).stat().st_size, sha256_of(folder / file))
        with opened_tensors(folder, sorted(written.digests)) as tensors:
            return {key: (rows[:] if rows.shape else rows).clone().numpy() for key, rows in tensors.items()}


def weights_of(learners: Learners) -> dict[str, np.ndarray]:
    return received(learners, "weights")
