"""Which policies of a run are listed, and that replicas are given none that is not what its manifest says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rl_api.errors import CheckpointError, Unavailable
from rl_api.run import TinyModelSpec
from rl_serve.arguments import PolicyRef
from rl_serve.catalog import checkpoints_of
from rl_serve.keys import KeyFolder, check_key
from rl_serve.shelf import KEPT, Shelf
from rl_trainer.checkpoint.manifest import Checkpoint
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.model.presets import write_tiny


def save(run: Path, step: int, **metadata: object) -> Checkpoint:
    shape = TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1)
    store = CheckpointStore(run / "checkpoints", keep=20)
    return store.save(
        step, {"model": lambda target: write_tiny(target, shape, step), "other": b"x"}, metadata
    )


def ref(found: Checkpoint) -> PolicyRef:
    return PolicyRef(source=str(found.path), digest=found.digest, version=f"step-{found.step}")


def test_checkpoints_newest_first_of_one_lineage(tmp_path: Path) -> None:
    ten = save(tmp_path, 10, fixed={"seed": 1})
    twenty = save(tmp_path, 20, fixed={"seed": 1}, lineage={"parent": {"step": 10, "digest": ten.digest}})
    listed, problem = checkpoints_of(str(tmp_path))
    assert ([one.digest for one in listed], problem) == ([twenty.digest, ten.digest], "")
    assert listed[0].body() == {"step": 20, "digest": twenty.digest, "source": str(twenty.path)}
    shutil.rmtree(ten.path)
    save(tmp_path / "elsewhere", 10, fixed={"seed": 1}, other=True).path.rename(ten.path)
    listed, problem = checkpoints_of(str(tmp_path))
    assert [one.step for one in listed] == [20]
    assert problem == "checkpoints of step 10 are of another run than that of step 20; left out"
    save(tmp_path, 30, fixed={"seed": 2})
    assert [one.step for one in checkpoints_of(str(tmp_path))[0]] == [30]


def test_why_there_are_none(tmp_path: Path) -> None:
    assert checkpoints_of(str(tmp_path)) == (
        [],
        f"{tmp_path}/checkpoints: there is no finished checkpoint yet",
    )
    assert checkpoints_of(str(tmp_path / "no")) == ([], f"{tmp_path / 'no'}: there is no such folder")
    for step in range(12):
        save(tmp_path, step)
    assert [one.step for one in checkpoints_of(str(tmp_path))[0]] == list(range(11, 1, -1))


def test_a_verified_copy_stays_when_the_checkpoint_goes(tmp_path: Path) -> None:
    shelf, found = Shelf(tmp_path / "cache"), save(tmp_path / "run", 1)
    folder = shelf.folder(ref(found))
    assert (folder / "model.safetensors").read_bytes() == (
        found.path / "model/model.safetensors"
    ).read_bytes()
    assert not (folder.parent / "other").exists()
    shutil.rmtree(tmp_path / "run")
    assert shelf.folder(ref(found)) == folder
    for step in range(2, 2 + KEPT):
        shelf.folder(ref(save(tmp_path / "run", step)))
    assert len(list((tmp_path / "cache" / "policies").iterdir())) == KEPT
    with pytest.raises(Unavailable, match="there is no such folder now"):
        shelf.folder(ref(found))


@pytest.mark.parametrize("name", ["model/model.safetensors", "other", "manifest.json"])
def test_an_altered_byte_is_refused(tmp_path: Path, name: str) -> None:
    found = save(tmp_path / "run", 1)
    content = bytearray((found.path / name).read_bytes())
    content[-2 % len(content)] ^= 1
    (found.path / name).write_bytes(content)
    with pytest.raises(CheckpointError):
        Shelf(tmp_path / "cache").folder(ref(found))
    assert not list((tmp_path / "cache").glob("policies/*"))


def test_another_digest_is_refused(tmp_path: Path) -> None:
    found = save(tmp_path / "run", 1)
    with pytest.raises(CheckpointError, match=f"its digest is {found.digest}, and not {'0' * 64}"):
        Shelf(tmp_path / "cache").folder(ref(found).model_copy(update={"digest": "0" * 64}))


def test_a_folder_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = "sk-0123456789abcdef", "sk-fedcba9876543210"
    (tmp_path / "ann").write_text(f"{one}\n")
    (tmp_path / "bob").write_text("short\n")
    (tmp_path / "..data").mkdir()
    keys = KeyFolder(tmp_path)
    assert check_key(f"Bearer {one}", keys()) in keys()
    assert len(keys()) == 1
    assert keys.problem.startswith("bob has a key that is too short")
    monkeypatch.setattr("rl_serve.keys._FRESH_SECONDS", -1.0)
    (tmp_path / "ann").write_text("")
    (tmp_path / "bob").write_text(other)
    assert check_key(f"Bearer {other}", keys()) in keys()
    assert keys.problem == "ann has no key; allowed: one on each line"
    (tmp_path / "ann").write_text(f"# ann's\n{one}\nsk short\n")
    assert check_key(f"Bearer {one}", keys()) in keys(), "one wrong line is no reason against the others"
    assert keys.problem.startswith("ann has a key that is too short or no key; allowed: at least 16")
    assert keys.problem.endswith("(line 3)")
    (tmp_path / "ann").write_bytes(f"{one[::-1]}\nsk-\u00e9".encode("latin-1"))
    assert len(keys()) == 1
    assert check_key(f"Bearer {other}", keys()) in keys(), "what was taken back is good no more"
    assert keys.problem == "ann is no text in UTF-8, so it has no keys; allowed: one on each line"
    (tmp_path / "ann").unlink()
    (tmp_path / "bob").unlink()
    assert keys() == frozenset(), "nobody may ask"
