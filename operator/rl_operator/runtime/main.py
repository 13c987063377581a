"""`python -m rl_operator`, also installed as `rltrain-operator`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from kubernetes.aio.config import ConfigException

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.settings import Settings
from rl_operator.runtime import logs
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.health import Health, queue_problem
from rl_operator.runtime.leader import Leader
from rl_operator.runtime.metrics import Metrics
from rl_operator.runtime.process import Process

LOG = logging.getLogger("rl_operator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 stopped by a signal, else 1, 2 for wrong arguments."""
    args = _parser().parse_args(arguments)
    logs.set_up(args.log_format, args.log_level)
    try:
        return asyncio.run(_run(args))
    except (ConfigException, ApiError, OSError) as error:
        LOG.error("%s", error)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rltrain-operator", description="Keeps RLTrainingRuns going on this Kubernetes cluster."
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--all-namespaces", action="store_true", help="runs of all namespaces (default)")
    scope.add_argument(
        "--namespace", action="append", default=[], metavar="NAME", help="only runs of this one; repeatable"
    )
    parser.add_argument("--leader-elect", action="store_true", help="act only while holding the lease")
    parser.add_argument(
        "--lease-name",
        default=os.environ.get("RLTRAIN_LEASE_NAME", "rltrain-operator"),
        metavar="NAME",
        help="name of the lease (default: $RLTRAIN_LEASE_NAME)",
    )
    parser.add_argument(
        "--operator-namespace",
        default=os.environ.get("POD_NAMESPACE", Settings.namespace),
        metavar="NAME",
        help="namespace of the operator, for its lease and the runs' network policies (default: $POD_NAMESPACE)",
    )
    release = _release()
    parser.add_argument(
        "--image-cpu",
        default=os.environ.get("RLTRAIN_TRAINER_IMAGE", f"rltrain-trainer:{release}-cpu"),
        metavar="IMAGE",
        help="trainer image of pools without accelerators, for runs and profiles that name none "
        "(default: $RLTRAIN_TRAINER_IMAGE)",
    )
    parser.add_argument(
        "--image-gpu",
        default=f"rltrain-trainer:{release}-gpu",
        metavar="IMAGE",
        help="of pools with accelerators",
    )
    parser.add_argument(
        "--image-pull-policy", default=Settings.image_pull_policy, choices=("IfNotPresent", "Always", "Never")
    )
    parser.add_argument(
        "--head-memory", default=Settings.head_memory, metavar="QUANTITY", help="of a head pod"
    )
    parser.add_argument(
        "--worker-cpu",
        default=Settings.worker_cpu,
        metavar="QUANTITY",
        help="request of a worker on a CPU pool",
    )
    parser.add_argument(
        "--worker-memory",
        default=Settings.worker_memory,
        metavar="QUANTITY",
        help="of a worker on a CPU pool",
    )
    parser.add_argument(
        "--driver-url",
        default=Settings.driver_url,
        metavar="TEMPLATE",
        help="where drivers answer (default: %(default)s); another one is for development",
    )
    parser.add_argument("--metrics-listen", default="0.0.0.0:8080", metavar="HOST:PORT", help="/metrics")
    parser.add_argument(
        "--health-listen", default="0.0.0.0:8081", metavar="HOST:PORT", help="/healthz, /readyz"
    )
    parser.add_argument("--workers", type=int, default=16, metavar="N", help="runs looked at together")
    parser.add_argument("--log-format", default="json", choices=("json", "plain"))
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _release() -> str:
    try:
        return version("rltrain")
    except PackageNotFoundError:
        return "0.1.0"


async def _run(args: argparse.Namespace) -> int:
    settings = Settings(
        namespace=args.operator_namespace,
        image_cpu=args.image_cpu,
        image_gpu=args.image_gpu,
        image_pull_policy=args.image_pull_policy,
        head_memory=args.head_memory,
        worker_cpu=args.worker_cpu,
        worker_memory=args.worker_memory,
        driver_url=args.driver_url,
    )
    metrics = Metrics()
    health = Health(metrics)
    await health.start(args.health_listen, args.metrics_listen)
    api = await Api.connect(metrics)
    try:
        leader: Leader | None = None
        if args.leader_elect:
            identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
            leader = Leader(api, args.operator_namespace, args.lease_name, identity)
        controller = Controller(api, settings, metrics, args.namespace)
        health.watch("queue", lambda: queue_problem(controller.queue.oldest, controller.finished_at))
        health.watch("watches", lambda: controller.watches_problem)
        health.ready = True  # a candidate is ready to take over
        LOG.info("operator %s starts", _release())
        return 0 if await Process(api, controller, metrics, args.workers, leader).run() else 1
    finally:
        await api.close()
        await health.stop()
