"""What the pods of runs may reach besides each other and DNS: `allow.egress` of a profile."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from pydantic import Field

from rl_api.base import Allowed, LabelValue, Model, ResourceName
from rl_api.paths import Path
from rl_api.problems import Problem

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NEVER: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32"),
        *("fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::a9fe:a9fe/128", "fd00:42::42/128"),
    )
)
"""Where nodes get their credentials: link-local addresses and the metadata services that have others. No rule lets a
pod reach them."""

Cidr = Annotated[
    str,
    Field(pattern=r"^[0-9a-fA-F.:]{2,45}/[0-9]{1,3}$", max_length=49),
    Allowed("an address range such as 10.0.0.0/8 or 2001:db8::/32"),
]
"""A range of IP addresses."""

Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port."""


class EgressSpec(Model):
    """Addresses, or pods, that the pods of runs may reach."""

    cidr: Cidr | None = None
    """Addresses; null: pods. Metadata services and link-local addresses are never among them."""
    except_: tuple[Cidr, ...] = Field(default=(), max_length=64, strict=False, alias="except")
    """Addresses within cidr that are not allowed."""
    namespaces: dict[ResourceName, LabelValue] | None = None
    """Labels of the namespaces of those pods; empty: any; null: the run's own."""
    pods: dict[ResourceName, LabelValue] | None = None
    """Labels of the pods; empty or null: any."""
    ports: tuple[Port, ...] = Field(default=(), max_length=64, strict=False)
    """TCP ports; empty: all, of any protocol."""

    @property
    def forbidden(self) -> list[str]:
        """`except` as it is carried out: with what is never reached."""
        assert self.cidr is not None
        network = ipaddress.ip_network(self.cidr)
        return list(dict.fromkeys([*self.except_, *(str(one) for one in NEVER if _within(one, network))]))


def egress_problems(rules: Sequence[EgressSpec], where: Path) -> Iterator[Problem]:
    """What is wrong with the rules at `where`, which names the list."""
    for index, rule in enumerate(rules):
        path: Path = (*where, index)
        if (rule.cidr is None) == (rule.namespaces is None and rule.pods is None):
            yield Problem((*path, "cidr"), "allowed: exactly one of cidr, and namespaces or pods", (path,))
        elif rule.cidr is not None:
            yield from _range_problems(rule.cidr, rule.except_, path)
        elif rule.except_:
            yield Problem((*path, "except"), "found addresses, allowed: none without cidr", (path,))


def _range_problems(cidr: str, without: Sequence[str], path: Path) -> Iterator[Problem]:
    network = _network(cidr)
    if network is None:
        yield Problem((*path, "cidr"), f"found {cidr!r}, {_RANGE}")
        return
    if any(_within(network, one) for one in NEVER):
        yield Problem((*path, "cidr"), f"found {cidr!r}, where nodes get their credentials: never allowed")
    for position, text in enumerate(without):
        inner = _network(text)
        if inner is None:
            yield Problem((*path, "except", position), f"found {text!r}, {_RANGE}")
        elif inner == network or not _within(inner, network):
            yield Problem((*path, "except", position), f"found {text!r}, allowed: a part of {cidr}")


_RANGE: Final = "allowed: an address range whose address is its first, such as 10.0.0.0/8"


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _within(inner: Network, outer: Network) -> bool:
    # Asked of two versions of IP, `subnet_of` raises.
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]
