"""What every object of the contract is built from: base models, durations, names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

API_VERSION: Final = "rltrain.dev/v1alpha1"
"""`apiVersion` of every object in this package."""


@dataclass(frozen=True)
class Allowed:
    """Annotation metadata: the values a field takes, in words, where types and bounds do not say enough."""

    text: str


class Model(BaseModel):
    """Base of everything a person writes: camelCase in files, strict types, no unknown fields, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,  # 'two', "2" and true are not a whole number; the API server refuses them as well
        allow_inf_nan=False,
    )

    def to_document(self) -> dict[str, Any]:
        """This object as plain data, as in a YAML file: camelCase keys, JSON types, defaults included."""
        return self.model_dump(mode="json", by_alias=True)


class StatusModel(BaseModel):
    """Base of everything a program reports: fields a newer program adds are ignored, so old readers go on."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", allow_inf_nan=False
    )

    def to_document(self) -> dict[str, Any]:
        """This object as plain data: camelCase keys, JSON types, defaults included."""
        return self.model_dump(mode="json", by_alias=True)


_UNITS: Final[dict[str, Decimal]] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_PART = r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h)"
_DURATION = re.compile(rf"(?:{_PART})+", re.ASCII)
_LONGEST_SECONDS: Final = 1e9


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time. In files: `90s`, `10m`, `1.5h`, `500ms`, `1h30m`, or a plain number of seconds.

    `seconds` is a float in [0, 1e9]; `str()` gives the shortest exact form, which parses to the same value.
    """

    seconds: float

    ALLOWED: ClassVar[str] = "a duration such as 90s, 10m, 1.5h or 500ms, or a number of seconds"
    PATTERN: ClassVar[str] = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", float(self.seconds))
        if not 0.0 <= self.seconds <= _LONGEST_SECONDS:  # also refuses NaN
            raise ValueError(
                f"a duration is between 0 and {_LONGEST_SECONDS:.0e} seconds, not {self.seconds}"
            )

    @classmethod
    def parse(cls, value: object) -> Duration:
        """The duration `value` stands for: text, a number of seconds, or a Duration; else ValueError."""
        if isinstance(value, Duration):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"not a duration: {value!r}")
        if isinstance(value, str):
            if not _DURATION.fullmatch(value):
                raise ValueError(f"not a duration: {value!r}")
            parts = re.findall(_PART, value, re.ASCII)
            return cls(float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts)))
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

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": cls.PATTERN}, {"type": "number", "minimum": 0}]}


def _more_than_zero(value: Duration) -> Duration:
    if math.isclose(value.seconds, 0.0, abs_tol=1e-12):
        raise PydanticCustomError("duration", "not longer than zero")
    return value


PositiveDuration = Annotated[
    Duration,
    AfterValidator(_more_than_zero),
    Allowed("a duration > 0 such as 90s, 10m, 1.5h or 500ms, or a number of seconds"),
]
"""A Duration longer than zero: for deadlines, which must not be over before they start."""

Text = Annotated[str, Field(min_length=1, max_length=65536), Allowed("text, not empty")]
"""Text that is not empty."""

Address = Annotated[str, Field(min_length=1, max_length=1024), Allowed("text, not empty")]
"""Where something is: a folder, an id or a URI. As long as the longest key of an object store."""

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

Quantity = Annotated[
    str,
    Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=32),
    Allowed("a Kubernetes quantity such as 500Mi or 16Gi"),
]
"""Amount of a Kubernetes resource as text, such as `16Gi`."""

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
