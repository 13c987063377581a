"""`rltrain render`: what the operator would create."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_cli.main import main
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective, plan
from rl_operator.render.objects import all_objects

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "examples" / "quickstart-cluster.yaml")
PROFILE = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingProfile
metadata: {name: small}
spec:
  pools: [{name: cpu, nodeSelector: {disk: ssd}}]
  defaults: {checkpoint: {storage: {persistentVolumeClaim: shared}}}
  limits: {maxSamplers: 2}
"""
RUN = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingRun
metadata: {name: arithmetic}
spec:
  model: {source: tiny}
  task: {environment: reasoning-gym, name: chain_sum}
"""


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["render", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A run without storage, and a profile that has it."""
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    return str(tmp_path / "run.yaml"), str(tmp_path / "profile.yaml")


def test_they_are_the_operators_objects_without_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    found = rendered(capsys, QUICKSTART)
    run = list(yaml.safe_load_all(Path(QUICKSTART).read_text()))[-1]
    run["metadata"] |= {"uid": "00000000-0000-0000-0000-000000000000", "namespace": "default"}
    run["spec"]["algorithm"]["learningRate"] = 5e-4  # PyYAML takes it for text
    run["spec"]["warmStart"]["learningRate"] = 1e-3
    effective = plan(run, [], Settings())
    assert isinstance(effective, Effective)
    expected = all_objects(effective, 1, b"key")
    assert [one["kind"] for one in found] == [
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "ConfigMap",
        "RayJob",
    ]
    hidden = {"token": "********", "auth_token": "********"}
    assert found[2].pop("data") == hidden
    assert expected[2].pop("data") != hidden
    assert found == expected


def test_the_file_in_the_config_map_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", QUICKSTART]) == 0
    assert "\n  run.yaml: |\n    apiVersion: rltrain.dev/v1alpha1\n" in capsys.readouterr().out


def test_set_and_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    found = rendered(capsys, QUICKSTART, "--set", "learner.replicas=2", "-n", "team-a")
    groups = found[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert next(group for group in groups if group["groupName"] == "learner")["replicas"] == 2
    assert {one["metadata"]["namespace"] for one in found} == {"team-a"}


def test_the_profile_gives_what_the_run_leaves_out(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, profile = files
    found = rendered(capsys, run, "--profile", profile)
    head = found[-1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["nodeSelector"] == {"disk": "ssd"}
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}} in head["volumes"]


def test_what_the_operator_would_refuse(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    run, profile = files
    assert main(["render", run]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rltrain: {run}: spec.checkpoint.storage: missing")
    assert main(["render", run, "--profile", profile, "--set", "sampler.replicas=3"]) == 2
    assert capsys.readouterr().err == (
        f"rltrain: {run}: spec.sampler.replicas: found 3, allowed: at most 2, the limit of profile small. Ask the platform "
        "team for more.\n"
    )
    asked = "scheduling.priorityClass=system-node-critical"
    assert main(["render", run, "--profile", profile, "--set", asked]) == 2
    assert capsys.readouterr().err == (
        f"rltrain: {run}: spec.scheduling.priorityClass: found 'system-node-critical', allowed by profile small: none. "
        "Ask the platform team for more.\n"
    )
    assert main(["render", run, "--profile", run]) == 2
    assert capsys.readouterr().err == (
        f"rltrain: {run}: found no RLTrainingProfile, allowed: a file with at least one\n"
    )


def test_a_namespace_that_is_not_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN.replace("{name: arithmetic}", "{name: arithmetic, namespace: team-a}"))
    assert main(["render", str(file), "-n", "team-b", "--set", "checkpoint=null"]) == 2
    assert capsys.readouterr().err == (
        "rltrain: --namespace: found 'team-b', allowed: 'team-a', the namespace in the file of RLTrainingRun arithmetic\n"
    )


SERVICE = """\
---
apiVersion: rltrain.dev/v1alpha1
kind: RLPolicyService
metadata: {name: chat}
spec:
  from: {run: arithmetic}
  auth: {anonymous: true}
"""


def test_a_service_beside_the_run_that_it_follows(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    both, alone = tmp_path / "both.yaml", tmp_path / "alone.yaml"
    both.write_text(RUN + SERVICE)
    alone.write_text(SERVICE)
    service = rendered(capsys, str(both), "--profile", files[1])[-1]
    assert service["kind"] == "RayService"
    arguments = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["args"]
    assert arguments["source"]["folder"] == "/var/lib/rltrain/arithmetic-00000000/run"
    assert main(["render", str(alone)]) == 0
    output = capsys.readouterr()
    assert output.err == (
        f"rltrain: {alone}: spec.from.run: run arithmetic is not in this file, so where service chat finds its "
        "checkpoints is left open\n"
    )
    found = list(yaml.safe_load_all(output.out))
    assert [one["kind"] for one in found] == ["Secret", "NetworkPolicy", "PodDisruptionBudget", "RayService"]
    assert set(found[0]["data"].values()) == {"********"}
    assert main(["render", str(both), "--set", "checkpoint=null"]) == 2
    assert "keeps its checkpoints where nobody else gets at them" in capsys.readouterr().err
