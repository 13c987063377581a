"""`rltrain plan`: tables, JSON, the picture, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from model_configs import MODELS
from plan_command import Command, measured_run, texts_of

import rl_trainer.model.source as source
from rl_api.errors import Unavailable
from rl_cli.main import main

ROOT = Path(__file__).parents[3]


def test_a_table_of_what_roles_need(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--device-memory", "200G", "--bandwidth", "2G") == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = {line[:17].strip(): line[17:].split("  ") for line in output.out.splitlines()}
    cells = {name: [cell.strip() for cell in row if cell.strip()] for name, row in rows.items()}
    assert output.out.startswith("model: qwen2, 7.6 B parameters (7,615,616,512)\n")
    assert cells["per device"] == ["learner", "sampler"]
    assert cells["weights"] == ["30 GB", "7.6 GB"]
    assert cells["gradients"] == ["30 GB", "-"]
    assert cells["optimizer moments"] == ["61 GB", "-"]
    assert cells["KL reference"] == ["30 GB", "-"]
    assert cells["critic"] == ["-", "-"]
    assert cells["of"] == ["200 GB", "180 GB of 200 GB"]
    assert cells["pods"] == ["2", "3"]
    assert cells["devices"] == ["2", "3 x 2"]
    assert "sequences of 4,096 tokens at once\n" in output.out
    assert "checkpoint: 91 GB, of which 3 are kept (274 GB), written in 46 s at 2.0 GB/s\n" in output.out
    assert output.out.endswith(
        "who sits with whom:\n  this machine node 0: 2 learners, 3 samplers of 2 devices (copy 0 to copy 1)\n"
    )


def test_workers_of_the_task_are_counted(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    game = "{environment: tool-use, name: calculator, simulators: {replicas: 3, cpu: 0.5, memory: 2G}}"
    change = ("{environment: reasoning-gym, name: chain_sum}", game)
    assert command("--device-memory", "200G", change=change) == 0
    assert "\nsimulators beside them: 3, each with 0.5 cores and 2.0 GB\n" in capsys.readouterr().out
    assert command("--device-memory", "200G", "--json", change=change) == 0
    found = json.loads(capsys.readouterr().out)["workers"]
    assert found == {"simulator": {"replicas": 3, "accelerators": 0, "cpu": 0.5, "memory": 2 * 10**9}}


def test_a_run_that_cannot_fit_is_refused(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    no_reference = ("coefficient: 0.01", "coefficient: 0")
    assert command("--device-memory", "80G", change=no_reference) == 2
    output = capsys.readouterr()
    assert "who sits with whom" in output.out, "the table is shown all the same"
    assert output.err == (
        "rltrain: run.yaml: learner: 7.6 B parameters need 122 GB on one 80 GB device; shard over 2 "
        "(learner.parallelism: fsdp2)\n"
    )
    assert command("--device-memory", "8G", "--json", change=no_reference) == 2
    output = capsys.readouterr()
    assert json.loads(output.out)["misfits"] == [
        line.removeprefix("rltrain: run.yaml: ") for line in output.err.splitlines()
    ]
    assert output.err.count("\n") == 2, "a sentence for each role"


def test_a_machine_may_have_more_devices_than_the_run_takes(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    one_each = (
        "--set",
        "learner.replicas=1",
        "--set",
        "sampler.replicas=1",
        "--set",
        "sampler.maxNewTokens=1024",
    )
    options = ("--device-memory", "80G", *one_each, "--set")
    assert command(*options, "sampler.tensorParallelSize=1", model="Qwen2.5-72B") == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("; set sampler.tensorParallelSize: 4")
    assert command(*options, "sampler.tensorParallelSize=4", model="Qwen2.5-72B") == 2
    assert "sampler: " not in capsys.readouterr().err


def test_what_is_advised_of_long_sequences_is_enough(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    divided = ("learner: {replicas: 2,", "learner: {replicas: 64, parallelism: fsdp2,")
    options = ("--device-memory", "80G", "--set", "sampler.tensorParallelSize=4", "--set")
    assert command(*options, "sampler.maxNewTokens=16384", model="Qwen2.5-72B", change=divided) == 2
    assert capsys.readouterr().err.endswith(
        "; set sampler.maxNewTokens and learner.tokensPerMicroBatch: 8192, or at most that\n"
    )
    assert command(*options, "sampler.maxNewTokens=8192", model="Qwen2.5-72B", change=divided) == 0


def test_pools_of_a_profile(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    profile = str(ROOT / "examples" / "profile-gpu.yaml")
    code = command("--profile", profile, "--json", model="Qwen2.5-0.5B")
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    plan = json.loads(output.out)
    assert {name: role["pool"] for name, role in plan["roles"].items()} == {
        "learner": "h100",
        "sampler": "h100-spot",
    }
    assert plan["roles"]["learner"]["deviceMemory"] == 80 * 10**9
    assert plan["roles"]["learner"]["parts"]["weights"] == 4 * 494_032_768
    assert plan["checkpoint"] == {"bytes": 12 * 494_032_768, "kept": 3, "seconds": None}
    assert [(node["pool"], node["devices"], len(node["seats"])) for node in plan["nodes"]] == [
        ("h100", 8, 2),
        ("h100-spot", 8, 6),
    ]
    sampler = plan["roles"]["sampler"]
    assert sampler["kvTokens"] == 16 * sampler["kvBlocks"] > 0
    assert plan["fits"] is True


def test_moments_in_main_memory(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    profile = ("--profile", str(ROOT / "examples" / "profile-gpu.yaml"))
    offload = ("activationCheckpointing: true", "resources: {memory: 100Gi}, optimizerOffload: true")
    options = {"model": "Qwen2.5-0.5B", "change": offload}
    assert command(*profile, **options) == 0
    assert (
        "a learner pod's main memory: 4.6 GB for optimizer moments and libraries\n" in capsys.readouterr().out
    )
    assert command(*profile, "--json", "--set", "learner.resources.memory=4Gi", **options) == 2
    output = capsys.readouterr()
    assert json.loads(output.out)["roles"]["learner"]["mainMemory"] == 8 * 494_032_768 + 600 * 2**20
    assert (
        "need 4.6 GB of the main memory of each pod, which has 4.3 GB; set learner.resources.memory: 5Gi"
        in output.err
    )


def test_what_a_profile_refuses_is_not_planned(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command("--profile", str(ROOT / "examples" / "profile-gpu.yaml"), "--set", "sampler.replicas=40") == 2
    )
    assert "spec.sampler.replicas: found 40, allowed: at most " in capsys.readouterr().err


def test_pods_without_accelerators(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    profile = str(ROOT / "examples" / "profile-cpu.yaml")
    torch_engine = ("engine: vllm, maxNewTokens: 3072, tensorParallelSize: 2", "engine: torch")
    code = command("--profile", profile, change=torch_engine)
    error = capsys.readouterr().err
    assert code == 2
    assert "learner: 7.6 B parameters need " in error
    assert error.count(" pod") >= 2
    assert "sampler.tensorParallelSize" not in error


def test_a_picture(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--device-memory", "80G", "--svg", "plan.svg") == 2
    texts = texts_of(Path("plan.svg"))
    assert texts[0] == "qwen2, 7.6 B parameters"
    assert texts.count("copy 1") == 1
    assert texts.count("sampler pod 2") == 2
    assert any("too much" in text for text in texts)
    capsys.readouterr()
    assert command("--svg", "no/such/folder.svg") == 2
    assert (
        "--svg: no/such/folder.svg cannot be written (No such file or directory)" in capsys.readouterr().err
    )


def test_the_preset_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "examples" / "quickstart.yaml")]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("model: qwen2, 309 k parameters (308,608)\n")
    assert output.err == (
        "rltrain: how large the devices are is not known, so that nothing is held against it: give --device-memory\n"
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("./nothing", "rltrain: model.source: ./nothing is not a folder; give a preset (tiny), "),
        (".", "rltrain: model folder .: config.json is missing; "),
        ("s3://bucket/model", "rltrain: model.source: s3://bucket/model cannot be read: no such host"),
        (
            "some/model",
            "rltrain: model.source: hub model some/model cannot be loaded: the hub cannot be reached",
        ),
    ],
)
def test_models_that_cannot_be_read(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    sentence: str,
) -> None:
    def away(folder: object, what: str, work: object) -> None:
        raise Unavailable(f"{what}: no such host")

    def unreachable(*arguments: object, **options: object) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(source.RemoteFolder, "within", away)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert command(change=("SOURCE", model)) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_of_a_remote_model_its_configuration_is_read(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def read(folder: object, name: str) -> bytes | None:
        asked.append(name)
        return contents.pop(0)

    contents = [json.dumps(MODELS["Qwen2.5-0.5B"]).encode(), None, b"[]", b"{"]
    monkeypatch.setattr(source.RemoteFolder, "read", read)
    change = ("SOURCE", "s3://bucket/model")
    assert command(change=change) == 0
    assert "494 M parameters" in capsys.readouterr().out
    for sentence in (
        "model.source: the folder at s3://bucket/model has no config.json",
        "model.source: config.json at s3://bucket/model holds no JSON object",
        "model.source: config.json at s3://bucket/model is not valid JSON",
    ):
        assert command(change=change) == 2
        assert sentence in capsys.readouterr().err
    assert asked == ["config.json"] * 4


def test_a_hub_model(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3-30B-A3B"]))

    def download(name: str, file: str, *, revision: str | None) -> str:
        assert (name, file, revision) == ("some/model", "config.json", None)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert command(change=("SOURCE", "some/model")) == 0
    assert "128 experts of which a token passes 8 (3.4 B parameters)" in capsys.readouterr().out


def test_trainers_of_others_are_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "examples" / "command.yaml")]) == 2
    assert "spec.trainer.kind: found 'command', allowed with rltrain plan: rltrain" in capsys.readouterr().err


def test_options_that_are_no_sizes(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("80 GB", "0", "x"):
        with pytest.raises(SystemExit) as caught:
            command("--device-memory", wrong)
        assert caught.value.code == 2
        assert f"found {wrong}, allowed: a Kubernetes quantity such as 80Gi or 80G" in capsys.readouterr().err


def test_how_samplers_are_divided_is_the_runs(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "tensorParallelSize: 2",
        "tensorParallelSize: 2, pipelineParallelSize: 2, quantization: fp8, gpuMemoryUtilization: 0.5, maxModelLen: 8192",
    )
    command("--device-memory", "80G", "--json", change=options)
    plan = json.loads(capsys.readouterr().out)
    assert plan["sampler"] == {
        **{
            "engine": "vllm",
            "tensor_parallel": 2,
            "pipeline_parallel": 2,
            "half": True,
            "quantization": "fp8",
        },
        **{"utilization": 0.5, "length": 8192, "sequences": 64, "pods": 1},
    }
    sampler = plan["roles"]["sampler"]
    assert sampler["devices"] == 12
    assert sampler["total"] <= 40 * 10**9
    assert [seat["label"] for seat in plan["nodes"][0]["seats"][2:6]] == [
        *("sampler 0 stage 0 part 0", "sampler 0 stage 0 part 1"),
        *("sampler 0 stage 1 part 0", "sampler 0 stage 1 part 1"),
    ]


def test_a_sampler_may_be_in_several_pods(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "tensorParallelSize: 2",
        "tensorParallelSize: 2, pipelineParallelSize: 2, podsPerReplica: 2",
    )
    for place in (("--device-memory", "80G"), ("--profile", str(ROOT / "examples" / "profile-gpu.yaml"))):
        command(*place, "--json", change=options)
        plan = json.loads(capsys.readouterr().out)
        sampler = plan["roles"]["sampler"]
        assert (sampler["pods"], sampler["devices"]) == (6, 12)
        command(*place, change=options)
        assert "3 x 4" in capsys.readouterr().out
        seats = [seat["label"] for node in plan["nodes"] for seat in node["seats"]]
        assert seats[-2:] == ["sampler 2 stage 1 part 0", "sampler 2 stage 1 part 1"]


def test_how_learners_share_a_copy_is_the_runs(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    divided = (
        "learner: {replicas: 2,",
        "learner: {replicas: 2, resources: {accelerators: 4}, parallelism: fsdp2, fsdpSize: 4, pools: [h100],",
    )
    for place in (("--device-memory", "80G"), ("--profile", str(ROOT / "examples" / "profile-gpu.yaml"))):
        assert command(*place, "--json", change=divided) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["learner"] == {"ranks": 8, "shard": 4, "copies": 2, "context": 1}
        learner = plan["roles"]["learner"]
        assert (learner["pods"], learner["devices"]) == (2, 8)
        assert learner["parts"]["weights"] == 7_615_616_512
        assert [seat["label"] for seat in plan["nodes"][0]["seats"][3:5]] == [
            "copy 0 shard 3",
            "copy 1 shard 0",
        ]
    whole = (divided[0], divided[1].replace("fsdpSize: 4, ", ""))
    assert command("--device-memory", "80G", change=whole) == 0
    assert "1 x 8" in capsys.readouterr().out


def test_learners_that_share_sequences_keep_their_part_of_the_activations(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of sequences that are longer than a pass."""
    options = ("--device-memory", "200G", "--set", "sampler.maxNewTokens=65536", "--json")
    found = {}
    for size in (1, 4):
        said = f"learner: {{replicas: 8, parallelism: fsdp2, contextSize: {size},"
        assert command(*options, change=("learner: {replicas: 2,", said)) in (0, 2)
        plan = json.loads(capsys.readouterr().out)
        assert plan["learner"] == {"ranks": 8, "shard": 8, "copies": 1, "context": size}
        found[size] = plan["roles"]["learner"]["parts"]
    logits = found[1]["activations"] - 4 * (found[1]["activations"] - found[4]["activations"]) / 3
    assert 0 < logits < found[4]["activations"]
    assert found[4] == found[1] | {"activations": found[4]["activations"]}
    uneven = ("learner: {replicas: 2,", "learner: {replicas: 8, contextSize: 8,")
    assert command("--device-memory", "200G", change=uneven) == 2
    assert capsys.readouterr().err == (
        "rltrain: spec.learner.contextSize: found 8, allowed for a model of 28 attention heads and 4 of keys and values: "
        "1, 2, 4\n"
    )


ENDPOINT = (
    "sampler: {replicas: 3, engine: vllm, maxNewTokens: 3072, tensorParallelSize: 2}",
    "sampler: {replicas: 1, engine: endpoint, maxNewTokens: 3072, endpoint: {url: http://inference:8000, folder: /shared}}",
)


def test_where_a_server_decodes_its_memory_is_left_out_and_its_time_not_known(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--device-memory", "200G", "--svg", "plan.svg", change=ENDPOINT) == 0
    output = capsys.readouterr().out
    assert "a server outside the run holds the model and decodes; what it needs is not planned\n" in output
    assert output.endswith("who sits with whom:\n  this machine node 0: 2 learners (copy 0 to copy 1)\n")
    assert "sampler" not in Path("plan.svg").read_text()
    assert command("--json", change=ENDPOINT) == 0
    assert json.loads(capsys.readouterr().out)["roles"].keys() == {"learner"}
    measured_run(Path("before"))
    assert command("--measured", "before", change=ENDPOINT) == 2
    refused = "allowed: torch or vllm; a server outside the run decodes, and its time is not known\n"
    assert capsys.readouterr().err == (
        f"rltrain: --measured: found sampler.engine endpoint in the run that is planned, {refused}"
    )
    ran = Path("before/run.yaml")
    ran.write_text(ran.read_text().replace(ENDPOINT[0].replace("3072", "1536"), ENDPOINT[1]))
    assert command("--measured", "before") == 2
    assert (
        capsys.readouterr().err == f"rltrain: --measured: found sampler.engine endpoint in before, {refused}"
    )


def test_a_checkpoints_copy_is_in_main_memory_where_learners_see_the_folder(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(*arguments: str) -> list[str]:
        assert command(*arguments, change=divided) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "main memory" in line]

    divided = ("learner: {replicas: 2,", "learner: {replicas: 8, parallelism: fsdp2,")
    here = ("--device-memory", "80G")
    saves = "a checkpoint's copy, which checkpoint.asynchronous: never saves"
    assert lines(*here) == [f"a learner pod's main memory: 11 GB (91 GB of all 8) for {saves}"]
    [offloaded] = lines(*here, "--set", "learner.optimizerOffload=true")
    assert offloaded.endswith(f" for optimizer moments, libraries and {saves}")
    assert lines(*here, "--set", "checkpoint.asynchronous=never") == []
    assert lines() == [], "auto is of GPUs alone"
    on_a_cluster = ("--profile", str(ROOT / "examples" / "profile-gpu.yaml"))
    assert lines(*on_a_cluster, "--set", "sampler.replicas=2") == [], "there it is asked for alone"
    always = ("--set", "checkpoint.asynchronous=always")
    assert lines(*on_a_cluster, "--set", "sampler.replicas=2", *always) == [
        f"a learner pod's main memory: 11 GB for {saves}"
    ]


def test_samplers_on_learners_devices_are_shown_where_they_are(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shared = ("--set", "placement.mode=hybrid", "--set", "sampler.tensorParallelSize=1")
    svg = tmp_path / "shared.svg"
    assert command("--device-memory", "200G", *shared, "--svg", str(svg)) == 0
    output = capsys.readouterr().out
    assert "pods" in output
    assert "1, 2 in learners'" in output
    assert " where one is moved out (swap); here swap, and " in output
    assert output.endswith(
        "  this machine node 0: 2 learners with 2 samplers on their devices, 1 sampler (copy 0 to copy 1)\n"
    )
    texts = texts_of(svg)
    assert [text for text in texts if text in ("sampler 0", "sampler 1")] == ["sampler 0", "sampler 1"]
    assert command("--device-memory", "200G", *shared, "--set", "placement.residency=keep") == 2
    assert "with residency keep; set placement.residency: swap" in capsys.readouterr().err


def test_in_a_profile_a_collocated_sampler_has_no_pod(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ("--set", "placement.mode=collocated", "--set", "sampler.tensorParallelSize=1")
    profile = ("--profile", str(ROOT / "examples" / "profile-gpu.yaml"), "--device-memory", "200G")
    more = ("--set", "sampler.replicas=2", "--set", "learner.resources.memory=2000Gi", "--json")
    assert command(*profile, *shared, *more) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["shared"]["samplers"], plan["shared"]["residency"]) == (2, "swap")
    assert [seat["guest"] for node in plan["nodes"] for seat in node["seats"]] == ["sampler 0", "sampler 1"]
