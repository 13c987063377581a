"""CEL rules and how they are written; those of `rl_api.place_rules`. See `rl_api.crd_rules`."""

from __future__ import annotations

import re
from typing import Final

from rl_api import place_rules as places
from rl_api.crd_schema import Rule, cel_text


def cel_rule(rule: str, field: str, message: str) -> Rule:
    """A rule whose sentence is `message`, with values of the object between braces: `found {self.seed}, allowed: 1`.

    `field` is relative to the object the rule looks at; empty: the object itself. The sentence is one call of `format`:
    joining texts would be refused, as the API server takes the text of a number for endlessly long when it estimates costs.
    """
    pieces = re.split(r"\{(.*?)\}", message)
    words, values = pieces[::2], pieces[1::2]
    where = {"fieldPath": field} if field else {}  # an empty one is dropped by the API server
    if not values:
        return {"rule": rule, "message": message, **where}
    text = cel_text("%s".join(word.replace("%", "%%") for word in words))
    return {
        "rule": rule,
        "message": "…".join(words),  # where the expression cannot be computed
        "messageExpression": f"{text}.format([{', '.join(values)}])",
        **where,
    }


def or_value(path: str, default: str) -> str:
    """Value of a field that may be absent, or on the way to which something may be."""
    return "self.?" + path.replace(".", ".?") + f".orValue({default})"


def size_of(field: str) -> str:
    """How many a list, which may be absent, has."""
    return f"(has(self.{field}) ? size(self.{field}) : 0)"


def loop_rule(rule: str, field: str, message: str) -> Rule:
    """A rule of a training loop that we know, see `rl_api.rules.LOOP_RULES`."""
    return cel_rule(f"self.trainer.kind == 'command' || ({rule})", field, message)


def _is_s3_address(text: str) -> str:
    """Whether a text is a folder in a bucket."""
    return f"({text}.matches({cel_text(places.S3_ADDRESS)}) && !{text}.matches({cel_text(places.CLIMBS)}))"


_PORT: Final = or_value("server.port", "0")
_FOLDER: Final = f"^(({'|'.join(places.FOLDER_ROOTS)})/|[^/~])"

PORT_RULE: Final[Rule] = cel_rule(
    f"!({_PORT} in [{', '.join(map(str, places.TAKEN_PORTS.values()))}]) && "
    f"({_PORT} < {places.WORKER_PORTS[0]} || {_PORT} > {places.WORKER_PORTS[1]})",
    ".server.port",
    f"found {{{_PORT}}}, allowed: {places.FREE_PORTS}",
)
"""A rule of a run's spec."""

STORAGE_RULES: Final[list[Rule]] = [
    cel_rule(
        f"!has(self.s3) || {_is_s3_address('self.s3')}",
        ".s3",
        f"found '{{self.s3}}', {places.FOLDER_OF_A_BUCKET}",
    ),
    cel_rule(
        "!has(self.path) || !self.path.contains('://')",
        ".path",
        f"found '{{self.path}}', {places.FOLDER_OR_ADDRESS}",
    ),
    cel_rule(
        f"!has(self.path) || self.path.contains('://') || (self.path.matches({cel_text(_FOLDER)}) && "
        f"!self.path.matches({cel_text(places.CLIMBS)}))",
        ".path",
        f"found '{{self.path}}', {places.ON_A_CLUSTER}",
    ),
]
"""Rules of `spec.checkpoint.storage`."""

SOURCE_RULES: Final[list[Rule]] = [
    cel_rule(
        f"!self.source.contains('://') || {_is_s3_address('self.source')}",
        ".source",
        f"found '{{self.source}}', {places.MODELS}",
    ),
    cel_rule(
        f"self.source.contains('://') || self.source.matches({cel_text(places.HUB_ID)}) || "
        f"(self.source.startsWith('/') && !self.source.matches({cel_text(places.CLIMBS)}))",
        ".source",
        f"found '{{self.source}}', {places.MODELS_ON_A_CLUSTER}",
    ),
]
"""Rules of `spec.model` about its source."""

FILE_RULE: Final[Rule] = cel_rule(
    f"!has(self.file) || !self.file.contains('://') || (self.file.matches({cel_text(places.S3_ADDRESS)}) && "
    f"!self.file.matches({cel_text(places.CLIMBS)}))",
    ".file",
    f"found '{{self.file}}', {places.FILES}",
)
"""A rule of `spec.task` about its file."""

DATASET_RULE: Final[Rule] = cel_rule(
    f"!self.name.contains('://') && !self.name.matches({cel_text(places.CLIMBS)})",
    ".name",
    f"found '{{self.name}}', {places.DATASETS}",
)
"""A rule of `spec.task.dataset`."""
