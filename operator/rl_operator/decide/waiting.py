"""A service whose update waits for room: another policy takes none, and comes meanwhile. Pure.

In place a policy is one field of `serveConfigV2`. With the other strategies it takes a second Ray cluster, whose pods are as
those of the first: it is let be for as long as an update takes, as `room.py` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rl_operator.decide.drift import contains
from rl_operator.model.names import Manifest
from rl_operator.model.seen import Live
from rl_operator.render.service_config import ServeConfig

_CONFIG: Final = "/spec/serveConfigV2"
_STRATEGY: Final = "/spec/upgradeStrategy"
_HEAD: Final = "/spec/rayClusterConfig/headGroupSpec/template/metadata"
"""Where the policy stands that a Ray cluster is for."""

_OF_COPIES: Final = ("engine", "answers")
"""Arguments by which copies take another policy in one way or another."""

_OF_CANDIDATES: Final = ("source", "probe")
"""Arguments of the application without which a candidate would be another, or measured by something else."""


class Meanwhile(NamedTuple):
    """What becomes of policies while pods stay as they are."""

    changes: bool = True
    """Whether another one can be brought."""
    tries: bool = True
    """Whether new candidates are tried."""
    why: str = ""
    """Why not, as a sentence."""


def meanwhile(live: Live, wanted: Manifest) -> Meanwhile:
    """For a RayService as it is, and as it is to become."""
    there, to_be = ServeConfig.read(live.spec.get("serveConfigV2")), _rendered(wanted)
    if there is None:
        why = "meanwhile no policy is promoted or taken back, as somebody has changed serveConfigV2 of its RayService"
        return Meanwhile(False, False, why)
    if _strategy(live.spec).get("type") != _strategy(wanted["spec"])["type"]:
        why = (
            "meanwhile no policy is promoted or taken back, as the change is also one of promotion.strategy from or to "
            "incremental"
        )
        return Meanwhile(False, False, why)
    if any(there.arguments.get(part) != to_be.arguments.get(part) for part in _OF_COPIES):
        why = "meanwhile no policy is promoted or taken back, as the change is also one of engine or of promotion.answers"
        return Meanwhile(False, False, why)
    if any(there.arguments.get(part) != to_be.arguments[part] for part in _OF_CANDIDATES):
        why = (
            "meanwhile no new candidate is tried, as the change is also one of where policies come from, or of the gate's "
            "probe"
        )
        return Meanwhile(True, False, why)
    return Meanwhile()


def policy_change(live: Live, wanted: Manifest, in_place: bool) -> tuple[Manifest, ...]:
    """What to change of a RayService so that it has the policy that is wanted, and nothing else of that: a JSON patch, which
    fails where it is another one by now; empty: nothing."""
    there, to_be, spec = ServeConfig.read(live.spec.get("serveConfigV2")), _rendered(wanted), wanted["spec"]
    changes: list[Manifest] = []
    if there is not None and there.policy != to_be.policy:
        changes += [
            {"op": "test", "path": _CONFIG, "value": live.spec["serveConfigV2"]},
            {"op": "replace", "path": _CONFIG, "value": there.serving(to_be.policy)},
        ]
        if not in_place:
            head = spec["rayClusterConfig"]["headGroupSpec"]["template"]["metadata"]
            changes.append({"op": "add", "path": _HEAD, "value": head})
    if not contains(_strategy(live.spec), spec["upgradeStrategy"]):  # how fast the traffic moves, if at all
        changes.append({"op": "add", "path": _STRATEGY, "value": spec["upgradeStrategy"]})
    same: Manifest = {"op": "test", "path": "/metadata/uid", "value": live.uid}
    return (same, *changes) if changes else ()


def _rendered(wanted: Manifest) -> ServeConfig:
    found = ServeConfig.read(wanted["spec"]["serveConfigV2"])
    assert found is not None, "what is rendered can be read"
    return found


def _strategy(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found = spec.get("upgradeStrategy")
    return found if isinstance(found, Mapping) else {}
