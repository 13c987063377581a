"""Copies of checkpoints elsewhere: complete or not there, verified on the way back, each with a deadline."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from rl_api.errors import CheckpointError, RunFolderBusy
from rl_trainer.checkpoint.manifest import Checkpoint, DamagedError, build_manifest, verify
from rl_trainer.checkpoint.remote import fetch, look_at, mirror, survey
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.storage.remote_folder import RemoteFolder


@pytest.fixture(params=["memory", "file"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, any_scheme: None) -> str:
    """A remote folder that does not exist yet."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return "memory://bucket/runs/one" if request.param == "memory" else f"file://{tmp_path}/remote/runs/one"


def saved(folder: Path, steps: list[int], keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(folder, keep)
    for step in steps:
        save(store, step)
    return store


def save(store: CheckpointStore, step: int) -> None:
    store.save(step, {"weights.bin": bytes([step]) * 2000, "hf/config.json": b"{}"}, {"cursor": step})


def check(checkpoint: Checkpoint | None, step: int) -> None:
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.metadata) == (step, {"cursor": step})
    assert checkpoint.read("weights.bin") == bytes([step]) * 2000
    assert checkpoint.read("hf/config.json") == b"{}"


def remote_names(uri: str) -> list[str]:
    fs, root = fsspec.core.url_to_fs(uri)
    return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False))


def test_there_and_back(tmp_path: Path, uri: str) -> None:
    store = saved(tmp_path / "here", [10, 20])
    assert mirror(store, RemoteFolder(uri)) == f"{uri}/step-00000020"
    other = CheckpointStore(tmp_path / "there")
    fetched = fetch(other, RemoteFolder(uri))
    check(fetched, 20)
    assert fetched is not None
    assert fetched.skipped == ()
    assert fetched.path == tmp_path / "there" / "step-00000020"
    check(other.load_latest(), 20)
    assert fetched.digest == verify(store.folder / "step-00000020").digest


def test_nothing_there(tmp_path: Path, uri: str) -> None:
    assert fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri)) is None
    with pytest.raises(CheckpointError, match=r"There is no checkpoint in .* to copy"):
        mirror(CheckpointStore(tmp_path / "here"), RemoteFolder(uri))


def test_the_copies_are_kept_like_the_originals(tmp_path: Path, uri: str) -> None:
    store = CheckpointStore(tmp_path / "here", keep=2)
    for step in (10, 20, 40):
        save(store, step)
        mirror(store, RemoteFolder(uri))
    assert remote_names(uri) == ["step-00000020", "step-00000040"]
    save(store, 30)  # resumed from 20: 40 was given up
    mirror(store, RemoteFolder(uri))
    assert remote_names(uri) == ["step-00000020", "step-00000030"]


def test_an_attempt_that_was_replaced_deletes_nothing_of_the_next_one(tmp_path: Path, uri: str) -> None:
    mirror(saved(tmp_path / "next", [40]), RemoteFolder(uri))
    answers = iter([None, None, None, RunFolderBusy("taken over")])

    def owned() -> None:
        if (error := next(answers)) is not None:
            raise error

    with pytest.raises(RunFolderBusy, match="taken over"):
        mirror(saved(tmp_path / "here", [30]), RemoteFolder(uri), owned)
    assert remote_names(uri) == ["step-00000030", "step-00000040"]
    check(fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri)), 40)


def test_a_copy_is_made_once_and_renewed_when_the_step_is_saved_again(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path / "here", [10])
    mirror(store, RemoteFolder(uri))
    uploads: list[str] = []
    for kind in (MemoryFileSystem, LocalFileSystem):
        real = kind.put_file

        def put_file(self: Any, local: str, remote: str, real: Any = real, **options: Any) -> Any:
            uploads.append(Path(local).name)
            return real(self, local, remote, **options)

        monkeypatch.setattr(kind, "put_file", put_file)
    mirror(store, RemoteFolder(uri))
    assert uploads == []
    store.save(10, {"other": b"new"}, {"cursor": "again"})
    mirror(store, RemoteFolder(uri))
    assert uploads == ["other"]
    fetched = fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))
    assert fetched is not None
    assert (fetched.metadata, list(fetched.files)) == ({"cursor": "again"}, ["other"])


def test_an_upload_that_stops_half_way_is_no_copy(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path / "here", [10])
    mirror(store, RemoteFolder(uri))
    save(store, 20)
    for kind in (MemoryFileSystem, LocalFileSystem):
        real = kind.put_file

        def put_file(self: Any, local: str, remote: str, real: Any = real, **options: Any) -> Any:
            if local.endswith("weights.bin"):
                raise ConnectionResetError(104, "Connection reset by peer")
            return real(self, local, remote, **options)

        monkeypatch.setattr(kind, "put_file", put_file)
    with pytest.raises(CheckpointError) as error:
        mirror(store, RemoteFolder(uri))
    assert str(error.value) == (
        f"The checkpoint of step 20 could not be copied to {uri}: Connection reset by peer. "
        f"It is safe in {tmp_path}/here/step-00000020. Look at the place and its rights."
    )
    check(fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri)), 10)
    monkeypatch.undo()
    mirror(store, RemoteFolder(uri))
    check(fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri)), 20)


def test_a_renewal_that_stops_half_way_is_no_mixture(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path / "here", [10])
    mirror(store, RemoteFolder(uri))
    save(store, 20)
    mirror(store, RemoteFolder(uri))
    store.save(20, {"weights.bin": b"new", "zzz": b"new"}, {"cursor": "again"})
    for kind in (MemoryFileSystem, LocalFileSystem):

        def put_file(self: Any, local: str, remote: str, **options: Any) -> None:
            if local.endswith("zzz"):
                raise ConnectionResetError(104, "Connection reset by peer")
            self.pipe_file(remote, Path(local).read_bytes())

        monkeypatch.setattr(kind, "put_file", put_file)
    with pytest.raises(CheckpointError, match="Connection reset"):
        mirror(store, RemoteFolder(uri))
    fetched = fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))
    check(fetched, 10)
    assert fetched is not None
    assert fetched.skipped == ()  # not a damaged copy: none


def test_an_upload_that_arrives_short_is_noticed(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path / "here", [10])
    for kind in (MemoryFileSystem, LocalFileSystem):

        def put_file(self: Any, local: str, remote: str, **options: Any) -> None:
            self.pipe_file(remote, Path(local).read_bytes()[:-1])

        monkeypatch.setattr(kind, "put_file", put_file)
    with pytest.raises(CheckpointError, match=r"hf/config.json arrived with 1 bytes instead of 2"):
        mirror(store, RemoteFolder(uri))
    assert fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri)) is None


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("weights.bin", b"\x14" * 1999, "weights.bin has 1,999 bytes instead of 2,000"),
        ("weights.bin", b"\x14" * 1999 + b"\x15", "weights.bin does not match its checksum"),
        ("weights.bin", None, "weights.bin is missing"),
        ("manifest.json", b"{}", "manifest.json cannot be read"),
    ],
)
def test_a_damaged_copy_is_passed_over(
    tmp_path: Path, uri: str, name: str, data: bytes | None, reason: str
) -> None:
    store = saved(tmp_path / "here", [10])
    mirror(store, RemoteFolder(uri))
    save(store, 20)
    mirror(store, RemoteFolder(uri))
    fs, root = fsspec.core.url_to_fs(uri)
    path = f"{root}/step-00000020/{name}"
    if data is None:
        fs.rm_file(path)
    else:
        fs.pipe_file(path, data)
    other = CheckpointStore(tmp_path / "there")
    fetched = fetch(other, RemoteFolder(uri))
    check(fetched, 10)
    assert fetched is not None
    assert fetched.skipped == (f"The copy of step 20 in {uri} was skipped: {reason}.",)
    assert [path.name for path in other.folder.iterdir()] == ["step-00000010"]
    fs.rm(f"{root}/step-00000010", recursive=True)
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* can be used"):
        fetch(CheckpointStore(tmp_path / "third"), RemoteFolder(uri))


def test_a_copy_under_another_steps_name_is_damaged(tmp_path: Path, uri: str) -> None:
    store = saved(tmp_path / "here", [10])
    mirror(store, RemoteFolder(uri))
    fs, root = fsspec.core.url_to_fs(uri)
    fs.mv(f"{root}/step-00000010", f"{root}/step-00000011", recursive=True)
    with pytest.raises(CheckpointError, match="manifest is not of step 11"):
        fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))


def test_a_good_local_copy_is_not_downloaded_again(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path / "here", [10])
    mirror(store, RemoteFolder(uri))
    for kind in (MemoryFileSystem, LocalFileSystem):
        monkeypatch.setattr(kind, "get_file", lambda *_, **__: pytest.fail("downloaded"))
    check(fetch(store, RemoteFolder(uri)), 10)
    monkeypatch.undo()
    (store.folder / "step-00000010" / "weights.bin").write_bytes(b"\x0b" * 2000)  # right size, wrong bytes
    check(fetch(store, RemoteFolder(uri)), 10)
    check(store.load_latest(), 10)


def test_a_damaged_checkpoint_is_not_copied(tmp_path: Path, uri: str) -> None:
    store = saved(tmp_path / "here", [10], keep=1)
    mirror(store, RemoteFolder(uri))
    save(store, 20)
    (store.folder / "step-00000020" / "weights.bin").write_bytes(b"\x00" * 2000)
    with pytest.raises(CheckpointError, match=r"weights.bin does not match its checksum"):
        mirror(store, RemoteFolder(uri))
    check(fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri)), 10)


def test_a_place_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_scheme: None
) -> None:
    store = saved(tmp_path / "here", [10])
    release = threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, **__: release.wait(60) and {})
    try:
        sentence = r"could not be copied to memory://b: nothing has moved for 0\.05 s\. It is safe in "
        with pytest.raises(CheckpointError, match=sentence):
            mirror(store, RemoteFolder("memory://b", stalled=0.05))
    finally:
        release.set()


def test_a_missing_package_and_an_unknown_scheme_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path / "here", [10])
    for place in (
        "nowhere://x",
        "http://169.254.169.254/x",
        "file:///etc",
        "s3://b/../c",
        "zip://a::s3://b/c",
    ):
        sentence = rf"could not be copied to {place}: ValueError: found '{place}', allowed: s3://bucket/folder, no .. in it"
        with pytest.raises(CheckpointError, match=sentence):
            mirror(store, RemoteFolder(place))

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(CheckpointError, match=r"Install s3fs to access S3\. Install rltrain\[s3\]"):
        mirror(store, RemoteFolder("s3://bucket/x"))
    with pytest.raises(CheckpointError, match="No checkpoint could be read from s3://bucket/x"):
        fetch(store, RemoteFolder("s3://bucket/x"))


SHA = "0" * 64


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../../.ssh/authorized_keys", "is no plain path inside the checkpoint"),
        ("a/../../b", "is no plain path inside the checkpoint"),
        ("/etc/cron.d/x", "is no plain path inside the checkpoint"),
        ("a//b", "is no plain path inside the checkpoint"),
        ("", "is no plain path inside the checkpoint"),
        ("..\\\\windows", "holds a backslash or a control character"),
        ("a\\0b", "holds a backslash or a control character"),
        ("x" * 513, "is longer than 512 characters"),
        ("manifest.json", "is that of the manifest.json itself"),
    ],
)
def test_a_manifest_of_somebody_elses_names_no_path_outside(
    tmp_path: Path, uri: str, name: str, why: str
) -> None:
    name = name.encode().decode("unicode_escape")
    remote, store = RemoteFolder(uri), CheckpointStore(tmp_path / "a" / "b" / "there")
    remote.write("step-00000010/manifest.json", build_manifest(10, {}, {name: (5, SHA)}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=f"manifest.json names the file .*, which {why}"):
        fetch(store, remote)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"a": (-1, SHA)}, "has no size and SHA-256 of 'a'"),
        ({"a": (2**60, SHA)}, "has no size and SHA-256 of 'a'"),
        ({"a": (1.5, SHA)}, "has no size and SHA-256 of 'a'"),
        ({"a": (1, "../x")}, "has no size and SHA-256 of 'a'"),
        (
            {str(number): (0, SHA) for number in range(100_001)},
            "names 100,001 files, allowed: at most 100,000",
        ),
    ],
)
def test_sizes_and_sums_of_a_manifest_are_checked(files: Any, why: str, tmp_path: Path, uri: str) -> None:
    RemoteFolder(uri).write("step-00000010/manifest.json", build_manifest(10, {}, files))
    with pytest.raises(CheckpointError, match=why):
        fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))


@pytest.mark.parametrize(("step", "metadata"), [("10", {}), (-1, {}), (10**20, {}), (10, [])])
def test_a_manifest_that_is_none_of_a_checkpoint(step: Any, metadata: Any, tmp_path: Path, uri: str) -> None:
    RemoteFolder(uri).write("step-00000010/manifest.json", build_manifest(step, metadata, {}))
    with pytest.raises(CheckpointError, match=r"manifest\.json is none of a checkpoint"):
        fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))


def test_a_file_that_is_larger_than_said_is_not_downloaded(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(saved(tmp_path / "here", [10]), RemoteFolder(uri))
    RemoteFolder(uri).write("step-00000010/weights.bin", bytes(5000))
    downloaded: list[str] = []
    download = RemoteFolder.download

    def counted(remote: RemoteFolder, name: str, target: Path) -> None:
        downloaded.append(name)
        download(remote, name, target)

    monkeypatch.setattr(RemoteFolder, "download", counted)
    with pytest.raises(CheckpointError, match=r"weights\.bin has 5,000 bytes instead of 2,000"):
        fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))
    assert "step-00000010/weights.bin" not in downloaded


def test_a_manifest_without_end_is_not_read(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_trainer.storage.remote_folder.MOST_READ", 1 << 20)
    RemoteFolder(uri).write("step-00000010/manifest.json", bytes(1 << 20))
    with pytest.raises(CheckpointError, match=r"step-00000010/manifest\.json is larger than 1 MiB"):
        fetch(CheckpointStore(tmp_path / "there"), RemoteFolder(uri))


@pytest.mark.parametrize("link", ["weights.bin", "hf"])
def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path, link: str) -> None:
    path = saved(tmp_path / "here", [10]).list()[0].path
    (path / link).rename(tmp_path / "elsewhere")
    (path / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="is a symbolic link, or in a folder that is one"):
        verify(path)


def test_large_files_stay_where_they_are_and_are_looked_at(tmp_path: Path, uri: str) -> None:
    remote, folder = RemoteFolder(uri), tmp_path / "small"
    for step in (10, 20):
        mirror(saved(tmp_path / str(step), [step]), remote)

    def found(before: int | None = None, passed: str = "") -> Checkpoint | None:
        return survey(remote, folder, lambda name: name == "weights.bin", before=before, passed=passed)

    first = found()
    assert first is not None
    assert (first.step, first.uri, first.elsewhere) == (20, f"{uri}/step-00000020", {"weights.bin"})
    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "hf", "manifest.json"]
    there = {"weights.bin": first.files["weights.bin"]}
    assert look_at(first.uri, there) == ("", "")
    remote.write("step-00000020/weights.bin", b"?" * 2000)
    assert look_at(first.uri, there) == ("", "weights.bin does not match its checksum")
    remote.write("step-00000020/weights.bin", b"short")
    assert look_at(first.uri, there) == ("", "weights.bin has 5 bytes instead of 2,000")
    earlier = found()  # sizes are looked at, of what stays too
    assert earlier is not None
    assert earlier.step == 10
    assert earlier.skipped == (
        f"The copy of step 20 in {uri} was skipped: weights.bin has 5 bytes instead of 2,000.",
    )
    remote.write("step-00000010/hf/config.json", b"??")
    with pytest.raises(CheckpointError) as refused:
        found(before=20, passed="Step 20 was not good.")
    assert str(refused.value) == (
        f"No checkpoint in {uri} can be used. Step 20 was not good. The copy of step 10 in {uri} was skipped: "
        "hf/config.json does not match its checksum."
    )
    remote.delete("step-00000010")
    assert found(before=20) is None


def test_what_the_store_itself_finds_changed_is_damaged(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As botocore says it, of the newest; the one before is taken."""
    remote = RemoteFolder(uri)
    for step in (10, 20):
        mirror(saved(tmp_path / str(step), [step]), remote)
    error = type("FlexibleChecksumError", (Exception,), {})
    files = type(remote._files)
    get, opened = files.get_file, files.open

    def refused(work: Any) -> Any:
        def call(self: Any, path: str, *arguments: Any, **named: Any) -> Any:
            if path.endswith("20/weights.bin"):
                raise error("Expected checksum a== did not match calculated checksum: b==")
            return work(self, path, *arguments, **named)

        return call

    monkeypatch.setattr(files, "get_file", refused(get))
    monkeypatch.setattr(files, "open", refused(opened))
    digest = {"weights.bin": (2000, "0" * 64)}
    assert look_at(f"{uri}/step-00000020", digest) == ("", "weights.bin does not match its checksum")
    fetched = fetch(CheckpointStore(tmp_path / "there"), remote)
    check(fetched, 10)
    assert fetched is not None
    assert fetched.skipped == (
        f"The copy of step 20 in {uri} was skipped: weights.bin does not match its checksum.",
    )
