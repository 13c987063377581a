"""What runs may ask for besides their size: `allow` of a profile.

Nothing is allowed by default that reaches beyond a run's own namespace and pods; everything else is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from rl_api.base import Allowed, LabelValue, Model, ObjectName, ResourceName
from rl_api.egress import EgressSpec
from rl_api.paths import Path
from rl_api.problems import Problem

Pattern = Annotated[
    str,
    # None of these characters but '.' and '*' means anything to a regular expression: CEL makes one of it.
    Field(pattern=r"^[A-Za-z0-9._:/@=~*-]+$", max_length=253),
    Allowed("letters, digits and . _ : / @ = ~ -, with * for any text"),
]
"""A text in which `*` stands for any text."""

AddressPattern = Annotated[
    str,
    Field(
        pattern=r"^https?://([A-Za-z0-9._*-]+|\[[0-9A-Fa-f:*]+\])(:[0-9*]+)?(/[A-Za-z0-9._~*-]+)*$",
        max_length=253,
    ),
    Allowed(
        "an address such as http://inference.serving:8000 or https://*.example.org/team-a/*, without / at its end, with * "
        "for any text"
    ),
]
"""An address in which `*` stands for any text: up to the first `/` behind the host for any without `/`."""

DEVICE_VARIABLES: Final = (
    "NVIDIA_*",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
)
"""Variables by which container runtimes hand out devices: only a profile that lists them lets a run set them."""

WITHOUT_V1: Final = "allowed: the address without /v1, as weights are changed beside it"

DIGEST: Final = "@sha256:[0-9a-f]{64}$"
"""The end of an image that is named by its digest."""


def matches(pattern: str, text: str) -> bool:
    """Whether `pattern` stands for `text`; in time that grows with their lengths, whoever wrote them."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    *middle, last = rest
    at, end = len(first), len(text) - len(last)
    if end < at or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def any_matches(patterns: Sequence[str], text: str) -> bool:
    """Whether one of the patterns stands for `text`."""
    return any(matches(pattern, text) for pattern in patterns)


def place_matches(patterns: Sequence[str], place: str) -> bool:
    """Whether one of the patterns stands for a folder or an address, which may end with `/` and must not climb out."""
    climbs = ".." in place.split("/")
    return not climbs and (any_matches(patterns, place) or any_matches(patterns, f"{place}/"))


def address_matches(pattern: str, address: str) -> bool:
    """Whether an `AddressPattern` stands for an address, which may end with `/` and must not climb out."""
    (host, path), (found, place) = _host_and_path(pattern), _host_and_path(address)
    return matches(host, found) and place_matches([path], place)


def _host_and_path(address: str) -> tuple[str, str]:
    """Scheme, host and port; and what is behind them, without `/` at its end."""
    scheme, _, rest = address.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


class RequirementSpec(Model):
    """What a label must be, as in a label selector of Kubernetes."""

    key: ResourceName
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label is compared with the values."""
    values: tuple[LabelValue, ...] = Field(default=(), strict=False)
    """Values, for operator In or NotIn."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels are so."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")

    def __str__(self) -> str:
        values = f" ({', '.join(self.values)})" if self.values else ""
        return f"{self.key} {self.operator}{values}"


class SelectorSpec(Model):
    """Namespaces by their labels; a namespace has all that is listed."""

    match_labels: dict[ResourceName, LabelValue] = Field(default_factory=dict)
    """Labels with their values; kubernetes.io/metadata.name is the namespace's name."""
    match_expressions: tuple[RequirementSpec, ...] = Field(default=(), strict=False)
    """What else labels must be."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        same = all(labels.get(key) == value for key, value in self.match_labels.items())
        return same and all(one.matches(labels) for one in self.match_expressions)

    def __str__(self) -> str:
        labels = [f"{key}={value}" for key, value in sorted(self.match_labels.items())]
        return ", ".join([*labels, *map(str, self.match_expressions)])


class ImageRulesSpec(Model):
    """Images that a run may name; those of the profile are always allowed."""

    patterns: tuple[Pattern, ...] | None = Field(default=None, strict=False)
    """Images, such as registry.example/team-a/*; null: any; empty: none."""
    digest_required: bool = False
    """true: a run names its image by digest, so that it is the same in each attempt."""
    always_pull: bool = False
    """true: pods of a run that names its image always ask the registry for it, so that an image which is on the node for
    others is not lent to those who may not pull it."""


class StorageRulesSpec(Model):
    """Where a run may keep its checkpoints; what the profile's defaults say is always allowed."""

    s3: tuple[Pattern, ...] | None = Field(default=None, strict=False)
    """Places in object stores, such as s3://bucket/team-a/*; null: any; empty: none."""
    claim_classes: tuple[Pattern, ...] | None = Field(default=None, strict=False)
    """Storage classes of PersistentVolumeClaims; null: any; empty: none."""


class EnvironmentRulesSpec(Model):
    """What a run may put into the environment of its processes."""

    names: tuple[Pattern, ...] | None = Field(default=None, strict=False)
    """Names that trainer.env may set; null: any but those by which container runtimes hand out devices."""
    secrets: tuple[Pattern, ...] | None = Field(default=None, strict=False)
    """Secrets that a run may name; null: any of its namespace; empty: none."""


class EndpointRuleSpec(Model):
    """Inference servers that runs may have sample for them (sampler.engine endpoint)."""

    url: AddressPattern
    """Addresses that a run may name, such as http://inference.serving:8000; * in the host is of the host and port alone."""
    egress: tuple[EgressSpec, ...] = Field(default=(), max_length=16, strict=False)
    """What the samplers of such runs, and no other pods, may reach besides: where these servers are. Networks know addresses
    and pods, and no host names; empty: what allow.egress says must have it."""


class AllowSpec(Model):
    """What runs may ask for beyond their own pods. No field lets a run have anything of a node: there is none in a run."""

    egress: tuple[EgressSpec, ...] = Field(default=(), max_length=64, strict=False)
    """What pods may reach besides each other and DNS, such as an object store or a model hub; empty: nothing."""
    endpoints: tuple[EndpointRuleSpec, ...] = Field(default=(), max_length=16, strict=False)
    """Inference servers that may sample for runs (sampler.engine endpoint); empty: none."""
    namespaces: SelectorSpec | None = None
    """Namespaces whose runs may use the profile; null: all."""
    images: ImageRulesSpec = ImageRulesSpec()
    """Images that a run may name."""
    priority_classes: tuple[ObjectName, ...] = Field(default=(), strict=False)
    """PriorityClasses that a run may name; empty: none, as their pods may displace others'."""
    workload_priority_classes: tuple[ObjectName, ...] = Field(default=(), strict=False)
    """Kueue's WorkloadPriorityClasses that a run may name; empty: none, as they say who goes first in a
    queue and who must go."""
    queues: tuple[ObjectName, ...] | None = Field(default=None, strict=False)
    """Queues that a run may name; null: any of its namespace; empty: none."""
    model_sources: tuple[Pattern, ...] | None = Field(default=None, strict=False)
    """Models, such as tiny, Qwen/*, /models/* or s3://models/*; null: any; empty: none."""
    storage: StorageRulesSpec = StorageRulesSpec()
    """Where a run may keep its checkpoints."""
    environment: EnvironmentRulesSpec = EnvironmentRulesSpec()
    """What a run may put into the environment of its processes."""
    isolation: Literal["shared", "strict"] = "shared"
    """Least of task.isolation: with strict, code of the user's has a container of its own, and programs of the user's own
    (trainer.kind command and verl), for which there is none, are refused."""

    def endpoints_at(self, url: str) -> list[EndpointRuleSpec]:
        """The rules that let a run name the server at `url`; empty: none does."""
        return [rule for rule in self.endpoints if address_matches(rule.url, url)]


def allow_problems(allow: AllowSpec, where: Path) -> Iterator[Problem]:
    """What is wrong across the fields of `allow`, which stands at `where`."""
    if allow.namespaces is not None:
        yield from selector_problems(allow.namespaces, (*where, "namespaces"))
    for index, rule in enumerate(allow.endpoints):
        if rule.url.endswith("/v1"):
            yield Problem((*where, "endpoints", index, "url"), f"found {rule.url!r}, {WITHOUT_V1}")


def selector_problems(selector: SelectorSpec, where: Path) -> Iterator[Problem]:
    """What is wrong across the fields of a selector, which stands at `where`."""
    for index, one in enumerate(selector.match_expressions):
        path: Path = (*where, "matchExpressions", index)
        if (one.operator in ("In", "NotIn")) != bool(one.values):
            words = "one or more" if not one.values else "none"
            yield Problem(
                (*path, "values"),
                f"found {len(one.values)}, allowed: {words} with operator {one.operator}",
                (path,),
            )
