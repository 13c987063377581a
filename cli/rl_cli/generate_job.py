"""`rltrain generate --render`: the same command as a RayJob, for a cluster with KubeRay."""

from __future__ import annotations

import argparse
import base64
import hashlib
import posixpath
import re
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rl_api import dump_yaml
from rl_api.base import Allowed, Image, ObjectName, Quantity, amount
from rl_api.errors import InvalidConfig
from rl_api.profile import PoolSpec, ProfileSpec
from rl_api.progress import WORKERS_VARIABLE
from rl_api.roles import ResourcesSpec
from rl_cli.options import number, whole
from rl_operator.model.names import HEAD, LONGEST_RAY_JOB, RAY_PORTS, Manifest
from rl_operator.model.settings import Settings
from rl_operator.plan.roles import Role, RoleMaker
from rl_operator.render.config import RAY_TOKEN_KEY
from rl_operator.render.pods import NO_DEVICES, restricted_pod
from rl_operator.render.raycluster import guarded_cluster, start_params, worker_group
from rl_operator.render.secrets import add_secrets

CLAIM_FOLDER: Final = "/data"
"""Where the head has the claim."""

_WORKER: Final = "worker"
_APP: Final = "rltrain-generate"
_GPU: Final = "nvidia.com/gpu"
_RETRIES: Final = 3
"""Of a command that failed: the next attempt goes on with what is missing."""

_KEPT_SECONDS: Final = 60
"""How long the pods, and with them what they wrote, outlive the end; GPUs are held meanwhile."""

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_STORES: Final = ("s3://", "s3a://")
# Of `rltrain generate` itself, and not part of the job: what is said for the cluster, here, or by another way.
_NOT_PASSED: Final = ("after", "command", "debug", "plain", "render", "replicas")
_CLUSTER: Final = ("name", "namespace", "image", "workers", "cpus", "memory", "gpus", "claim", "secret")


@dataclass(frozen=True)
class Cluster:
    """What the job asks of a cluster, with everything filled in.

    Attributes:
        name, namespace: of the RayJob; without a namespace it goes where kubectl says.
        head, worker: of its pods.
        claim: the head has it at `CLAIM_FOLDER`; None: none.
        secrets: the head has their keys as variables.
        settings: what is the same for all jobs.
    """

    name: str
    namespace: str | None
    head: Role
    worker: Role
    claim: str | None
    secrets: tuple[str, ...]
    settings: Settings


def add_cluster_group(parser: argparse.ArgumentParser) -> None:
    """Add --render, and what it alone takes."""
    group = parser.add_argument_group("on a cluster with KubeRay")
    group.add_argument(
        "--render",
        action="store_true",
        help="generate nothing here: write a RayJob that does it, and its Secret, for kubectl apply -f -",
    )
    group.add_argument(
        "--name",
        type=field(ObjectName, LONGEST_RAY_JOB),
        metavar="NAME",
        help="of the RayJob (default: generate)",
    )
    group.add_argument(
        "--namespace", type=field(ObjectName), metavar="NS", help="(default: the one kubectl applies to)"
    )
    group.add_argument(
        "--image", type=field(Image), metavar="IMAGE", help="of all pods (default: rltrain's trainer)"
    )
    group.add_argument("--workers", type=whole(1, 1024), metavar="N", help="pods with engines (default: 1)")
    group.add_argument(
        "--cpus",
        type=number(0.1, 1024.0, "a number from 0.1 to 1024"),
        metavar="N",
        help="CPU cores of each worker (default: 1)",
    )
    group.add_argument(
        "--memory",
        type=field(Quantity),
        metavar="AMOUNT",
        help="of each worker (default: 1536Mi, with GPUs 16Gi); the head has at least 2Gi and no less than a worker",
    )
    group.add_argument("--gpus", type=whole(0, 16), metavar="N", help="GPUs of each worker (default: 0)")
    group.add_argument(
        "--claim",
        type=field(ObjectName),
        metavar="NAME",
        help=f"PersistentVolumeClaim with model, input or output; the head has it at {CLAIM_FOLDER}",
    )
    group.add_argument(
        "--secret",
        type=field(ObjectName),
        action="append",
        metavar="NAME",
        help="Secret whose keys the head has as variables, such as those of s3://; may be given several times",
    )


def field(annotated: Any, longest: int | None = None) -> Callable[[str], str]:
    """What argparse takes for a value of a field of ours, of at most `longest` characters."""
    allowed = next(one.text for one in annotated.__metadata__ if isinstance(one, Allowed))
    more = f", at most {longest} in all" if longest is not None else ""
    check = TypeAdapter(annotated)

    def parse(text: str) -> str:
        try:
            value: str = check.validate_python(text)
        except ValidationError:
            value = ""
        if not value or (longest is not None and len(value) > longest):
            raise argparse.ArgumentTypeError(f"found {text}, allowed: {allowed}{more}")
        return value

    return parse


def check_not_rendered(args: argparse.Namespace) -> None:
    """Raises InvalidConfig: something is said for a cluster, and the command would run here."""
    said = next((name for name in _CLUSTER if getattr(args, name) is not None), None)
    if said is not None:
        raise InvalidConfig(f"--{said}: found without --render, allowed: with --render only")


def rendered(args: argparse.Namespace) -> str:
    """The objects for `kubectl apply -f -`, as YAML; a token of its own each time.

    Raises:
        InvalidConfig: something lies where the cluster has nothing.
    """
    _check_places(args)
    objects = job_objects(cluster_of(args), entrypoint(args), secrets.token_hex(32))
    return "".join(f"---\n{dump_yaml(one)}" for one in objects)


def _check_places(args: argparse.Namespace) -> None:
    # What is a folder here is meant, whatever else it could be.
    if not _HUB_ID.fullmatch(args.model) or Path(args.model).exists():
        _check_place("--model", args.model, args.claim, "a hub id, ")
    for option in ("input", "output"):
        _check_place(f"--{option}", getattr(args, option), args.claim)


def _check_place(option: str, place: str, claim: str | None, more: str = "") -> None:
    below = posixpath.normpath(place).startswith(f"{CLAIM_FOLDER}/")
    if place.startswith(_STORES) or (below and claim is not None):
        return
    allowed = f"{more}s3://bucket/folder, or a path below {CLAIM_FOLDER} with --claim NAME"
    why = "which is on no pod without --claim" if below else "which the cluster does not have"
    raise InvalidConfig(f"{option}: found {place}, {why}; allowed with --render: {allowed}")


def cluster_of(args: argparse.Namespace) -> Cluster:
    """What the options ask of a cluster; pods are those of a run where nothing is said."""
    settings, gpus = Settings(), args.gpus or 0
    pools = {
        HEAD: (PoolSpec(name=HEAD),),
        _WORKER: (PoolSpec(name=_WORKER, accelerator_resource=_GPU if gpus else None),),
    }
    maker = RoleMaker(ProfileSpec(pools=(*pools[HEAD], *pools[_WORKER])), pools, settings, args.image)
    asked = ResourcesSpec(cpu=args.cpus or 1.0, memory=args.memory, accelerators=gpus)
    worker = maker.role(_WORKER, args.workers or 1, 1, asked=asked)
    # It reads the model and hands it out.
    memory = max(settings.head_memory, worker.memory, key=amount)
    return Cluster(
        name=args.name or "generate",
        namespace=args.namespace,
        head=maker.role(HEAD, 1, 1, asked=ResourcesSpec(memory=memory)),
        worker=worker,
        claim=args.claim,
        secrets=tuple(args.secret or ()),
        settings=settings,
    )


def entrypoint(args: argparse.Namespace) -> str:
    """The command that the head runs: the same options, and an engine for each GPU or worker where none are asked for."""
    replicas = args.replicas or (args.workers or 1) * max(1, args.gpus or 0)
    words = ["rltrain", "generate", "--plain", f"--replicas={replicas}"]
    for name, value in vars(args).items():
        if name in (*_NOT_PASSED, *_CLUSTER) or value is None or value == "":
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}={one}" for one in values]
    return shlex.join(words)


def job_objects(cluster: Cluster, command: str, token: str) -> list[Manifest]:
    """The Secret with Ray's token, and the RayJob that runs `command`."""
    # Each rendering has a Secret of its own: pods that are there already keep theirs.
    secret = f"{cluster.name}-ray-{hashlib.sha256(token.encode()).hexdigest()[:8]}"
    groups = [worker_group(cluster.worker, cluster.worker.replicas, _pod(cluster, cluster.worker, secret))]
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _metadata(cluster, secret),
            "immutable": True,
            "type": "Opaque",
            "data": {RAY_TOKEN_KEY: base64.b64encode(token.encode()).decode()},
        },
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": _metadata(cluster, cluster.name),
            "spec": {
                "submissionMode": "HTTPMode",
                "entrypoint": command,
                "backoffLimit": _RETRIES,
                "shutdownAfterJobFinishes": True,
                "ttlSecondsAfterFinished": _KEPT_SECONDS,
                "rayClusterSpec": guarded_cluster(
                    cluster.settings.ray_version,
                    secret,
                    # Engines ask for cores, and so they are on the workers: it hands out none.
                    start_params(HEAD, 0, 0),
                    _pod(cluster, cluster.head, secret),
                    groups,
                ),
            },
        },
    ]


def _metadata(cluster: Cluster, name: str) -> Manifest:
    place = {"namespace": cluster.namespace} if cluster.namespace is not None else {}
    return {"name": name, **place, "labels": _labels(cluster)}


def _labels(cluster: Cluster) -> Mapping[str, str]:
    """Not those of the operator's objects: it has nothing to do with this."""
    return {"app.kubernetes.io/name": _APP, "app.kubernetes.io/instance": cluster.name}


def _pod(cluster: Cluster, role: Role, secret: str) -> Manifest:
    values = {"RAY_AUTH_MODE": "token", **({} if role.accelerators else NO_DEVICES)}
    if role.name == HEAD:
        # A head that is made anew runs the job at once, before the workers have found it.
        values[WORKERS_VARIABLE] = str(cluster.worker.replicas)
    token = {"secretKeyRef": {"name": secret, "key": RAY_TOKEN_KEY}}
    environment: list[Manifest] = [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
    ]
    spec, container = restricted_pod(role, cluster.settings.image_pull_policy, environment)
    if role.name == HEAD:
        # A container that comes back has lost the job. KubeRay submits it anew to a new head, or to a new cluster.
        spec["restartPolicy"] = "Never"
        container["ports"] = [{"name": name, "containerPort": number} for name, number in RAY_PORTS.items()]
        add_secrets(cluster.secrets, spec, container)
        if cluster.claim is not None:
            container["volumeMounts"].append({"name": "data", "mountPath": CLAIM_FOLDER})
            spec["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": cluster.claim}})
    return {"metadata": {"labels": _labels(cluster)}, "spec": spec}
