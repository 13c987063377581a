"""A run with everything written out that its profile and the operator decided: what the trainer reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_api.profile import ProfileSpec
from rl_api.run import CheckpointSpec, RLTrainingRun
from rl_operator.model.names import HEAD, LEARNER, SAMPLER, folder_name, weights_folder_name
from rl_operator.model.settings import Settings
from rl_operator.plan.roles import Role


def resolved(
    run: RLTrainingRun,
    uid: str,
    profile_name: str | None,
    profile: ProfileSpec,
    roles: Sequence[Role],
    settings: Settings,
) -> RLTrainingRun:
    """The run `uid` with everything written out that profile and operator decided, besides what `roles` say."""
    spec = run.spec
    pools = {role.name: tuple(pool.name for pool in role.pools) for role in roles}
    images = {role.name: role.image for role in roles}
    groups = {name: getattr(spec, name) for name in (LEARNER, SAMPLER) if name in pools}
    server = spec.sampler.endpoint
    if server is not None:
        # The sampler sees nothing else of the claim, the server all of it.
        seen = f"{(server.server_folder or server.folder).rstrip('/')}/{weights_folder_name(run.name, uid)}"
        own = server.model_copy(update={"server_folder": seen})
        groups[SAMPLER] = spec.sampler.model_copy(update={"endpoint": own})
    grace, longest = spec.scheduling.preemption_grace_period, profile.limits.max_preemption_grace_period
    scheduling = {
        "queue": spec.scheduling.queue or profile.queue,
        "preemption_grace_period": min(grace, longest) if longest is not None else grace,
    }
    changes: dict[str, Any] = {
        "profile": profile_name,
        "image": spec.image or images.get(LEARNER, images[HEAD]),
        **{name: group.model_copy(update={"pools": pools[name]}) for name, group in groups.items()},
        "scheduling": spec.scheduling.model_copy(update=scheduling),
        "stop": spec.stop.model_copy(
            update={"max_duration": spec.stop.max_duration or profile.limits.max_duration}
        ),
        "server": spec.server.model_copy(update={"port": spec.server.port or settings.status_port}),
        "checkpoint": _own_folder(spec.checkpoint, folder_name(run.name, uid)),
        "suspend": False,
    }
    return run.model_copy(update={"spec": spec.model_copy(update=changes), "status": None})


def _own_folder(checkpoint: CheckpointSpec | None, name: str) -> CheckpointSpec | None:
    """What a run or a profile names in an object store is for many runs: each has a folder of its own there."""
    storage = checkpoint.storage if checkpoint is not None else None
    if checkpoint is None or storage is None or storage.s3 is None:
        return checkpoint
    own = storage.model_copy(update={"s3": f"{storage.s3.rstrip('/')}/{name}"})
    return checkpoint.model_copy(update={"storage": own})
