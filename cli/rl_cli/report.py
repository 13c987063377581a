"""`rltrain report`: the report of a run folder here, or of a run on a cluster."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rl_api.errors import InvalidConfig, RLTrainError
from rl_cli.execute import CommandFailed, execute
from rl_cli.failures import ClusterError
from rl_cli.options import Subparsers, add_cluster_options, connect, new_parser
from rl_cli.pods import name_of, newest, running
from rl_cli.view import row
from rl_operator.model.names import folder_name
from rl_operator.render.pods import DATA_FOLDER

_RUN_FOLDER: Final = f"{DATA_FOLDER}/run"
_IDLE_SECONDS: Final = 30.0
_MOST_SECONDS: Final = 300.0
_NO_FILE: Final = 3
"""Exit code of our command where there is no such file."""

_MOST_BYTES: Final = {
    "run.yaml": 1 << 20,
    "metrics.jsonl": 128 << 20,
    "summary.json": 16 << 20,
    "examples.json": 16 << 20,
    "timeline.json": 64 << 20,
}
"""What the page is made of, and how large each file may be: that of the longest runs is far smaller."""

_DESCRIPTION: Final = """\
Get the report of a run: one page that opens without network. A folder (runs/NAME) is a run of this machine, whose
report.html is made anew; a name is a run of a cluster, whose head pod sends its figures, and the page is made of them
here. Both work while the run goes on. When the head pod is gone, the figures are on the run's claim, and where is
said."""

_EXAMPLES: Final = """\
  rltrain report runs/quickstart
  rltrain report arithmetic -n team-a
  rltrain report arithmetic --out /tmp/arithmetic.html
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "report", _report, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("run", metavar="FOLDER|NAME", help="run folder, or name of a run on a cluster")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: NAME-report.html); for a cluster"
    )
    add_cluster_options(parser)


def is_folder(text: str) -> bool:
    """Whether a run folder is meant: a name of Kubernetes holds no slash, and is no folder here."""
    return os.sep in text or text in (".", "..") or Path(text).is_dir()


def _report(args: argparse.Namespace) -> int:
    if args.namespace is None and args.context is None and is_folder(args.run):
        if args.out is not None:
            raise InvalidConfig(
                "--out: found with a run folder, allowed: with the name of a run on a cluster"
            )
        from rl_trainer.cli import main as train

        return int(train([*(["--debug"] if args.debug else []), "report", args.run]))
    return _from_cluster(args)


def _from_cluster(args: argparse.Namespace) -> int:
    cluster = connect(args)
    namespace = args.namespace or cluster.namespace
    run = cluster.run(namespace, args.run)
    heads = [pod for pod in newest(cluster.pods(namespace, args.run), "head") if running(pod)]
    if not heads:
        raise ClusterError(where_it_is(run))
    files = fetch(cluster, namespace, name_of(heads[0]), args.run)
    path = args.out or Path(f"{args.run}-report.html")
    _write(path, page_of(args.run, files).encode())
    print(path)
    return 0


def fetch(cluster: Any, namespace: str, pod: str, run: str) -> dict[str, bytes]:
    """The files that the report is made of, by name, as far as they are there.

    A pod is its user's: what it sends is limited in size and time, and nothing of it is believed.

    Raises:
        ClusterError: there are none yet, they are too large, or the pod does not answer in time.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    files: dict[str, bytes] = {}
    for name, most in _MOST_BYTES.items():
        script = f"cd {_RUN_FOLDER} 2>/dev/null && [ -f {name} ] || exit {_NO_FILE}; exec head -c {most + 1} {name}"
        pieces, size = [], 0
        try:
            for piece in execute(cluster, namespace, pod, ["sh", "-c", script], idle=_IDLE_SECONDS):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    break
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"pod {pod} has not sent its files within {_MOST_SECONDS:.0f} s; try again"
                    )
        except CommandFailed as error:
            if error.code != _NO_FILE:
                raise ClusterError(f"{name} of run {run} cannot be read: {error}") from error
            continue
        if size > most:
            print(
                f"rltrain: {name} of run {run} is larger than {most >> 20} MiB and is left out",
                file=sys.stderr,
            )
            continue
        files[name] = b"".join(pieces)
    if not files:
        raise ClusterError(f"run {run} has no report yet: {_RUN_FOLDER} of pod {pod} holds no run")
    return files


def page_of(run: str, files: Mapping[str, bytes]) -> str:
    """The page, made here. Raises ClusterError where the files are not those of a run."""
    from rl_trainer.observe.page import render

    with tempfile.TemporaryDirectory(prefix="rltrain-report-") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        try:
            return render(Path(folder))
        except RLTrainError as error:
            why = str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ")
            raise ClusterError(f"no report can be made of what run {run} has written: {why}") from error


def where_it_is(run: Mapping[str, Any]) -> str:
    """Where the report of a run without head pod is to be found."""
    metadata, shown = run["metadata"], row(run, datetime.now(UTC))
    storage: Any = run.get("spec")
    for part in ("checkpoint", "storage"):
        storage = storage.get(part) if isinstance(storage, Mapping) else None
    storage = storage if isinstance(storage, Mapping) else {}
    state = f"run {shown.name} ({shown.phase}) has no head pod"
    if not shown.begun:
        return f"{state} yet, and so no report"
    claim = storage.get("persistentVolumeClaim")
    if claim:
        folder = f"{folder_name(metadata['name'], str(metadata.get('uid') or ''))}/run"
        return (
            f"{state}: its run folder is on PersistentVolumeClaim {claim} in namespace {metadata.get('namespace')}, "
            f"as {folder}; docs/cluster.md shows how to copy it from there, and rltrain report FOLDER makes the report"
        )
    if shown.checkpoint_uri.startswith("s3://"):
        folder = shown.checkpoint_uri.rpartition("/")[0]
        return (
            f"{state}: its figures are in {folder}; docs/cluster.md shows how to get them, and rltrain report FOLDER "
            "makes the report"
        )
    return (
        f"{state}, and its report went with it: only a run with checkpoint.storage.persistentVolumeClaim or "
        "checkpoint.storage.s3 keeps one"
    )


def _write(path: Path, page: bytes) -> None:
    """Write the file, or the one that a link leads to, as a whole or not at all."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise InvalidConfig(f"--out: found {path}, which is a folder or a device, allowed: a file")
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        with temporary.open("xb") as file:  # x: nobody else's file or link
            file.write(page)
        temporary.replace(path)
    except OSError as error:
        raise InvalidConfig(f"--out: {path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
