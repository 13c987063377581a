"""A report of a run on a cluster is made here, of what a pod sends; and where the files of one without pods are."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile import HOSTILE, steering
from hypothesis import given, settings
from hypothesis import strategies as st

import rl_cli.report
from rl_api.errors import InvalidConfig
from rl_cli.execute import CommandFailed
from rl_cli.failures import ClusterError
from rl_cli.report import _write, fetch, page_of, where_it_is
from rl_trainer.observe.page import DATA_FILES

CLAIM = {"persistentVolumeClaim": "checkpoints"}
OBJECTS = {"s3": "s3://bucket/runs"}
PLACE = "s3://bucket/runs/arithmetic-12345678"


@pytest.mark.parametrize(
    ("storage", "status", "sentence"),
    [
        (CLAIM, {}, "run arithmetic (Pending) has no head pod yet, and so no report"),
        (
            CLAIM,
            {
                "phase": "Failed",
                "attempts": [{}],
                "checkpoint": {"uri": "/var/lib/rltrain/run/checkpoints/step-4"},
            },
            "run arithmetic (Failed) has no head pod: its run folder is on PersistentVolumeClaim checkpoints in namespace "
            "team-a, as arithmetic-12345678/run; docs/cluster.md shows how to copy it from there, and rltrain report "
            "FOLDER makes the report",
        ),
        (
            OBJECTS,
            {"phase": "Succeeded", "attempts": [{}], "checkpoint": {"uri": f"{PLACE}/step-00000040"}},
            f"run arithmetic (Succeeded) has no head pod: its figures are in {PLACE}; docs/cluster.md shows how to get "
            "them, and rltrain report FOLDER makes the report",
        ),
        (
            None,
            {"phase": "Succeeded", "attempts": [{}]},
            "run arithmetic (Succeeded) has no head pod, and its report went with it: only a run with "
            "checkpoint.storage.persistentVolumeClaim or checkpoint.storage.s3 keeps one",
        ),
    ],
)
def test_where_the_report_is(storage: dict[str, str] | None, status: dict[str, Any], sentence: str) -> None:
    metadata = {"name": "arithmetic", "namespace": "team-a", "uid": "12345678-90ab"}
    run = {"metadata": metadata, "spec": {"checkpoint": {"storage": storage}}, "status": status}
    assert where_it_is(run) == sentence


def test_a_report_is_written_through_nobodys_link(tmp_path: Path) -> None:
    page, victim = tmp_path / "page.html", tmp_path / "victim"
    _write(page, b"one")
    _write(page, b"two")
    assert page.read_bytes() == b"two"
    victim.write_text("mine")
    (tmp_path / f".page.html.{os.getpid()}").symlink_to(victim)
    with pytest.raises(InvalidConfig, match=r"--out: .*page\.html cannot be written: File exists"):
        _write(page, b"three")
    assert (page.read_bytes(), victim.read_text()) == (b"two", "mine")


def test_a_page_takes_the_place_of_no_device(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for place in (pipe, link, tmp_path):
        with pytest.raises(InvalidConfig, match="which is a folder or a device, allowed: a file"):
            _write(place, b"one")
    assert link.is_symlink()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder in the pod, in which the commands run that are meant for it."""

    def execute(
        cluster: Any, namespace: str, pod: str, command: Sequence[str], *, idle: float
    ) -> Iterator[bytes]:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        yield from (done.stdout[start : start + 1000] for start in range(0, len(done.stdout), 1000))
        if done.returncode:
            raise CommandFailed(f"exit code {done.returncode}", done.returncode)

    monkeypatch.setattr(rl_cli.report, "execute", execute)
    monkeypatch.setattr(rl_cli.report, "_RUN_FOLDER", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


STEP = {"step": 1, "time": 1.0, "wall_seconds": 1.0, "reward_mean": 0.5}


def test_the_page_is_made_here(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(json.dumps(STEP) + "\n")
    (folder / "run.yaml").write_text("metadata: {name: arithmetic}")
    (folder / "report.html").write_text("<script>alert('made in the pod')</script></html>")
    files = fetch(None, "team-a", "head", "arithmetic")
    assert sorted(files) == ["metrics.jsonl", "run.yaml"]
    page = page_of("arithmetic", files)
    assert "<h1>arithmetic</h1>" in page
    assert "alert" not in page


def test_the_files_are_those_of_the_page() -> None:
    assert set(rl_cli.report._MOST_BYTES) == set(DATA_FILES)


def test_a_run_that_has_written_nothing(folder: Path) -> None:
    with pytest.raises(ClusterError, match=r"run arithmetic has no report yet: .* of pod head holds no run"):
        fetch(None, "team-a", "head", "arithmetic")


def test_a_file_that_is_too_large_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(rl_cli.report._MOST_BYTES, "timeline.json", 1 << 20)
    (folder / "run.yaml").write_text("{}")
    (folder / "timeline.json").write_bytes(bytes(1 << 21))
    assert list(fetch(None, "team-a", "head", "arithmetic")) == ["run.yaml"]
    assert capsys.readouterr().err == (
        "rltrain: timeline.json of run arithmetic is larger than 1 MiB and is left out\n"
    )


def test_a_pod_that_sends_for_ever_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl_cli.report, "_MOST_SECONDS", -1.0)
    (folder / "run.yaml").write_text("{}")
    with pytest.raises(ClusterError, match="pod head has not sent its files within"):
        fetch(None, "team-a", "head", "arithmetic")


def test_a_command_that_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Iterator[bytes]:
        raise CommandFailed("no shell", 126)
        yield b""

    monkeypatch.setattr(rl_cli.report, "execute", refused)
    with pytest.raises(ClusterError, match=r"run\.yaml of run arithmetic cannot be read: no shell"):
        fetch(None, "team-a", "head", "arithmetic")


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.yaml", BOMB + "metadata: {name: *i}"),
        ("run.yaml", "a: &a [*a]"),
        ("run.yaml", "[" * 5000),
        ("metrics.jsonl", "[" * 100_000 + "\n1\n"),
        ("metrics.jsonl", '{"step": 1, "wall_seconds": "x"}\n{"step": 2}\n'),
        (
            "metrics.jsonl",
            '{"step": 1, "time": 1, "wall_seconds": 1, "reward_mean": [1], "groups_dropped": {"a": "b"}}\n',
        ),
        ("summary.json", '{"steps": 0, "groups_dropped": {"a": "b"}}'),
        ("summary.json", '{"steps": 0, "stop_reason": ["a"]}'),
        ("examples.json", '[{"nothing": 1}]'),
    ],
)
def test_files_that_are_none_of_a_run_are_a_sentence(name: str, content: str) -> None:
    with pytest.raises(
        ClusterError, match="no report can be made of what run arithmetic has written: "
    ) as caught:
        page_of("arithmetic", {"run.yaml": b"{}", name: content.encode()})
    assert "rltrain-report-" not in str(caught.value)
    assert len(str(caught.value)) < 400


RUN = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.one_of(HOSTILE, st.none(), st.floats())}),
        "spec": st.dictionaries(
            st.sampled_from(["model", "task"]), st.one_of(HOSTILE, st.just({"source": "x\x1b[m"}))
        ),
    }
)


@settings(deadline=None)
@given(HOSTILE, RUN, HOSTILE)
def test_nothing_a_run_says_acts_on_the_page(text: str, run: Any, reason: str) -> None:
    text = text.encode(errors="replace").decode()
    event = {"event": "note", "step": 1, "text": text}
    span = {"name": text, "ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    actor = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": text}}
    files = {
        "run.yaml": yaml.safe_dump(run),
        "metrics.jsonl": f"{json.dumps(STEP | {'groups_dropped': {text: 2}})}\n{json.dumps(event)}\n",
        "summary.json": json.dumps({"steps": 1, "stop_reason": reason, "name": text}),
        "examples.json": json.dumps([{"prompt": text, "expected": text, "before": text, "after": text}]),
        "timeline.json": f"{json.dumps(actor)},\n{json.dumps(span)}",
    }
    page = page_of("arithmetic", {name: content.encode(errors="replace") for name, content in files.items()})
    assert steering(page) == []
    assert page.count("<script") == page.count("</script>") == 2
    assert "script-src 'sha256-" in page
