from __future__ import annotations

from typing import Any

import pytest

from rl_api.egress import EgressSpec
from rl_api.paths import render_path
from rl_api.profile import ProfileSpec, check_profile_rules


def _sentences(rule: dict[str, Any]) -> list[str]:
    spec = ProfileSpec.model_validate({"pools": [{"name": "cpu"}], "allow": {"egress": [rule]}})
    return [f"{render_path(problem.path)}: {problem.sentence}" for problem in check_profile_rules(spec)]


@pytest.mark.parametrize(
    "rule",
    [
        {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"], "ports": [443]},
        {"cidr": "2001:db8::/32"},
        {"namespaces": {"kubernetes.io/metadata.name": "storage"}, "pods": {"app": "minio"}, "ports": [9000]},
        {"pods": {}},
    ],
)
def test_addresses_or_pods(rule: dict[str, Any]) -> None:
    assert _sentences(rule) == []


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"ports": [443]}, "cidr: allowed: exactly one of cidr, and namespaces or pods"),
        ({"cidr": "10.0.0.0/8", "pods": {}}, "cidr: allowed: exactly one of cidr, and namespaces or pods"),
        ({"pods": {}, "except": ["10.0.0.0/8"]}, "except: found addresses, allowed: none without cidr"),
        ({"cidr": "10.0.0.1/8"}, "cidr: found '10.0.0.1/8', allowed: an address range whose address is"),
        ({"cidr": "1.2.3.4.5/8"}, "cidr: found '1.2.3.4.5/8', allowed: an address range whose address is"),
        ({"cidr": "10.0.0.0/8", "except": ["10.1/16"]}, "except[0]: found '10.1/16', allowed: an address"),
        ({"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}, "except[0]: found '10.0.0.0/8', allowed: a part"),
        ({"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}, "except[0]: found '11.0.0.0/8', allowed: a part"),
        ({"cidr": "10.0.0.0/8", "except": ["fd00::/8"]}, "except[0]: found 'fd00::/8', allowed: a part"),
        ({"cidr": "169.254.169.254/32"}, "cidr: found '169.254.169.254/32', where nodes get their cred"),
        ({"cidr": "fd00:ec2::254/128"}, "cidr: found 'fd00:ec2::254/128', where nodes get their cred"),
        ({"cidr": "fe80::/10"}, "cidr: found 'fe80::/10', where nodes get their credentials"),
    ],
)
def test_what_no_network_policy_could_say(rule: dict[str, Any], sentence: str) -> None:
    (found,) = _sentences(rule)
    assert found.startswith(f"spec.allow.egress[0].{sentence}")


def test_no_range_has_the_metadata_services_in_it() -> None:
    def forbidden(cidr: str, *without: str) -> list[str]:
        return EgressSpec.model_validate({"cidr": cidr, "except": list(without)}).forbidden

    everywhere = ["10.0.0.0/8", "169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32"]
    assert forbidden("0.0.0.0/0", "10.0.0.0/8") == everywhere
    assert forbidden("::/0") == [
        "fe80::/10",
        "fd00:ec2::/32",
        "fd20:ce::/32",
        "fd00:c1::a9fe:a9fe/128",
        "fd00:42::42/128",
    ]
    assert forbidden("169.0.0.0/8") == ["169.254.0.0/16"]
    assert forbidden("192.0.2.0/24") == []
    assert forbidden("169.0.0.0/8", "169.254.0.0/16") == ["169.254.0.0/16"], "said once"
