"""What a sampler calls folders of weights, and a server that holds them: by these names it knows its own. Pure."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from typing import Final

WEIGHTS: Final = "weights-"
LABEL: Final = "rltrain-"
FREE: Final = "free"
"""Label of a server that a run has given back."""
_ID: Final = "[0-9a-f]{12}"


@dataclass(frozen=True)
class Names:
    """The names of one sampler.

    Attributes:
        run: the same for all samplers of a run, one after the other: of server, folder and machine, which are the run's
            alone; on a cluster, where pods come and go, of the run's name and namespace instead of the machine.
        sampler: of this one alone.
        owner: the run, for people.
    """

    run: str
    sampler: str
    owner: str

    @classmethod
    def of(cls, url: str, folder: str) -> Names:
        """Those of a new sampler; in a pod of the operator's, its environment names the run."""
        run, namespace = os.environ.get("RLTRAIN_RUN"), os.environ.get("RLTRAIN_NAMESPACE")
        place = f"{namespace}/{run}" if run and namespace else socket.gethostname()
        owner = f"run {place}" if run and namespace else f"a run on {place} with folder {folder}"
        digest = hashlib.sha256("\0".join((place, url, folder)).encode()).hexdigest()
        return cls(digest[:12], uuid.uuid4().hex[:12], owner)

    def folder(self, version: int, loads: int) -> str:
        """A folder of weights, the `loads`-th one; while it is written with a dot before it."""
        return f"{WEIGHTS}{version:08d}-{self.run}-{self.sampler}-{loads}"

    def is_folder(self, name: str) -> bool:
        """Whether a sampler of this run has made a folder of that name, whole or half-written."""
        return re.fullmatch(rf"\.?{WEIGHTS}[0-9]{{8,}}-{self.run}-{_ID}-[0-9]+", name) is not None

    def label(self, loads: int) -> str:
        """What a server says that it holds after `loads` loads; 0: the weights that it had."""
        return f"{LABEL}{self.run}-{self.sampler}-{loads} {self.owner}"

    @staticmethod
    def salt(label: str) -> str:
        """The part of a label that vLLM takes as the salt of its cache: at most 128 characters, no path."""
        return label.partition(" ")[0]

    def is_of_run(self, label: str) -> bool:
        """Whether a sampler of this run has given a server that label."""
        return (found := _read(label)) is not None and found[0] == self.run

    def is_of_other(self, label: str) -> bool:
        """Whether another sampler has, of this run or of another."""
        return (found := _read(label)) is not None and found[:2] != (self.run, self.sampler)

    def holder(self, label: str) -> str | None:
        """The other run that has a server with this label, for people; None: none has."""
        found = _read(label)
        return found[2] or "a run" if found is not None and found[0] != self.run else None


def _read(label: str) -> tuple[str, str, str] | None:
    """Run, sampler and owner of a label; None: no sampler has given it."""
    found = re.fullmatch(rf"{LABEL}({_ID})-({_ID})-[0-9]+(?: (.*))?", label, re.DOTALL)
    return None if found is None else (found[1], found[2], found[3] or "")
