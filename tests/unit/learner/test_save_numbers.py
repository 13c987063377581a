"""Which of the saves that learners have begun they are asked about, and that no file of it is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_api import RunSpec
from rl_api.errors import CheckpointError, RunFolderBusy
from rl_trainer.checkpoint.manifest import sha256_of
from rl_trainer.checkpoint.remote import complete, fetch, steps, sweep
from rl_trainer.checkpoint.state import WEIGHTS, SavedFiles
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.checkpoint.tensor_file import FileHead, ShardWriter, file_head
from rl_trainer.flow.worker_group import Handle
from rl_trainer.learner import actor
from rl_trainer.learner import writing as writing_module
from rl_trainer.learner.actor import LearnerActor
from rl_trainer.learner.group import Learners
from rl_trainer.learner.results import Written
from rl_trainer.learner.writing import LearnersWriting
from rl_trainer.storage.ownership import Upload
from rl_trainer.storage.remote_folder import RemoteFolder, RemoteWriter
from rl_trainer.weights.stream import Piece

PARTS = {WEIGHTS: "model"}


class OneFile:
    """As `Save`: of rank N the file N, with one number."""

    weight_bytes = 8

    def __init__(self, learner: int, parts: Mapping[str, str], *, limit: int, copied: bool):
        self._name = str(learner)
        self.heads = [file_head(self._name, {"a": ("F32", (1,))})]
        self.weight_map = {"a": "0", "b": "1"}

    def rounds(self) -> Iterator[list[Piece]]:
        """One."""
        yield [(self._name, np.zeros(4, np.uint8))]


class Here:
    """The actor of a rank, in this process; a call that fails answers with its exception."""

    def __init__(self, rank: int):
        self.rank, self.learner, self._rounds, self._writing, self._save = rank, rank, iter(()), None, 0
        self._pulse: Any = None
        self.dropped: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return Call(self, name)


class Call:
    """A method of `Here`."""

    def __init__(self, here: Here, name: str):
        self._here, self._name = here, name

    def __call__(self, *arguments: Any) -> Any:
        return getattr(LearnerActor, self._name)(self._here, *arguments)

    def remote(self, *arguments: Any) -> Any:
        """As Ray calls it."""
        if self._name == "drop_save":
            self._here.dropped.append(*arguments)
        try:
            return self(*arguments)
        except CheckpointError as error:
            return error


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    def wait(handle: Handle, *_: object) -> list[Any]:
        for found in handle.calls.values():
            if isinstance(found, Exception):
                raise found
        return list(handle.calls.values())

    monkeypatch.setattr(Handle, "wait", wait)
    monkeypatch.setattr(actor, "Save", OneFile)
    return [Here(0), Here(1)]


def test_a_save_that_a_later_one_has_dropped_is_never_finished(ranks: list[Any], tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    learners = Learners(ranks, RunSpec())
    first = learners.write(tmp_path / "first", PARTS)
    second = learners.write(tmp_path / "second", PARTS)
    with pytest.raises(CheckpointError, match=r"^learner 0: its files of save 1 were given up, .* is 2$"):
        first.finished()
    first.drop()
    files = second.finished()
    assert files is not None, "who gives the first up leaves the second alone"
    assert sorted(files.digests) == ["0", "1"]
    with pytest.raises(CheckpointError, match=r"^learner 0: its files of save 2 were given up"):
        second.finished()


@pytest.mark.parametrize("written", [{}, {"0": (84, "x")}, {"0": (84, "x"), "1": (84, "x")}])
def test_files_that_nobody_has_written_are_missed(written: dict[str, tuple[int, str]]):
    writing = LearnersWriting(
        SavedFiles({}, {"a": "0", "b": "1"}, 8), ["0", "2"], lambda: [Written(0, written)], lambda: None
    )
    missing = next(name for name in ("0", "1", "2") if name not in written)
    with pytest.raises(CheckpointError, match=f"^{missing}: no learner has written it$"):
        writing.finished()


def test_a_rank_that_cannot_begin_ends_what_the_others_began(
    ranks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begin = ShardWriter.__init__

    def full(self: ShardWriter, folder: Path, heads: Sequence[FileHead], *check: Any) -> None:
        begin(self, folder, heads, *check)
        if any(head.name == "1" for head in heads):
            raise CheckpointError("1: No space left on device")

    monkeypatch.setattr(ShardWriter, "__init__", full)
    with pytest.raises(CheckpointError, match=r"^1: No space left on device$"):
        Learners(ranks, RunSpec()).write(tmp_path, PARTS, background=True)
    assert [one.dropped for one in ranks] == [[1], [1]]
    assert all(one._writing is None and next(one._rounds, None) is None for one in ranks)


def test_a_file_that_cannot_be_opened_leaves_no_other_one_open(tmp_path: Path):
    (tmp_path / "b").mkdir()
    heads = [file_head(name, {"a": ("F32", (1,))}) for name in ("a", "b")]
    writer = ShardWriter.__new__(ShardWriter)
    with pytest.raises(CheckpointError, match=r"^b: "):
        writer.__init__(tmp_path, heads)  # type: ignore[misc]
    assert [file._file.closed for file in writer._files.values()] == [True]


def test_who_waits_asks_each_rank_once_a_look(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing_module, "LOOK_SECONDS", 0.0)
    looks = iter([[Written(0, None)], [Written(1, None)], [Written(2, {"0": (84, "x")})]])
    assert LearnersWriting(SavedFiles({}, {}, 0), ["0"], lambda: next(looks), lambda: None).wait().digests
    assert next(looks, None) is None


class Told:
    """As `Pulse` and `Watch` together."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def tell(self, name: str, said: Any) -> None:
        """As `Pulse`."""
        self.said[name] = said

    def told(self) -> dict[str, Any]:
        """As `Watch`."""
        return self.said


def test_learners_that_cannot_be_asked_have_told(
    ranks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told: Any = Told()
    for one in ranks:
        one._pulse = told
    learners = Learners(ranks, RunSpec(), watch=told)
    monkeypatch.setattr(actor, "_reached", lambda folder: folder == tmp_path and False)
    sent = learners.write(tmp_path, PARTS, background=True)
    assert sent.finished() is not None, "there is nothing that they write after it was sent"
    monkeypatch.undo()
    monkeypatch.setattr(Handle, "wait", lambda handle, *_: list(handle.calls.values()))
    monkeypatch.setattr(actor, "Save", OneFile)
    writing = learners.write(tmp_path, PARTS, background=True)
    for one in ranks:
        one._writing._thread.join(10)
        monkeypatch.setattr(one, "save_written", lambda: pytest.fail("asked"), raising=False)
    first, told.said["learner 1"] = told.said["learner 1"], (1, Written(4, {}))
    assert writing.finished() is None, "what one of them said is of an earlier save"
    told.said["learner 1"] = (first[0], CheckpointError("1: No space left on device"))
    with pytest.raises(CheckpointError, match=r"^1: No space left on device$"):
        writing.finished()
    told.said["learner 1"] = first
    files = writing.finished()
    assert files is not None
    assert {name: size for name, (size, _) in files.digests.items()} == {
        name: (tmp_path / name).stat().st_size for name in ("0", "1")
    }


def test_ranks_upload_where_they_do_not_see_the_folder(
    ranks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_scheme: None
):
    """Rank 0 sees it: so a checkpoint is made of both kinds of files."""
    store, remote = CheckpointStore(tmp_path / "here"), RemoteFolder(f"file://{tmp_path}/remote")
    seen = iter([True, False])
    monkeypatch.setattr(actor, "_reached", lambda folder: next(seen))
    with store.begin(7, {"cursor": 7}) as draft:
        files = (
            Learners(ranks, RunSpec())
            .write(draft.folder, PARTS, upload=Upload(remote.uri, "step-00000007", "one"))
            .wait()
        )
        assert files.uploaded == {"1"}
        assert sorted(path.name for path in draft.folder.iterdir()) == ["0"]
        assert steps(remote) == [], "nothing counts yet"
        content = draft.manifest(files.digests, files.uploaded)
        assert complete(store, remote, draft.folder, content) == f"{remote.uri}/step-00000007"
    assert steps(remote) == [7]
    assert remote.names("step-00000007") == ["0", "1", "manifest.json"]
    found = fetch(CheckpointStore(tmp_path / "there"), remote)
    assert found is not None
    assert (found.step, found.metadata, found.files) == (7, {"cursor": 7}, files.digests)

    (tmp_path / "remote" / "step-00000007" / "1").write_bytes(b"short")
    with pytest.raises(
        CheckpointError, match=r"could not be completed in .*: 1 has 5 bytes there instead of the \d"
    ):
        complete(store, remote, tmp_path, content)


class Uneven(OneFile):
    """As `Save`: of rank 0 a file of one round, of rank 1 one of four."""

    def __init__(self, learner: int, parts: Mapping[str, str], *, limit: int, copied: bool):
        super().__init__(learner, parts, limit=limit, copied=copied)
        self._count = 1 + 3 * learner
        self.heads = [file_head(self._name, {"a": ("F32", (self._count,))})]

    def rounds(self) -> Iterator[list[Piece]]:
        """Each with its number."""
        for number in range(self._count):
            yield [(self._name, np.full(4, number, np.uint8))]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("place", ["disk", "store", "driver"])
def test_ranks_of_different_numbers_of_rounds(
    ranks: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    any_scheme: None,
    background: bool,
    place: str,
):
    """A rank that has given its last round is asked again until the others have, and ends its files once."""
    monkeypatch.setattr(actor, "Save", Uneven)
    monkeypatch.setattr(actor, "_reached", lambda folder: place == "disk")
    monkeypatch.setattr(writing_module, "LOOK_SECONDS", 0.001)
    finished: list[str] = []
    finish = ShardWriter.finish

    def counted(self: ShardWriter) -> Any:
        finished.extend(self._files)
        return finish(self)

    monkeypatch.setattr(ShardWriter, "finish", counted)
    uploaded = tmp_path / "remote"
    (tmp_path / "here").mkdir()
    writing = Learners(ranks, RunSpec()).write(
        tmp_path / "here",
        PARTS,
        background=background,
        upload=Upload(f"file://{tmp_path}", "remote", "one") if place == "store" else None,
    )
    threads = [one._writing._thread for one in ranks if one._writing is not None]
    assert len([thread for thread in threads if thread is not None]) == (2 if background and threads else 0)
    files = writing.wait()
    for thread in threads:
        if thread is not None:
            thread.join(10)
    assert sorted(finished) == ["0", "1"]
    for rank, count in enumerate((1, 4)):
        path = (uploaded if place == "store" else tmp_path / "here") / str(rank)
        content = file_head(str(rank), {"a": ("F32", (count,))}).content + bytes(
            np.arange(count).repeat(4).tolist()
        )
        assert path.read_bytes() == content
        assert files.digests[str(rank)] == (len(content), sha256_of(path))


def test_ranks_of_an_attempt_that_was_replaced_leave_the_files_of_the_next_one(
    ranks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_scheme: None
):
    """One whose process stood still meanwhile would replace them by others of the same size."""
    monkeypatch.setattr(actor, "_reached", lambda folder: False)
    run, upload = RemoteFolder(f"file://{tmp_path}"), Upload(f"file://{tmp_path}", "step-00000007", "one")
    run.write(".owner", b"one")
    finish, finished = RemoteWriter.finish, list[str]()

    def told(self: RemoteWriter) -> None:
        finished.append(self._name)
        finish(self)

    monkeypatch.setattr(RemoteWriter, "finish", told)
    for one in ranks:
        one.begin_save(1, tmp_path / "here", PARTS, 1 << 30, False, upload)
        if one.rank == 1:
            run.write(".owner", b"two")
            with pytest.raises(
                RunFolderBusy, match=r"^checkpoint\.storage\.s3: two has taken over file://.* from one"
            ):
                one.save_round()
        else:
            one.save_round()
    assert finished == ["0"]
    with pytest.raises(RunFolderBusy, match=r" two has taken over "):
        ranks[0].begin_save(2, tmp_path / "here", PARTS, 1 << 30, False, upload)


def test_ranks_that_cannot_upload_send_and_say_why(
    ranks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actor, "_reached", lambda folder: False)
    writing = Learners(ranks, RunSpec()).write(
        tmp_path, PARTS, upload=Upload("gcs://bucket", "step-00000007", "one")
    )
    files = writing.wait()
    assert files.uploaded == frozenset()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files.digests) == ["0", "1"]
    assert writing.refused.startswith("nothing can be written to gcs://bucket/step-00000007: ")


def test_what_killed_writers_have_left_is_swept_away(tmp_path: Path, any_scheme: None):
    remote = RemoteFolder(f"file://{tmp_path}/remote")
    for name in ("step-00000004/manifest.json", "step-00000004/a", "step-00000006/a", "final/a", "run.yaml"):
        remote.write(name, b"x")
    sweep(remote)
    assert remote.names() == ["final", "run.yaml", "step-00000004"]
    with ShardWriter(remote, [file_head("step-00000006/b", {"a": ("F32", (4,))})]) as writer:
        writer.write("step-00000006/b", bytes(8))
    assert remote.names("step-00000006") == [], "what is given up half-way is not there"
