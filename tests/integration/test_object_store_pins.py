"""A service that follows a run in an object store, with a real S3 server: its pin, and the run's file for the gate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from object_store import ObjectStore

from rl_api.errors import CheckpointError, InvalidConfig
from rl_serve.arguments import PolicyRef
from rl_serve.catalog import checkpoints_of
from rl_serve.gate.heldout import bring_run
from rl_serve.keeper import Keeper
from rl_trainer.checkpoint.remote import mirror
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.storage.remote_folder import RemoteFolder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    served = ObjectStore(tmp_path / "object-store")
    served.start()
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # they remember credentials
    yield served
    served.stop()


def test_what_a_service_has_pinned_in_the_bucket_stays(store: ObjectStore, tmp_path: Path) -> None:
    bucket, uri = store.bucket("pinned"), "s3://pinned/run"
    told: list[str] = []
    kept = CheckpointStore(tmp_path / "run", 1, tell=told.append)

    def save(step: int) -> PolicyRef:
        kept.save(step, {"weights": bytes([step])})
        mirror(kept, RemoteFolder(uri))
        listed, problem = checkpoints_of(uri)
        assert (listed[0].step, problem) == (step, "")
        return PolicyRef(source=listed[0].source, digest=listed[0].digest, version=f"v{step}")

    def there() -> list[int]:
        return [one.step for one in checkpoints_of(uri)[0]]

    head = Keeper(uri, "chat", "uid", time.time)
    head.ask(save(10))
    head.ask(save(20))
    head.ask(save(30), candidate=True)
    save(40)
    save(50)
    assert there() == [50, 30, 20, 10]
    other = Keeper(uri, "chat", "uid", time.time)  # of the next pod
    other.renew()
    save(60)
    assert there() == [60, 30, 20, 10]
    assert (other.problem, told) == ("", [])
    (bucket / "run" / ".pins" / "chat-uid.json").unlink()
    save(70)
    assert there() == [70]


def test_a_service_without_rights_to_write_says_so(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.bucket("refused")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    s3fs.S3FileSystem.clear_instance_cache()
    head = Keeper("s3://refused/run", "chat", "uid", time.time)
    head.ask(PolicyRef(source="s3://refused/run/step-00000010", digest="0" * 64, version="v"))
    assert head.problem.startswith(
        "training may delete checkpoints that are served, as they cannot be pinned: s3://refused/run/.pins cannot be "
        "written: "
    )


def test_the_runs_file_comes_from_the_bucket(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.bucket("file") / "run"
    with pytest.raises(InvalidConfig, match=r"there is no s3://file/run/run\.yaml"):
        bring_run("s3://file/run", tmp_path / "here")
    for text in ("one", "two"):
        RemoteFolder("s3://file/run").write("run.yaml", text.encode())
        found = bring_run("s3://file/run", tmp_path / "here")
        assert (found / "run.yaml").read_text() == text
    (folder / "run.yaml").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(InvalidConfig, match=r"run\.yaml has 1,048,577 bytes, allowed: 1,048,576"):
        bring_run("s3://file/run", tmp_path / "here")
    store.stop()
    with pytest.raises(CheckpointError, match=r"s3://file/run/run\.yaml cannot be read"):
        bring_run("s3://file/run", tmp_path / "here")
