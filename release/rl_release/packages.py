"""What is installed in an image: Debian's packages and Python's, read from its layers."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Mapping
from email.parser import HeaderParser
from pathlib import PurePosixPath
from typing import IO, NamedTuple

DPKG = "var/lib/dpkg/status"
OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
METADATA = re.compile(r"(^|/)(site|dist)-packages/[^/]+\.dist-info/METADATA$")
OURS = "opt/rltrain/"
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


class NotLocked(Exception):
    """Something of ours is installed that no file of images/requirements names; the message says what."""


class Package(NamedTuple):
    """Something installed."""

    kind: str
    """`deb`, `pypi`, or `generic`: what the base image built itself."""
    name: str
    version: str
    arch: str = ""
    hashes: tuple[str, ...] = ()
    """`sha256:...` of the files that may have been installed: one for each platform, and the source's."""


def installed(layers: Iterable[IO[bytes]]) -> dict[str, bytes]:
    """The files that say what is installed, as the last layer leaves them; `layers`: tar files, the base's first."""
    files: dict[str, bytes] = {}
    for layer in layers:
        with tarfile.open(fileobj=layer, mode="r|") as archive:
            found: dict[str, bytes] = {}
            for member in archive:
                path = member.name.removeprefix("./")
                name = PurePosixPath(path).name
                if name.startswith(WHITEOUT):
                    found[path] = b""
                elif member.isreg() and (path in (DPKG, *OS_RELEASE) or METADATA.search(path)):
                    content = archive.extractfile(member)
                    assert content is not None
                    found[path] = content.read()
            files = _over(files, found)
    return files


def _over(below: Mapping[str, bytes], layer: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files after a layer was put over them, whose whiteouts remove what is below."""
    gone: set[str] = set()
    for path in map(PurePosixPath, layer):
        if path.name.startswith(WHITEOUT):
            removed = path.parent if path.name == OPAQUE else path.with_name(path.name.removeprefix(WHITEOUT))
            gone.add(str(removed))
    kept = {
        path: content
        for path, content in below.items()
        if not gone & {path, *map(str, PurePosixPath(path).parents)}
    }
    return kept | {path: content for path, content in layer.items() if not _whiteout(path)}


def _whiteout(path: str) -> bool:
    return PurePosixPath(path).name.startswith(WHITEOUT)


def packages(files: Mapping[str, bytes], env: Iterable[str], lock: str) -> list[Package]:
    """The packages, in order; `env`: the image's (NAME=value), `lock`: what was installed with hashes."""
    hashes = locked(lock)
    found = set(debian(files.get(DPKG, b"").decode()))
    for path, content in files.items():
        if METADATA.search(path):
            message = HeaderParser().parsestr(content.decode(errors="replace"))
            name, version = canonical(message["Name"]), message["Version"]
            if path.startswith(OURS) and name != "rltrain" and (name, version) not in hashes:
                raise NotLocked(f"{name} {version} is installed in the image, and is not what its lock names")
            found.add(Package("pypi", name, version, hashes=hashes.get((name, version), ())))
    # The official image compiles its own Python, which is no package.
    found.update(
        Package("generic", "python", entry.partition("=")[2])
        for entry in env
        if entry.startswith("PYTHON_VERSION=")
    )
    return sorted(found)


def debian(status: str) -> list[Package]:
    """Of dpkg's status file: what is installed."""
    messages = (HeaderParser().parsestr(block) for block in re.split(r"\n\n+", status.strip()) if block)
    return [
        Package("deb", entry["Package"], entry["Version"], entry["Architecture"])
        for entry in messages
        if entry["Status"].endswith(" installed")
    ]


def codename(files: Mapping[str, bytes]) -> str:
    """The release of Debian, such as bookworm; empty: unknown."""
    for path in OS_RELEASE:
        if found := re.search(rb'(?m)^VERSION_CODENAME="?(\w+)', files.get(path, b"")):
            return found[1].decode()
    return ""


def locked(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Hashes by name and version, of a file of images/requirements."""
    found = {}
    for block in re.split(r"\n(?=[a-z0-9])", text):
        if entry := re.match(r"([a-z0-9-]+)==([^ \\]+)", block):
            found[entry[1], entry[2]] = tuple(HASH.findall(block))
    return found


def canonical(name: str) -> str:
    """A Python package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()
