"""What is shown of a policy service: a row of facts from the object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final

from rl_cli.fields import instant, mapping, mappings, sentence, whole
from rl_cli.view import Shown, fraction, said, unseen

_NEWS: Final = attrgetter(
    *("uid", "phase", "version", "step", "candidate", "traffic", "replicas", "last", "reason", "deleting")
)
_RESULTS: Final = {
    "promoted": "promoted",
    "refused": "refused",
    "rolledBack": "rolled back",
    "stuck": "not rolled back",
}

_STILL_SERVED: Final = ("RunDeleted", "RunReplaced")
"""Reasons of SourceFound with which policies that there are are served all the same."""

_STANDS: Final = ("Refused", "RolledBack", "StepMissing", "StepRefused", "Stuck")
"""Reasons of Promoting that say why there is no policy to serve."""


@dataclass(frozen=True)
class CandidateRow:
    """The policy that may come to serve."""

    version: str
    step: int | None = None
    state: str = ""
    message: str = ""

    def __str__(self) -> str:
        """`chat-step-30-abcdef12 Evaluating: it is measured by the gate`."""
        text = f"{self.version} {self.state}".strip()
        return f"{text}: {self.message}" if self.message else text


@dataclass(frozen=True)
class PromotionRow:
    """What became of the last candidate."""

    version: str
    step: int | None = None
    result: str = ""
    message: str = ""
    time: datetime | None = None

    def __str__(self) -> str:
        """`chat-step-20-abcdef12 refused: its time per token is 2 times that of the serving policy`."""
        text = f"{self.version} {self.result}".strip()
        return f"{text}: {self.message}" if self.message else text


@dataclass(frozen=True, kw_only=True)
class ServiceRow(Shown):
    """A policy service as it is shown. None: not known."""

    version: str = ""
    """The one that serves; empty: none."""
    step: int | None = None
    since: datetime | None = None
    """When it began to serve."""
    candidate: CandidateRow | None = None
    traffic: tuple[tuple[str, int], ...] = ()
    """Versions and their shares, in percent."""
    replicas: tuple[int, int] | None = None
    """Ready and desired."""
    last: PromotionRow | None = None
    endpoints: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """As it is given to `rltrain watch`."""
        return f"service/{self.name}"

    @property
    def share(self) -> int | None:
        """Percent of the traffic that the serving version has."""
        return dict(self.traffic).get(self.version) if self.version else None

    def facts(self) -> dict[str, str]:
        """Text of everything that is known, by its label; shares only where there are several; the reason last."""
        whole_share = ((self.version, 100),)
        found = {
            "version": self.version,
            "step": self.step is not None and str(self.step),
            "candidate": self.candidate is not None and str(self.candidate),
            "traffic": self.traffic != whole_share and shares(self.traffic),
            "replicas": self.replicas is not None and fraction(*self.replicas),
            "last": self.last is not None and str(self.last),
            "-": self.reason,
        }
        return {label: text for label, text in found.items() if text}

    def news(self) -> tuple[object, ...]:
        """Of what a person wants to hear when it changes."""
        found: tuple[object, ...] = _NEWS(self)
        return found


def shares(traffic: tuple[tuple[str, int], ...]) -> str:
    """`chat-step-10-abcdef12 50%, chat-step-20-12abcdef 50%`."""
    return ", ".join(f"{version} {percent}%" for version, percent in traffic)


def service_row(service: Mapping[str, Any], now: datetime) -> ServiceRow:
    """The row of a service, whatever wrote it: what is not of its kind is not known, what steers a terminal is left out."""
    metadata, status = mapping(service.get("metadata")), mapping(service.get("status"))
    conditions = {str(one.get("type")): one for one in mappings(status.get("conditions"))}
    serving, candidate = mapping(status.get("serving")), mapping(status.get("candidate"))
    replicas, promotions = mapping(status.get("replicas")), mappings(status.get("promotions"))
    endpoints = status.get("endpoints")
    created = instant(metadata.get("creationTimestamp"))
    deleting = metadata.get("deletionTimestamp") is not None
    return ServiceRow(
        namespace=sentence(metadata.get("namespace")),
        name=sentence(metadata.get("name")),
        uid=sentence(metadata.get("uid")),
        phase="Stopping" if deleting else sentence(status.get("phase")) or "Pending",
        created=created,
        reason="" if deleting else _reason(conditions, replicas, candidate, created, now),
        deleting=deleting,
        version=sentence(serving.get("version")),
        step=whole(serving.get("step")),
        since=instant(serving.get("since")),
        candidate=_candidate(candidate) if candidate else None,
        traffic=tuple(
            (sentence(one.get("version")), whole(one.get("percent")) or 0)
            for one in mappings(status.get("traffic"))
        ),
        replicas=(whole(replicas.get("ready")) or 0, whole(replicas.get("desired")) or 0)
        if replicas
        else None,
        last=_promotion(promotions[-1]) if promotions else None,
        endpoints=tuple(filter(None, map(sentence, endpoints))) if isinstance(endpoints, list) else (),
    )


def _candidate(candidate: Mapping[str, Any]) -> CandidateRow:
    return CandidateRow(
        version=sentence(candidate.get("version")),
        step=whole(candidate.get("step")),
        state=sentence(candidate.get("state")),
        message=sentence(candidate.get("message")),
    )


def _promotion(promotion: Mapping[str, Any]) -> PromotionRow:
    result = sentence(promotion.get("result"))
    return PromotionRow(
        version=sentence(promotion.get("version")),
        step=whole(promotion.get("step")),
        result=_RESULTS.get(result, result),
        message=sentence(promotion.get("message")),
        time=instant(promotion.get("time")),
    )


def _reason(
    conditions: Mapping[str, Any],
    replicas: Mapping[str, Any],
    candidate: Mapping[str, Any],
    created: datetime | None,
    now: datetime,
) -> str:
    """Why the service does not serve; else what is wrong with what serves. Of conditions the one nearest to the cause."""
    if not conditions:
        return unseen(created, now)
    says = partial(said, conditions)
    refused, source = says("Accepted", "False"), says("SourceFound", "False")
    if refused:
        return refused
    serves = mapping(conditions.get("Serving")).get("status") == "True"
    promoting = "" if candidate else says("Promoting", "False")
    stands = promoting if mapping(conditions.get("Promoting")).get("reason") in _STANDS else ""
    if serves:
        missing = mapping(conditions.get("Promoting")).get("reason") == "StepMissing"
        return sentence(replicas.get("reason")) or (promoting if missing else "") or source
    if source and mapping(conditions.get("SourceFound")).get("reason") not in _STILL_SERVED:
        return source
    return says("ClusterReady", "False") or stands or says("Serving", "False", "Unknown")
