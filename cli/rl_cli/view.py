"""What is shown of a run: a row of facts from the object, and the row as one plain line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from rl_api.printable import printable

UNSEEN_SECONDS: Final = 20.0
"""A run that no operator has looked at for so long gets a hint."""

SILENT_SECONDS: Final = 60.0
"""Progress that is older is shown with its age."""

_LONGEST: Final = 1000
"""Characters of a sentence of others."""

_GREATEST: Final = 1e15
"""A number beyond it is none that a run can have."""

_WORKING: Final = ("Training", "WarmStart", "Evaluating", "Checkpointing")

_NEWS: Final = attrgetter(
    *("uid", "phase", "step", "heldout", "samplers", "attempt", "checkpoint", "reason", "deleting")
)


@dataclass(frozen=True)
class Row:
    """A run as it is shown. None: not known."""

    namespace: str
    name: str
    uid: str
    phase: str
    step: int | None = None
    max_steps: int | None = None
    reward: float | None = None
    heldout: float | None = None
    tokens_per_second: float | None = None
    buffer_fill: float | None = None
    staleness: float | None = None
    eta: float | None = None
    samplers: tuple[int, int] | None = None
    """Ready and desired."""
    learners: tuple[int, int] | None = None
    attempt: int | None = None
    checkpoint: int | None = None
    """Step of the newest good checkpoint."""
    checkpoint_uri: str = ""
    target: float | None = None
    created: datetime | None = None
    updated: datetime | None = None
    """When the driver last said how it goes."""
    reason: str = ""
    """Why the run does not go on, in a sentence; empty where it does."""
    ended: tuple[str, ...] = ()
    """How earlier attempts ended."""
    begun: bool = False
    """Whether an attempt has."""
    deleting: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


def row(run: Mapping[str, Any], now: datetime) -> Row:
    """The row of a run, whatever wrote it: what is not of its kind is not known, what steers a terminal is left out."""
    metadata, spec, status = _map(run.get("metadata")), _map(run.get("spec")), _map(run.get("status"))
    progress, roles = _map(status.get("progress")), _map(status.get("roles"))
    conditions = {str(one.get("type")): one for one in _maps(status.get("conditions"))}
    attempts = _maps(status.get("attempts"))
    checkpoint, stop = _map(status.get("checkpoint")), _map(spec.get("stop"))
    created = _time(metadata.get("creationTimestamp"))
    phase = _phase(status, conditions, metadata)
    return Row(
        namespace=_sentence(metadata.get("namespace")),
        name=_sentence(metadata.get("name")),
        uid=_sentence(metadata.get("uid")),
        phase=phase,
        step=_whole(progress.get("step")),
        max_steps=_whole(progress.get("maxSteps")) or _whole(stop.get("maxSteps")),
        reward=_number(progress.get("reward")),
        heldout=_number(progress.get("heldoutScore")),
        tokens_per_second=_number(progress.get("tokensPerSecond")),
        buffer_fill=_number(progress.get("bufferFill")),
        staleness=_number(progress.get("staleness")),
        eta=_number(progress.get("etaSeconds")),
        samplers=_replicas(roles, "sampler"),
        learners=_replicas(roles, "learner"),
        attempt=_whole(attempts[-1].get("number")) if attempts else None,
        checkpoint=_whole(checkpoint.get("step")),
        checkpoint_uri=_sentence(checkpoint.get("uri")),
        target=_number(stop.get("targetReward")),
        created=created,
        updated=_time(progress.get("updatedAt")),
        reason=_reason(phase, conditions, roles, created, now),
        ended=tuple(_ended(attempt) for attempt in attempts if attempt.get("endTime")),
        begun=bool(attempts),
        deleting=metadata.get("deletionTimestamp") is not None,
    )


def line(shown: Row, *, with_namespace: bool = False) -> str:
    """The row as a plain line, without what is not known: `arithmetic  Training  step 12/100  reward 0.52`."""
    name = f"{shown.namespace}/{shown.name}" if with_namespace else shown.name
    return "  ".join([name, shown.phase, *(f"{label} {text}" for label, text in facts(shown).items())])


def facts(shown: Row) -> dict[str, str]:
    """Text of everything that is known, by its label; the reason last."""
    running = shown.phase in _WORKING
    found = {
        "step": shown.step is not None and fraction(shown.step, shown.max_steps),
        "reward": shown.reward is not None and f"{shown.reward:.2f}",
        "held-out": shown.heldout is not None and f"{shown.heldout:.2f}",
        "speed": running
        and shown.tokens_per_second is not None
        and f"{shown.tokens_per_second:,.0f} tokens/s",
        "buffer": running and shown.buffer_fill is not None and f"{shown.buffer_fill:.0%}",
        "staleness": running and shown.staleness is not None and f"{shown.staleness:.1f}",
        "samplers": not shown.over and shown.samplers is not None and fraction(*shown.samplers),
        "attempt": shown.attempt is not None and str(shown.attempt),
        "checkpoint": shown.checkpoint is not None and str(shown.checkpoint),
        "ETA": running and shown.eta is not None and length(shown.eta),
        "-": shown.reason,
    }
    return {label: text for label, text in found.items() if text}


def changed(old: Row | None, new: Row) -> bool:
    """Whether a person wants to hear of it: not of every reading's time, and not of every number between two steps."""
    return old is None or _NEWS(old) != _NEWS(new)


def fraction(part: int | None, whole: int | None) -> str:
    """`3/8`, or `3` of an unknown whole."""
    return f"{part}/{whole}" if whole is not None else str(part)


def length(seconds: float) -> str:
    """A time for people: `42 s`, `7 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def age(since: datetime | None, now: datetime) -> str:
    """How long ago; empty where it is not known."""
    return length((now - since).total_seconds()) if since is not None else ""


def _phase(status: Mapping[str, Any], conditions: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    for ended in ("Succeeded", "Failed"):
        if _map(conditions.get(ended)).get("status") == "True":
            return ended
    if metadata.get("deletionTimestamp") is not None:
        return "Stopping"
    return _sentence(status.get("phase")) or "Pending"


def _reason(
    phase: str,
    conditions: Mapping[str, Any],
    roles: Mapping[str, Any],
    created: datetime | None,
    now: datetime,
) -> str:
    """Why the run does not go on. The operator says it in conditions; the one nearest to the cause is taken."""

    def says(kind: str, *statuses: str) -> str:
        condition = _map(conditions.get(kind))
        return _sentence(condition.get("message")) if condition.get("status") in statuses else ""

    if phase == "Succeeded":
        return ""
    if phase == "Failed":
        return says("Failed", "True")
    if not conditions:
        waited = (now - created).total_seconds() if created is not None else 0.0
        if waited < UNSEEN_SECONDS:
            return "no operator has looked at it yet"
        return (
            f"no operator has looked at it for {length(waited)}: is one running, and does it watch this namespace? "
            "(kubectl get pods -A -l app.kubernetes.io/name=rltrain)"
        )
    found = says("Accepted", "False") or says("Suspended", "True", "Unknown")
    found = found or says("Admitted", "False", "Unknown") or says("ClusterReady", "False")
    if found:
        return found
    if phase not in _WORKING or _map(conditions.get("Training")).get("status") == "Unknown":
        found = says("Training", "False", "Unknown")
    missing = (
        f"{_sentence(name)}: {_sentence(_map(role).get('reason'))}"
        for name, role in sorted(roles.items())
        if _map(role).get("reason")
    )
    return found or next(missing, "")


def _ended(attempt: Mapping[str, Any]) -> str:
    steps = ""
    last = _whole(attempt.get("toStep"))
    if last is not None:
        steps = f" (steps {_whole(attempt.get('fromStep')) or 0} to {last})"
    return f"attempt {_whole(attempt.get('number')) or '?'}{steps}: {_sentence(attempt.get('reason'))}"


def _replicas(roles: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    role = roles.get(name)
    if not isinstance(role, Mapping):
        return None
    return _whole(role.get("ready")) or 0, _whole(role.get("desired")) or 0


def _sentence(text: object) -> str:
    """One line, whatever it was; terminals must not be steered by what a container wrote."""
    return printable(" ".join(text.split()), _LONGEST) if isinstance(text, str) else ""


def _number(value: object) -> float | None:
    """A number that can be one of a run's; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_GREATEST <= value <= _GREATEST else None  # NaN is not, either


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else int(number)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
