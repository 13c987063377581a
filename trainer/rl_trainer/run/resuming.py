"""A run that goes on from a checkpoint in an object store: who needs its tensors fetches them, past the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl_trainer.learner.group import Learners
from rl_trainer.model.shared_folder import SharedFolder, share_folder, stored_folder
from rl_trainer.run.checkpoint_files import MODEL
from rl_trainer.run.checkpoints import Checkpoints


def share_resumed(
    checkpoints: Checkpoints, learners: Learners, model: Path, warn: Callable[[str], None]
) -> SharedFolder:
    """The weights that a resumed run begins with, for learners and samplers to open, nothing of which is loaded yet.

    Of a checkpoint whose tensors were left in the object store every byte is checked first, by the learners, each a part.
    A damaged one is passed over, with a warning, and the one before is resumed from. Where learners see the driver's
    checkpoint folder, or not the object store, the driver fetches all of it, as it does for one node.

    Args:
        checkpoints: `Checkpoints.resumed` is what is gone on from, before and after.
        learners: started, but for their model.
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
            weights = f"{MODEL}/"
            names = {name: digest for name, digest in found.files.items() if name.startswith(weights)}
            return stored_folder(found.uri, names, within=MODEL)
        assert earlier is not None, "where there is none any more, an error says so"
        checkpoints.unpack(earlier)
    return share_folder(model)
