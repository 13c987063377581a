"""Files to checked objects. What is wrong is a sentence: file, field, what was found, what is allowed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rl_api.base import API_VERSION, Model
from rl_api.describe import allowed, choice, fields_of, found, lookup, nearest, unknown_field
from rl_api.documents import load_documents
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_api.overrides import Override, apply_overrides
from rl_api.paths import Path, render_path, too_deep, touches
from rl_api.problems import Problem
from rl_api.profile import PROFILE_GROUPS, RLTrainingProfile, check_profile_rules, merge
from rl_api.rules import Target, check_rules
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.sampler_rules import NO_SERVER, ONE_RUN_AT_A_TIME
from rl_api.service import RLPolicyService
from rl_api.service_rules import check_service_rules

Resource = RLTrainingRun | RLTrainingProfile | RLPolicyService
"""An object of the contract."""

KINDS: Final[dict[str, type[RLTrainingRun] | type[RLTrainingProfile] | type[RLPolicyService]]] = {
    "RLTrainingRun": RLTrainingRun,
    "RLPolicyService": RLPolicyService,
    "RLTrainingProfile": RLTrainingProfile,
}
"""The objects a file may hold, by `kind`."""

M = TypeVar("M", bound=Model)

_MOST_LEVELS: Final = 64
"""Objects and lists within each other: beyond a few hundred levels no library reads them and writes them any more."""

_MOST_BYTES: Final = 65_536
"""Of a spec as JSON: a run is a page of text. Everything that works with it holds several copies."""


class Checked(NamedTuple):
    """A valid object and where it is from."""

    source: str
    resource: Resource


class Report(NamedTuple):
    """What is in some files: the valid objects, and a sentence for each thing that is wrong."""

    valid: tuple[Checked, ...]
    problems: tuple[str, ...]


def check_document(document: object, target: Target = "local") -> tuple[Resource | None, list[Problem]]:
    """The object that plain data stands for, or None, and everything that is wrong with it."""
    if not isinstance(document, dict):
        return None, [
            Problem(
                (), f"found {found(document)}, allowed: an object with apiVersion, kind, metadata and spec"
            )
        ]
    if (deep := too_deep(document, _MOST_LEVELS)) is not None:
        sentence = (
            f"found values nested more than {_MOST_LEVELS} levels deep, allowed: at most {_MOST_LEVELS}"
        )
        return None, [Problem(deep[:3], sentence)]
    if (wrong := size_problem(document.get("spec"))) is not None:
        return None, [Problem(("spec",), wrong)]
    kind = document.get("kind")
    if kind is None:
        return None, [Problem(("kind",), f"missing, required: {choice(list(KINDS))}")]
    if not isinstance(kind, str) or kind not in KINDS:
        meant = nearest(kind, KINDS) if isinstance(kind, str) else None
        hint = f", did you mean {meant}?" if meant else ""
        return None, [Problem(("kind",), f"found {found(kind)}, allowed: {choice(list(KINDS))}{hint}")]
    problems = []
    if "apiVersion" not in document:
        problems.append(Problem(("apiVersion",), f"missing, required: {API_VERSION}"))
    if kind == "RLTrainingRun":
        run, more = _check(RLTrainingRun, document)
        rules = check_rules(run.spec, target) if run is not None else []
        resource: Resource | None = run
    elif kind == "RLPolicyService":
        service, more = _check(RLPolicyService, document)
        rules = check_service_rules(service.spec) if service is not None else []
        resource = service
    else:
        profile, more = _check(RLTrainingProfile, document)
        rules = check_profile_rules(profile.spec) + _check_defaults(profile) if profile is not None else []
        resource = profile
    unsure = [path for problem in more for path in problem.others]
    rules = [
        rule
        for rule in rules
        if not any(touches(path, seen) for path in unsure for seen in (rule.path, *rule.others))
    ]
    problems += [problem._replace(others=()) for problem in more] + rules
    return (None if problems else resource), problems


def size_problem(spec: object) -> str | None:
    """What is wrong with a spec as a whole, as a sentence; None: nothing."""
    try:
        size = len(json.dumps(spec, ensure_ascii=False, separators=(",", ":"), default=str).encode())
    except UnicodeEncodeError:
        return "found half a character (a lone surrogate), allowed: text in Unicode"
    if size <= _MOST_BYTES:
        return None
    return f"found {size} bytes of JSON, allowed: at most {_MOST_BYTES}; what is larger belongs into a file or the image"


def _check(model: type[M], document: dict[str, Any]) -> tuple[M | None, list[Problem]]:
    """The object without its wrong fields, for the rules (None if it needs them), and those fields."""
    try:
        return model.model_validate(document, by_alias=True, by_name=False), []
    except ValidationError as error:
        errors = error.errors()
        problems = [_field_problem(model, one) for one in errors if not _is_echo(one, errors)]
    rest = deepcopy(document)
    for problem in reversed(problems):
        if not _remove(rest, problem.path):
            _remove(rest, problem.path[:-1])  # what lacks a field is as good as absent
    try:
        return model.model_validate(rest), problems
    except ValidationError:
        return None, problems


def parse(model: type[M], document: dict[str, Any], where: str) -> M:
    """The object that `document`, called `where`, describes. Raises InvalidConfig, with the first thing that is wrong."""
    made, problems = _check(model, document)
    if made is None or problems:
        raise InvalidConfig(f"{render_path((where, *problems[0].path))}: {problems[0].sentence}")
    return made


def _is_echo(one: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Whether a list is called too short only because its wrong items were not counted."""
    depth = len(one["loc"])
    return one["type"] == "too_short" and any(
        len(other["loc"]) > depth and other["loc"][:depth] == one["loc"] for other in errors
    )


def _field_problem(model: type[BaseModel], details: ErrorDetails) -> Problem:
    """Problem of one field. `others` holds the paths whose values are not known because of it."""
    location: Path = details["loc"]
    parent = location[:-1]
    if location[-1] == "[key]":
        mapping = lookup(model, parent[:-1])
        words = allowed(mapping.key) if mapping is not None else "text"
        return Problem(parent, f"found this key, allowed: {words}", (parent[:-1],))
    if details["type"] == "extra_forbidden":
        # The unknown field may be any of its neighbours, misspelt: rules about those would be guesses.
        return Problem(location, unknown_field(model, location), (parent,))
    kind = lookup(model, location)
    words = allowed(kind) if kind is not None else "any value"
    if details["type"] == "missing":
        return Problem(location, f"missing, required: {words}", (location,))
    where = parent if isinstance(location[-1], int) else location
    return Problem(location, f"found {found(details['input'])}, allowed: {words}", (where,))


def _remove(document: Any, path: Path) -> bool:
    """Take the value at `path` out of `document`; whether it was there."""
    for part in path[:-1]:
        document = document[part] if _has(document, part) else None
    there = bool(path) and _has(document, path[-1])
    if there:
        del document[path[-1]]
    return there


def _has(container: Any, part: str | int) -> bool:
    if isinstance(container, list):
        return isinstance(part, int) and part < len(container)
    return isinstance(container, dict) and part in container


def _check_defaults(profile: RLTrainingProfile) -> list[Problem]:
    """What is wrong with `spec.defaults`, which holds a part of a run's spec."""
    needed = {"model": {"source": "any"}, "task": {"environment": "prompts"}}
    _, problems = _check(RunSpec, merge(needed, profile.spec.defaults))
    problems += [
        Problem(
            (name,),
            f"cannot have a default, allowed: {', '.join(PROFILE_GROUPS[:-1])} and {PROFILE_GROUPS[-1]}",
        )
        for name in profile.spec.defaults
        if name in fields_of(RunSpec) and name not in PROFILE_GROUPS
    ]
    sampler = profile.spec.defaults.get("sampler")
    if isinstance(sampler, dict) and "replicas" in sampler:
        problems.append(
            Problem(("sampler", "replicas"), "cannot have a default: how many is the run's to say")
        )
    if isinstance(sampler, dict) and sampler.get("engine") == "endpoint":
        problems.append(Problem(("sampler", "engine"), f"found 'endpoint', {ONE_RUN_AT_A_TIME}"))
    if isinstance(sampler, dict) and isinstance(sampler.get("endpoint"), dict):
        problems.append(Problem(("sampler", "endpoint"), NO_SERVER))
    return [Problem(("spec", "defaults", *problem.path), problem.sentence) for problem in problems]


def read_file(path: str) -> tuple[str, str]:
    """Label and text of a file, or of standard input for `-`. Raises InvalidConfig when it cannot be read."""
    label = "standard input" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else FilePath(path).read_bytes()
        return label, data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidConfig(f"{label}: no such file, allowed: a YAML file or - for standard input") from None
    except IsADirectoryError:
        raise InvalidConfig(
            f"{label}: found a folder, allowed: a YAML file or - for standard input"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{label}: not valid YAML: byte {error.start} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidConfig(f"{label}: cannot be read: {error.strerror or error}") from None


def read_documents(path: str) -> list[tuple[str, Any]]:
    """All documents of a file with their labels. Raises InvalidConfig when there are none."""
    label, text = read_file(path)
    documents = load_documents(text, label)
    if not documents:
        raise InvalidConfig(f"{label}: found nothing, allowed: a document with kind {choice(list(KINDS))}")
    if len(documents) == 1:
        return [(label, documents[0][1])]
    return [(f"{label} (document {number})", document) for number, document in documents]


def _sentence(label: str, problem: Problem) -> str:
    where = f"{render_path(problem.path)}: " if problem.path else ""
    return f"{label}: {where}{problem.sentence}"


def blamed_sentence(label: str, problem: Problem, changes: Sequence[Override]) -> str:
    """The problem as a sentence: said of the `--set` option that gave the value, else of the document."""
    blame = [change for change in changes if problem.path[: len(change.path)] == change.path]
    return _sentence(f"--set {blame[-1].text}" if blame else label, problem)


def check_files(paths: Iterable[str], target: Target = "local") -> Report:
    """Check every document of every file (`-`: standard input), and that no two objects collide."""
    valid: list[Checked] = []
    problems: list[str] = []
    for path in paths:
        try:
            documents = read_documents(path)
        except InvalidConfig as error:
            problems.append(str(error))
            continue
        own = [document for document in documents if not is_foreign(document[1])]
        # Beside ours, other Kubernetes objects are left alone: a claim for checkpoints, say.
        for label, document in own or documents:
            resource, wrong = check_document(document, target)
            problems += [_sentence(label, problem) for problem in wrong]
            if resource is not None:
                valid.append(Checked(label, resource))
    return Report(tuple(valid), (*problems, *_conflicts(valid)))


def _conflicts(checked: Sequence[Checked]) -> list[str]:
    """Objects with the same name, and profiles that are the default as well."""
    problems: list[str] = []
    first: dict[tuple[str, ...], str] = {}
    for source, resource in checked:
        kind, metadata = resource.kind, resource.metadata
        namespace = "" if isinstance(resource, RLTrainingProfile) else resource.metadata.namespace or ""
        place = first.setdefault((kind, namespace, metadata.name), source)
        if place is not source:
            problems.append(
                f"{source}: metadata.name: found {metadata.name!r}, which the {kind} of {place} has already"
            )
        if isinstance(resource, RLTrainingProfile) and resource.spec.default:
            place = first.setdefault((kind,), source)
            if place is not source:
                problems.append(
                    f"{source}: spec.default: found true, allowed: false, as {place} has the default"
                )
    return problems


def validate_files(paths: Iterable[str], target: Target = "local") -> list[Checked]:
    """All objects of the files. Raises InvalidDocuments with every problem of every file."""
    report = check_files(paths, target)
    if report.problems:
        raise InvalidDocuments(report.problems)
    return list(report.valid)


def load_run(path: str | FilePath, overrides: Iterable[str] = (), target: Target = "local") -> RLTrainingRun:
    """The one RLTrainingRun of a file, with the changes of `--set` texts.

    Other documents of the file are left alone. A problem of a value that `--set` gave is said of the option,
    not of the file. Raises InvalidDocuments (exit code 2) with a sentence for everything that is wrong.
    """
    documents = read_documents(str(path))
    runs = [pair for pair in documents if len(documents) == 1 or is_run(pair[1])]
    if len(runs) != 1:
        raise InvalidDocuments(
            [f"{path}: found {len(runs)} documents of kind RLTrainingRun, allowed: exactly one"]
        )
    label, document = runs[0]
    changes, problems = apply_overrides(document, overrides)
    resource, wrong = check_document(document, target)
    problems += [blamed_sentence(label, problem, changes) for problem in wrong]
    if resource is not None and not isinstance(resource, RLTrainingRun):
        problems.append(f"{label}: kind: found {resource.kind!r}, allowed: RLTrainingRun")
    if problems or not isinstance(resource, RLTrainingRun):
        raise InvalidDocuments(problems)
    return resource


def is_foreign(document: object) -> bool:
    """Whether it is a Kubernetes object of another API."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return False
    version = document.get("apiVersion")
    return isinstance(version, str) and version.partition("/")[0] != API_VERSION.partition("/")[0]


def is_run(document: object) -> bool:
    """Whether it says that it is an RLTrainingRun."""
    return isinstance(document, dict) and document.get("kind") == "RLTrainingRun"
