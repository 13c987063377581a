"""`rltrain top` where 1,000 runs of 50 namespaces are: seconds from the command's start to its end.

    python bench/fleet_top.py [--runs 1000 --namespaces 50 --tries 5]

etcd and kube-apiserver run as plain processes. Each run is a real object that the API server has checked, with a status as
the operator writes it: conditions, progress, three attempts, usage; a third of them waits. Nobody changes them meanwhile.
The peer is `kubectl get -A` of the same runs, whose table the API server lays out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import kube_load
import table
from kube_load import RUNS
from operator_cluster import Cluster, binaries_and_run
from operator_load import CONNECTIONS

SECONDS = 2.0
APPLY: Final = "application/apply-patch+yaml"
TIME: Final = "2026-01-01T00:00:00Z"
WAYS: Final = ([], ["--by", "team"], ["--by", "pool"], ["-o", "json"])
LIMIT_SECONDS: Final = 60.0


def status(number: int) -> dict[str, Any]:
    """What the operator says of a run: every third waits, the others hold 16 accelerators."""
    waits = number % 3 == 0
    there = "False" if waits else "True"
    facts = {
        "Accepted": ("True", "the run can be carried out"),
        "Admitted": (there, "3rd of 7 in its queue; needs 16 accelerators, 4 are free"),
        "ClusterReady": (there, "7 of 7 pods are ready"),
        "Training": (there, "the driver reports progress"),
    }
    used = {"accelerators": 0 if waits else 16, "trained": 3600.0 * 16, "started": 900.0}
    found: dict[str, Any] = {
        "phase": "Pending" if waits else "Training",
        "conditions": [
            {"type": kind, "status": holds, "reason": kind, "message": text, "lastTransitionTime": TIME}
            for kind, (holds, text) in facts.items()
        ],
        "attempts": [
            {
                "number": one,
                "rayJob": f"run-{number:04d}-{one}",
                "startTime": TIME,
                "specHash": "5f2a9d0c1b7e3846",
            }
            for one in (1, 2, 3)
        ],
        "queue": {"name": "main"} | ({"position": 3, "waiting": 7} if waits else {}),
        "usage": {**used, "pools": {"h100": used}, "waitedSeconds": 100.0, "updatedAt": TIME},
    }
    if not waits:
        found["progress"] = {"phase": "Training", "step": number, "maxSteps": 5000, "reward": 0.512}
        found["progress"] |= {"samplerBusy": 0.81, "learnerBusy": 0.62, "updatedAt": TIME}
    return found


async def fill(cluster: Cluster, run: dict[str, Any], runs: int, namespaces: int) -> None:
    """Apply all runs and their status."""
    client = cluster.client(CONNECTIONS)

    async def space(name: str) -> None:
        await client.send("POST", "/api/v1/namespaces", json.dumps({"metadata": {"name": name}}))

    async def one(number: int) -> None:
        where = f"{RUNS}/namespaces/team-{number % namespaces:02d}/rltrainingruns"
        name = {"metadata": {"name": f"run-{number:04d}"}}
        await client.send("POST", where, json.dumps({**run, **name}))
        said = {"apiVersion": run["apiVersion"], "kind": run["kind"], **name, "status": status(number)}
        told = f"{where}/run-{number:04d}/status?fieldManager=rltrain-operator&force=true"
        await client.send("PATCH", told, json.dumps(said), APPLY)

    try:
        spaces = [lambda name=f"team-{number:02d}": space(name) for number in range(namespaces)]
        await kube_load.bounded(CONNECTIONS, spaces)
        await kube_load.bounded(CONNECTIONS, [lambda number=number: one(number) for number in range(runs)])
    finally:
        await client.close()


class Taken(NamedTuple):
    """What a command took, in seconds: by the clock, and of processors."""

    wall: float
    cpu: float


def timed(command: list[str], cluster: Cluster, names: list[str]) -> Taken:
    """Run a command, which must say all of these names."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kube.kubeconfig)}
    before, started = children_seconds(), time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    taken = Taken(time.monotonic() - started, children_seconds() - before)
    said = set(re.findall(r"[\w-]+", done.stdout))
    missing = [name for name in names if name not in said]
    if done.returncode or missing:
        told = f"{done.stdout[:300]}{done.stderr[:300]}"
        raise RuntimeError(
            f"{' '.join(command)}: status {done.returncode}, {len(missing)} names are missing: {missing[:5]}\n{told}"
        )
    return taken


def children_seconds() -> float:
    """Processor time of commands that have ended: the API server has not."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(cluster: Cluster, args: argparse.Namespace) -> list[tuple[str, table.Spread, table.Spread]]:
    """Each way in turn, so often: what the machine does besides falls on all of them."""
    ours = [sys.executable, "-m", "rl_cli.main"]
    kubectl = [str(cluster.kube.binaries / "kubectl"), "get", "rltrainingruns.rltrain.dev", "-A"]
    runs = [f"run-{number:04d}" for number in range(args.runs)]
    teams = [f"team-{number:02d}" for number in range(min(args.namespaces, args.runs))]
    names = {"team": teams, "pool": ["h100"]}
    ways = {"kubectl get -A": (kubectl, runs), "rltrain --help": ([*ours, "--help"], ["top"])}
    for way in WAYS:
        command = ["top", "-A", *way]
        ways[f"rltrain {' '.join(command)}"] = (
            [*ours, *command],
            names.get(way[-1] if way else "", runs),
        )
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(args.tries):
        for name, (command, listed) in ways.items():
            taken[name].append(timed(command, cluster, listed))
    return [
        (name, table.spread([one.wall for one in its]), table.spread([one.cpu for one in its]))
        for name, its in taken.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--namespaces", type=int, default=50)
    parser.add_argument("--tries", type=int, default=5)
    table.add_out(parser)
    args = parser.parse_args()
    found = binaries_and_run("fleet_top")
    if found is None:
        return 2
    binaries, run = found
    with (
        tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder,
        Cluster(Path(folder) / "top", binaries) as cluster,
    ):
        asyncio.run(fill(cluster, run, args.runs, args.namespaces))
        taken = measure(cluster, args)
    checks = [
        table.at_most(f"{name}: median", wall.median, SECONDS, " s")
        for name, wall, _ in taken
        if " top " in name
    ]
    rows = [[name, args.runs, wall, cpu] for name, wall, cpu in taken]
    columns = ["command", "runs", "seconds", "of processors"]
    return 0 if table.report("fleet_top", columns, rows, checks=checks, out=args.out) else 1


if __name__ == "__main__":
    sys.exit(main())
