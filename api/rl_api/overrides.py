"""`--set path=value`: changes to a run's document before it is checked, so that they obey the same rules."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from rl_api.base import Model
from rl_api.describe import Type, allowed, fields_of, found, type_of, unknown_field
from rl_api.documents import load_value
from rl_api.errors import InvalidConfig
from rl_api.paths import Path, parse_path, render_path
from rl_api.run import RLTrainingRun

_ANYTHING = Type(Any)


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
        here = render_path(path[:index])
        if kind.model is not None:
            field = fields_of(kind.model).get(str(part))
            if field is None:
                path_here = (*path[:index], str(part))
                raise InvalidConfig(
                    f"{label}: {render_path(path_here)}: {unknown_field(RLTrainingRun, path_here)}"
                )
            kind = type_of(field)
        elif kind.is_list:
            if not isinstance(part, int):
                raise InvalidConfig(f"{label}: {here} is a list, allowed: {here}[0] and so on, not {part!r}")
            kind = kind.item
        elif kind.is_mapping or kind.core is Any:
            kind = kind.item if kind.is_mapping else _ANYTHING
        else:
            raise InvalidConfig(f"{label}: {here} is {allowed(kind)} and has no fields")
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
    kind, container = Type(RLTrainingRun), document
    for index, part in enumerate(override.path[:-1]):
        kind, container = _step(override, index, kind, container, part)
    _put(override, len(override.path) - 1, container, override.value)


def _step(override: Override, index: int, kind: Type, container: Any, part: str | int) -> tuple[Type, Any]:
    """The type and the value one `part` further down, made where there is none."""
    field: FieldInfo | None = None
    if kind.model is not None:
        field = fields_of(kind.model)[str(part)]
        inner = type_of(field)
    else:
        inner = kind.item if kind.is_list or kind.is_mapping else _ANYTHING
    value = _get(container, part)
    if value is None:
        value = _default_list(field) if inner.is_list and field is not None else {}
        _put(override, index, container, value)
    elif not isinstance(value, _containers(inner)):
        here = render_path(override.path[: index + 1])
        wanted = "a list" if inner.is_list else "an object"
        raise InvalidConfig(
            f"--set {override.text}: {here}: found {found(value)} in the file, allowed: {wanted}"
        )
    return inner, value


def _containers(kind: Type) -> tuple[type, ...]:
    if kind.core is Any:
        return (dict, list)
    return (list,) if kind.is_list else (dict,)


def _default_list(field: FieldInfo) -> list[Any]:
    default = field.get_default(call_default_factory=True)
    items = default if isinstance(default, tuple | list) else ()
    return [item.to_document() if isinstance(item, Model) else item for item in items]


def _get(container: Any, part: str | int) -> Any:
    if isinstance(container, list):
        return container[part] if isinstance(part, int) and part < len(container) else None
    return container.get(str(part))


def _put(override: Override, index: int, container: Any, value: Any) -> None:
    part = override.path[index]
    if isinstance(container, dict):
        container[str(part)] = value
        return
    if not isinstance(part, int) or part > len(container):
        here = render_path(override.path[:index])
        raise InvalidConfig(
            f"--set {override.text}: {here}: found position {part!r} in a list of {len(container)} items, "
            f"allowed: 0 to {len(container)}"
        )
    container[part : part + 1] = [value]
