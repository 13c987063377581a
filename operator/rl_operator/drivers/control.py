"""What a policy service's control says, and what it is asked for. It may be anything that a user runs: nothing is believed
that is not of the right kind and size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from rl_api.printable import printable
from rl_api.service_status import PolicyVersion
from rl_api.status_fields import MOST
from rl_operator.drivers.client import Drivers
from rl_operator.model.service import Control, Evaluation, Replica, VersionFigures, Wish, gate_text

SECONDS: Final = 3.0
_ITEMS: Final = 64
"""Kinds of copies, versions or checkpoints that are looked at."""
_COPIES: Final = 4096
"""Copies that are counted: a service may have a quarter of them."""
_LONGEST: Final = 500
_URI: Final = 1024
_GATE: Final = 1024
_DIGEST: Final = 64


async def ask_control(
    drivers: Drivers, url: str, token: str, cluster: str, run: str | None, now: datetime
) -> Control:
    """What the control at `url`, of this RayCluster, says.

    Raises:
        DriverError: no usable answer came in time.
    """
    return read_control(await drivers.request(f"{url}/status", token, SECONDS), cluster, run, now)


async def tell_control(drivers: Drivers, url: str, token: str, wish: Wish) -> None:
    """Bring a wish. The control knows one again that it has heard.

    Raises:
        DriverError: it does not take it.
    """
    await drivers.request(f"{url}/{wish.path}", token, SECONDS, wish.body)


def read_control(document: Mapping[str, Any], cluster: str, run: str | None, now: datetime) -> Control:
    """A control's answer; what is not of the right kind counts as not said."""
    return Control(
        time=now,
        cluster=cluster,
        replicas=_replicas(document),
        versions={_text(name): _figures(one) for name, one in _mapping(document.get("versions"))},
        checkpoints=tuple(
            found
            for one in _objects(document.get("checkpoints"))
            if (found := _checkpoint(one, run)) is not None
        ),
        problem=_text(document.get("problem")),
        key_problem=_text(document.get("keys")),
        evaluations={_text(name): _evaluation(one) for name, one in _mapping(document.get("evaluations"))},
    )


def _replicas(document: Mapping[str, Any]) -> tuple[Replica, ...]:
    """All copies. A control says how many are alike, as it names but a few; one of an older trainer names all."""
    copies = document.get("copies")
    if not isinstance(copies, list):
        return tuple(map(_replica, _objects(document.get("replicas"))))
    found: list[Replica] = []
    for one in _objects(copies):
        found.extend([_replica(one)] * min(_count(one.get("count")), _COPIES - len(found)))
    return tuple(found)


def _replica(one: Mapping[str, Any]) -> Replica:
    id, version, loading, error = (_text(one.get(name)) for name in ("id", "version", "loading", "error"))
    return Replica(id, version, loading, error, one.get("retryable") is True)


def _figures(one: Mapping[str, Any]) -> VersionFigures:
    times, probe = one.get("tpot"), one.get("probe")
    requests = _count(one.get("requests"))
    return VersionFigures(
        requests=requests,
        errors=min(requests, _count(one.get("errors"))),
        token_seconds=_figure(times.get("p95")) if isinstance(times, Mapping) else None,
        probe=_figure(probe.get("score")) if isinstance(probe, Mapping) else None,
        deaths=_count(one.get("deaths")),
    )


def _evaluation(one: Mapping[str, Any]) -> Evaluation:
    gate = one.get("gate")
    text = gate_text(gate) if isinstance(gate, Mapping) else ""
    return Evaluation(
        state=_text(one.get("state")),
        message=_text(one.get("message")),
        serving=_text(one.get("serving")),
        gate=text if len(text) <= _GATE else "",
        retryable=one.get("retryable") is True,
    )


def _checkpoint(one: Mapping[str, Any], run: str | None) -> PolicyVersion | None:
    """A checkpoint with all that it takes to load it again."""
    digest, source, step = one.get("digest"), one.get("source"), one.get("step")
    if not isinstance(digest, str) or len(digest) != _DIGEST or not set(digest) <= set("0123456789abcdef"):
        return None
    if not isinstance(source, str) or not 0 < len(source.encode()) <= _URI or printable(source) != source:
        return None
    number = _count(step)
    what = f"{run}-step-{number}" if run is not None else "policy"
    return PolicyVersion(version=f"{what}-{digest[:8]}", step=number, digest=digest, source=source, run=run)


def _objects(value: object) -> list[Mapping[str, Any]]:
    found = value[:_ITEMS] if isinstance(value, list) else []
    return [one for one in found if isinstance(one, Mapping)]


def _mapping(value: object) -> list[tuple[str, Mapping[str, Any]]]:
    found = list(value.items())[:_ITEMS] if isinstance(value, Mapping) else []
    return [(str(name), one) for name, one in found if isinstance(one, Mapping)]


def _text(value: object) -> str:
    return printable(value, _LONGEST) if isinstance(value, str) else ""


def _count(value: object) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
    return int(value) if good and isinstance(value, int) else 0


def _figure(value: object) -> float | None:
    good = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
    return float(value) if good and isinstance(value, int | float) else None
