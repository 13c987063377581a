"""`rltrain report`: the report of a run folder here, or of a run on a cluster."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_cli.options import Subparsers, add_cluster_options, connect, new_parser

_RUN_FOLDER: Final = "/var/lib/rltrain/run"
_IDLE_SECONDS: Final = 120.0

_DESCRIPTION: Final = """\
Get the report of a run: one page that opens without network. A folder (runs/NAME) is a run of this machine, whose
report.html is made anew; a name is a run of a cluster, whose head pod makes the page and sends it. Both work while
the run goes on. When the head pod is gone, the page is on the run's claim, and where is said."""

_EXAMPLES: Final = """\
  rltrain report runs/quickstart
  rltrain report arithmetic -n team-a
  rltrain report arithmetic --out /tmp/arithmetic.html
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(
        subparsers,
        "report",
        help="get a run's report: of a run folder here, or from a cluster",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("run", metavar="FOLDER|NAME", help="run folder, or name of a run on a cluster")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: NAME-report.html); for a cluster"
    )
    add_cluster_options(parser)
    parser.set_defaults(command=_report)


def is_folder(text: str) -> bool:
    """Whether a run folder is meant: a name of Kubernetes holds no slash, and is no folder here."""
    return os.sep in text or text in (".", "..") or Path(text).is_dir()


def _report(args: argparse.Namespace) -> int:
    from rl_api.errors import InvalidConfig

    if args.namespace is None and args.context is None and is_folder(args.run):
        if args.out is not None:
            raise InvalidConfig(
                "--out: found with a run folder, allowed: with the name of a run on a cluster"
            )
        from rl_trainer.cli import main as train

        return int(train([*(["--debug"] if args.debug else []), "report", args.run]))
    return _from_cluster(args)


def _from_cluster(args: argparse.Namespace) -> int:
    from rl_cli.execute import CommandFailed, execute
    from rl_cli.failures import ClusterError
    from rl_cli.pods import name_of, newest, running, selector

    cluster = connect(args)
    namespace = args.namespace or cluster.namespace
    run = cluster.run(namespace, args.run)
    heads = [pod for pod in newest(cluster.pods(namespace, selector(args.run)), "head") if running(pod)]
    if not heads:
        raise ClusterError(where_it_is(run))
    # The page is written when the run ends; before that it is made for us.
    script = f"rltrain report {_RUN_FOLDER} >/dev/null && cat {_RUN_FOLDER}/report.html"
    pieces = execute(cluster, namespace, name_of(heads[0]), "ray", ["sh", "-c", script], idle=_IDLE_SECONDS)
    try:
        page = b"".join(pieces)
    except CommandFailed as error:
        raise ClusterError(
            f"run {args.run} has no report yet: {str(error).removeprefix('rltrain: ')}"
        ) from error
    if not page.rstrip().endswith(b"</html>"):
        raise ClusterError(f"the report of run {args.run} came incomplete ({len(page)} bytes); try again")
    path = args.out or Path(f"{args.run}-report.html")
    _write(path, page)
    print(path)
    return 0


def where_it_is(run: Mapping[str, Any]) -> str:
    """Where the report of a run without head pod is to be found."""
    metadata, spec = run["metadata"], run.get("spec") or {}
    storage = ((spec.get("checkpoint") or {}).get("storage") or {}) if isinstance(spec, Mapping) else {}
    status = run.get("status") or {}
    state = f"run {metadata['name']} ({status.get('phase') or 'Pending'}) has no head pod"
    if not status.get("attempts"):
        return f"{state} yet, and so no report"
    claim = storage.get("persistentVolumeClaim")
    if claim:
        from rl_operator.model.names import folder_name

        folder = f"{folder_name(metadata['name'], str(metadata.get('uid') or ''))}/run"
        return (
            f"{state}: its report is on PersistentVolumeClaim {claim} in namespace {metadata.get('namespace')}, "
            f"as {folder}/report.html; docs/cluster.md shows how to copy it from there"
        )
    kept = str((status.get("checkpoint") or {}).get("uri") or "")
    if kept.startswith("s3://"):
        page = f"{kept.rpartition('/')[0]}/report.html"
        return f"{state}: its report is {page}, if it has ended; docs/cluster.md shows how to get it"
    return (
        f"{state}, and its report went with it: only a run with checkpoint.storage.persistentVolumeClaim or "
        "checkpoint.storage.s3 keeps one"
    )


def _write(path: Path, page: bytes) -> None:
    """Write the file as a whole or not at all."""
    from rl_api.errors import InvalidConfig

    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(page)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidConfig(f"--out: {path} cannot be written: {error.strerror or error}") from error
