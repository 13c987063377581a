"""A checkpoint that one was given: whether it is as it was written, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hostile import TRICKS, steering

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.inspection import inspect_folder, inspect_remote, table, told
from rl_trainer.checkpoint.manifest import MANIFEST, build_manifest
from rl_trainer.checkpoint.remote import mirror
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.cli import main
from rl_trainer.storage.remote_folder import RemoteFolder

LINEAGE = {
    "spec": "a" * 64,
    "data": "dates.jsonl, " + "b" * 64,
    "code": "rltrain 1",
    "rewards": {"m:f": "c" * 64, "x:y": None},
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two checkpoints, the second of which names the first as its parent."""
    found = CheckpointStore(tmp_path / "run" / "checkpoints")
    writers: dict[str, Any] = {"weights.bin": bytes(2000), "hf/config.json": b"{}"}
    first = found.save(10, writers, {"lineage": LINEAGE | {"parent": None}})
    found.save(20, writers, {"lineage": LINEAGE | {"parent": {"step": 10, "digest": first.digest}}})
    return found


def path_of(store: CheckpointStore, step: int) -> Path:
    return store.folder / f"step-{step:08d}"


def test_a_sound_one_and_its_lineage(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = store.list()
    assert main(["verify", str(second.path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"checkpoint  {second.path}",
        "step        20",
        "files       2, 2,002 bytes",
        f"digest      {second.digest}",
        f"spec        {'a' * 64}",
        f"data        dates.jsonl, {'b' * 64}",
        f"parent      step 10, {first.digest}",
        "code        rltrain 1",
        f"rewards     m:f {'c' * 64}, x:y without source",
        "every file is as it was written",
    ]
    assert main(["verify", str(first.path), "--digest", first.digest.upper()]) == 0
    assert "parent      none, it is the first of its run" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "at"), [("weights.bin", 0), ("weights.bin", 1999), ("hf/config.json", 1)])
def test_a_changed_byte_is_found(
    store: CheckpointStore, name: str, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = path_of(store, 20) / name
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(path_of(store, 20))]) == 1
    sentence = f"rltrain: {path_of(store, 20)}: {name} was changed: its SHA-256 is another\n"
    assert capsys.readouterr().err == sentence


def test_every_byte_of_the_manifest_counts(store: CheckpointStore) -> None:
    manifest = path_of(store, 10) / MANIFEST
    content, found = manifest.read_bytes(), inspect_folder(path_of(store, 10)).checkpoint
    refused = 0
    for at in range(0, len(content), 7):
        changed = bytearray(content)
        changed[at] ^= 1
        manifest.write_bytes(changed)
        try:
            other = inspect_folder(path_of(store, 10)).checkpoint
        except CheckpointError:
            refused += 1
            continue
        assert other == found, "white space"
    assert refused > 50


def test_what_is_missing_added_linked_or_of_another_size(store: CheckpointStore) -> None:
    path = path_of(store, 20)
    (path / "weights.bin").write_bytes(b"short")
    (path / "hf" / "config.json").unlink()
    (path / "hf" / "evil.py").write_text("import os")
    (path / "link").symlink_to("/etc/passwd")
    assert inspect_folder(path).problems == (
        "hf/config.json is missing",
        "weights.bin has 5 bytes instead of 2,000",
        "hf/evil.py is not of the checkpoint",
        "link is not of the checkpoint",
    )
    (path / "weights.bin").unlink()
    (path / "weights.bin").symlink_to(path_of(store, 10) / "weights.bin")
    assert "weights.bin is a link, or no file" in inspect_folder(path).problems


def test_a_folder_of_another_name(store: CheckpointStore) -> None:
    path = path_of(store, 10).rename(store.folder / "step-00000015")
    assert inspect_folder(path).problems == ("the folder is named step-00000015, the manifest is of step 10",)
    assert inspect_folder(path.rename(store.folder.parent / "downloaded")).problems == ()


def test_a_parent_that_is_another(store: CheckpointStore) -> None:
    lineage = LINEAGE | {"parent": {"step": 10, "digest": "0" * 64}}
    child = store.save(20, {"a": b""}, {"lineage": lineage})
    (problem,) = inspect_folder(child.path).problems
    assert problem.startswith("step-00000010 beside it is not its parent: its digest is ")
    (path_of(store, 10) / MANIFEST).write_text("{}")
    (problem,) = inspect_folder(child.path).problems
    assert problem == "step-00000010 beside it, its parent, cannot be read: manifest.json cannot be read"
    again = store.save(10, {"a": b""}, {"lineage": lineage})
    assert inspect_folder(again.path).problems == (), "it has taken the place of its parent"


def test_another_digest(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(path_of(store, 10)), "--digest", "0" * 64]) == 1
    assert (
        f"its digest is not {'0' * 64}: it is another checkpoint, or its manifest" in capsys.readouterr().err
    )


def test_one_of_an_earlier_version_says_what_it_did_not_record(tmp_path: Path) -> None:
    found = CheckpointStore(tmp_path).save(3, {"a": b"b"}, {"fixed": {}})
    facts = dict(table(inspect_folder(found.path)))
    assert {facts[name] for name in ("spec", "data", "parent", "code", "rewards")} == {"not recorded"}
    assert facts["digest"] == found.digest


def test_no_checkpoint(store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, sentence in (
        (tmp_path / "nothing", "manifest.json is missing; there is no such folder"),
        (tmp_path, "manifest.json is missing"),
        (store.folder, "manifest.json is missing; name the folder of one checkpoint, such as step-00000020"),
        (
            store.folder.parent,
            "manifest.json is missing; name the folder of one checkpoint, such as step-00000020",
        ),
    ):
        assert main(["verify", str(place)]) == 1
        assert capsys.readouterr().err == f"rltrain: {place}: {sentence}\n"


def test_in_an_object_store(store: CheckpointStore, tmp_path: Path, any_scheme: None) -> None:
    root = f"file://{tmp_path}/bucket"
    place = mirror(store, RemoteFolder(root))
    found = inspect_remote(RemoteFolder(place))
    assert (found.problems, found.checkpoint.digest) == ((), store.list()[-1].digest)
    remote = RemoteFolder(place)
    remote.write("weights.bin", bytes(1999) + b"x")
    remote.write("hf/evil.py", b"")
    remote.delete("hf/config.json")
    assert inspect_remote(RemoteFolder(place)).problems == (
        "hf/config.json is missing",
        "weights.bin was changed: its SHA-256 is another",
        "hf/evil.py is not of the checkpoint",
    )
    remote.write(MANIFEST, b"{}")
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        inspect_remote(RemoteFolder(place))
    with pytest.raises(
        CheckpointError, match=r"manifest\.json is missing; name the folder of one checkpoint"
    ):
        inspect_remote(RemoteFolder(root))


def test_another_address_is_not_opened(capsys: pytest.CaptureFixture[str]) -> None:
    place = "http://169.254.169.254/step-00000010"
    assert main(["verify", place]) == 1
    assert f"found '{place}', allowed: s3://bucket/folder" in capsys.readouterr().err


def test_a_file_that_cannot_be_read(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rl_trainer.checkpoint.inspection.sha256_of", refused)
    assert inspect_folder(path_of(store, 10)).problems == (
        "hf/config.json cannot be read (Permission denied)",
        "weights.bin cannot be read (Permission denied)",
    )


@pytest.mark.parametrize("odd", [*TRICKS, 5, ["x"], None])
def test_a_manifest_of_somebody_elses_does_not_steer_the_terminal(
    tmp_path: Path, odd: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    parent = {"step": odd, "digest": odd}
    said = {"spec": odd, "data": odd, "parent": parent, "code": odd, "rewards": {"a": odd}}
    for lineage in (said, odd, said | {"parent": odd, "rewards": odd}):
        metadata = json.loads(json.dumps({"lineage": lineage}))
        (folder / MANIFEST).write_bytes(build_manifest(1, metadata, {"missing": (1, "0" * 64)}))
        assert main(["verify", str(folder)]) == 1
        text = capsys.readouterr()
        assert steering(text.out + text.err) == []


def test_many_problems_are_not_all_told() -> None:
    problems = tuple(f"{number} is missing" for number in range(30))
    assert told(problems)[-2:] == ["19 is missing", "and 10 more"]
    assert told(problems[:20]) == list(problems[:20])
