"""The API reference, written from the models: `python -m rl_api.reference > docs/api-reference.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_api.base import Duration, Model, StatusModel
from rl_api.describe import Type, fields_of, meanings, range_words, type_of, written
from rl_api.profile import PROFILE_RULES, RLTrainingProfile
from rl_api.progress import Condition, RunStatus
from rl_api.rules import CLUSTER_RULES, LOOP_RULES, RULES
from rl_api.run import RLTrainingRun
from rl_api.service import RLPolicyService
from rl_api.service_rules import SERVICE_RULES
from rl_api.service_status import ServiceStatus

_HEAD = """\
# API reference

The objects of `rltrain.dev/v1alpha1`. This page is generated from the models in `api/rl_api`
(`python -m rl_api.reference > docs/api-reference.md`); a test fails when it is not up to date.

Files are YAML with camelCase fields. Unknown fields are refused. A *duration* is text such as `90s`, `10m`,
`1.5h`, `500ms` or `1h30m`, or a plain number of seconds. *or null* in a type: the field may be null.

- [RLTrainingRun](#rltrainingrun): what to train and with what
- [Rules across fields](#rules-across-fields)
- [RLTrainingProfile](#rltrainingprofile): what a platform offers to runs
- [RLPolicyService](#rlpolicyservice): what to serve, and how better policies take its place
- [RunStatus](#runstatus): how a run goes
- [ServiceStatus](#servicestatus): how a service goes
"""


def _type_words(kind: Type) -> str:
    words = _plain_type(kind)
    return f"{words} or null" if kind.nullable else words


def _plain_type(kind: Type) -> str:
    if get_origin(kind.core) is Literal:
        return ", ".join(f"`{option}`" for option in get_args(kind.core))
    if kind.model is not None:
        return f"[{kind.model.__name__}](#{kind.model.__name__.lower()})"
    if kind.is_list:
        items = _type_words(kind.item)
        return f"list of {items}" if kind.fixed_length is None else f"list of {kind.fixed_length} {items}s"
    if kind.is_mapping:
        return "object" if kind.item.core is Any else f"object of {_type_words(kind.item)}"
    return _SCALARS[kind.core]


_SCALARS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Duration: "duration",
    datetime: "time",
}


def _range(kind: Type) -> str:
    if kind.core is Duration:
        if (shortest := kind.bound("ge")) is not None:
            return f">= {shortest}"
        return "> 0" if kind.words else ">= 0"
    if kind.is_list and kind.bound("min_length"):
        return "one or more items"
    if kind.is_list and kind.fixed_length is not None:
        return f"each {range_words(kind.item)}"
    return kind.words or range_words(kind)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Model | StatusModel):
        return "the object's defaults"
    if isinstance(value, tuple | list):
        value = [
            item.model_dump(mode="json", include={"rule"}) if isinstance(item, Model) else item
            for item in value
        ]
    if isinstance(value, Duration):
        value = str(value)
    return f"`{written(value)}`"


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "| field | type | default | range | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    words = meanings(model)
    for name, field in fields_of(model).items():
        kind = type_of(field)
        cells = (f"`{name}`", _type_words(kind), _default(field), _range(kind), words[name])
        row = " | ".join(cell.replace("|", r"\|") for cell in cells)
        yield f"| {row} |"


def _objects(
    model: type[BaseModel], path: str, seen: set[type[BaseModel]]
) -> Iterator[tuple[type[BaseModel], str]]:
    """`model` and every object within it, each once, with the path where it is first found."""
    if model in seen:
        return
    seen.add(model)
    yield model, path
    for name, field in fields_of(model).items():
        kind = type_of(field)
        inside = f"{path}.{name}".lstrip(".")
        while kind.is_list or kind.is_mapping:
            inside += "[]" if kind.is_list else ".*"
            kind = kind.item
        if kind.model is not None:
            yield from _objects(kind.model, inside, seen)


def _section(root: type[BaseModel], path: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    for model, where in _objects(root, path, seen):
        yield f"{'##' if model is root else '###'} {model.__name__}\n"
        if where:
            yield f"`{where}`\n"
        yield inspect.cleandoc(model.__doc__ or "") + "\n"
        yield from _table(model)
        yield ""


def render() -> str:
    """The whole page, as Markdown."""
    seen: set[type[BaseModel]] = {RunStatus, ServiceStatus}
    lines = [_HEAD, *_section(RLTrainingRun, "", seen)]
    lines += [
        "## Rules across fields\n",
        "Checked by `rltrain validate`, before a run starts and on admission.\n",
    ]
    lines += [f"- {rule.__doc__}" for rule in (*RULES, *LOOP_RULES)]
    lines += [f"- {rule.__doc__} (`rltrain validate --for cluster`)" for rule in CLUSTER_RULES]
    lines += [f"- In a profile: {rule.__doc__}" for rule in PROFILE_RULES]
    lines += [f"- In a service: {rule.__doc__}" for rule in SERVICE_RULES]
    lines += ["", *_section(RLTrainingProfile, "", seen), *_section(RLPolicyService, "", seen)]
    lines += _section(RunStatus, "status", seen - {RunStatus, ServiceStatus})
    lines += _section(ServiceStatus, "status", {Condition})
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    print(render(), end="")
