"""Runs, services and profiles of files, as they are given to a cluster: what the file says, without defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_api import RLTrainingProfile, RLTrainingRun, check_document, validate_files
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_api.overrides import apply_overrides
from rl_api.validation import Resource, blamed_sentence, is_foreign, is_run, read_documents
from rl_cli.patterns import wrong_patterns
from rl_operator.model.names import Manifest
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused
from rl_operator.plan.service import EffectiveService, plan_service

# An object of the cluster has a uid, and what is rendered bears it.
_UID = "00000000-0000-0000-0000-000000000000"


def read_objects(file: str, overrides: Sequence[str]) -> list[Manifest]:
    """All objects of a file: ours checked but for what a profile may add, its one run changed by `overrides`, others as they
    are.

    Raises:
        InvalidDocuments: with a sentence for everything that is wrong.
    """
    documents = read_documents(file)
    runs = [document for _, document in documents if is_run(document)]
    if overrides and len(runs) != 1:
        raise InvalidConfig(
            f"{file}: found {len(runs)} documents of kind RLTrainingRun, allowed: exactly one with --set"
        )
    changes, problems = apply_overrides(runs[0] if runs else None, overrides)
    objects: list[Manifest] = []
    for label, document in documents:
        if is_foreign(document) and _has_a_name(document):
            objects.append(document)
            continue
        resource, wrong = check_document(document, "profile")
        problems += [blamed_sentence(label, problem, changes) for problem in wrong]
        if isinstance(resource, RLTrainingRun):
            problems += [blamed_sentence(label, one, changes) for one in wrong_patterns(resource.spec)]
        if resource is not None:
            objects.append(plain(resource))
    if problems:
        raise InvalidDocuments(problems)
    return objects


def _has_a_name(document: Manifest) -> bool:
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def read_profiles(file: str) -> list[Manifest]:
    """All profiles of a file, of which there is at least one."""
    found = [
        plain(one.resource) for one in validate_files([file]) if isinstance(one.resource, RLTrainingProfile)
    ]
    if not found:
        raise InvalidConfig(f"{file}: found no RLTrainingProfile, allowed: a file with at least one")
    return found


def place(manifest: Manifest, namespace: str | None, default: str) -> Manifest:
    """A namespaced object in its namespace: its own, else `namespace` (the option), else `default`."""
    metadata = manifest["metadata"]
    own = metadata.get("namespace")
    if own and namespace and own != namespace:
        raise InvalidConfig(
            f"--namespace: found {namespace!r}, allowed: {own!r}, "
            f"the namespace in the file of {manifest['kind']} {metadata['name']}"
        )
    return manifest | {"metadata": metadata | {"namespace": own or namespace or default}}


def as_planned(source: str, run: Manifest, profiles: Sequence[Mapping[str, Any]]) -> Effective:
    """The run as the operator would carry it out.

    Raises:
        InvalidDocuments: the operator would refuse it.
    """
    metadata = run["metadata"] | {"uid": _UID}
    planned = plan(run | {"metadata": metadata}, profiles, Settings())
    if isinstance(planned, Refused):
        raise InvalidDocuments([f"{source}: {planned.message}"])
    return planned


def service_as_planned(
    source: str, service: Manifest, profiles: Sequence[Mapping[str, Any]]
) -> EffectiveService:
    """The service as the operator would carry it out.

    Raises:
        InvalidDocuments: the operator would refuse it.
    """
    metadata = service["metadata"] | {"uid": _UID}
    planned = plan_service(service | {"metadata": metadata}, profiles, Settings())
    if isinstance(planned, Refused):
        raise InvalidDocuments([f"{source}: {planned.message}"])
    return planned


def with_profile(one: Manifest, profiles: Sequence[Manifest]) -> Manifest:
    """A run or a service, with the only profile there is where it names none."""
    spec = one["spec"]
    if spec.get("profile") is None and len(profiles) == 1:
        return one | {"spec": spec | {"profile": profiles[0]["metadata"]["name"]}}
    return one


def plain(resource: Resource) -> Manifest:
    """What was written in the file, and nothing else: what we do not name stays with who sets it."""
    found = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    found.pop("status", None)
    return found
