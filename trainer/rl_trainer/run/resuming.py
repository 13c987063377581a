"""A run that goes on from a checkpoint in an object store: who needs its tensors fetches them, past the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from rl_trainer.checkpoint.remote import look_at
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.learner.group import Learners
from rl_trainer.model.shared_folder import SharedFolder, share_folder, stored_folder
from rl_trainer.placement.places import Placement
from rl_trainer.run.checkpoint_files import MODEL
from rl_trainer.run.checkpoints import Checkpoints

# For a process of Ray to start in every sampler's place, and to look at one small file.
_LOOK_SECONDS = 300.0

_look_at = ray.remote(num_cpus=0, max_retries=0)(look_at)


def samplers_reach(placement: Placement, uri: str, files: Digests) -> bool:
    """Whether all samplers, none of which is started yet, read `files` of a checkpoint at `uri` where they will be.

    On a cluster their pods do not have the run's Secrets, but may have rights of their own, as by a service account.
    """
    strategies = [placement.sampler(rank)["scheduling_strategy"] for rank in range(placement.samplers)]
    calls = [_look_at.options(scheduling_strategy=one).remote(uri, files) for one in strategies]
    try:
        found = cast(list[tuple[str, str]], ray.get(calls, timeout=_LOOK_SECONDS))
    except (RayError, GetTimeoutError):
        return False
    # Another store may be there under the same address: then it lacks the file.
    return not any(unreachable or damaged for unreachable, damaged in found)


def share_resumed(
    checkpoints: Checkpoints,
    learners: Learners,
    reach: Callable[[str, Digests], bool],
    model: Path,
    warn: Callable[[str], None],
) -> SharedFolder:
    """The weights that a resumed run begins with, for learners and samplers to open, nothing of which is loaded yet.

    Of a checkpoint whose tensors were left in the object store every byte is checked first, by the learners, each a part.
    A damaged one is passed over, with a warning, and the one before is resumed from. Where learners see the driver's
    checkpoint folder, or learners or samplers not the object store, the driver fetches all of it, as it does for one node.

    Args:
        checkpoints: `Checkpoints.resumed` is what is gone on from, before and after.
        learners: started, but for their model.
        reach: see `samplers_reach`.
        model: the folder that was unpacked of it, and is unpacked anew.
        warn: told of what is wrong.

    Raises:
        CheckpointError: none can be used.
        InvalidConfig: an earlier one belongs to another run.
    """
    with checkpoints.store.probe() as folder:
        through_driver = folder is None or learners.reach(folder)
    while (found := checkpoints.resumed) is not None and found.elsewhere:
        unreachable = damaged = ""
        through_driver = through_driver or not reach(found.uri, _smallest(found.files))
        if not through_driver:
            tensors = {name: found.files[name] for name in sorted(found.elsewhere)}
            unreachable, damaged = learners.check_stored(found.uri, tensors)
        if unreachable:
            warn(
                f"learners do not read the checkpoint themselves, and have it from the driver: {unreachable}"
            )
        if through_driver or unreachable:
            earlier = checkpoints.latest(warn, whole=True)
        elif damaged:
            sentence = f"The copy of step {found.step} at {found.uri} was skipped: {damaged}."
            warn(sentence)
            earlier = checkpoints.latest(warn, before=found.step, passed=sentence)
        else:
            checkpoints.store.held = frozenset({found.step})  # samplers that join later open it, too
            return stored_folder(found.uri, _of_the_model(found.files), within=MODEL)
        assert earlier is not None, "where there is none any more, an error says so"
        checkpoints.unpack(earlier)
    return share_folder(model)


def _of_the_model(files: Mapping[str, tuple[int, str]]) -> Digests:
    return {name: digest for name, digest in files.items() if name.startswith(f"{MODEL}/")}


def _smallest(files: Mapping[str, tuple[int, str]]) -> Digests:
    """One file, of the model where there is one."""
    name, digest = min((_of_the_model(files) or dict(files)).items(), key=lambda file: file[1][0])
    return {name: digest}
