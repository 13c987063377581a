"""What a rank writes of a checkpoint, at once or by a thread of its own while the learner goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_api.errors import CheckpointError, DeadlineExceeded
from rl_trainer.checkpoint.manifest import sha256_of
from rl_trainer.checkpoint.state import SavedFiles
from rl_trainer.checkpoint.tensor_file import ShardWriter, file_head
from rl_trainer.learner import writing as writing_module
from rl_trainer.learner.results import Written
from rl_trainer.learner.saving import Writing
from rl_trainer.learner.writing import LearnersWriting
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.stream import Piece, byte_rounds

torch.set_num_threads(1)
HEAD = file_head("model/part", {"a": ("F32", (4,))})
PIECES: list[Piece] = [("model/part", np.full(8, number, np.uint8)) for number in (1, 2)]


def written(writing: Writing) -> Written:
    """Once all is."""
    deadline = time.monotonic() + 10.0
    while (found := writing.look()).digests is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


@pytest.mark.parametrize("background", [False, True])
def test_what_was_added_is_in_the_files_and_known_by_its_checksum(tmp_path: Path, background: bool):
    told: list[object] = []
    writing = Writing(tmp_path, [HEAD], background=background, tell=told.append)
    for piece in PIECES:
        writing.add([piece])
    assert writing.look().digests is None
    writing.start()
    file = tmp_path / "model" / "part"
    found = written(writing)
    assert found.digests == {"model/part": (HEAD.size, sha256_of(file))}
    if writing._thread is not None:
        writing._thread.join(10)
    assert told == ([found] if background else []), "who writes at once is asked"
    assert file.read_bytes() == HEAD.content + bytes([1] * 8 + [2] * 8)


def test_a_thread_that_cannot_write_says_so_to_who_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: ShardWriter, name: str, piece: object) -> None:
        raise CheckpointError(f"{name}: No space left on device")

    monkeypatch.setattr(ShardWriter, "write", full)
    told: list[object] = []
    writing = Writing(tmp_path, [HEAD], background=True, tell=told.append)
    writing.add(PIECES)
    assert writing.look() == Written(0, None), "nothing is written before all is copied"
    writing.start()
    with pytest.raises(CheckpointError, match=r"^model/part: No space left on device$"):
        written(writing)
    writing._thread.join(10)  # type: ignore[union-attr]
    assert [str(one) for one in told] == ["model/part: No space left on device"]


def test_what_is_given_up_ends_with_the_piece_that_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, go_on, pieces = threading.Event(), threading.Event(), list[str]()

    def slow(self: ShardWriter, name: str, piece: object) -> None:
        pieces.append(name)
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr(ShardWriter, "write", slow)
    writing = Writing(tmp_path, [HEAD], background=True)
    writing.add(PIECES)
    writing.start()
    assert begun.wait(10)
    writing.close()
    go_on.set()
    assert writing._thread is not None
    writing._thread.join(10)
    assert pieces == ["model/part"]
    assert writing.look().digests is None


def test_copies_stay_as_they_were_and_others_are_the_model(tmp_path: Path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "turned": torch.arange(6.0).view(2, 3).T}
    source = source_of({name: LazyTensor.of(value) for name, value in tensors.items()})
    copied, shared = (next(byte_rounds(source, tensors, copied=copied)) for copied in (True, False))
    before = {name: data.tobytes() for name, data in copied}
    assert before == {name: data.tobytes() for name, data in shared}
    tensors["a"].zero_()
    assert {name: data.tobytes() for name, data in copied} == before
    assert not dict(shared)["a"].any()


def test_learners_are_done_when_all_are_and_waited_for_while_something_moves(monkeypatch: pytest.MonkeyPatch):
    def looks(*found: list[Written]) -> LearnersWriting:
        answers = iter(found)
        last = found[-1]
        files = SavedFiles({"sent": (1, "x")}, {"w": "sent"}, 4)
        return LearnersWriting(files, names, lambda: next(answers, last), lambda: dropped.append(True))

    dropped: list[bool] = []
    names = {"sent", "b"}
    monkeypatch.setattr(writing_module, "LOOK_SECONDS", 0.001)
    done, half = Written(9, {"b": (2, "y")}), Written(1, None)
    writing = looks([done, half], [done, Written(2, None)], [done, Written(3, {})])
    assert writing.finished() is None
    assert not dropped
    assert writing.wait() == SavedFiles({"sent": (1, "x"), "b": (2, "y")}, {"w": "sent"}, 4)
    assert dropped
    monkeypatch.setattr(writing_module, "ROUND_TIMEOUT", 0.01)
    with pytest.raises(
        DeadlineExceeded, match="nothing of a checkpoint was written for 0 s; look at the disk"
    ):
        looks([done, half]).wait()
