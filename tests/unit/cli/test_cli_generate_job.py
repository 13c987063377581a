"""`rltrain generate --render`: the same command as a RayJob, and what it says of what a cluster does not have."""

from __future__ import annotations

import argparse
import base64
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_worlds import groups, make_plan

from rl_cli.generate import add_parser
from rl_cli.main import main

PLACES = ["--model", "org/model", "--input", "s3://bucket/in", "--output", "s3://bucket/out"]


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert main(["generate", "--render", *PLACES, *arguments]) == 0
    secret, job = yaml.safe_load_all(capsys.readouterr().out)
    return secret, job


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["generate", *words])


def pods_of(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Specs of the pods, by role."""
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    parts = {"head": cluster["headGroupSpec"], "worker": workers}
    return {role: part["template"]["spec"] for role, part in parts.items()}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["generate", *arguments]) == 2
    return capsys.readouterr().err


def test_the_head_runs_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    # Every option, none as it is by default.
    said = [
        "--temperature",
        "0.5",
        "--top-p",
        "0.9",
        "--top-k",
        "7",
        "--max-new-tokens",
        "9",
        "--max-context",
        "99",
    ]
    said += [
        "--stop",
        "two\nlines",
        "--stop",
        "it's $HOME",
        "--seed",
        "-3",
        "--n",
        "2",
        "--added-prefix",
        "my ",
    ]
    said += ["--prompt-column=-q", "--messages-column", "chat", "--format", "parquet", "--part-rows", "5"]
    said += ["--replicas", "3", "--slots", "6"]
    given, default = parsed(*PLACES, *said), parsed(*PLACES)
    asked = {name for name in vars(given) if getattr(given, name) != getattr(default, name)}
    of_the_cluster = {"name", "namespace", "image", "workers", "cpus", "memory", "gpus", "claim", "secret"}
    left = set(vars(given)) - asked - of_the_cluster
    assert left == {"model", "input", "output", "plain", "render", "command"}, "an option is not tried here"
    _, job = rendered(capsys, *said, "--name", "x", "--namespace", "y", "--workers", "2", "--claim", "c")
    program, command, *words = shlex.split(job["spec"]["entrypoint"])
    assert (program, command) == ("rltrain", "generate")
    assert vars(parsed(*words)) == vars(given) | {"plain": True}


@pytest.mark.parametrize(
    ("options", "replicas"),
    [
        ([], 1),
        (["--workers", "4"], 4),
        (["--workers", "2", "--gpus", "8"], 16),
        (["--replicas", "3", "--workers", "2"], 3),
    ],
)
def test_there_is_an_engine_for_each_gpu_or_worker(
    capsys: pytest.CaptureFixture[str], options: list[str], replicas: int
) -> None:
    _, job = rendered(capsys, *options)
    assert parsed(*shlex.split(job["spec"]["entrypoint"])[2:]).replicas == replicas


def test_engines_are_on_workers_of_the_size_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workers", "3", "--cpus", "7.5", "--memory", "40Gi", "--gpus", "2", "--image", "our/image:1"]
    _, job = rendered(capsys, *options)
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (workers,) = cluster["workerGroupSpecs"]
    assert [workers[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [3, 3, 3]
    assert workers["rayStartParams"]["num-cpus"] == "8"
    assert workers["rayStartParams"]["num-gpus"] == "2"
    head, worker = (pod["containers"][0] for pod in pods_of(job).values())
    assert head["image"] == worker["image"] == "our/image:1"
    requests = worker["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], requests["nvidia.com/gpu"]) == ("7500m", "40Gi", "2")
    assert head["resources"]["limits"]["memory"] == "40Gi", "the whole model goes through it"
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in head["env"]


def test_pods_are_as_restricted_as_those_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = rendered(capsys, "--claim", "disk", "--secret", "store")
    of_a_run = groups(make_plan())["head"]["template"]["spec"]
    same = ("automountServiceAccountToken", "enableServiceLinks", "securityContext")
    for pod in pods_of(job).values():
        assert {name: pod[name] for name in same} == {name: of_a_run[name] for name in same}
        assert pod["containers"][0]["securityContext"] == of_a_run["containers"][0]["securityContext"]


def test_only_the_head_has_the_claim_and_the_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = rendered(capsys, "--claim", "disk", "--secret", "store", "--secret", "hub")
    head, worker = pods_of(job).values()
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}} in head["volumes"]
    assert {"name": "data", "mountPath": "/data"} in head["containers"][0]["volumeMounts"]
    secrets = [one["secret"]["secretName"] for one in head["volumes"] if "secret" in one]
    assert secrets == ["store", "hub"]
    assert [volume["name"] for volume in worker["volumes"]] == ["tmp", "shm"]


def test_each_rendering_has_a_token_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    (secret, job), (other, _) = rendered(capsys), rendered(capsys)
    assert len(base64.b64decode(secret["data"]["auth_token"])) == 64
    assert secret["data"] != other["data"]
    assert secret["metadata"]["name"] != other["metadata"]["name"], "pods of the first keep theirs"
    name = secret["metadata"]["name"]
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token", "secretName": name}
    for pod in pods_of(job).values():
        env = {one["name"]: one for one in pod["containers"][0]["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        key = {"name": name, "key": "auth_token"}
        assert env["RAY_AUTH_TOKEN"]["valueFrom"] == {"secretKeyRef": key}


def test_a_lost_head_is_made_anew_with_the_job_and_nothing_stays(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = rendered(capsys, "--name", "answers", "--namespace", "team-a", "--workers", "3")
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("answers", "team-a")
    assert "annotations" not in job["metadata"], "KubeRay may make a new head"
    head, worker = pods_of(job).values()
    assert head["restartPolicy"] == "Never"
    said = {"name": "RLTRAIN_WORKERS", "value": "3"}
    assert said in head["containers"][0]["env"], "the new head has no workers at first"
    assert said not in worker["containers"][0]["env"]
    assert job["spec"]["backoffLimit"] == 3
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    assert job["spec"]["ttlSecondsAfterFinished"] == 60


def test_the_operator_takes_none_of_it_for_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for one in rendered(capsys):
        assert not any("rltrain.dev" in label or "managed-by" in label for label in one["metadata"]["labels"])


def test_paths_of_this_machine_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    allowed = "s3://bucket/folder, or a path below /data with --claim NAME"
    cases = {
        # A folder here is what is meant, and a hub id where there is none.
        (
            "--model",
            "org/model",
        ): f"which the cluster does not have; allowed with --render: a hub id, {allowed}",
        (
            "--model",
            "../policy",
        ): f"which the cluster does not have; allowed with --render: a hub id, {allowed}",
        ("--input", "prompts.jsonl"): f"which the cluster does not have; allowed with --render: {allowed}",
        ("--output", "/data/../out"): f"which the cluster does not have; allowed with --render: {allowed}",
        (
            "--output",
            "https://host/out",
        ): f"which the cluster does not have; allowed with --render: {allowed}",
    }
    for (option, place), why in cases.items():
        places = [*PLACES[:1], "other/model", *PLACES[2:], option, place, "--claim", "disk"]
        assert refusal(capsys, "--render", *places) == f"rltrain: {option}: found {place}, {why}\n"
    said = refusal(capsys, "--render", *PLACES[:1], "tiny", *PLACES[2:], "--input", "/data/in")
    assert "--input: found /data/in, which is on no pod without --claim" in said


def test_what_is_for_a_cluster_is_refused_without_render(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in {"--workers": "2", "--gpus": "0", "--claim": "disk", "--secret": "store"}.items():
        said = refusal(capsys, *PLACES, option, value)
        assert said == f"rltrain: {option}: found without --render, allowed: with --render only\n"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--name", "a" * 48, "at most 47 in all"),
        ("--namespace", "Team", "1 to 63 characters a-z, 0-9 and '-'"),
        ("--image", "an image", "a container image such as"),
        ("--memory", "lots", "a Kubernetes quantity such as 500Mi or 16Gi"),
        ("--cpus", "0", "a number from 0.1 to 1024"),
        ("--workers", "0", "a whole number from 1 to 1024"),
    ],
)
def test_a_bad_value_is_one_sentence(
    capsys: pytest.CaptureFixture[str], option: str, value: str, allowed: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "--render", *PLACES, option, value])
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: found {value}, allowed: " in last
    assert allowed in last
