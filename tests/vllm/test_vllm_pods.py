"""A sampler whose stages are on two nodes of a Ray cluster: processes of this machine, as in test_elastic_samplers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from training_runs import RunFiles, actors, until

from rl_trainer.run.local_ray.processes import only_needed_processes, patient

# Long enough for two processes of vLLM's to load on a busy machine.
LOADED = 300.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head, a node for the learner, and two for samplers, marked as the operator marks pods."""
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("RAY_AUTH_MODE", raising=False)  # a local Ray of an earlier test
        made = Cluster()
        try:
            with patient(), only_needed_processes():
                for role in ("head", "learner", "sampler", "sampler"):
                    made.add_node(
                        num_cpus=1,
                        resources={role: 1},
                        object_store_memory=80 * 2**20,
                        **({"include_dashboard": False} if role == "head" else {}),
                    )
                made.wait_for_nodes()
                yield made
        finally:
            made.shutdown()


def test_stages_on_two_nodes_are_the_learners_policy_and_live_and_die_together(
    cluster: Cluster, tmp_path: Path
):
    shape = {"hiddenSize": 64, "layers": 2, "heads": 2, "kvHeads": 2, "intermediateSize": 64}
    files = RunFiles(
        tmp_path,
        model={"tiny": shape},
        sampler={"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 2},
        stop={"maxSteps": 100_000},
    )

    def trained(steps: int) -> bool:
        return (files.out / "metrics.jsonl").exists() and len(files.steps) >= steps

    with files.start(RAY_ADDRESS=cluster.address) as process:
        process.wait_for(lambda: trained(4), LOADED)
        (first,), (other,) = actors("Sampler"), actors("EnginePod")
        nodes = {one.environ()["RAY_RAYLET_PID"] for one in (first, other)}
        assert len(nodes) == 2, "each pod has a part of the model"

        workers = [one for each in (first, other) for one in each.children() if "VLLM" in one.name()]
        assert len(workers) == 2
        other.kill()
        said = tmp_path / "stdout.txt"
        process.wait_for(lambda: "sampler 0 died and was replaced" in said.read_text(), LOADED)
        before = len(files.steps)
        process.wait_for(lambda: trained(before + 3), LOADED)
        assert not first.is_running(), "an engine without one of its pods is none"
        until(
            lambda: not any(one.is_running() for one in workers), 30, lambda: f"a worker is left: {workers}"
        )
        process.send(signal.SIGTERM)
        outcome = process.finish()
    assert outcome.code == 143, outcome
    files.assert_nothing_lost_or_twice()
    # Weights that changed step after step were those of both stages.
    assert max(abs(step.mismatch_kl) for step in files.steps) < 1e-6
