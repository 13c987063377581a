"""`--set path=value`: changes to a run's document before it is checked, so that they obey the same rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rl_api.base import Model
from rl_api.describe import Type, allowed, fields_of, found, unknown_field
from rl_api.documents import load_value
from rl_api.errors import InvalidConfig
from rl_api.paths import Path, parse_path, render_path
from rl_api.run import RLTrainingRun


class Override(NamedTuple):
    """One `--set`: its text as given, the field's path from the top of the document, and the value."""

    text: str
    path: Path
    value: Any


def parse_override(text: str) -> Override:
    """The change that `text`, `path=value`, asks for.

    The path is in camelCase, from the spec on: `sampler.replicas`, `spec.sampler.replicas`, `metadata.name`,
    `task.rewards[0].weight`. The value is YAML; a text field takes what is no text in YAML as it is written
    (`task.rewards[0].pattern=[0-9]+`). Raises InvalidConfig for an unknown path or a broken value.
    """
    label = f"--set {text}"
    name, equals, raw = text.partition("=")
    if not equals:
        raise InvalidConfig(f"{label}: found no '=', allowed: path=value, such as sampler.replicas=2")
    try:
        path = parse_path(name.strip())
    except ValueError:
        raise InvalidConfig(
            f"{label}: found {name!r}, allowed: a path such as sampler.replicas or task.rewards[0].weight"
        ) from None
    if path[0] not in ("spec", "metadata"):
        if path[0] in fields_of(RLTrainingRun):
            raise InvalidConfig(f"{label}: {path[0]} cannot be set, allowed: fields of spec and metadata")
        path = ("spec", *path)
    if len(path) == 1:
        raise InvalidConfig(f"{label}: {path[0]} cannot be set as a whole, allowed: its fields, one by one")
    return Override(text, path, _parse_value(label, _type_at(label, path), raw))


def _type_at(label: str, path: Path) -> Type:
    """Type of the field at `path`; InvalidConfig where the contract has none."""
    kind = Type(RLTrainingRun)
    for index, part in enumerate(path):
        inner = kind.inside(part)
        if inner is None:
            here = render_path(path[:index])
            if kind.model is not None:
                path_here = (*path[:index], str(part))
                unknown = unknown_field(RLTrainingRun, path_here)
                raise InvalidConfig(f"{label}: {render_path(path_here)}: {unknown}")
            if kind.is_list:
                raise InvalidConfig(f"{label}: {here} is a list, allowed: {here}[0] and so on, not {part!r}")
            raise InvalidConfig(f"{label}: {here} is {allowed(kind)} and has no fields")
        kind = inner
    return kind


def _parse_value(label: str, kind: Type, raw: str) -> Any:
    try:
        value = load_value(raw)
    except InvalidConfig as error:
        if kind.core is str:
            return raw
        reason = str(error).removeprefix(": ")
        raise InvalidConfig(f"{label}: the value is {reason}") from None
    return value if value is None or isinstance(value, str) or kind.core is not str else raw


def apply_override(document: dict[str, Any], override: Override) -> None:
    """Change `document` in place. Missing objects on the way are made, missing lists from their defaults.

    Raises InvalidConfig where the document holds something that cannot have the path's fields.
    """
    label, path = f"--set {override.text}", override.path
    container: Any = document
    for index in range(1, len(path)):
        here = path[:index]
        kind, value = _type_at(label, here), _get(container, here[-1])
        if value is None:
            value = _default_list(kind) if kind.is_list else {}
            _put(label, here, container, value)
        elif not isinstance(value, dict | list if kind.core is Any else list if kind.is_list else dict):
            wanted = "a list" if kind.is_list else "an object"
            raise InvalidConfig(
                f"{label}: {render_path(here)}: found {found(value)} in the file, allowed: {wanted}"
            )
        container = value
    _put(label, path, container, override.value)


def apply_overrides(document: object, texts: Iterable[str]) -> tuple[list[Override], list[str]]:
    """The changes of `--set` texts, made in `document` if it is an object, and what is wrong with the others."""
    changes: list[Override] = []
    problems: list[str] = []
    for text in texts:
        try:
            change = parse_override(text)
            if isinstance(document, dict):
                apply_override(document, change)
            changes.append(change)
        except InvalidConfig as error:
            problems.append(str(error))
    return changes, problems


def _default_list(kind: Type) -> list[Any]:
    items = kind.default if isinstance(kind.default, tuple) else ()
    return [item.to_document() if isinstance(item, Model) else item for item in items]


def _get(container: Any, part: str | int) -> Any:
    if isinstance(container, list):
        return container[part] if isinstance(part, int) and part < len(container) else None
    return container.get(str(part))


def _put(label: str, path: Path, container: Any, value: Any) -> None:
    part = path[-1]
    if isinstance(container, dict):
        container[str(part)] = value
        return
    if not isinstance(part, int) or part > len(container):
        raise InvalidConfig(
            f"{label}: {render_path(path[:-1])}: found position {part!r} in a list of {len(container)} items, "
            f"allowed: 0 to {len(container)}"
        )
    container[part : part + 1] = [value]
