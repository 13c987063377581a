"""Runs that keep their checkpoints in an object store, with a real S3 server: no disk of theirs is needed twice."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from object_store import ObjectStore
from training_runs import PROMPTS, Outcome, RunFiles, actors, ray_here, until

from rl_api.errors import CheckpointError, TaskError
from rl_api.task import TaskSpec
from rl_trainer.checkpoint.manifest import sha256_of
from rl_trainer.checkpoint.remote import fetch, sweep
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.checkpoint.tensor_file import ShardWriter, file_head
from rl_trainer.cli import main
from rl_trainer.model.folder import read_tensors
from rl_trainer.run.remote_run import RemoteRun
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.storage.remote_folder import RemoteFolder
from rl_trainer.tasks.sources import read_data

pytestmark = pytest.mark.usefixtures("local_ray")

STEPS = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    served = ObjectStore(tmp_path_factory.mktemp("object-store"))
    served.start()
    yield served
    served.stop()


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, and its address and credentials in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # they remember credentials
    return server


def small_run(folder: Path, uri: str, **changes: object) -> RunFiles:
    kept = {"checkpoint": {"everySteps": 2, "keep": 2, "storage": {"s3": uri}}, "stop": {"maxSteps": STEPS}}
    return RunFiles(folder, **{**kept, **changes})


def checkpoints(folder: Path) -> list[int]:
    """Steps of the whole checkpoints in a bucket."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/manifest.json"))


def test_a_run_goes_on_where_nothing_is_left_of_its_disk(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    bucket = store.bucket("lost-disk")
    task = {"evaluation": {"everySteps": 4, "samples": 8}}
    whole = RunFiles(tmp_path / "whole", task=task, stop={"maxSteps": STEPS})
    whole.run().assert_well()

    kept = bucket / "runs" / "one"
    # Learners write, and the driver copies, while the next steps run.
    written = {
        "everySteps": 2,
        "keep": 2,
        "asynchronous": "always",
        "storage": {"s3": "s3://lost-disk/runs/one"},
    }
    first = small_run(tmp_path / "first", "s3://lost-disk/runs/one", task=task, checkpoint=written)
    # Of eight steps it does six, however late it is killed.
    first.feel({6 * PROMPTS: "holdFirst"}, delay=0.05)
    with first.start(**ray_here()) as process:
        process.wait_for(lambda: len(first.steps) >= 5 and checkpoints(kept)[-1:] >= [4])
        assert "libtorch" not in Path(f"/proc/{process.process.pid}/maps").read_text(), (
            "the driver computes nothing"
        )
        process.kill()
    assert checkpoints(kept)[-1] in (4, 6)
    assert (kept / "run.yaml").read_bytes() == (first.out / "run.yaml").read_bytes()
    # Its learner, of the Ray here, ends a little later, and may still write a checkpoint.
    until(lambda: not actors("Learner"))
    shutil.rmtree(first.out)

    second = small_run(tmp_path / "second", "s3://lost-disk/runs/one", task=task)
    second.run("--resume").assert_well()
    assert second.summary["resumed_from"] in (4, 6)
    assert second.weights == whole.weights
    assert [prompt for r in second.steps for prompt in r.prompts] == list(range(STEPS * PROMPTS))
    second.assert_nothing_lost_or_twice()
    # What a person wants of it is there when the pods are gone, the beginning included.
    assert checkpoints(kept) == [6, 8]
    assert (kept / "final" / "model.safetensors").read_bytes() == whole.weights
    for name in ("metrics.jsonl", "summary.json", "report.html", "run.yaml", "timeline.json"):
        assert (kept / name).read_bytes() == (second.out / name).read_bytes()
    last = "s3://lost-disk/runs/one/step-00000008"
    assert main(["verify", last]) == 0
    assert "every file is as it was written" in capsys.readouterr().out
    content = (kept / "step-00000008" / "groups.npz").read_bytes()
    RemoteFolder(last).write("groups.npz", content[:-1] + bytes([content[-1] ^ 1]))
    RemoteFolder(last).write("added.py", b"x")
    assert main(["verify", last]) == 1
    assert capsys.readouterr().err == (
        f"rltrain: {last}: groups.npz was changed: its SHA-256 is another\n"
        f"rltrain: {last}: added.py is not of the checkpoint\n"
    )
    examples = json.loads((kept / "examples.json").read_text())
    assert examples
    assert all(one["before"] is not None and one["after"] is not None for one in examples)

    third = small_run(tmp_path / "third", "s3://lost-disk/runs/two", stop={"maxSteps": 1})
    third.run("--set", "model.source=s3://lost-disk/runs/one/final", "--set", "model.tiny=null").assert_well()
    assert (third.out / "initial" / "model.safetensors").read_bytes() == whole.weights


def test_files_in_parts_are_there_whole_or_not_at_all(store: ObjectStore):
    kept, remote = store.bucket("parts"), RemoteFolder("s3://parts/run")
    head = file_head("step-00000002/model", {"a": ("U8", (20 << 20,))})
    piece = bytes(range(256)) * (4 << 10)

    def begun() -> ShardWriter:
        writer = ShardWriter(remote, [head])
        for _ in range(10):
            writer.write(head.name, piece)
        assert remote.sizes() == {}
        return writer

    def parts() -> int:
        return len(remote._files.call_s3("list_multipart_uploads", Bucket="parts").get("Uploads") or ())

    writer = begun()
    for _ in range(10):
        writer.write(head.name, piece)
    file = kept / "run" / head.name
    assert writer.finish() == {head.name: (head.size, sha256_of(file))}
    assert file.read_bytes() == head.content + 20 * piece
    remote.delete("step-00000002")

    begun().close()
    assert (remote.sizes(), parts()) == ({}, 0), "who gives up leaves nothing"
    killed = begun()
    remote.write("step-00000002/rank-0", b"of another")
    assert parts() == 1
    sweep(remote)
    assert (remote.sizes(), parts()) == ({}, 0), "nor does the next attempt leave what a killed one has"
    with pytest.raises(
        CheckpointError, match=r"^step-00000002/model could not be written to s3://parts/run: "
    ):
        for _ in range(10):
            killed.write(head.name, piece)
    killed.close()
    assert remote.sizes() == {}


def test_learners_elsewhere_upload_what_they_hold_and_fetch_what_they_need(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """And the driver has none of it."""
    kept = store.bucket("elsewhere") / "run"
    written = {"everySteps": 2, "keep": 2, "asynchronous": "always", "storage": {"s3": "s3://elsewhere/run"}}
    changes: dict[str, object] = {
        "algorithm": {"kl": {"coefficient": 0.01}},
        "learner": {"replicas": 2, "parallelism": "fsdp2"},
        "checkpoint": written,
    }
    (tmp_path / "sitecustomize.py").write_text(ELSEWHERE)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def attempt(steps: int) -> tuple[RunFiles, Outcome]:
        files = small_run(tmp_path / str(steps), "", **changes, stop={"maxSteps": steps})
        with files.start("--resume", PYTHONPATH=path) as process:
            outcome = process.finish()
        outcome.assert_well()
        assert not (files.out / "final").exists()
        assert not (files.out / "initial").exists()
        assert checkpoints(files.out / "checkpoints") == []
        assert steps == 4 or [*files.out.rglob("*.safetensors")] == [], (
            "of the model that it began with, no more"
        )
        assert (
            fetch(CheckpointStore(files.out / "checkpoints"), RemoteFolder("s3://elsewhere/run")) is not None
        )
        files.assert_nothing_lost_or_twice()
        last = kept / f"step-{steps:08d}"
        exported, saved = read_tensors(kept / "final"), read_tensors(last / "model")
        assert exported.keys() == saved.keys()
        assert all(bool((exported[name] == saved[name]).all()) for name in saved)
        begun = {path.name: path.read_bytes() for path in (kept / "initial").iterdir()}
        assert begun == {path.name: path.read_bytes() for path in (last / "initial").iterdir()}
        assert begun == first or not first, "the policy that the first attempt began with"
        first.update(begun)
        return files, outcome

    first: dict[str, bytes] = {}
    files, _ = attempt(4)
    assert files.summary["resumed_from"] is None
    assert checkpoints(kept) == [2, 4]

    files, _ = attempt(6)
    assert files.summary["resumed_from"] == 4
    assert checkpoints(kept) == [4, 6]
    assert main(["verify", "s3://elsewhere/run/step-00000006"]) == 0
    assert "every file is as it was written" in capsys.readouterr().out
    names = sorted(
        path.relative_to(kept).as_posix() for path in (kept / "step-00000006").rglob("*.safetensors")
    )
    assert names == [
        f"step-00000006/{part}-0000{rank}-of-00002.safetensors"
        for part in ("initial/model", "model/model", "optimizer")
        for rank in (1, 2)
    ]

    damaged = kept / "step-00000006" / "optimizer-00002-of-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    files, outcome = attempt(8)
    assert (
        "The copy of step 6 at s3://elsewhere/run/step-00000006 was skipped: optimizer-00002-of-00002.safetensors does "
        "not match its checksum." in outcome.out
    )
    assert files.summary["resumed_from"] == 4
    assert checkpoints(kept) == [4, 6, 8], "what the run went on from is kept for samplers that join"


ELSEWHERE = """
import os
access = os.access
# As on a node with another disk: learners find no folder of the driver's.
os.access = lambda path, mode, **named: mode != os.W_OK | os.X_OK and access(path, mode, **named)
"""


def test_prompts_from_the_object_store(store: ObjectStore):
    bucket = store.bucket("prompts")
    (bucket / "two.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n{"prompt": "1+2", "answer": 3}\n')
    (bucket / "shards").mkdir()
    for name in "ab":
        table = pa.table({"prompt": [f"{name}1", f"{name}2"], "answer": ["1", "2"]})
        pq.write_table(table, bucket / "shards" / f"{name}.parquet")
    for file, prompts in (("two.jsonl", ["1+1", "1+2"]), ("shards", ["a1", "a2", "b1", "b2"])):
        found = read_data(TaskSpec(environment="prompts", file=f"s3://prompts/{file}"), None)
        assert found is not None
        assert [row.fields["prompt"] for row in found.rows] == prompts
    with pytest.raises(
        TaskError, match=r"task\.file: s3://prompts/three\.jsonl cannot be read: .* Look at bucket"
    ):
        read_data(TaskSpec(environment="prompts", file="s3://prompts/three.jsonl"), None)


def test_an_earlier_run_in_the_folder_is_not_lost_by_mistake(store: ObjectStore, tmp_path: Path):
    kept = store.bucket("twice") / "run"
    failed = small_run(tmp_path / "failed", "s3://twice/run").run(
        "--set", "model.source=./nothing", "--set", "model.tiny=null"
    )
    assert failed.code == 2  # before there was anything to lose
    small_run(tmp_path / "first", "s3://twice/run", stop={"maxSteps": 4}).run().assert_well()
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    second = small_run(tmp_path / "second", "s3://twice/run", stop={"maxSteps": 1})
    assert second.run().sentence == (
        "checkpoint.storage.s3: s3://twice/run holds an earlier run; add --resume to go on with it, --overwrite to "
        "start anew, or choose another folder"
    )
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    second.run("--overwrite").assert_well()
    assert checkpoints(kept) == [1]
    assert json.loads((kept / "summary.json").read_text())["steps"] == 1


def test_an_attempt_that_was_replaced_writes_nothing_more(store: ObjectStore, tmp_path: Path):
    kept = store.bucket("fenced") / "run"
    first = small_run(tmp_path / "first", "s3://fenced/run", stop={"maxSteps": 500})
    first.feel(delay=0.05)
    with first.start("--resume", RLTRAIN_FENCE="uid/1/pod-a", **ray_here()) as process:
        process.wait_for(lambda: len(checkpoints(kept)) > 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RLTRAIN_FENCE", "uid/2/pod-b")
            later = RunFolder(tmp_path / "later", resume=True)
        RemoteRun("s3://fenced/run", later).claim()
        there = checkpoints(kept)
        outcome = process.finish()
    assert outcome.sentence == (
        "checkpoint.storage.s3: uid/2/pod-b has taken over s3://fenced/run from uid/1/pod-a, which stops and writes "
        "nothing more"
    )
    assert checkpoints(kept)[-1] <= there[-1] + 2
    assert not (kept / "report.html").exists()
    with first.start(
        "--resume", RLTRAIN_FENCE="uid/1/pod-a", **ray_here()
    ) as process:  # nor when it comes back
        assert process.finish().sentence == outcome.sentence


def test_an_object_store_that_goes_away_and_comes_back(store: ObjectStore, tmp_path: Path):
    kept = store.bucket("away") / "run"
    files = small_run(tmp_path / "run", "s3://away/run")
    # The third step ends when the store is away: its first checkpoint is all that comes there before.
    files.feel({2 * PROMPTS: "holdFirst"})
    with files.start(**ray_here()) as process:
        process.wait_for(lambda: len(checkpoints(kept)) > 0)
        store.stop()
        (files.folder / "let-go").touch()
        outcome = process.finish()
    store.start()
    assert "could not be copied to s3://away/run: " in outcome.err
    assert f"It is safe in {files.out}/checkpoints/step-" in outcome.err
    files.feel()
    files.run("--resume").assert_well()
    files.assert_nothing_lost_or_twice()
    assert checkpoints(kept) == [6, 8]


@pytest.mark.parametrize(
    ("uri", "variable", "sentence"),
    [
        ("s3://misspelt/run", "", "The specified bucket does not exist"),
        ("s3://known/run", "AWS_SECRET_ACCESS_KEY", "PermissionError: Forbidden"),
        ("s3://known/run", "AWS_ENDPOINT_URL", "Could not connect to the endpoint URL"),
    ],
)
def test_what_is_wrong_with_the_place_is_said_before_anything_is_trained(
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    variable: str,
    sentence: str,
):
    if variable:
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    files = small_run(tmp_path, uri)
    said = files.run().sentence
    assert said.startswith(f"checkpoint.storage.s3: {uri} cannot be used: ")
    assert sentence in said
    assert said.endswith(
        "Look at bucket and rights, and at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL (on a cluster: "
        "keys of a Secret that spec.secrets names)."
    )
    assert not files.steps


def test_a_program_of_the_users_own_goes_on_where_nothing_is_left_of_its_disk(
    store: ObjectStore, tmp_path: Path
):
    bucket = store.bucket("program")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    trainer = {"kind": "command", "command": [sys.executable, str(program)]}
    first = small_run(tmp_path / "first", "s3://program/run", trainer=trainer)
    with first.start(RLTRAIN_ATTEMPT="1", RLTRAIN_FENCE="uid/1/a", FAIL_AT="6") as process:
        outcome = process.finish()
    assert "exit code 7" in outcome.err
    until(lambda: (bucket / "run" / "program.json").exists(), 10)
    shutil.rmtree(first.out)
    second = small_run(tmp_path / "second", "s3://program/run", trainer=trainer)
    with second.start("--resume", RLTRAIN_ATTEMPT="2", RLTRAIN_FENCE="uid/2/b") as process:
        process.finish().assert_well()
    assert [record.step for record in second.steps] == list(range(1, STEPS + 1))
    assert second.summary["resumed_from"] == 4
    assert (bucket / "run" / "report.html").exists()


PROGRAM = """
import json, os, sys
import fsspec
place = os.environ["RLTRAIN_CHECKPOINTS"] + "/mine"
def say(**line):
    with open(os.environ["RLTRAIN_METRICS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
step = int(fsspec.open(place).open().read()) if os.environ["RLTRAIN_RESUME"] == "1" else 0
while step < int(os.environ["RLTRAIN_MAX_STEPS"]):
    step += 1
    say(step=step, reward_mean=step / 10)
    if step == 4:
        with fsspec.open(place, "w") as file:
            file.write(str(step))
        say(event="checkpoint", step=step, path=place)
    if str(step) == os.environ.get("FAIL_AT"):
        sys.exit(7)
"""
