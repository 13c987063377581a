"""The bill of materials and the provenance: valid, complete, and equal for equal releases."""

from __future__ import annotations

import json

import pytest

from rl_release.packages import Package
from rl_release.provenance import statement
from rl_release.sbom import bill

DIGEST = f"sha256:{'d' * 64}"
PACKAGES = [
    Package("deb", "bash", "5.2.15-2+b7", "amd64"),
    Package("generic", "python", "3.11.16"),
    Package("pypi", "aiohttp", "3.14.5", hashes=(f"sha256:{'a' * 64}",)),
    Package("pypi", "rltrain", "0.1.0"),
]


def test_bills_name_every_package_with_its_version_and_hashes() -> None:
    found = json.loads(bill("host/rltrain-operator:0.1.0", DIGEST, PACKAGES, "bookworm", 1_700_000_000))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    subject = found["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("host/rltrain-operator", "0.1.0")
    assert subject["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}]
    components = {entry["purl"]: entry for entry in found["components"]}
    assert set(components) == {
        "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64&distro=bookworm",
        "pkg:generic/python@3.11.16",
        "pkg:pypi/aiohttp@3.14.5",
        "pkg:pypi/rltrain@0.1.0",
    }
    (reference,) = components["pkg:pypi/aiohttp@3.14.5"]["externalReferences"]
    assert reference["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert "externalReferences" not in components["pkg:pypi/rltrain@0.1.0"]


def test_bills_of_equal_images_are_equal() -> None:
    first = bill("rltrain-operator:0.1.0", DIGEST, PACKAGES, "bookworm", 1_700_000_000)
    assert first == bill("rltrain-operator:0.1.0", DIGEST, PACKAGES[::-1], "bookworm", 1_700_000_000)
    other = bill("rltrain-operator:0.1.0", f"sha256:{'e' * 64}", PACKAGES, "bookworm", 1_700_000_000)
    assert json.loads(first)["serialNumber"] != json.loads(other)["serialNumber"]


def test_a_bill_that_is_not_cyclonedx_is_not_written() -> None:
    wrong = Package("pypi", "aiohttp", "3.14.5", hashes=("sha256:short",))
    with pytest.raises(
        ValueError, match=r"the bill of materials is not CycloneDX 1\.6: 'short' does not match"
    ):
        bill("rltrain-operator:0.1.0", DIGEST, [wrong], "", 1_700_000_000)


def made(*, bases: list[str], changed: bool = False) -> dict[str, object]:
    text = statement(
        {"b.tgz": "22", "a.oci.tar": "11"},
        commit="c0ffee",
        changed=changed,
        bases=bases,
        locks={"images/requirements/operator.txt": "33"},
        parameters={"version": "0.1.0"},
    )
    value: dict[str, object] = json.loads(text)
    return value


def test_provenance_names_what_was_made_and_of_what() -> None:
    found = made(bases=["python:3.11-slim@sha256:44", "python:3.11-slim@sha256:44"])
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [
        {"name": "a.oci.tar", "digest": {"sha256": "11"}},
        {"name": "b.tgz", "digest": {"sha256": "22"}},
    ]
    definition = found["predicate"]["buildDefinition"]  # type: ignore[index]
    assert definition["externalParameters"] == {"version": "0.1.0"}
    assert definition["resolvedDependencies"] == [
        {"name": "source", "digest": {"gitCommit": "c0ffee"}},
        {"name": "base image", "uri": "pkg:docker/python@3.11-slim", "digest": {"sha256": "44"}},
        {"name": "images/requirements/operator.txt", "digest": {"sha256": "33"}},
    ]


def test_provenance_says_what_cannot_be_checked() -> None:
    definition = made(bases=["python:3.11-slim"], changed=True)["predicate"]["buildDefinition"]  # type: ignore[index]
    source, base, _ = definition["resolvedDependencies"]
    assert source["annotations"] == {"changed": "the working tree had changes that were not committed"}
    assert "digest" not in base
    assert base["annotations"]["pinned"].startswith("no: ")
