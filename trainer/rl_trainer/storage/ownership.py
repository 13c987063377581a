"""Whose the folder of a run in an object store is: a file there names the attempt that trains."""

from __future__ import annotations

from dataclasses import dataclass

from rl_api.errors import RunFolderBusy
from rl_trainer.storage.remote_folder import RemoteFolder

OWNER_FILE = ".owner"


def owner_of(run: RemoteFolder) -> str:
    """The attempt that has the folder of a run; empty: none. Within `RemoteFolder.within`."""
    return (run.read(OWNER_FILE) or b"").decode(errors="replace").strip()


def check_owner(run: RemoteFolder, token: str) -> None:
    """Call before anything is written that a later attempt would read. Within `RemoteFolder.within`.

    Raises:
        RunFolderBusy: another attempt than `token` has the folder.
    """
    owner = owner_of(run)
    if owner not in ("", token):
        raise RunFolderBusy(taken_over(run, owner, token))


def taken_over(run: RemoteFolder, owner: str, token: str) -> str:
    """The sentence for the attempt that has lost the folder."""
    return f"checkpoint.storage.s3: {owner} has taken over {run.uri} from {token}, which stops and writes nothing more"


@dataclass(frozen=True)
class Upload:
    """Where learners write files of a checkpoint: in the folder `name` of that of a run, as long as `token` has this.

    Attributes:
        run: URI of the run's folder.
        name: of the folder in it, in which nothing counts yet.
        token: of the attempt.
    """

    run: str
    name: str
    token: str

    @property
    def uri(self) -> str:
        """Of the folder."""
        return f"{self.run}/{self.name}"

    def check(self) -> None:
        """See `check_owner`."""
        check_owner(RemoteFolder(self.run), self.token)
