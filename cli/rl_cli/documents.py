"""Runs and profiles of files, as they are given to a cluster: what the file says, without defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_api import RLTrainingProfile, RLTrainingRun, check_document, validate_files
from rl_api.documents import load_documents
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_api.overrides import Override, apply_override, parse_override
from rl_api.validation import blamed_sentence, is_foreign, read_file
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused

Object = dict[str, Any]

# An object of the cluster has a uid, and what is rendered bears it.
_UID = "00000000-0000-0000-0000-000000000000"


def read_objects(file: str, overrides: Sequence[str]) -> list[Object]:
    """All objects of a file: runs and profiles checked, its one run changed by `overrides`, others as they are.

    Raises:
        InvalidDocuments: with a sentence for everything that is wrong.
    """
    label, text = read_file(file)
    documents = [document for _, document in load_documents(text, label)]
    runs = [one for one in documents if isinstance(one, dict) and one.get("kind") == "RLTrainingRun"]
    if not documents or (overrides and len(runs) != 1):
        wanted = "exactly one with --set" if documents else "at least one"
        raise InvalidConfig(f"{label}: found {len(runs)} documents of kind RLTrainingRun, allowed: {wanted}")
    changes: list[Override] = []
    problems: list[str] = []
    for option in overrides:
        try:
            changes.append(parse_override(option))
            apply_override(runs[0], changes[-1])
        except InvalidConfig as error:
            problems.append(str(error))
    objects: list[Object] = []
    for number, document in enumerate(documents, 1):
        if is_foreign(document) and _has_a_name(document):
            objects.append(document)
            continue
        resource, wrong = check_document(document)
        source = f"{label} (document {number})" if len(documents) > 1 else label
        problems += [blamed_sentence(source, problem, changes) for problem in wrong]
        if resource is not None:
            objects.append(plain(resource))
    if problems:
        raise InvalidDocuments(problems)
    return objects


def _has_a_name(document: Object) -> bool:
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def read_profiles(file: str) -> list[Object]:
    """All profiles of a file, of which there is at least one."""
    found = [
        plain(one.resource) for one in validate_files([file]) if isinstance(one.resource, RLTrainingProfile)
    ]
    if not found:
        raise InvalidConfig(f"{file}: found no RLTrainingProfile, allowed: a file with at least one")
    return found


def place(manifest: Object, namespace: str | None, default: str) -> Object:
    """A namespaced object in its namespace: its own, else `namespace` (the option), else `default`."""
    metadata = manifest["metadata"]
    own = metadata.get("namespace")
    if own and namespace and own != namespace:
        raise InvalidConfig(
            f"--namespace: found {namespace!r}, allowed: {own!r}, "
            f"the namespace in the file of {manifest['kind']} {metadata['name']}"
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
