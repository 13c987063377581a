"""The policy as a Hugging Face folder that people open: in the run folder, or in the run's folder in an object store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from rl_api.errors import ActorDied, CheckpointError, DeadlineExceeded, RLTrainError, RunFolderBusy
from rl_trainer.checkpoint.manifest import files_in, sha256_of
from rl_trainer.checkpoint.state import WEIGHTS, LearnerState
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.error_text import RESUME_HINT, reason
from rl_trainer.model.export import appearing, describe_weights
from rl_trainer.run.uploads import Uploads

_MODEL = "model"
# Of who writes: not the place's fault.
_PASSED = (ActorDied, DeadlineExceeded, RunFolderBusy)


def export_here(learned: LearnerState, model_folder: Path, target: Path) -> None:
    """Writes the weights as the folder `target`, in files of `SHARD_BYTES` at most; it appears whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
        ActorDied, DeadlineExceeded: a learner did not write its part.
    """
    try:
        with appearing(target) as folder:
            describe_weights(model_folder, folder, learned.write(folder, {WEIGHTS: _MODEL}).wait())
    except _PASSED:
        raise
    except Exception as error:
        raise _said(error, str(target)) from error


def export_there(
    uploads: Uploads, learned: LearnerState, model_folder: Path, name: str, refused: Callable[[str], None]
) -> Digests:
    """The same as the folder `name` of the run's folder in the object store: learners that do not see the driver's disk
    upload what they hold, and the driver the rest, `config.json` last, without which it is no model. Nothing stays here.

    Args:
        refused: told why learners do not upload, where they do not.

    Returns:
        Size and SHA-256 of every file, by its name in the folder.

    Raises:
        CheckpointError, ActorDied, DeadlineExceeded: as `export_here`; a folder that was there before is gone.
        RunFolderBusy: a later attempt has the run's folder.
    """
    upload = uploads.begin_export(name)
    try:
        with tempfile.TemporaryDirectory(prefix=".export-", dir=uploads.remote.folder.path) as made:
            folder = Path(made)
            writing = learned.write(folder, {WEIGHTS: _MODEL}, upload=upload)
            if writing.refused:
                refused(writing.refused)
            files = writing.wait()
            describe_weights(model_folder, folder, files)
            here = {
                file: ((folder / file).stat().st_size, sha256_of(folder / file)) for file in files_in(folder)
            }
            uploads.complete_export(name, folder)
            return {**files.digests, **here}
    except _PASSED:
        raise
    except Exception as error:
        raise _said(error, upload.uri) from error


def _said(error: Exception, place: str) -> CheckpointError:
    """What kept the policy from being written, as a sentence."""
    said = str(error).rstrip(".") if isinstance(error, RLTrainError) else reason(error)
    return CheckpointError(f"the policy cannot be written to {place}: {said}; mend that, then {RESUME_HINT}")
