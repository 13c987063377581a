"""Images as archives: `docker save`'s, rewritten so that two builds of one source are the same bytes.

Layers that come from the base image stay as they are. Ours have one time, the source's: Docker's builder stamps what it
writes with the time of the day. The result is an OCI layout that `docker load` reads as well.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
Json = dict[str, Any]


class BadArchive(Exception):
    """An archive is not what it should be; the message says how."""


class Blob(NamedTuple):
    """A file of an OCI layout, by its content."""

    digest: str
    size: int

    def described(self, media_type: str) -> Json:
        """As manifests name it."""
        return {"mediaType": media_type, "digest": f"sha256:{self.digest}", "size": self.size}


def write_release(saved: Path, written: Path, base: Sequence[str], epoch: int) -> None:
    """Writes an OCI archive of what `docker save` wrote; `base`: the base image's diff ids, `epoch`: seconds since 1970."""
    with tarfile.open(saved) as source, tempfile.TemporaryDirectory(dir=written.parent) as folder:
        (entry,) = _json(source, "manifest.json")
        config = timeless(_json(source, entry["Config"]), len(base), epoch)
        had: list[str] = config["rootfs"]["diff_ids"]
        if had[: len(base)] != list(base) or len(had) == len(base):
            raise BadArchive(f"{entry['RepoTags'][0]} is not built on the base image that was named")
        blobs = Path(folder)
        layers, ids = [], []
        for index, name in enumerate(entry["Layers"]):
            with tempfile.TemporaryFile(dir=blobs) as plain:
                if index < len(base):
                    shutil.copyfileobj(_file(source, name), plain)
                else:
                    with tarfile.open(fileobj=_file(source, name)) as layer:
                        write_layer(layer, plain, epoch)
                ids.append(f"sha256:{_digest(plain)}")
                layers.append(_compressed(plain, blobs))
        if ids[: len(base)] != list(base):
            raise BadArchive(f"{entry['RepoTags'][0]}: a layer of the base image is not what its digest says")
        config["rootfs"]["diff_ids"] = ids
        config_blob = _blob(blobs, _text(config))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config_blob.described(CONFIG),
            "layers": [layer.described(LAYER) for layer in layers],
            "annotations": {"org.opencontainers.image.base.name": base_name(config)},
        }
        manifest_blob = _blob(blobs, _text(manifest))
        _write_layout(written, blobs, entry["RepoTags"], config_blob, manifest_blob, layers, epoch)


def write_layer(layer: tarfile.TarFile, written: IO[bytes], epoch: int) -> None:
    """Writes a layer anew: same files in the same order, all of one time, without names of users."""
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as result:
        for member in layer:
            member.mtime = epoch
            member.uname = member.gname = ""
            kept = {
                key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")
            }
            member.pax_headers = kept
            result.addfile(member, layer.extractfile(member) if member.isreg() else None)


def timeless(config: Json, base_layers: int, epoch: int) -> Json:
    """An image's configuration: what was made after the layers of its base was made at `epoch`."""
    made = {"created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    history, layers = [], 0
    for entry in config.get("history", []):
        history.append(entry | made if layers >= base_layers else entry)
        layers += not entry.get("empty_layer", False)
    return config | made | {"history": history}


def base_name(config: Json) -> str:
    """The base image, as the build noted it."""
    labels: Mapping[str, str] = config["config"].get("Labels") or {}
    try:
        return labels["org.opencontainers.image.base.name"]
    except KeyError:
        raise BadArchive(
            "the image has no label org.opencontainers.image.base.name: scripts/images builds it"
        ) from None


class Released:
    """An archive that `write_release` wrote, for reading."""

    def __init__(self, path: Path):
        self._archive = tarfile.open(path)  # noqa: SIM115  (closed by `close`)
        (entry,) = _json(self._archive, "index.json")["manifests"]
        self.digest: str = entry["digest"]
        self._manifest: Json = self._blob(self.digest)
        self.config: Json = self._blob(self._manifest["config"]["digest"])
        (loaded,) = _json(self._archive, "manifest.json")
        self.name: str = loaded["RepoTags"][0]

    def __enter__(self) -> Released:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def layers(self) -> list[IO[bytes]]:
        """The layers as tar files, the base image's first."""
        names = [_place(entry["digest"]) for entry in self._manifest["layers"]]
        return [gzip.open(_file(self._archive, name)) for name in names]  # type: ignore[misc]

    def _blob(self, digest: str) -> Json:
        found: Json = _json(self._archive, _place(digest))
        return found


def _write_layout(
    written: Path,
    blobs: Path,
    names: list[str],
    config: Blob,
    manifest: Blob,
    layers: list[Blob],
    epoch: int,
) -> None:
    index = {"schemaVersion": 2, "manifests": [manifest.described(MANIFEST)]}
    paths = [_place(layer.digest) for layer in layers]
    loaded = [{"Config": _place(config.digest), "RepoTags": names, "Layers": paths}]
    texts = {"oci-layout": {"imageLayoutVersion": "1.0.0"}, "index.json": index, "manifest.json": loaded}
    with tarfile.open(written, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, value in texts.items():
            _add(archive, name, BytesIO(_text(value)), len(_text(value)), epoch)
        for blob in dict.fromkeys([manifest, config, *layers]):
            with (blobs / blob.digest).open("rb") as file:
                _add(archive, _place(blob.digest), file, blob.size, epoch)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, epoch, 0o644
    archive.addfile(member, file)


def _compressed(plain: IO[bytes], blobs: Path) -> Blob:
    """A layer, compressed: without a name or a time in its head."""
    plain.seek(0)
    with tempfile.NamedTemporaryFile(dir=blobs, delete=False) as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
        file.flush()
        path = Path(file.name)
        with path.open("rb") as written:
            blob = Blob(_digest(written), path.stat().st_size)
    path.rename(blobs / blob.digest)
    return blob


def _blob(blobs: Path, content: bytes) -> Blob:
    blob = Blob(hashlib.sha256(content).hexdigest(), len(content))
    (blobs / blob.digest).write_bytes(content)
    return blob


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _json(archive: tarfile.TarFile, name: str) -> Any:
    return json.load(_file(archive, name))


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        found = archive.extractfile(name)
    except KeyError:
        found = None
    if found is None:
        raise BadArchive(f"the archive has no file {name}")
    return found
