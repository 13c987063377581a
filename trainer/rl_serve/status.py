"""What replicas and the head tell each other, and what the operator reads of it. Pure but for who holds a folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rl_api.errors import RLTrainError
from rl_api.printable import printable
from rl_serve.catalog import Listed
from rl_serve.window import SECONDS, Slices, Tally, add_up, slice_of

# The operator reads 64 KiB of a status: whatever has happened, it is far shorter.
_NAMED: Final = 16
_KINDS: Final = 8
_VERSIONS: Final = 8
_BYTES: Final = 500
# A replica that says nothing for longer is not counted.
SILENT_SECONDS: Final = 10.0
# And for longer than this it is dead.
DEAD_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Fetched:
    """What a replica is given that asks for a policy: a `SharedFolder`, or why there is none."""

    folder: Any = None
    error: RLTrainError = field(default_factory=RLTrainError)


@dataclass(frozen=True)
class ReplicaReport:
    """What a replica says of itself: its policy's version, the one it loads, why it cannot, and what it has answered.

    Attributes:
        under_way: requests that have not ended, by version.
        retryable: the error says nothing about the policy, which may be loaded another time.
        gone: it was told to end, has ended all its answers, and says nothing more.
    """

    id: str
    version: str | None
    loading: str | None
    error: str | None
    slices: Slices
    under_way: Mapping[str, int] = field(default_factory=dict)
    gone: bool = False
    retryable: bool = False

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"id": self.id, **self.kind, "error": None if self.error is None else brief(self.error)}

    @property
    def kind(self) -> dict[str, Any]:
        """In what it is like others, for who counts them."""
        return {"version": self.version, "loading": self.loading, "retryable": self.retryable}


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
        _, before = self._said.get(report.id, (0.0, report))
        if report.gone or not before.gone:  # what was under way when it went is no news
            self._said[report.id] = (self._clock(), report)

    def here(self) -> list[ReplicaReport]:
        """Those that have said something lately, by their ids."""
        now = self._clock()
        return [
            said
            for _, (at, said) in sorted(self._said.items())
            if not said.gone and now - at <= SILENT_SECONDS
        ]

    def tallies(self) -> dict[str, Tally]:
        """What they have answered in the last minutes, by version."""
        now = self._clock()
        self._said = {name: one for name, one in self._said.items() if now - one[0] <= SECONDS + DEAD_SECONDS}
        found = add_up([said.slices for _, said in self._said.values()], now)
        for at, said in self._said.values():
            if not said.gone and now - at > DEAD_SECONDS:
                for version, tally in _lost(said, at).items():
                    found.setdefault(version, Tally()).add(tally)
        return found


def _copies(here: Iterable[ReplicaReport]) -> list[dict[str, Any]]:
    """How many replicas are alike, of each kind, with the error of the first one; the rarest kinds count as one of no
    version, so that none is taken for what it is not.
    """
    kinds: dict[str, list[ReplicaReport]] = {}
    for one in here:
        kinds.setdefault(json.dumps([one.kind, one.error is None]), []).append(one)
    most = sorted(kinds.values(), key=len, reverse=True)
    counted = [_counted(alike[0], len(alike)) for alike in most[:_KINDS]]
    left = sum(map(len, most[_KINDS:]))
    return [*counted, _counted(ReplicaReport("", None, None, None, {}), left)] if left else counted


def _counted(one: ReplicaReport, count: int) -> dict[str, Any]:
    return {name: value for name, value in one.body().items() if name != "id"} | {"count": count}


def brief(text: str, most: int = _BYTES) -> str:
    """A text of others' as one line of at most `most` bytes."""
    found = printable(text).encode()
    return found.decode() if len(found) <= most else f"{found[: most - 3].decode(errors='ignore')}…"


def _lost(said: ReplicaReport, at: float) -> dict[str, Tally]:
    """What a replica that is dead since `at` leaves behind: what was under way has failed, at least one request where some
    had come lately, as it tells once a second what is. It is the death of the version that it was loading, if any.
    """
    version, under_way = said.loading or said.version, dict(said.under_way)
    latest = max(said.slices, default=0)
    if version and version in said.slices.get(latest, ()) and latest >= slice_of(at) - 1:
        under_way[version] = max(1, under_way.get(version, 0))
    found = {name: Tally(requests=count, errors=count) for name, count in under_way.items()}
    if version is not None:
        found.setdefault(version, Tally()).deaths = 1
    return found


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
    loading = {one.loading: None for one in here if one.loading is not None}
    # What serves and is to serve comes first, then what was probed last, then what has answered most.
    busiest = sorted(tallies, key=lambda version: -tallies[version].requests)
    known = dict.fromkeys(
        [*(version for version, _ in serving.most_common()), *loading, *reversed(list(probes)), *busiest]
    )
    return {
        "replicas": [one.body() for one in here][:_NAMED],
        "copies": _copies(here),
        "versions": {
            version: tallies.get(version, Tally()).body() | {"probe": probes.get(version)}
            for version in list(known)[:_VERSIONS]
        },
        "checkpoints": [one.body() for one in checkpoints],
        "problem": brief(problem),
        "evaluations": dict(evaluations),
    }
