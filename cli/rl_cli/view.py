"""What is shown of an object, and of a run: a row of facts from the object, and the row as one plain line. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final

from rl_cli.fields import instant, mapping, mappings, number, sentence, whole

UNSEEN_SECONDS: Final = 20.0
"""An object that no operator has looked at for so long gets a hint."""

SILENT_SECONDS: Final = 60.0
"""Progress that is older is shown with its age."""

_WORKING: Final = ("Training", "WarmStart", "Evaluating", "Checkpointing")

_NEWS: Final = attrgetter(
    *("uid", "phase", "step", "heldout", "samplers", "wanted", "attempt", "checkpoint", "reason", "deleting")
)


@dataclass(frozen=True, kw_only=True)
class Shown(ABC):
    """An object as it is shown. None: not known."""

    namespace: str
    name: str
    uid: str
    phase: str
    created: datetime | None = None
    reason: str = ""
    """Why it does not go on as it should, in a sentence; empty where it does."""
    deleting: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return False

    @property
    def title(self) -> str:
        """What it is called where runs and others are shown together, and for `rltrain watch`."""
        return self.name

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and title."""
        return self.namespace, self.title

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Text of everything that is known, by its label; the reason last."""

    @abstractmethod
    def news(self) -> tuple[object, ...]:
        """Of what a person wants to hear when it changes: not every reading's time, not every number between two steps."""


@dataclass(frozen=True, kw_only=True)
class Row(Shown):
    """A run as it is shown. None: not known."""

    step: int | None = None
    max_steps: int | None = None
    reward: float | None = None
    heldout: float | None = None
    tokens_per_second: float | None = None
    total_tokens_per_second: float | None = None
    cpus: tuple[tuple[str, float], ...] = ()
    """Processor cores in use by one actor, by role."""
    gpus: tuple[tuple[str, float], ...] = ()
    """Share of the time for which one's GPU computes, by role."""
    stored: float | None = None
    """Bytes that the last step put into the object store."""
    between_nodes: float | None = None
    buffer_fill: float | None = None
    staleness: float | None = None
    eta: float | None = None
    samplers: tuple[int, int] | None = None
    """Ready and desired."""
    learners: tuple[int, int] | None = None
    placement: str = ""
    """Who shares devices, and seconds of a step, measured and predicted; empty: nobody shares and nobody has planned it, or
    it is not known."""
    wanted: str = ""
    """The placement that its driver wants, seconds of a step as predicted, and what becomes of it; empty: it wants none."""
    attempt: int | None = None
    checkpoint: int | None = None
    """Step of the newest good checkpoint."""
    checkpoint_uri: str = ""
    target: float | None = None
    updated: datetime | None = None
    """When the driver last said how it goes."""
    ended: tuple[str, ...] = ()
    """How earlier attempts ended."""
    begun: bool = False
    """Whether an attempt has."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in ("Succeeded", "Failed")

    def facts(self) -> dict[str, str]:
        """Text of everything that is known, by its label; the reason last."""
        running = self.phase in _WORKING
        found = {
            "step": self.step is not None and fraction(self.step, self.max_steps),
            "reward": self.reward is not None and f"{self.reward:.2f}",
            "held-out": self.heldout is not None and f"{self.heldout:.2f}",
            "speed": running
            and self.tokens_per_second is not None
            and f"{self.tokens_per_second:,.0f} tokens/s",
            "buffer": running and self.buffer_fill is not None and f"{self.buffer_fill:.0%}",
            "staleness": running and self.staleness is not None and f"{self.staleness:.1f}",
            "samplers": not self.over and self.samplers is not None and fraction(*self.samplers),
            "placement": not self.over and self.placement,
            "wanted": not self.over and self.wanted,
            "attempt": self.attempt is not None and str(self.attempt),
            "checkpoint": self.checkpoint is not None and str(self.checkpoint),
            "ETA": running and self.eta is not None and length(self.eta),
            "-": self.reason,
        }
        return {label: text for label, text in found.items() if text}

    def use(self) -> dict[str, str]:
        """What it takes of its machines while it trains, for the view of one run: too much for a line."""
        if self.phase not in _WORKING:
            return {}
        total, stored, moved = self.total_tokens_per_second, self.stored, self.between_nodes
        found = {
            "tokens": total is not None and f"{total:,.0f}/s with prompts",
            "cores": ", ".join(f"{role} {cores:.1f}" for role, cores in self.cpus),
            "GPUs": ", ".join(f"{role} {share:.0%}" for role, share in self.gpus),
            "stored": stored is not None and f"{size(stored)} a step",
            "nodes": moved is not None and f"{size(moved)} a step between them",
        }
        return {label: text for label, text in found.items() if text}

    def news(self) -> tuple[object, ...]:
        """Of what a person wants to hear when it changes."""
        found: tuple[object, ...] = _NEWS(self)
        return found


def row(run: Mapping[str, Any], now: datetime) -> Row:
    """The row of a run, whatever wrote it: what is not of its kind is not known, what steers a terminal is left out."""
    metadata, spec, status = (
        mapping(run.get("metadata")),
        mapping(run.get("spec")),
        mapping(run.get("status")),
    )
    progress, roles = mapping(status.get("progress")), mapping(status.get("roles"))
    conditions = {str(one.get("type")): one for one in mappings(status.get("conditions"))}
    attempts = mappings(status.get("attempts"))
    checkpoint, stop = mapping(status.get("checkpoint")), mapping(spec.get("stop"))
    created = instant(metadata.get("creationTimestamp"))
    phase = _phase(status, conditions, metadata)
    return Row(
        namespace=sentence(metadata.get("namespace")),
        name=sentence(metadata.get("name")),
        uid=sentence(metadata.get("uid")),
        phase=phase,
        step=whole(progress.get("step")),
        max_steps=whole(progress.get("maxSteps")) or whole(stop.get("maxSteps")),
        reward=number(progress.get("reward")),
        heldout=number(progress.get("heldoutScore")),
        tokens_per_second=number(progress.get("tokensPerSecond")),
        total_tokens_per_second=number(progress.get("totalTokensPerSecond")),
        cpus=_by_role(progress, "Cpus"),
        gpus=_by_role(progress, "GpuBusy"),
        stored=number(progress.get("objectStoreBytes")),
        between_nodes=number(progress.get("betweenNodesBytes")),
        buffer_fill=number(progress.get("bufferFill")),
        staleness=number(progress.get("staleness")),
        eta=number(progress.get("etaSeconds")),
        samplers=_replicas(roles, "sampler"),
        learners=_replicas(roles, "learner"),
        placement=_placement(mapping(status.get("placement"))),
        wanted=_wanted(mapping(status.get("placement"))),
        attempt=whole(attempts[-1].get("number")) if attempts else None,
        checkpoint=whole(checkpoint.get("step")),
        checkpoint_uri=sentence(checkpoint.get("uri")),
        target=number(stop.get("targetReward")),
        created=created,
        updated=instant(progress.get("updatedAt")),
        reason=_reason(phase, conditions, roles, created, now),
        ended=tuple(_ended(attempt) for attempt in attempts if attempt.get("endTime")),
        begun=bool(attempts),
        deleting=metadata.get("deletionTimestamp") is not None,
    )


def line(shown: Shown, *, with_namespace: bool = False) -> str:
    """The row as a plain line, without what is not known: `arithmetic  Training  step 12/100  reward 0.52`."""
    name = f"{shown.namespace}/{shown.title}" if with_namespace else shown.title
    return "  ".join([name, shown.phase, *(f"{label} {text}" for label, text in shown.facts().items())])


def changed(old: Shown | None, new: Shown) -> bool:
    """Whether a person wants to hear of it."""
    return old is None or old.news() != new.news()


def fraction(part: int | None, whole: int | None) -> str:
    """`3/8`, or `3` of an unknown whole."""
    return f"{part}/{whole}" if whole is not None else str(part)


def size(count: float) -> str:
    """Bytes for people: `0 B`, `320 kB`, `3.1 MB`, `14 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if round(count) < 1000:
            return f"{count:.1f} {unit}" if 0 < count < 10 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


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


def unseen(created: datetime | None, now: datetime) -> str:
    """What is said of an object without conditions."""
    waited = (now - created).total_seconds() if created is not None else 0.0
    if waited < UNSEEN_SECONDS:
        return "no operator has looked at it yet"
    return (
        f"no operator has looked at it for {length(waited)}: is one running, and does it watch this namespace? "
        "(kubectl get pods -A -l app.kubernetes.io/name=rltrain)"
    )


def said(conditions: Mapping[str, Any], kind: str, *statuses: str) -> str:
    """The message of a condition that has one of these statuses; empty where it has none of them."""
    condition = mapping(conditions.get(kind))
    return sentence(condition.get("message")) if condition.get("status") in statuses else ""


def _placement(status: Mapping[str, Any]) -> str:
    """`hybrid (1 of 3 samplers share), planned by attempt 1, 4.5 s a step, 4.2 s predicted`."""
    shared, planned = whole(status.get("shared")), whole(mapping(status.get("planned")).get("attempt"))
    seconds = {
        word: value
        for name, word in (("measuredStepSeconds", "a step"), ("predictedStepSeconds", "predicted"))
        if (value := number(status.get(name))) is not None
    }
    who = _who_shares(status, shared, status)
    if not who or not (shared or planned or "predicted" in seconds or mapping(status.get("wanted"))):
        return ""
    by = [f"planned by attempt {planned}"] if planned else []
    return ", ".join([who, *by, *(f"{value:.1f} s {word}" for word, value in seconds.items())])


def _wanted(status: Mapping[str, Any]) -> str:
    """`hybrid (1 of 3 samplers share), 3.0 s predicted, not given: the run has it`."""
    wanted = mapping(status.get("wanted"))
    who = _who_shares(wanted, whole(wanted.get("sharedSamplers")), status)
    if not who:
        return ""
    seconds, refused = number(wanted.get("predictedStepSeconds")), sentence(wanted.get("refused"))
    found = [who] + ([f"{seconds:.1f} s predicted"] if seconds is not None else [])
    if refused:
        found.append(f"not given: {refused}")
    elif mapping(status.get("next")):
        found.append("given to the next attempt")
    return ", ".join(found)


def _who_shares(placement: Mapping[str, Any], shared: int | None, status: Mapping[str, Any]) -> str:
    """`hybrid (1 of 3 samplers share)`, of the samplers of `status`; empty where it is not known."""
    mode, samplers = sentence(placement.get("mode")), whole(status.get("samplers"))
    if not mode or samplers is None:
        return ""
    return f"{mode} ({shared} of {samplers} samplers share)" if shared else mode


def _phase(status: Mapping[str, Any], conditions: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    for ended in ("Succeeded", "Failed"):
        if mapping(conditions.get(ended)).get("status") == "True":
            return ended
    if metadata.get("deletionTimestamp") is not None:
        return "Stopping"
    return sentence(status.get("phase")) or "Pending"


def _reason(
    phase: str,
    conditions: Mapping[str, Any],
    roles: Mapping[str, Any],
    created: datetime | None,
    now: datetime,
) -> str:
    """Why the run does not go on. The operator says it in conditions; the one nearest to the cause is taken."""

    says = partial(said, conditions)
    if phase == "Succeeded":
        return ""
    if phase == "Failed":
        return says("Failed", "True")
    if not conditions:
        return unseen(created, now)
    found = says("Accepted", "False") or says("Suspended", "True", "Unknown")
    found = found or says("Admitted", "False", "Unknown") or says("ClusterReady", "False")
    if found:
        return found
    if phase not in _WORKING or mapping(conditions.get("Training")).get("status") == "Unknown":
        found = says("Training", "False", "Unknown")
    missing = (
        f"{sentence(name)}: {sentence(mapping(role).get('reason'))}"
        for name, role in sorted(roles.items())
        if mapping(role).get("reason")
    )
    return found or next(missing, "")


def _ended(attempt: Mapping[str, Any]) -> str:
    steps = ""
    last = whole(attempt.get("toStep"))
    if last is not None:
        steps = f" (steps {whole(attempt.get('fromStep')) or 0} to {last})"
    return f"attempt {whole(attempt.get('number')) or '?'}{steps}: {sentence(attempt.get('reason'))}"


def _by_role(progress: Mapping[str, Any], of: str) -> tuple[tuple[str, float], ...]:
    found = ((role, number(progress.get(f"{role}{of}"))) for role in ("sampler", "learner", "driver"))
    return tuple((role, value) for role, value in found if value is not None)


def _replicas(roles: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    role = roles.get(name)
    if not isinstance(role, Mapping):
        return None
    return whole(role.get("ready")) or 0, whole(role.get("desired")) or 0
