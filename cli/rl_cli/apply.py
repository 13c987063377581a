"""`rltrain apply`: give runs, services and profiles to a cluster."""

from __future__ import annotations

import argparse
from typing import Any, Final

from rl_api.printable import printable
from rl_cli.documents import as_planned, place, read_objects, service_as_planned
from rl_cli.failures import ClusterError
from rl_cli.options import Subparsers, add_cluster_options, add_file_options, connect, new_parser, program

_DESCRIPTION: Final = """\
Check a file as the cluster's operator would, with the cluster's profiles, and apply everything in it (server-side).
On a run that exists, spec.suspend, sampler.replicas, stop, cleanup and scheduling.priorityClass may change; the rest
belongs to a new run, and the cluster refuses it. Of a service that exists everything may change."""

_EXAMPLES: Final = """\
  rltrain apply examples/quickstart-cluster.yaml -n team-a
  rltrain apply run.yaml --set sampler.replicas=8
  rltrain apply run.yaml --set metadata.name=second-seed --set seed=2
"""

_LAST: Final = ("RLTrainingRun", "RLPolicyService")
"""Kinds that are applied after all others, in this order."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "apply", _apply, _DESCRIPTION, _EXAMPLES)
    add_file_options(parser)
    parser.add_argument("--force", action="store_true", help="take over fields that other programs have set")
    add_cluster_options(parser)


def _apply(args: argparse.Namespace) -> int:
    objects = read_objects(args.file, args.overrides)
    cluster = connect(args)
    objects = [
        place(manifest, args.namespace, cluster.namespace) if cluster.namespaced(manifest) else manifest
        for manifest in objects
    ]
    runs, services, profiles = (
        [manifest for manifest in objects if manifest["kind"] == kind]
        for kind in ("RLTrainingRun", "RLPolicyService", "RLTrainingProfile")
    )
    known = _profiles(cluster) if runs or services else None
    if known is not None:
        own = {profile["metadata"]["name"] for profile in profiles}
        known = [profile for profile in known if profile["metadata"]["name"] not in own] + profiles
        for run in runs:
            as_planned(args.file, run, known)
        for service in services:
            service_as_planned(args.file, service, known)
    # What an object refers to comes before it.
    for manifest in sorted(objects, key=lambda one: _LAST.index(one["kind"]) if one["kind"] in _LAST else -1):
        new = cluster.apply(manifest, args.force)
        namespace = manifest["metadata"].get("namespace")
        where = f" in namespace {namespace}" if namespace else ""
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        print(printable(f"{what} {'created' if new else 'configured'}{where}"))
    for manifest in (*runs, *services):
        _hint(manifest, cluster.namespace)
    return 0


def _profiles(cluster: Any) -> list[dict[str, Any]] | None:
    """All profiles; None where they may not be read: then the operator alone judges."""
    try:
        found: list[dict[str, Any]] = cluster.profiles()
    except ClusterError as error:
        if error.status == 403:
            return None
        raise
    return found


def _hint(manifest: dict[str, Any], default: str) -> None:
    metadata = manifest["metadata"]
    scope = f" -n {metadata['namespace']}" if metadata["namespace"] != default else ""
    kind = "service/" if manifest["kind"] == "RLPolicyService" else ""
    print(f"next: {program()} watch {kind}{metadata['name']}{scope}")
