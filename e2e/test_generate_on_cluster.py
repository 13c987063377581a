"""`rltrain generate --render` on KubeRay: pods die, and every row is answered exactly once, as transformers would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import TRAINER_IMAGE
from training_run import CLAIM

ROWS, PART, TOKENS = 1500, 16, 200
# A Ray cluster comes up, and torch is imported by head and workers, on two cores that others use as well.
START_SECONDS, GENERATE_SECONDS = 240, 300
LOG = "/tmp/ray/session_latest/logs"
MAKE = """
import json, pathlib, random, sys
from rl_api.run import TinyModelSpec
from rl_trainer.model.presets import write_tiny
folder, rows = pathlib.Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir()
write_tiny(folder / "model", TinyModelSpec(hidden_size=64, layers=2, heads=4, kv_heads=1, max_positions=256), seed=4)
draw = random.Random(5)
lines = [json.dumps({"id": id, "prompt": f"{draw.randint(0, 999)}+{draw.randint(0, 99)}="}) for id in range(rows)]
(folder / "rows.jsonl").write_text("".join(line + "\\n" for line in lines))
"""
# As a user would compute it: the model's own folder, and nothing of ours but the tokenizer's file.
READ = """
import json, pathlib, sys, torch
from transformers import AutoModelForCausalLM
from rl_trainer.model.tokenizer import load_tokenizer
folder, tokens = pathlib.Path(sys.argv[1]), int(sys.argv[2])
rows = [json.loads(line) for part in sorted(folder.glob("out/part-*")) for line in part.open()]
tokenizer = load_tokenizer(folder / "model")
model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
greedy = {}
for row in rows[:: len(rows) // 6]:
    ids = torch.tensor([tokenizer.encode(row["prompt"], special_tokens=True)])
    new = []
    for _ in range(tokens):
        token = int(model(ids).logits[0, -1].argmax())
        if token in tokenizer.stop_ids:
            break
        new.append(token)
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    greedy[row["id"]] = tokenizer.decode(new)
print("FOUND", json.dumps({"rows": rows, "greedy": greedy}))
"""


def python(cluster: Cluster, namespace: str, name: str, program: str, *arguments: object) -> str:
    """What a Python program prints that has the claim at /data."""
    script = f"cat > /tmp/program.py <<'END'\n{program}\nEND\npython /tmp/program.py {' '.join(map(str, arguments))}"
    return cluster.run_once(namespace, name, TRAINER_IMAGE, script, claim=CLAIM, seconds=300)


class Job:
    """The RayJob of a rendering that was applied."""

    def __init__(self, cluster: Cluster, name: str, namespace: str) -> None:
        self.cluster, self.name, self.namespace = cluster, name, namespace

    @property
    def status(self) -> dict[str, Any]:
        """What KubeRay says."""
        return (self.cluster.get("rayjob", self.name, self.namespace) or {}).get("status") or {}

    def pods(self, kind: str) -> list[dict[str, Any]]:
        """Its pods that are not being deleted: head or worker."""
        labels = f"app.kubernetes.io/instance={self.name},ray.io/node-type={kind}"
        found = self.cluster.list("pods", self.namespace, labels)
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def in_head(self, script: str) -> str:
        """What a shell script prints in the head; empty: there is no head, or it failed."""
        for pod in self.pods("head"):
            name = pod["metadata"]["name"]
            done = self.cluster.kubectl(
                "exec", name, "-n", self.namespace, "--", "bash", "-c", script, check=False
            )
            return done.stdout
        return ""

    def said(self) -> str:
        """What the driver in the head has written so far; empty: it cannot be read now."""
        return self.in_head(f"cat {LOG}/job-driver-*.log")

    def kill(self, kind: str) -> str:
        """Delete one pod at once, as a lost node would; its name."""
        name: str = self.pods(kind)[0]["metadata"]["name"]
        # Nobody waits here until it is gone: the job goes on meanwhile.
        now = ("--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl("delete", "pod", name, "-n", self.namespace, *now)
        return name

    def describe(self) -> str:
        """What is known when something did not come."""
        status = {key: self.status.get(key) for key in ("jobStatus", "jobDeploymentStatus", "message")}
        return f"its status: {json.dumps(status)}; its log: {self.said()[-2000:]}"


@pytest.mark.long
@pytest.mark.alone  # fifteen hundred rows on two cores
def test_every_row_is_answered_once_though_a_worker_and_the_head_die(
    cluster: Cluster, namespace: str
) -> None:
    # One folder for all where scripts/cluster has prepared the disk.
    folder = f"/data/{namespace}"
    python(cluster, namespace, "make", MAKE, folder, ROWS)
    words = ["generate", "--render", "--name", "answers", "--namespace", namespace, "--image", TRAINER_IMAGE]
    words += ["--claim", CLAIM, "--workers", "2", "--cpus", "0.2", "--slots", "4"]
    words += ["--temperature", "0", "--max-new-tokens", str(TOKENS), "--part-rows", str(PART)]
    words += ["--model", f"{folder}/model", "--input", f"{folder}/rows.jsonl", "--output", f"{folder}/out"]
    command = [sys.executable, "-m", "rl_cli.main", *words]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
    cluster.kubectl("apply", "-f", "-", stdin=rendered)
    job = Job(cluster, "answers", namespace)

    def parts() -> int:
        return len(job.in_head(f"ls {folder}/out/part-*.jsonl").split())

    def more_than(count: int) -> int:
        assert job.status.get("jobDeploymentStatus") != "Failed", job.describe()
        found = parts()
        return found if found > count else 0

    done = wait_for("the first part is there", lambda: more_than(0), START_SECONDS, job.describe)
    assert done < ROWS // PART, "the worker dies too late to matter"
    job.kill("worker")
    done = wait_for("the other worker goes on", lambda: more_than(done), 120, job.describe)
    wait_for("it says how far it is", lambda: f" of {ROWS:,} rows" in job.said(), 60, job.describe)
    assert parts() < ROWS // PART, "the head dies too late to matter"
    job.kill("head")

    def goes_on() -> list[str]:
        assert job.status.get("jobDeploymentStatus") != "Failed", job.describe()
        return re.findall(r"going on with ([\d,]+) of [\d,]+ rows done", job.said())

    def succeeded() -> bool:
        assert job.status.get("jobDeploymentStatus") != "Failed", job.describe()
        return job.status.get("jobStatus") == "SUCCEEDED"

    [said] = wait_for("another head goes on", goes_on, START_SECONDS, job.describe)
    wait_for("the job succeeds", succeeded, START_SECONDS + GENERATE_SECONDS, job.describe)
    assert int(said.replace(",", "")) >= done * PART
    printed = python(cluster, namespace, "read", READ, folder, TOKENS)
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("FOUND "))[6:])
    rows = found["rows"]
    assert [row["id"] for row in rows] == list(range(ROWS))
    assert not [row for row in rows if row["error"] is not None]
    assert len(found["greedy"]) >= 6
    for id, text in found["greedy"].items():
        assert rows[int(id)]["completion"] == text
