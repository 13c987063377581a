"""What `scheduling.encryption` costs: Ray on two nodes of this machine with TLS and without, by turns.

    python bench/encryption.py [--repetitions 5]

Objects that an actor on one node makes and one on the other reads; calls of an actor on the other node, all sent before the
first answer is waited for, or each when the one before has been answered. Besides the time, processor time of all of Ray's
processes: it is much the same on a machine that does other things. Medians of the repetitions, each with a Ray of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
import table

SIZE: Final = 64 * 2**20
OBJECTS: Final = 16
CALLS: Final = 1000
SECONDS: Final = 300.0
FETCH, TOGETHER, ALONE = "64 MiB to another node", "1,000 calls at once", "1,000 calls one by one"


class Peer:
    """An actor on a node."""

    def make(self) -> Any:
        import numpy as np

        return np.ones(SIZE, np.uint8)

    def read(self, given: Any) -> int:
        return int(given[0])

    def nothing(self) -> None:
        return None


def measure() -> dict[str, list[float]]:
    """Milliseconds, and those of processors, on two nodes of this process's own."""
    import ray
    from ray.cluster_utils import Cluster

    from rl_trainer.run.local_ray.processes import only_needed_processes, patient

    cluster, size = Cluster(), {"object_store_memory": 200 * 2**20}
    with patient(), only_needed_processes():
        cluster.add_node(num_cpus=1, resources={"first": 1}, include_dashboard=False, **size)
        cluster.add_node(num_cpus=1, resources={"second": 1}, **size)
        ray.init(address=cluster.address, log_to_driver=False)
    here, there = (
        ray.remote(Peer).options(num_cpus=0, resources={name: 0.1}).remote() for name in ("first", "second")
    )

    def fetch() -> None:
        ray.get(there.read.remote(here.make.remote()), timeout=SECONDS)

    def call_together() -> None:
        ray.get([there.nothing.remote() for _ in range(CALLS)], timeout=SECONDS)

    def call_alone() -> None:
        for _ in range(CALLS):
            ray.get(there.nothing.remote(), timeout=SECONDS)

    fetch()
    found = {}
    for what, work, times in ((FETCH, fetch, OBJECTS), (TOGETHER, call_together, 1), (ALONE, call_alone, 1)):
        used, began = processor_seconds(), time.perf_counter()
        for _ in range(times):
            work()
        seconds = (time.perf_counter() - began, processor_seconds() - used)
        found[what] = [1000 * each / times for each in seconds]
    ray.shutdown()
    cluster.shutdown()
    return found


def processor_seconds() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def in_a_process(environment: dict[str, str]) -> dict[str, list[float]]:
    """The same where Ray, which reads it when it is imported, has this environment."""
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def certificates(folder: Path) -> dict[str, str]:
    """Ray's variables, with certificates as a pod has them."""
    from ray.util import get_node_ip_address

    from rl_trainer.run.certificates import main as make

    (folder / "seed").write_bytes(os.urandom(32))
    if make([str(folder / "seed"), str(folder), get_node_ip_address()]):
        sys.exit(1)
    files = {"SERVER_CERT": "tls.crt", "SERVER_KEY": "tls.key", "CA_CERT": "ca.crt"}
    return {"RAY_USE_TLS": "1"} | {f"RAY_TLS_{name}": str(folder / file) for name, file in files.items()}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure()))
        return 0
    seen: dict[str, list[dict[str, list[float]]]] = {"without": [], "with TLS": []}
    with tempfile.TemporaryDirectory() as folder:
        ways = {"without": {"RAY_USE_TLS": "0"}, "with TLS": certificates(Path(folder))}
        for _ in range(arguments.repetitions):
            for name, environment in ways.items():
                seen[name].append(in_a_process(environment))
    rows = []
    for what in (FETCH, TOGETHER, ALONE):
        for index, unit in enumerate(("ms", "ms of processors")):
            plain, secured = (
                table.spread([one[what][index] for one in each])
                for each in (seen["without"], seen["with TLS"])
            )
            rows.append([f"{what}, {unit}", plain, secured, secured.median / plain.median])
    return not table.report("encryption", ["", "without", "with TLS", "ratio"], rows)


if __name__ == "__main__":
    sys.exit(main())
