"""`rltrain validate`, and the patterns that it and `rltrain apply` compile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rl_cli.patterns
from rl_api.errors import InvalidDocuments
from rl_cli.documents import read_objects
from rl_cli.main import main

RUN = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingRun
metadata: {name: one}
spec:
  model: {source: tiny}
  task: {environment: reasoning-gym, name: chain_sum}
  sampler: {replicas: 4}
"""
PROFILE = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingProfile
metadata: {name: small}
spec:
  default: true
  pools: [{name: cpu}]
  defaults: {checkpoint: {storage: {persistentVolumeClaim: shared}}}
  contact: "#gpus"
"""
# Nested repetitions, which the compiler writes out: beyond any memory and time.
ENDLESS = "(((((a{200}){200}){200}){200}){200})"

File = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        Path(name).write_text(text)
        return name

    return write


def command(*arguments: str) -> int:
    return main(["validate", *arguments])


def test_it_says_what_is_valid(file: File, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(file("a.yaml", RUN), file("p.yaml", PROFILE)) == 0
    output = capsys.readouterr()
    assert output.out == "a.yaml: RLTrainingRun one is valid\np.yaml: RLTrainingProfile small is valid\n"
    assert output.err == ""


def test_it_says_what_is_wrong_and_ends_with_2(file: File, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(file("a.yaml", RUN), file("b.yaml", RUN.replace("4", "two"))) == 2
    output = capsys.readouterr()
    assert output.out == "a.yaml: RLTrainingRun one is valid\n"
    assert (
        output.err == "b.yaml: spec.sampler.replicas: found 'two', allowed: a whole number >= 1 and <= 4096\n"
    )


def test_it_checks_for_a_cluster_when_asked(file: File, capsys: pytest.CaptureFixture[str]) -> None:
    path = file("a.yaml", RUN)
    assert command(path) == command("--for", "local", path) == 0
    assert command("--for", "cluster", path) == 2
    assert "required on a cluster" in capsys.readouterr().err


def test_it_needs_files_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command()
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        command("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "rltrain validate examples/quickstart.yaml" in text
    assert "--for {local,cluster}" in text


@pytest.mark.parametrize(
    ("more", "run", "sentence"),
    [
        ("", "", ""),
        (
            "  limits: {maxSamplers: 2}\n",
            "",
            "spec.sampler.replicas: found 4, allowed: at most 2, the limit of profile small. Ask #gpus for more.",
        ),
        (
            "  allow: {images: {patterns: [ours/*]}}\n",
            "  image: theirs/image:1\n",
            "spec.image: found 'theirs/image:1', allowed by profile small: ours/*. Ask #gpus for more.",
        ),
        ("", "  profile: large\n", "spec.profile: found 'large', "),
    ],
)
def test_a_run_is_held_against_the_profiles_of_its_cluster(
    file: File, capsys: pytest.CaptureFixture[str], more: str, run: str, sentence: str
) -> None:
    code = command("--profile", file("p.yaml", PROFILE + more), file("a.yaml", RUN + run))
    output = capsys.readouterr()
    assert (code, output.out) == ((2, "") if sentence else (0, "a.yaml: RLTrainingRun one is valid\n"))
    assert output.err.startswith(f"a.yaml: {sentence}" if sentence else "")
    assert command("a.yaml") == 0, "the run itself is fine"


@pytest.mark.parametrize(
    ("run", "defaults", "sentence"),
    [
        (
            "  weightSync: {transport: adapter}\n",
            "learner: {lora: {rank: 4}}, ",
            "spec.weightSync.transport: found adapter",
        ),
        (
            "  learner: {replicas: 2, fsdpSize: 4}\n",
            "learner: {parallelism: fsdp2, resources: {accelerators: 2}}, ",
            "spec.learner.fsdpSize: found 4",
        ),
    ],
)
def test_a_profile_may_add_what_a_run_lacks(
    file: File, capsys: pytest.CaptureFixture[str], run: str, defaults: str, sentence: str
) -> None:
    gpus = "[{name: gpu, acceleratorResource: nvidia.com/gpu, acceleratorsPerNode: 2, withoutAccelerators: true}]"
    profile = PROFILE.replace("[{name: cpu}]", gpus)
    file("p.yaml", profile.replace("defaults: {", f"defaults: {{{defaults}"))
    assert command("--profile", "p.yaml", file("a.yaml", RUN + run)) == 0
    capsys.readouterr()
    assert command("--profile", file("p.yaml", profile), "a.yaml") == 2
    assert f"a.yaml: {sentence}" in capsys.readouterr().err
    assert command("a.yaml") == 2
    assert f"a.yaml: {sentence}" in capsys.readouterr().err


def test_a_file_without_profiles_is_none_of_the_clusters(
    file: File, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--profile", file("a.yaml", RUN), "a.yaml") == 2
    assert "a.yaml: found no RLTrainingProfile" in capsys.readouterr().err


def with_patterns(*patterns: str) -> str:
    rules = ", ".join(f"{{rule: regex, pattern: '{pattern}'}}" for pattern in patterns)
    return RUN.replace("chain_sum}", f"chain_sum, rewards: [{rules}]}}")


def test_a_pattern_that_is_none(file: File, capsys: pytest.CaptureFixture[str]) -> None:
    path = file("a.yaml", with_patterns(r"\\d+", "(a", "(a"))
    assert command(path) == 2
    why = "found '(a', allowed: a regular expression (missing ) at position 2)"
    assert capsys.readouterr().err == "".join(
        f"a.yaml: spec.task.rewards[{index}].pattern: {why}\n" for index in (1, 2)
    )
    with pytest.raises(InvalidDocuments) as caught:
        read_objects(path, [])
    assert caught.value.problems == tuple(f"a.yaml: spec.task.rewards[{i}].pattern: {why}" for i in (1, 2))


def test_a_pattern_whose_compilation_does_not_end(
    file: File, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(file("a.yaml", with_patterns(ENDLESS))) == 2
    assert "allowed: a regular expression " in capsys.readouterr().err  # memory or time is up first
    monkeypatch.setattr(rl_cli.patterns, "_SECONDS", 1.0)
    monkeypatch.setattr(rl_cli.patterns, "_COMPILE", "while True: pass")
    assert command(file("a.yaml", with_patterns("a"))) == 2
    assert "allowed: a regular expression that compiles within 1 s" in capsys.readouterr().err


def test_without_the_trainers_package_only_the_trainer_can_tell(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = "import sys\nsys.modules['regex'] = None\n"
    monkeypatch.setattr(rl_cli.patterns, "_COMPILE", hidden + rl_cli.patterns._COMPILE)
    assert command(file("a.yaml", with_patterns("(a"))) == 0


def test_it_is_compiled_by_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, file: File) -> None:
    asked = list[list[str]]()

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        assert options["timeout"] == rl_cli.patterns._SECONDS
        return subprocess.CompletedProcess(command, -9, b"", b"")

    monkeypatch.setattr(rl_cli.patterns.subprocess, "run", run)
    assert command(file("a.yaml", with_patterns("a", "a", "b"))) == 2
    assert [one[0] for one in asked] == [sys.executable] * 2, "each pattern once"
