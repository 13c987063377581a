"""From RayJob to RayService: a run that trains, a service for what it has learnt, and what the operator makes of both.

python examples/tutorials/14_rayservice.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from show import Row, table

EXAMPLES = Path(__file__).parents[1]
RUN, SERVICE = EXAMPLES / "quickstart-cluster.yaml", EXAMPLES / "quickstart-service.yaml"


def rendered() -> list[dict[str, Any]]:
    """What `rltrain render` writes of both together: the service follows the run."""
    both = "\n---\n".join(path.read_text() for path in (RUN, SERVICE))
    program = "import sys; from rl_cli.main import main; sys.exit(main(['render', '-']))"
    done = subprocess.run(
        [sys.executable, "-c", program], input=both, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def main() -> list[Row]:
    """Rows: one question, and the field that answers it in the RayJob and in the RayService."""
    objects = rendered()
    job, service = (next(one for one in objects if one["kind"] == kind) for kind in ("RayJob", "RayService"))
    cluster, served = job["spec"]["rayClusterSpec"], service["spec"]["rayClusterConfig"]
    applications = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]

    def groups(spec: dict[str, Any]) -> str:
        return ", ".join(
            ["head", *(f"{one['groupName']} x{one['replicas']}" for one in spec["workerGroupSpecs"])]
        )

    rows = [
        {
            "question": "what runs",
            "RayJob": job["spec"]["entrypoint"].split()[0],
            "RayService": applications[0]["import_path"],
        },
        {"question": "pods", "RayJob": groups(cluster), "RayService": groups(served)},
        {
            "question": "when it ends",
            "RayJob": f"with the command; shutdownAfterJobFinishes: {job['spec'].get('shutdownAfterJobFinishes')}",
            "RayService": "never: a copy that fails its health check is replaced",
        },
        {
            "question": "another version",
            "RayJob": "a new object",
            "RayService": f"upgradeStrategy: {service['spec'].get('upgradeStrategy', {}).get('type', 'NewCluster')}",
        },
    ]
    table(rows, f"{job['metadata']['name']} and {service['metadata']['name']}")
    return rows


if __name__ == "__main__":
    main()
