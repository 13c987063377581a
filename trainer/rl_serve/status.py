"""What replicas and the head tell each other, and what the operator reads of it. Pure but for who holds a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rl_api.errors import RLTrainError
from rl_api.printable import printable
from rl_serve.catalog import Listed
from rl_serve.window import SECONDS, Slices, Tally, add_up

# The operator reads 64 KiB of a status: whatever has happened, it is far shorter.
_VERSIONS: Final = 8
_BYTES: Final = 300
# A replica that says nothing for longer is gone.
SILENT_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Fetched:
    """What a replica is given that asks for a policy: a `SharedFolder`, or why there is none."""

    folder: Any = None
    error: RLTrainError = field(default_factory=RLTrainError)


@dataclass(frozen=True)
class ReplicaReport:
    """What a replica says of itself: its policy's version, the one it loads, why it cannot, and what it has answered."""

    id: str
    version: str | None
    loading: str | None
    error: str | None
    slices: Slices

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"id": self.id, "version": self.version, "loading": self.loading, "error": self.error}


class Replicas:
    """All of them, by what they said last. What one has answered counts on when it is gone.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, tuple[float, ReplicaReport]] = {}

    def hear(self, report: ReplicaReport) -> None:
        """What one says now."""
        self._said[report.id] = (self._clock(), report)

    def here(self) -> list[ReplicaReport]:
        """Those that have said something lately, by their ids."""
        now = self._clock()
        return [said for _, (at, said) in sorted(self._said.items()) if now - at <= SILENT_SECONDS]

    def tallies(self) -> dict[str, Tally]:
        """What they have answered in the last minutes, by version."""
        now = self._clock()
        self._said = {
            name: one for name, one in self._said.items() if now - one[0] <= SECONDS + SILENT_SECONDS
        }
        return add_up([said.slices for _, said in self._said.values()], now)


def brief(text: str, most: int = _BYTES) -> str:
    """A text of others' as one line of at most `most` bytes."""
    found = printable(text).encode()
    return found.decode() if len(found) <= most else f"{found[: most - 3].decode(errors='ignore')}…"


def status_body(
    replicas: Replicas,
    checkpoints: Iterable[Listed],
    problem: str,
    evaluations: Mapping[str, Mapping[str, Any]],
    probes: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """What GET status answers; `evaluations` by digest, `probes` by version."""
    here, tallies = replicas.here(), replicas.tallies()
    serving = Counter(one.version for one in here if one.version is not None)
    # What serves comes first, then what was probed last, then what has answered most.
    busiest = sorted(tallies, key=lambda version: -tallies[version].requests)
    known = dict.fromkeys([*(version for version, _ in serving.most_common()), *reversed(probes), *busiest])
    return {
        "replicas": [one.body() for one in here],
        "versions": {
            version: tallies.get(version, Tally()).body() | {"probe": probes.get(version)}
            for version in list(known)[:_VERSIONS]
        },
        "checkpoints": [one.body() for one in checkpoints],
        "problem": brief(problem, 2 * _BYTES),
        "evaluations": dict(evaluations),
    }
