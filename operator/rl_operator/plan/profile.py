"""The profile of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rl_api.base import API_VERSION
from rl_api.profile import PoolSpec, ProfileSpec, RLTrainingProfile, merge
from rl_api.validation import check_document
from rl_operator.plan.refused import Refused

BUILT_IN: Final = ProfileSpec(pools=(PoolSpec(name="default"),))
"""What runs get where there is no profile at all: one pool without accelerators, on any node."""


def choose_profile(
    name: object, profiles: Sequence[Mapping[str, Any]]
) -> tuple[str | None, ProfileSpec] | Refused:
    """Name and spec of the profile called `name`, else of the default one; the built-in one (no name) where there is none.

    Where there are profiles and none is marked default, a run must name one: it would escape the limits of all of them.
    """
    by_name = {str((profile.get("metadata") or {}).get("name")): profile for profile in profiles}
    if name is None:
        marked = sorted(
            key for key, profile in by_name.items() if (profile.get("spec") or {}).get("default") is True
        )
        if not by_name:
            return None, BUILT_IN
        if not marked:
            return Refused(
                "ProfileMissing",
                "spec.profile: missing, required as no profile is marked default "
                f"(there are: {', '.join(sorted(by_name))}); name one of them or ask your platform team",
            )
        if len(marked) > 1:
            return Refused(
                "ProfileMissing",
                f"spec.profile: missing, required where several profiles are marked default: {', '.join(marked)}",
            )
        name = marked[0]
    if not isinstance(name, str) or name not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        return Refused(
            "ProfileMissing",
            f"spec.profile: found {name!r}, but there is no such RLTrainingProfile (there are: {known}); "
            "name one of them or ask your platform team",
        )
    resource, problems = check_document(as_written(by_name[name], "RLTrainingProfile"))
    if not isinstance(resource, RLTrainingProfile):
        return Refused.because("ProfileInvalid", problems, f"RLTrainingProfile {name}: ")
    return name, resource.spec


def goes_by_labels(profiles: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the profiles is for namespaces with certain labels."""
    allowed = [(profile.get("spec") or {}).get("allow") or {} for profile in profiles]
    return any(allow.get("namespaces") is not None for allow in allowed)


def title(profile: str | None) -> str:
    """What a profile is called in sentences; None: the built-in one."""
    return "the built-in profile" if profile is None else f"profile {profile}"


def as_written(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """An object of the API server as a person writes it: without status, and what the API server adds."""
    metadata = document.get("metadata") or {}
    return {
        "apiVersion": document.get("apiVersion", API_VERSION),
        "kind": document.get("kind", kind),
        "metadata": {key: metadata[key] for key in ("name", "namespace") if key in metadata},
        "spec": document.get("spec"),
    }


def with_defaults(profile: ProfileSpec, own: Mapping[str, Any]) -> dict[str, Any]:
    """A run's spec over the profile's defaults. Where all samplers share learners' devices they have no pods of their own:
    what the profile says of the place of those, and the run does not, is not meant for them."""
    merged = merge(profile.defaults, own)
    trainer, placement, sampler = (_object(merged, name) for name in ("trainer", "placement", "sampler"))
    shared = placement.get("sharedSamplers")
    all_share = placement.get("mode") == "collocated" or (
        shared is not None and shared == sampler.get("replicas", 1)
    )
    if not sampler or not all_share or trainer.get("kind", "rltrain") != "rltrain":
        return merged
    said = _object(own, "sampler")
    kept = {
        name: value for name, value in sampler.items() if name in said or name not in ("pools", "topology")
    }
    if _object(kept, "resources") and "accelerators" not in _object(said, "resources"):
        kept["resources"] = {k: v for k, v in kept["resources"].items() if k != "accelerators"}
    return merged | {"sampler": kept}


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of any JSON; an empty one where it is not there, or no object."""
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}
