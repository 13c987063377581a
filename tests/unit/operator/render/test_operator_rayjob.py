from __future__ import annotations

from pathlib import Path

import yaml
from operator_worlds import GPU_POOLS, make_plan, make_profile

from rl_operator.render.rayjob import ray_job

DATA = Path(__file__).parent / "data"


def test_a_job_waits_for_its_queue_and_one_without_a_queue_for_nobody() -> None:
    """Whatever else is in the cluster: no pod of a queue's run starts until somebody has admitted it."""
    assert (
        ray_job(make_plan({"scheduling": {"queue": "team-a", "integration": "label"}}), 1)["spec"]["suspend"]
        is True
    )
    profile = make_profile(default=True, queue="shared", defaults={"scheduling": {"integration": "label"}})
    assert ray_job(make_plan(profile=profile), 1)["spec"]["suspend"] is True
    assert "suspend" not in ray_job(make_plan(), 1)["spec"]


class TestSnapshot:
    def test_one_rayjob_as_yaml(self) -> None:
        """After a change that is meant: write `text` into the file, and read the difference."""
        spec = {
            "sampler": {"pools": ["spot"], "resources": {"cpu": 2.5, "memory": "24Gi", "accelerators": 1}},
            "learner": {"pools": ["h100"], "threads": 4},
            "scheduling": {"queue": "team-a", "integration": "label", "priorityClass": "research"},
        }
        effective = make_plan(
            spec, make_profile(default=True, pools=GPU_POOLS, allow={"priorityClasses": ["research"]})
        )
        text = yaml.safe_dump(ray_job(effective, 3), sort_keys=False, width=110)
        assert text == (DATA / "rayjob.yaml").read_text()
