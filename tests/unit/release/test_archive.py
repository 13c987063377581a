"""Images as archives: what two builds of one source write at different times is the same."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rl_release.__main__ import main
from rl_release.archive import BadArchive, Released, timeless, write_release

EPOCH = 1_700_000_000
BASE_NAME = "python:3.11@sha256:" + "ab" * 32


def layer(files: dict[str, bytes], time: int, user: str = "", **headers: str) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.uid = len(content), time, user, 1000
            member.pax_headers = headers
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("opt/link")
        link.type, link.linkname, link.mtime = tarfile.SYMTYPE, "file", time
        archive.addfile(link)
    return written.getvalue()


BASE = layer({"etc/base": b"base"}, 5)


def diff_id(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def saved(folder: Path, *own: bytes, labels: dict[str, str] | None = None, time: str = "2026-01-02") -> Path:
    """An archive as `docker save` writes it: a layer of the base, and ours."""
    layers = [BASE, *own]
    config: dict[str, Any] = {
        "created": f"{time}T00:00:00.5Z",
        "config": {"Labels": {"org.opencontainers.image.base.name": BASE_NAME} if labels is None else labels},
        "history": [
            {"created": "2020-01-01T00:00:00Z"},
            *({"created": f"{time}T00:00:00Z"} for _ in own),
        ],
        "rootfs": {"type": "layers", "diff_ids": [diff_id(content) for content in layers]},
    }
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["rltrain-operator:1.0"], "Layers": names}]
    files = dict(zip(names, layers, strict=True))
    files |= {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    path = folder / "saved.tar"
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def released(folder: Path, *own: bytes, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    written = folder / "image.oci.tar"
    write_release(saved(folder, *own, **options), written, [diff_id(BASE)], EPOCH)
    return written


def test_two_builds_at_different_times_are_the_same_bytes(tmp_path: Path) -> None:
    first = released(tmp_path / "1", layer({"opt/file": b"ours"}, 1, "me", atime="1.5"), time="2026-01-02")
    second = released(tmp_path / "2", layer({"opt/file": b"ours"}, 2, "you", atime="2.5"), time="2026-03-04")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "other",
    [
        layer({"opt/file": b"Ours"}, 1),
        layer({"opt/elif": b"ours"}, 1),
        layer({"opt/file": b"ours"}, 1, **{"SCHILY.xattr.user.a": "b"}),
    ],
)
def test_other_contents_are_other_bytes(tmp_path: Path, other: bytes) -> None:
    first = released(tmp_path / "1", layer({"opt/file": b"ours"}, 1))
    second = released(tmp_path / "2", other)
    assert first.read_bytes() != second.read_bytes()


def test_archives_hold_what_their_digests_say(tmp_path: Path) -> None:
    path = released(tmp_path, layer({"opt/file": b"ours"}, 77))
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            if member.name.startswith("blobs/"):
                assert member.name == f"blobs/sha256/{hashlib.sha256(content.read()).hexdigest()}"
    with Released(path) as image:
        base, ours = (file.read() for file in image.layers())
        assert base == BASE
        assert image.name == "rltrain-operator:1.0"
        assert image.config["rootfs"]["diff_ids"] == [diff_id(base), diff_id(ours)]
        with tarfile.open(fileobj=io.BytesIO(ours)) as archive:
            assert [(member.name, member.mtime, member.uid) for member in archive] == [
                ("opt/file", EPOCH, 1000),
                ("opt/link", EPOCH, 0),
            ]
            assert archive.getmember("opt/link").linkname == "file"


def test_what_the_base_made_keeps_its_time() -> None:
    history = [
        {"created": "base"},
        {"created": "base", "empty_layer": True},
        {"created": "base"},
        {"created": "ours", "empty_layer": True},
        {"created": "ours"},
        {"created": "ours"},
    ]
    config = timeless({"created": "now", "history": history, "os": "linux"}, 2, EPOCH)
    time = "2023-11-14T22:13:20Z"
    assert [entry["created"] for entry in config["history"]] == ["base", "base", "base", time, time, time]
    assert config["created"] == time
    assert config["os"] == "linux"


def test_archives_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    path = saved(tmp_path, layer({"opt/file": b"ours"}, 1))
    with pytest.raises(
        BadArchive, match=r"rltrain-operator:1.0 is not built on the base image that was named"
    ):
        write_release(path, tmp_path / "out", ["sha256:00"], EPOCH)
    with pytest.raises(BadArchive, match=r"no label org\.opencontainers\.image\.base\.name"):
        released(tmp_path, layer({"opt/file": b"ours"}, 1), labels={})
    empty = tmp_path / "empty.tar"
    tarfile.open(empty, "w").close()
    with pytest.raises(BadArchive, match=r"the archive has no file manifest\.json"):
        write_release(empty, tmp_path / "out", [], EPOCH)


def test_a_base_layer_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, layer({"opt/file": b"ours"}, 1))
    path.write_bytes(path.read_bytes().replace(BASE, BASE.replace(b"base", b"evil", 2)))
    with pytest.raises(BadArchive, match="a layer of the base image is not what its digest says"):
        write_release(path, tmp_path / "out", [diff_id(BASE)], EPOCH)


def test_the_commands_write_what_a_release_consists_of(tmp_path: Path) -> None:
    name = "opt/rltrain/lib/python3.11/site-packages/other-1.0.dist-info/METADATA"
    own = layer({name: b"Name: other\nVersion: 1.0\n"}, 1)
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "operator.txt").write_text(f"other==1.0 \\\n    --hash=sha256:{'a' * 64}\n")
    dist = tmp_path / "dist"
    dist.mkdir()
    archive = dist / "rltrain-operator-1.0.oci.tar"
    options = ["--base-layers", diff_id(BASE), "--lock", str(locks / "operator.txt"), "--epoch", str(EPOCH)]
    main(["image", str(saved(tmp_path, own)), str(archive), *options])
    bill = json.loads((dist / "rltrain-operator-1.0.cdx.json").read_text())
    assert [component["purl"] for component in bill["components"]] == ["pkg:pypi/other@1.0"]

    main(["provenance", str(dist), "--commit", "c0ffee", "--locks", str(locks), "--parameter", "version=1.0"])
    provenance = json.loads((dist / "provenance.json").read_text())
    subjects = {entry["name"]: entry["digest"]["sha256"] for entry in provenance["subject"]}
    assert set(subjects) == {archive.name, "rltrain-operator-1.0.cdx.json", "rltrain-operator:1.0"}
    assert subjects[archive.name] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert subjects["rltrain-operator:1.0"] == bill["metadata"]["component"]["hashes"][0]["content"]
    materials = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert materials[1]["digest"] == {"sha256": "ab" * 32}

    with pytest.raises(SystemExit, match=r"release: rltrain-operator:1\.0 is not built on the base image"):
        main(["image", str(tmp_path / "saved.tar"), str(archive), "--base-layers", "sha256:00", *options[2:]])
