"""`python -m rl_operator`, also installed as `rltrain-operator`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from kubernetes.aio.config import ConfigException

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.settings import Settings
from rl_operator.runtime import logs
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.health import Health, queue_problem
from rl_operator.runtime.key import key_of_file, key_of_secret
from rl_operator.runtime.leader import Leader
from rl_operator.runtime.metrics import Metrics
from rl_operator.runtime.process import Process

LOG = logging.getLogger("rl_operator")

_RELEASE: Final = version("rltrain")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 stopped by a signal, else 1, 2 for wrong arguments."""
    args = _parser().parse_args(arguments)
    logs.set_up(args.log_format, args.log_level)
    try:
        return asyncio.run(_run(args))
    except (ConfigException, ApiError, OSError) as error:
        LOG.error("%s", error)
        return 1


_OPTIONS: Final = {
    "image_cpu": (
        "IMAGE",
        "trainer image of pools without accelerators, for runs and profiles that name none "
        "(default: $RLTRAIN_TRAINER_IMAGE)",
    ),
    "image_gpu": ("IMAGE", "of pools with accelerators"),
    "kuberay_namespace": ("NAME", "namespace of KubeRay's operator, which runs' network policies let in"),
    "head_memory": ("QUANTITY", "of a head pod"),
    "worker_cpu": ("QUANTITY", "request of a worker on a CPU pool"),
    "worker_memory": ("QUANTITY", "of a worker on a CPU pool"),
    "ephemeral_storage": ("QUANTITY", "most that a pod keeps on its node's disk"),
    "accelerator_ephemeral_storage": ("QUANTITY", "the same of a run with accelerators"),
    "driver_url": ("TEMPLATE", "where drivers answer (default: %(default)s); another one is for development"),
}
"""Fields of `Settings` that are options: what they stand for, and their help."""


def _parser() -> argparse.ArgumentParser:
    cpu = os.environ.get("RLTRAIN_TRAINER_IMAGE", f"rltrain-trainer:{_RELEASE}-cpu")
    settings = Settings(image_cpu=cpu, image_gpu=f"rltrain-trainer:{_RELEASE}-gpu")
    parser = argparse.ArgumentParser(
        prog="rltrain-operator", description="Keeps RLTrainingRuns going on this Kubernetes cluster."
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--all-namespaces", action="store_true", help="runs of all namespaces (default)")
    scope.add_argument(
        "--namespace", action="append", default=[], metavar="NAME", help="only runs of this one; repeatable"
    )
    parser.add_argument("--leader-elect", action="store_true", help="act only while holding the lease")
    lease = os.environ.get("RLTRAIN_LEASE_NAME", "rltrain-operator")
    parser.add_argument(
        "--lease-name", default=lease, metavar="NAME", help="name of the lease (default: $RLTRAIN_LEASE_NAME)"
    )
    parser.add_argument(
        "--operator-namespace",
        default=os.environ.get("POD_NAMESPACE", settings.namespace),
        metavar="NAME",
        help="namespace of the operator, for its lease and the runs' network policies (default: $POD_NAMESPACE)",
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--key-secret",
        default=os.environ.get("RLTRAIN_KEY_SECRET", "rltrain-operator-key"),
        metavar="NAME",
        help="Secret of the operator's namespace with the key of tokens, made if there is none "
        "(default: $RLTRAIN_KEY_SECRET)",
    )
    kept.add_argument("--key-file", type=Path, metavar="FILE", help="a file with that key instead")
    for name, (metavar, text) in _OPTIONS.items():
        default = getattr(settings, name)
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, metavar=metavar, help=text)
    for option, name, whose in (
        ("--operator-labels", "labels", "the operator's own"),
        ("--kuberay-labels", "kuberay_labels", "KubeRay's"),
    ):
        parser.add_argument(
            option,
            dest=name,
            type=_labels,
            default=getattr(settings, name),
            metavar="NAME=VALUE,...",
            help=f"labels of {whose} pods, which runs' network policies let in",
        )
    parser.add_argument(
        "--dns",
        type=json.loads,
        default=settings.dns,
        metavar="JSON",
        help="egress rule of a NetworkPolicy, by which runs' pods ask for names",
    )
    parser.add_argument(
        "--metrics-from",
        type=json.loads,
        default=settings.metrics_from,
        metavar="JSON",
        help="who may read metrics of services' pods, as `from` of a NetworkPolicy",
    )
    parser.add_argument(
        "--cpu-burst",
        type=int,
        default=settings.cpu_burst,
        metavar="N",
        help="CPU limit of a pod, as a multiple of the cores that Ray may hand out on it (default: %(default)s)",
    )
    policies = ("IfNotPresent", "Always", "Never")
    parser.add_argument("--image-pull-policy", default=settings.image_pull_policy, choices=policies)
    parser.add_argument("--metrics-listen", default="0.0.0.0:8080", metavar="HOST:PORT", help="/metrics")
    parser.add_argument(
        "--health-listen", default="0.0.0.0:8081", metavar="HOST:PORT", help="/healthz, /readyz"
    )
    parser.add_argument("--workers", type=int, default=16, metavar="N", help="runs looked at together")
    parser.add_argument("--log-format", default="json", choices=("json", "plain"))
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _labels(text: str) -> dict[str, str]:
    """`name=value,...` as labels; ValueError where one has no value."""
    return dict(part.split("=", 1) for part in text.split(","))


async def _run(args: argparse.Namespace) -> int:
    more = ("image_pull_policy", "labels", "kuberay_labels", "dns", "metrics_from", "cpu_burst")
    known = {name: getattr(args, name) for name in (*_OPTIONS, *more)}
    settings = Settings(namespace=args.operator_namespace, **known)
    metrics = Metrics()
    health = Health(metrics)
    await health.start(args.health_listen, args.metrics_listen)
    api = await Api.connect(metrics.api_called)
    try:
        leader: Leader | None = None
        if args.leader_elect:
            identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
            leader = Leader(api, args.operator_namespace, args.lease_name, identity)
        controller = Controller(api, settings, metrics, args.namespace)
        health.watch("queue", lambda: queue_problem(controller.queue.oldest, controller.finished_at))
        health.watch("watches", lambda: controller.watches_problem)
        health.ready = True  # a candidate is ready to take over
        LOG.info("operator %s starts", _RELEASE)

        async def key() -> bytes:
            if args.key_file is not None:
                return key_of_file(args.key_file)
            return await key_of_secret(api, args.operator_namespace, args.key_secret)

        return 0 if await Process(api, controller, metrics, args.workers, key, leader).run() else 1
    finally:
        await api.close()
        await health.stop()
