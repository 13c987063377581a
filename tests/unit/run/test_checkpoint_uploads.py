"""Checkpoints of which learners write their part into the object store: what the driver adds, and what it says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rl_api import RunSpec
from rl_api.errors import CheckpointError, RunFolderBusy, Unavailable
from rl_trainer.checkpoint.remote import look_at, steps
from rl_trainer.checkpoint.state import ADAPTER, OPTIMIZER, WEIGHTS, LearnerState, RunState, SavedFiles
from rl_trainer.observe.metrics import MetricsWriter
from rl_trainer.run import resuming
from rl_trainer.run.checkpoints import Checkpoints
from rl_trainer.run.counters import Counters
from rl_trainer.run.remote_run import RemoteRun
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.storage.ownership import Upload
from rl_trainer.storage.remote_folder import RemoteFolder


class Run:
    """One whose learners, which are here, upload a file of each part, or fail with `error`."""

    def __init__(self, folder: Path):
        self.spec = RunSpec.model_validate(
            {
                "model": {"source": "tiny"},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "checkpoint": {"everySteps": 2},
                "learner": {"lora": {}},
            }
        )
        self.error: Exception | None = None
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        self.folder = RunFolder(folder / "run")
        self.folder.initial.mkdir()
        self.metrics = MetricsWriter(self.folder.path)
        self.remote = RemoteRun(f"file://{folder}/remote", self.folder)
        self.remote.claim()
        self.checkpoints = Checkpoints(self.spec, self.folder, self.remote, print)
        assert self.checkpoints.ask_learners(lambda folder: False) is None

    def write(
        self,
        folder: Path,
        parts: Mapping[str, str],
        *,
        background: bool = False,
        upload: Upload | None = None,
    ) -> Any:
        """As `Learners.write`."""
        assert upload is not None
        assert not list(folder.iterdir()), "learners of other nodes write nothing here"
        if self.error is not None:
            raise self.error
        for name in parts.values():
            RemoteFolder(upload.uri).write(name, b"x")
        digests = {name: (1, hashlib.sha256(b"x").hexdigest()) for name in parts.values()}
        return Written(SavedFiles(digests, {"w": parts[WEIGHTS]}, 1, frozenset(digests)))

    def save(self, step: int) -> str:
        """A checkpoint; returns where it is."""
        learned = LearnerState(step, [WEIGHTS, OPTIMIZER, ADAPTER], False, self.write)
        state: RunState[LearnerState] = RunState(learned, [None], {}, [])
        self.checkpoints.begin(Counters(step=step), state, self.metrics, self.model)
        return self.checkpoints.wait().uri


class Written:
    """As `LearnersWriting`, of learners that are done."""

    refused = ""

    def __init__(self, files: SavedFiles):
        self._files = files

    def wait(self) -> SavedFiles:
        """As `Unfinished`."""
        return self._files

    def drop(self) -> None:
        """As `Unfinished`."""


@pytest.fixture
def run(tmp_path: Path, any_scheme: None) -> Iterator[Run]:
    found = Run(tmp_path)
    yield found
    found.metrics.close()
    found.folder.close()


def test_a_checkpoint_with_adapters_that_are_elsewhere(run: Run) -> None:
    assert run.save(2) == f"{run.remote.remote.uri}/step-00000002"
    assert run.remote.remote.names("step-00000002/adapter") == ["adapter_config.json", "adapter_model"]
    assert run.remote.remote.names("step-00000002/model") == ["config.json", "model"]
    assert list(run.checkpoints.store.folder.iterdir()) == []


def test_exports_are_uploaded_and_checkpoints_have_copies_of_them_that_never_came_here(
    run: Run, tmp_path: Path
) -> None:
    remote, learned = run.remote.remote, LearnerState(0, [WEIGHTS], False, run.write)
    run.folder.initial.joinpath("model").write_bytes(b"of an earlier attempt")
    remote.write("initial/another", b"")
    run.checkpoints.export(learned, run.model, run.folder.initial)
    assert remote.names("initial") == ["config.json", "model"]
    names = {path.name for path in run.folder.path.iterdir()}
    assert not {name for name in names if name.startswith(("initial", ".export"))}
    run.save(2)
    assert remote.names("step-00000002/initial") == ["config.json", "model"]

    remote.delete("initial")
    second = RunFolder(tmp_path / "second", resume=True)
    RemoteRun(remote.uri, second).claim()
    resumed = Checkpoints(run.spec, second, RemoteRun(remote.uri, second), print)
    found = resumed.latest(print)
    assert found is not None
    assert found.elsewhere == {"initial/config.json", "initial/model"}
    resumed.unpack(found)
    assert not second.initial.exists()
    assert look_at(found.uri, {name: found.files[name] for name in found.elsewhere}) == ("", "")
    resumed.ask_learners(lambda folder: False)
    assert remote.names("initial") == ["config.json", "model"], "from where later checkpoints have it"
    whole = resumed.latest(print, whole=True)
    assert whole is not None
    assert (whole.path / "initial" / "model").read_bytes() == b"x"
    second.close()


def test_what_keeps_the_policy_from_being_uploaded_is_said_with_its_place(run: Run) -> None:
    remote, learned = run.remote.remote, LearnerState(0, [WEIGHTS], False, run.write)
    run.error = Unavailable("nothing has moved for 240 s.")
    with pytest.raises(CheckpointError) as found:
        run.checkpoints.export(learned, run.model, run.folder.final)
    assert str(found.value).startswith(
        f"the policy cannot be written to {remote.uri}/final: nothing has moved for 240 s; mend that, then "
    )
    run.error = RunFolderBusy("another has taken over")
    with pytest.raises(RunFolderBusy, match=r"^another has taken over$"):
        run.checkpoints.export(learned, run.model, run.folder.final)
    remote.write(".owner", b"another")
    with pytest.raises(RunFolderBusy, match=r" another has taken over "):
        run.checkpoints.export(learned, run.model, run.folder.final)


def test_what_keeps_learners_from_uploading_is_said_of_the_object_store(run: Run) -> None:
    uri = run.remote.remote.uri
    run.error = Unavailable("optimizer could not be written there: nothing has moved for 600 s.")
    said = f"The checkpoint of step {{}} could not be written to {uri}: {run.error} {{}}: remove the cause, then resume."
    with pytest.raises(CheckpointError) as first:
        run.save(2)
    assert str(first.value) == said.format(2, "There is none before it there")
    run.error, error = None, run.error
    run.save(2)
    run.error = error
    with pytest.raises(CheckpointError) as second:
        run.save(4)
    assert str(second.value) == said.format(4, "The checkpoint of step 2 there is untouched")
    assert steps(run.remote.remote) == [2]


def test_an_attempt_that_was_replaced_stops_as_one(run: Run) -> None:
    """And not with a sentence about the disk."""
    run.error = RunFolderBusy("another has taken over")
    with pytest.raises(RunFolderBusy, match=r"^another has taken over$"):
        run.save(2)
    run.remote.remote.write(".owner", b"another")
    with pytest.raises(RunFolderBusy, match=r"^checkpoint\.storage\.s3: another has taken over "):
        run.save(2)


class Learners:
    """Those of a resumed run: whether they see a folder, what they say of a checkpoint's files, and whether samplers reach
    a file of it."""

    def __init__(self, *said: tuple[str, str], sees: bool = False, samplers: bool = True):
        self.said, self.sees, self.samplers = list(said), sees, samplers

    def reach(self, folder: Path) -> bool:
        """As `Learners.reach`."""
        return self.sees

    def check_stored(self, uri: str, files: Mapping[str, tuple[int, str]]) -> tuple[str, str]:
        """As `Learners.check_stored`."""
        return self.said.pop(0)


@pytest.mark.parametrize(
    ("learners", "step", "stored", "warned"),
    [
        (Learners(("", "")), 4, True, []),
        (
            Learners(("", "initial/model is missing"), ("", "")),
            2,
            True,
            ["The copy of step 4 at {uri}/step-00000004 was skipped: initial/model is missing."],
        ),
        (
            Learners(("there is no key", "")),
            4,
            False,
            ["learners do not read the checkpoint themselves, and have it from the driver: there is no key"],
        ),
        (Learners(sees=True), 4, False, []),
        (Learners(samplers=False), 4, False, []),
    ],
)
def test_who_fetches_what_a_run_goes_on_from(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    learners: Any,
    step: int,
    stored: bool,
    warned: list[str],
) -> None:
    run.checkpoints.export(LearnerState(0, [WEIGHTS], False, run.write), run.model, run.folder.initial)
    for saved in (2, 4):
        run.save(saved)
    monkeypatch.setattr(resuming, "share_folder", lambda path: path)
    second, said = RunFolder(tmp_path / "second", resume=True), list[str]()
    remote = RemoteRun(run.remote.remote.uri, second)
    remote.claim()
    resumed = Checkpoints(run.spec, second, remote, print)
    found = resumed.latest(said.append)
    assert found is not None
    assert found.step == 4
    model = resumed.unpack(found)
    asked: list[str] = []

    def reach(uri: str, files: Mapping[str, tuple[int, str]]) -> bool:
        asked.extend(f"{uri} {name}" for name in files)
        return bool(learners.samplers)

    shared: Any = resuming.share_resumed(resumed, learners, reach, model, said.append)
    assert asked[:1] == ([] if learners.sees else [f"{remote.remote.uri}/step-00000004 model/model"])
    assert resumed.resumed is not None
    assert resumed.resumed.step == step
    assert said == [sentence.format(uri=remote.remote.uri) for sentence in warned]
    if stored:
        assert shared.uri == f"{remote.remote.uri}/step-{step:08d}"
        assert [name for _, name, _, _ in shared.stored] == ["config.json", "model"]
        assert resumed.store.held == {step}
        assert not second.initial.exists()
    else:
        assert shared == model
        assert (second.initial / "model").exists()
    second.close()
