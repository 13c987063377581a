from __future__ import annotations

from pathlib import Path

import yaml
from operator_worlds import GPU_POOLS, make_plan, make_profile

from rl_operator.render.rayjob import ray_job

DATA = Path(__file__).parent / "data"


class TestSnapshot:
    def test_one_rayjob_as_yaml(self) -> None:
        """After a change that is meant: write `text` into the file, and read the difference."""
        spec = {
            "sampler": {"pools": ["spot"], "resources": {"cpu": 2.5, "memory": "24Gi", "accelerators": 1}},
            "learner": {"pools": ["h100"], "threads": 4},
            "scheduling": {"queue": "team-a", "priorityClass": "research"},
        }
        effective = make_plan(spec, make_profile(default=True, pools=GPU_POOLS))
        text = yaml.safe_dump(ray_job(effective, 3), sort_keys=False, width=110)
        assert text == (DATA / "rayjob.yaml").read_text()
