"""YAML text to plain documents and back, read as Kubernetes tools do: 1e-6 is a number, a date is text."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml

from rl_api.errors import InvalidConfig

# YAML 1.1, which PyYAML implements, takes 1e-6 for text and 1:30 for ninety; kubectl's parser does neither.
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_INT = re.compile(
    r"^(?:[-+]?0b[0-1_]+|[-+]?0o?[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$",
)
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "str", "merge", "value"))


class _Loader(yaml.SafeLoader):
    """Loads plain data only: JSON's types, keys that are text, no key twice, no loops."""


# A run in full takes libyaml 1 ms and pure Python 4: an operator that is given a thousand runs at once notices.
if TYPE_CHECKING:
    _FastDumper = yaml.SafeDumper
else:
    _FastDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_FastDumper):
    """Writes what `_Loader` reads back unchanged."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _read_object(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            which = f"the key {key_node.value!r}" if isinstance(key_node, yaml.ScalarNode) else "a key"
            raise yaml.constructor.ConstructorError(
                None, None, f"{which} is not text, put it in quotes", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is there twice", key_node.start_mark
            )
        seen.add(key)
    return {str(key): value for key, value in loader.construct_mapping(node).items()}


def _write_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # In plain text PyYAML writes these line breaks of Unicode as they are, and reads them as spaces.
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag in _PLAIN_TAGS]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.yaml_constructors = {
    **{
        f"tag:yaml.org,2002:{name}": getattr(yaml.SafeLoader, f"construct_yaml_{name}")
        for name in ("null", "bool", "int", "float", "str")
    },
    "tag:yaml.org,2002:map": _read_object,
    "tag:yaml.org,2002:seq": yaml.SafeLoader.construct_sequence,
    None: yaml.SafeLoader.construct_undefined,
}
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Dumper.add_representer(str, _write_text)


def load_documents(text: str, source: str) -> list[tuple[int, Any]]:
    """All YAML documents of `text` that are not empty, each with its number in the file (from 1).

    Raises InvalidConfig, naming `source`, line and column, when the text is not YAML.
    """
    try:
        loaded = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidConfig(f"{source}: {where}not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise InvalidConfig(f"{source}: not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise InvalidConfig(f"{source}: not valid YAML: {first_line}") from None
    return [(number, document) for number, document in enumerate(loaded, 1) if document is not None]


def load_value(text: str) -> Any:
    """The value that `text` is as YAML; InvalidConfig, without a source, if it is none."""
    documents = load_documents(text, "")
    if len(documents) > 1:
        raise InvalidConfig(": not valid YAML for one value: found '---' between several")
    return documents[0][1] if documents else None


def dump_yaml(document: Any) -> str:
    """Plain data as YAML text that `load_documents` and the Kubernetes tools read back unchanged."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
