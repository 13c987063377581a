"""What is installed in an image, read from its layers."""

from __future__ import annotations

import io
import tarfile

import pytest

from rl_release.packages import NotLocked, Package, codename, installed, locked, packages

STATUS = b"""Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b7
Description: a shell
 with lines

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
SITE = "opt/rltrain/lib/python3.11/site-packages"
LOCK = f"""aiohttp-retry==2.9.1 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via kubernetes
other==1.0 \\
    --hash=sha256:{"c" * 64}
"""


def layer(files: dict[str, bytes]) -> io.BytesIO:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    written.seek(0)
    return written


def metadata(name: str, version: str) -> bytes:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: of the text\n".encode()


def test_packages_of_debian_and_of_python() -> None:
    files = installed(
        [
            layer({"./var/lib/dpkg/status": STATUS, "etc/passwd": b"root"}),
            layer({f"{SITE}/aiohttp_retry-2.9.1.dist-info/METADATA": metadata("Aiohttp_Retry", "2.9.1")}),
        ]
    )
    assert "etc/passwd" not in files
    assert packages(files, ["PATH=/bin", "PYTHON_VERSION=3.11.16"], LOCK) == [
        Package("deb", "bash", "5.2.15-2+b7", "amd64"),
        Package("generic", "python", "3.11.16"),
        Package("pypi", "aiohttp-retry", "2.9.1", hashes=(f"sha256:{'a' * 64}", f"sha256:{'b' * 64}")),
    ]


@pytest.mark.parametrize(("name", "version"), [("other", "2.0"), ("uv", "1.0")])
def test_what_is_not_locked_is_refused(name: str, version: str) -> None:
    files = {f"{SITE}/{name}-{version}.dist-info/METADATA": metadata(name, version)}
    with pytest.raises(
        NotLocked, match=rf"{name} {version} is installed in the image, and is not what its lock"
    ):
        packages(files, [], LOCK)


def test_our_own_package_and_those_of_the_base_have_no_hashes() -> None:
    files = {
        f"{SITE}/rltrain-1.0.dist-info/METADATA": metadata("rltrain", "1.0"),
        "usr/lib/python3/dist-packages/pip-23.0.1.dist-info/METADATA": metadata("pip", "23.0.1"),
    }
    assert packages(files, [], LOCK) == [Package("pypi", "pip", "23.0.1"), Package("pypi", "rltrain", "1.0")]


def test_what_others_carry_inside_is_not_installed() -> None:
    path = f"{SITE}/setuptools/_vendor/wheel-1.0.dist-info/METADATA"
    assert installed([layer({path: metadata("wheel", "1.0")})]) == {}


def test_later_layers_replace_and_remove() -> None:
    def at(name: str) -> str:
        return f"{SITE}/{name}-1.dist-info/METADATA"

    below = {at(name): metadata(name, "1") for name in ("a", "b", "c")}
    replaced = installed([layer(below), layer({at("a"): b"new", f"{SITE}/.wh.b-1.dist-info": b""})])
    assert replaced == {at("a"): b"new", at("c"): below[at("c")]}
    emptied = installed([layer(below), layer({f"{SITE}/.wh..wh..opq": b"", at("d"): b"new"})])
    assert emptied == {at("d"): b"new"}


def test_the_release_of_debian() -> None:
    assert codename({"usr/lib/os-release": b'NAME=x\nVERSION_CODENAME="bookworm"\n'}) == "bookworm"
    assert codename({}) == ""


def test_locks_are_read_by_name_and_version() -> None:
    assert locked(LOCK) == {
        ("aiohttp-retry", "2.9.1"): (f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"),
        ("other", "1.0"): (f"sha256:{'c' * 64}",),
    }
    assert locked("# nothing\n") == {}
