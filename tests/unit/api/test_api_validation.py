from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_api import (
    InvalidConfig,
    InvalidDocuments,
    RLTrainingProfile,
    check_files,
    load_run,
    validate_files,
)
from rl_api.validation import is_foreign

RUN = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingRun
metadata: {name: NAME}
spec:
  model: {source: tiny}
  task: {environment: reasoning-gym, name: chain_sum}
  sampler: {replicas: 4}
"""
PROFILE = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingProfile
metadata: {name: NAME}
spec:
  default: true
  pools: [{name: cpu}]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file into an empty working folder and gives its name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str | bytes) -> str:
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return write


def run_text(name: str = "one") -> str:
    return RUN.replace("NAME", name)


def profile_text(name: str = "shared") -> str:
    return PROFILE.replace("NAME", name)


def problems(call: Any, *args: Any) -> list[str]:
    with pytest.raises(InvalidDocuments) as caught:
        call(*args)
    assert caught.value.exit_code == 2
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def test_several_files_and_documents_are_read(file: Any) -> None:
    both = file("both.yaml", f"---\n{run_text('a')}---\n---\n{profile_text()}")
    one = file("one.yaml", b"\xef\xbb\xbf" + run_text("b").encode())
    checked = validate_files([both, one])
    assert [(source, resource.kind, resource.name) for source, resource in checked] == [
        ("both.yaml (document 1)", "RLTrainingRun", "a"),
        ("both.yaml (document 3)", "RLTrainingProfile", "shared"),
        ("one.yaml", "RLTrainingRun", "b"),
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "",
            "f.yaml: found nothing, allowed: a document with kind RLTrainingRun, RLPolicyService or RLTrainingProfile",
        ),
        (
            "# a comment\n---\n",
            "f.yaml: found nothing, allowed: a document with kind RLTrainingRun, RLPolicyService or RLTrainingProfile",
        ),
        (b"\x00\xff\xfe", "f.yaml: not valid YAML: byte 1 is not UTF-8 text"),
        (
            "a: [",
            "f.yaml: line 1, column 5: not valid YAML: expected the node content, but found '<stream end>'",
        ),
        ("- 1\n", "f.yaml: found a list, allowed: an object with apiVersion, kind, metadata and spec"),
        (
            "spec: {}\n",
            "f.yaml: kind: missing, required: RLTrainingRun, RLPolicyService or RLTrainingProfile",
        ),
        (
            run_text() + "  seed: 1\n  seed: 2\n",
            "f.yaml: line 9, column 3: not valid YAML: the key 'seed' is there twice",
        ),
    ],
)
def test_a_file_that_is_none(file: Any, content: str | bytes, sentence: str) -> None:
    assert problems(validate_files, [file("f.yaml", content)]) == [sentence]
    with pytest.raises(InvalidConfig) as caught:
        load_run("f.yaml")
    assert str(caught.value) == sentence


def test_files_that_cannot_be_read(file: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert problems(validate_files, ["missing.yaml", "folder", "loop.yaml"]) == [
        "missing.yaml: no such file, allowed: a YAML file or - for standard input",
        "folder: found a folder, allowed: a YAML file or - for standard input",
        "loop.yaml: cannot be read: Too many levels of symbolic links",
    ]
    with pytest.raises(InvalidConfig, match=r"^missing\.yaml: no such file"):
        load_run(Path("missing.yaml"))


def test_all_problems_of_all_files_are_told(file: Any) -> None:
    first = file("a.yaml", run_text("Bad") + "  colour: red\n")
    second = file("b.yaml", run_text() + "---\n" + run_text("two").replace("4", "two") + "  seed: x\n")
    assert [sentence.partition(", ")[0] for sentence in problems(validate_files, [first, second])] == [
        "a.yaml: metadata.name: found 'Bad'",
        "a.yaml: spec.colour: unknown field",
        "b.yaml (document 2): spec.seed: found 'x'",
        "b.yaml (document 2): spec.sampler.replicas: found 'two'",
    ]


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(run_text().replace("4", "0").encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert problems(validate_files, ["-"]) == [
        "standard input: spec.sampler.replicas: found 0, allowed: a whole number >= 1 and <= 4096"
    ]


def test_objects_that_collide(file: Any) -> None:
    in_other_namespace = run_text().replace("{name: one}", "{name: one, namespace: b}")
    first = file("a.yaml", run_text() + "---\n" + in_other_namespace + "---\n" + profile_text())
    second = file("b.yaml", run_text() + "---\n" + profile_text() + "---\n" + profile_text("third"))
    run, profile = "which the RLTrainingRun of a.yaml (document 1)", "which the RLTrainingProfile of a.yaml"
    default = "spec.default: found true, allowed: false, as a.yaml (document 3) has the default"
    assert problems(validate_files, [first, second]) == [
        f"b.yaml (document 1): metadata.name: found 'one', {run} has already",
        f"b.yaml (document 2): metadata.name: found 'shared', {profile} (document 3) has already",
        f"b.yaml (document 2): {default}",
        f"b.yaml (document 3): {default}",
    ]


def test_a_name_is_taken_in_its_namespace_only(file: Any) -> None:
    runs = [run_text().replace("{name: one}", f"{{name: one, namespace: {space}}}") for space in "aba"]
    assert problems(validate_files, [file("runs.yaml", "---\n".join(runs))]) == [
        "runs.yaml (document 3): metadata.name: found 'one', which the RLTrainingRun of runs.yaml (document 1) has "
        "already"
    ]


def test_the_valid_objects_of_a_wrong_file_are_known(file: Any) -> None:
    report = check_files([file("f.yaml", run_text() + "---\nkind: Pod\n")])
    assert [resource.name for _, resource in report.valid] == ["one"]
    assert len(report.problems) == 1


def test_a_run_is_loaded_with_changes(file: Any) -> None:
    path = file("run.yaml", run_text())
    assert load_run(path).spec.sampler.replicas == 4
    run = load_run(Path(path), ["sampler.replicas=8", "stop.maxDuration=90s", "metadata.name=other"])
    assert run.spec.sampler.replicas == 8
    assert run.spec.stop.max_duration is not None
    assert run.spec.stop.max_duration.seconds == 90.0
    assert run.name == "other"


def test_the_one_run_of_a_file_is_found(file: Any) -> None:
    both = file("both.yaml", f"{profile_text()}---\n{run_text()}")
    assert load_run(both).name == "one"
    assert load_run(file("list.yaml", f"- 1\n---\n{run_text()}")).name == "one"
    two = file("two.yaml", f"{run_text()}---\n{run_text('two')}")
    assert problems(load_run, two) == [
        "two.yaml: found 2 documents of kind RLTrainingRun, allowed: exactly one"
    ]
    profile = file("profile.yaml", profile_text())
    assert problems(load_run, profile) == [
        "profile.yaml: kind: found 'RLTrainingProfile', allowed: RLTrainingRun"
    ]


def test_a_problem_is_said_of_the_option_that_made_it(file: Any) -> None:
    path = file("run.yaml", run_text() + "  seed: x\n")
    sets = [
        "sampler.replicas=two",
        "nothing",
        "buffer={capacity: 0}",
        "warmStart.steps=1",
        "algorithm.groupSize=1",
    ]
    assert [sentence.partition(", ")[0] for sentence in problems(load_run, path, sets)] == [
        "--set nothing: found no '='",
        "--set warmStart.steps=1: spec.warmStart.steps: unknown field",
        "run.yaml: spec.seed: found 'x'",
        "--set sampler.replicas=two: spec.sampler.replicas: found 'two'",
        "--set buffer={capacity: 0}: spec.buffer.capacity: found 0",
        "--set algorithm.groupSize=1: spec.algorithm.groupSize: found 1",
    ]


def test_a_change_that_cannot_be_is_told_alone(file: Any) -> None:
    path = file("run.yaml", run_text())
    assert problems(load_run, path, ["seed=1", "nothing"]) == [
        "--set nothing: found no '=', allowed: path=value, such as sampler.replicas=2"
    ]


def test_of_two_changes_the_last_is_blamed(file: Any) -> None:
    sets = ["sampler={replicas: 2}", "sampler.replicas=two", "sampler.replicas=three"]
    assert problems(load_run, file("run.yaml", run_text()), sets) == [
        "--set sampler.replicas=three: spec.sampler.replicas: found 'three', allowed: a whole number >= 1 and <= 4096"
    ]


@pytest.mark.parametrize(
    ("document", "foreign"),
    [
        ({"apiVersion": "v1", "kind": "Pod"}, True),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, True),
        ({"apiVersion": "rltrain.dev/v2", "kind": "Other"}, False),
        ({"apiVersion": 1, "kind": "Pod"}, False),
        ({"apiVersion": "v1", "kind": 5}, False),
        ({"apiVersion": "v1"}, False),
        ({"kind": "Pod"}, False),
        (["v1"], False),
        (None, False),
    ],
)
def test_objects_of_other_apis_are_known(document: object, foreign: bool) -> None:
    assert is_foreign(document) is foreign


def test_changes_to_what_is_no_object(file: Any) -> None:
    assert problems(load_run, file("f.yaml", "5"), ["seed=1"]) == [
        "f.yaml: found 5, allowed: an object with apiVersion, kind, metadata and spec"
    ]


def test_target_cluster_needs_storage(file: Any) -> None:
    path = file("run.yaml", run_text())
    assert load_run(path, target="local").name == "one"
    assert [s.partition(", ")[0] for s in problems(validate_files, [path], "cluster")] == [
        "run.yaml: spec.checkpoint.storage: missing"
    ]
    assert load_run(path, ["checkpoint.storage.s3=s3://b/c"], target="cluster").name == "one"


def test_a_profile_is_an_object_of_its_own(file: Any) -> None:
    (checked,) = validate_files([file("p.yaml", profile_text())])
    assert isinstance(checked.resource, RLTrainingProfile)
    assert checked.resource.spec.default is True


def test_objects_of_other_apis_beside_ours_are_left_alone(file) -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: disk}\n"
    both = file("f.yaml", claim + "---\n" + run_text())
    report = check_files([both])
    assert report.problems == ()
    assert [one.source for one in report.valid] == [f"{both} (document 2)"]
    alone = check_files([file("g.yaml", claim)])
    assert (
        "kind: found 'PersistentVolumeClaim', allowed: RLTrainingRun, RLPolicyService or RLTrainingProfile"
        in alone.problems[0]
    )
