"""Runs and profiles of files, as they are given to a cluster: what the file says, without defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_api import RLTrainingProfile, RLTrainingRun, load_run, validate_files
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_operator.render.effective import Effective, Refused, plan
from rl_operator.settings import Settings

Object = dict[str, Any]

# An object of the cluster has a uid, and what is rendered bears it.
_UID = "00000000-0000-0000-0000-000000000000"


def read_objects(file: str, overrides: Sequence[str]) -> list[Object]:
    """All runs and profiles of a file; with `overrides` its one run alone.

    Raises:
        InvalidDocuments: with a sentence for everything that is wrong.
    """
    if overrides:
        return [plain(load_run(file, overrides))]
    return [plain(checked.resource) for checked in validate_files([file])]


def read_profiles(file: str) -> list[Object]:
    """All profiles of a file, of which there is at least one."""
    found = [
        plain(one.resource) for one in validate_files([file]) if isinstance(one.resource, RLTrainingProfile)
    ]
    if not found:
        raise InvalidConfig(f"{file}: found no RLTrainingProfile, allowed: a file with at least one")
    return found


def place(manifest: Object, namespace: str | None, default: str) -> Object:
    """The manifest in its namespace: its own, else `namespace` (the option), else `default`."""
    if manifest["kind"] != "RLTrainingRun":
        return manifest
    metadata = manifest["metadata"]
    own = metadata.get("namespace")
    if own and namespace and own != namespace:
        raise InvalidConfig(
            f"--namespace: found {namespace!r}, allowed: {own!r}, the namespace in the file of run {metadata['name']}"
        )
    return manifest | {"metadata": metadata | {"namespace": own or namespace or default}}


def as_planned(source: str, run: Object, profiles: Sequence[Mapping[str, Any]]) -> Effective:
    """The run as the operator would carry it out.

    Raises:
        InvalidDocuments: the operator would refuse it.
    """
    metadata = run["metadata"] | {"uid": _UID}
    planned = plan(run | {"metadata": metadata}, profiles, Settings())
    if isinstance(planned, Refused):
        raise InvalidDocuments([f"{source}: {planned.message}"])
    return planned


def with_profile(run: Object, profiles: Sequence[Object]) -> Object:
    """The run, with the only profile there is where it names none."""
    spec = run["spec"]
    if spec.get("profile") is None and len(profiles) == 1:
        return run | {"spec": spec | {"profile": profiles[0]["metadata"]["name"]}}
    return run


def plain(resource: RLTrainingRun | RLTrainingProfile) -> Object:
    """What was written in the file, and nothing else: what we do not name stays with who sets it."""
    found = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    found.pop("status", None)
    return found
