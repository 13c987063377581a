"""What a sampler calls folders of weights, and a server that holds them: by these names it knows its own. Pure."""

from __future__ import annotations

import hashlib
import re
import socket
import uuid
from dataclasses import dataclass
from typing import Final

WEIGHTS: Final = "weights-"
LABEL: Final = "rltrain-"
_ID: Final = "[0-9a-f]{12}"


@dataclass(frozen=True)
class Names:
    """The names of one sampler.

    Attributes:
        run: the same for all samplers of a run, one after the other: of machine, server and folder, which are
            the run's alone.
        sampler: of this one alone.
    """

    run: str
    sampler: str

    @classmethod
    def of(cls, url: str, folder: str) -> Names:
        """Those of a new sampler."""
        place = "\0".join((socket.gethostname(), url, folder))
        return cls(hashlib.sha256(place.encode()).hexdigest()[:12], uuid.uuid4().hex[:12])

    def folder(self, version: int, loads: int) -> str:
        """A folder of weights, the `loads`-th one; while it is written with a dot before it."""
        return f"{WEIGHTS}{version:08d}-{self.run}-{self.sampler}-{loads}"

    def is_folder(self, name: str) -> bool:
        """Whether a sampler of this run has made a folder of that name, whole or half-written."""
        return re.fullmatch(rf"\.?{WEIGHTS}[0-9]{{8,}}-{self.run}-{_ID}-[0-9]+", name) is not None

    def label(self, loads: int) -> str:
        """What a server says that it holds after `loads` loads; 0: the weights that it had."""
        return f"{LABEL}{self.run}-{self.sampler}-{loads}"

    def is_of_run(self, label: str) -> bool:
        """Whether a sampler of this run has given a server that label."""
        return re.fullmatch(rf"{LABEL}{self.run}-{_ID}-[0-9]+", label) is not None

    def is_of_other(self, label: str) -> bool:
        """Whether another sampler has, of this run or of another."""
        found = re.fullmatch(rf"{LABEL}({_ID})-({_ID})-[0-9]+", label)
        return found is not None and found.groups() != (self.run, self.sampler)
