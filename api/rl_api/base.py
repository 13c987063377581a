"""What every object of the contract is built from: base models, durations, names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

API_VERSION: Final = "rltrain.dev/v1alpha1"
"""`apiVersion` of every object in this package."""


MOST: Final = 10**9
"""Beyond any number that a person means: sums and products of a few of them fit into 64 bits."""

MOST_ITEMS: Final = 64
"""Longest list and biggest free object: the API server counts with it what a rule may cost."""


@dataclass(frozen=True)
class Allowed:
    """Annotation metadata: the values a field takes, in words, where types and bounds do not say enough."""

    text: str


@dataclass(frozen=True)
class Amount:
    """Annotation metadata: a Kubernetes quantity between two others, which are allowed as well."""

    least: str
    most: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, text: str) -> str:
        if not amount(self.least) <= amount(text) <= amount(self.most):
            raise PydanticCustomError("amount", "too little or too much")
        return text


class _Document(BaseModel):
    """What the two bases below share."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False)

    def to_document(self) -> dict[str, Any]:
        """This object as plain data, as in a YAML file: camelCase keys, JSON types, defaults included."""
        return self.model_dump(mode="json", by_alias=True)


class Model(_Document):
    """Base of everything a person writes: camelCase in files, strict types, no unknown fields, immutable.

    The text below a field says what it means, also in the CustomResourceDefinition and the API reference.
    """

    # Strict: 'two', "2" and true are not a whole number; the API server refuses them as well.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StatusModel(_Document):
    """Base of everything a program reports: fields a newer program adds are ignored, so old readers go on."""

    model_config = ConfigDict(extra="ignore")


_UNITS: Final[dict[str, Decimal]] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_NUMBER: Final = r"[0-9]{{1,{digits}}}(\.[0-9]{{1,12}})?"
_DIGITS: Final = {"h": 5, "m": 7, "s": 8, "ms": 11}
DURATION_TEXT: Final = (
    "^(" + "|".join(_NUMBER.format(digits=digits) + unit for unit, digits in _DIGITS.items()) + "){1,4}$"
)
"""A duration as text. What it matches is at most 44 years, which the API server can still compute with."""

LONGEST_DURATION_TEXT: Final = 64
_DURATION: Final = re.compile(DURATION_TEXT)
_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h)")
_LONGEST_SECONDS: Final = 8760 * 3600.0


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time. In files: `90s`, `10m`, `1.5h`, `500ms`, `1h30m`, or a plain number of seconds.

    `seconds` is a float, from 0 to a year; `str()` gives the shortest exact form, which parses to the same value.
    """

    seconds: float

    ALLOWED: ClassVar[str] = (
        "a duration such as 90s, 10m, 1.5h or 500ms, or a number of seconds, at most 8760h"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", float(self.seconds))
        if not 0.0 <= self.seconds <= _LONGEST_SECONDS:  # also refuses NaN
            raise ValueError(
                f"a duration is between 0 and {_LONGEST_SECONDS:.0f} seconds, not {self.seconds}"
            )

    @classmethod
    def parse(cls, value: object) -> Duration:
        """The duration `value` stands for: text, a number of seconds, or a Duration; else ValueError."""
        if isinstance(value, Duration):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"not a duration: {value!r}")
        if isinstance(value, str):
            if len(value) > LONGEST_DURATION_TEXT or not _DURATION.fullmatch(value):
                raise ValueError(f"not a duration: {value[:LONGEST_DURATION_TEXT]!r}")
            return cls(float(sum(Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(value))))
        try:
            return cls(float(value))
        except OverflowError:
            raise ValueError(f"not a duration: {value!r}") from None

    def __str__(self) -> str:
        exact = Decimal(repr(self.seconds))
        for unit in ("h", "m", "s", "ms"):
            count, rest = divmod(exact, _UNITS[unit])
            if rest == 0 and (count > 0 or unit == "s"):
                return f"{int(count)}{unit}"
        return f"{format(exact.normalize(), 'f')}s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: object) -> Duration:
            try:
                return cls.parse(value)
            except ValueError:
                raise PydanticCustomError("duration", "not a duration") from None

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                str, return_schema=core_schema.str_schema()
            ),
        )


def _more_than_zero(value: Duration) -> Duration:
    if math.isclose(value.seconds, 0.0, abs_tol=1e-12):
        raise PydanticCustomError("duration", "not longer than zero")
    return value


PositiveDuration = Annotated[
    Duration,
    AfterValidator(_more_than_zero),
    Allowed("a duration > 0 such as 90s, 10m, 1.5h or 500ms, or a number of seconds, at most 8760h"),
]
"""A Duration longer than zero: for deadlines, which must not be over before they start."""

LONGEST: Final = Duration(_LONGEST_SECONDS)

GraceDuration = Annotated[
    Duration,
    Le(Duration(3600)),
    Allowed("a duration such as 90s, 10m or 500ms, or a number of seconds, at most 1h"),
]
"""A Duration for which others wait."""

LivenessDuration = Annotated[
    Duration,
    Ge(Duration(5)),
    Allowed("a duration such as 5s, 90s or 10m, or a number of seconds, from 5s to 8760h"),
]
"""A Duration of silence after which somebody counts as dead: shorter ones are of busy machines too."""

NO_NUL: Final = r"^[^\x00]*$"
"""A NUL ends a text where processes are started."""

Text = Annotated[
    str,
    Field(min_length=1, max_length=16384, pattern=NO_NUL),
    Allowed("text of 1 to 16384 characters without NUL"),
]
"""Text that is not empty."""

_ONE_LINE: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"

Word = Annotated[
    str,
    Field(min_length=1, pattern=_ONE_LINE, max_length=253),
    Allowed("text of 1 to 253 characters on one line"),
]
"""A name that somebody else has given."""

Address = Annotated[
    str,
    Field(min_length=1, pattern=_ONE_LINE, max_length=896),
    Allowed("text of 1 to 896 characters on one line"),
]
"""Where something is: a folder, an id or a URI. Shorter than the longest key of an object store, which is 1024, by what
a run adds to it."""

Image = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=512),
    Allowed("a container image such as registry.example.org/team/trainer:1.2, at most 512 characters"),
]
"""Reference of a container image."""

RunName = Annotated[
    str,
    Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=47),
    Allowed("1 to 47 characters a-z, 0-9 and '-', the first a letter and the last not '-'"),
]
"""Name of a run: a DNS-1035 label that leaves KubeRay room for its suffixes (63 - 16)."""

ObjectName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63),
    Allowed("1 to 63 characters a-z, 0-9 and '-', the first and the last not '-'"),
]
"""Name of a Kubernetes object: a DNS-1123 label."""

ResourceName = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        max_length=317,
    ),
    Allowed("a Kubernetes name such as nvidia.com/gpu"),
]
"""Qualified name of a Kubernetes resource, label or taint key: an optional DNS prefix, `/`, a name."""

LabelValue = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63),
    Allowed("at most 63 letters, digits, '-', '_' and '.', the first and the last a letter or digit"),
]
"""Value of a Kubernetes label."""

ConfigKey = Annotated[
    str,
    Field(pattern=r"^\.?[-_A-Za-z0-9][-._A-Za-z0-9]*$", max_length=253),
    Allowed("1 to 253 letters, digits, '-', '_' and '.', not '..' at the beginning"),
]
"""Key of a ConfigMap, which becomes a file's name."""

_QUANTITY: Final = re.compile(r"([0-9]+(\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_POWERS: Final = ("", "k", "m", "g", "t", "p")


def amount(quantity: str) -> Decimal:
    """The number that a Kubernetes quantity stands for. Raises ValueError where it is none."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"not a quantity: {quantity!r}")
    number, unit = Decimal(match[1]), match[3] or ""
    if unit == "m":
        return number / 1000
    return number * Decimal(1024 if unit.endswith("i") else 1000) ** _POWERS.index(unit[:1].lower())


Quantity = Annotated[
    str,
    Field(pattern=f"^{_QUANTITY.pattern}$", max_length=32),
    Amount("1Mi", "1Pi"),
    Allowed("a Kubernetes quantity such as 500Mi or 16Gi, from 1Mi to 1Pi"),
]
"""Amount of a Kubernetes resource in bytes as text, such as `16Gi`."""

_SERVER_METADATA: Final = frozenset(
    {
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "ownerReferences",
        "finalizers",
        "selfLink",
        "generateName",
    }
)


def forget_server_fields(data: Any) -> Any:
    """Metadata without what only the API server writes, so that `kubectl get -o yaml` output can be run."""
    if isinstance(data, dict):
        return {key: value for key, value in data.items() if key not in _SERVER_METADATA}
    return data
