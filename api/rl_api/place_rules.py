"""Where a run's models and checkpoints may be, and where its status server listens: kinds of places. See `rl_api.rules`.

The trainer opens what it is told to: fsspec alone knows a dozen schemes, among them requests to any host and local files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec

S3_ADDRESS: Final = r"^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/[^:]*)?$"
"""A bucket, and perhaps a folder in it. Nothing that fsspec would take for several addresses in one (`::`); nor, beside
this pattern, `..`, which some take for the folder above."""

HUB_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"

FOLDER_ROOTS: Final = ("/data", "/home", "/mnt", "/srv", "/tmp", "/var/lib", "/workspace")
"""Where in a pod checkpoints may be kept, besides its run folder."""

TAKEN_PORTS: Final = {
    "gcs": 6379,
    "serve": 8000,
    "metrics": 8080,
    "dashboard": 8265,
    "client": 10001,
    "autoscaler metrics": 44217,
    "dashboard metrics": 44227,
    "agent": 52365,
}
"""Ports that Ray takes on a node of a cluster by KubeRay."""

WORKER_PORTS: Final = (10002, 19999)
"""The first and the last of those that Ray's workers take."""

FREE_PORTS: Final = (
    f"a port that Ray does not use: {', '.join(f'{port} ({name})' for name, port in TAKEN_PORTS.items())}, "
    f"{WORKER_PORTS[0]} to {WORKER_PORTS[1]} (workers)"
)

CLIMBS: Final = r"(^|/)[.][.](/|$)"

FOLDER_OF_A_BUCKET: Final = "allowed: s3://bucket/folder, without .."

FOLDER_OR_ADDRESS: Final = "allowed: a folder; s3://bucket/folder goes into checkpoint.storage.s3"

ON_A_CLUSTER: Final = (
    "allowed on a cluster: a folder in the run folder, such as checkpoints, or one below "
    f"{', '.join(FOLDER_ROOTS[:-1])} or {FOLDER_ROOTS[-1]}, without .."
)

MODELS: Final = (
    "allowed: tiny, a folder, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or s3://bucket/folder without .."
)

MODELS_ON_A_CLUSTER: Final = (
    "allowed on a cluster: tiny, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, s3://bucket/folder "
    "or an absolute folder of the image, without .."
)


FILES: Final = "allowed: a file or folder, or s3://bucket/file, no .. in it"

DOTS: Final = r"(^|/)[.]{1,2}(/|$)"
"""The same folder or the one above, in a path that is compared as it is written."""

MOUNTED_AT: Final = rf"^({'|'.join(FOLDER_ROOTS)})(/[.]*[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?$"
"""A folder at which a claim can be mounted in a pod, below one of the roots without `.` and `..`."""

MOUNTED: Final = (
    f"allowed on a cluster: a folder below {', '.join(FOLDER_ROOTS[:-1])} or {FOLDER_ROOTS[-1]}, of letters, digits and "
    ". _ -, without a . or .. between /"
)

AS_THE_SERVER_SEES_IT: Final = "allowed on a cluster: an absolute folder without a . or .. between /"

ONE_SOURCE: Final = "allowed: null beside task.file, as prompts come from one of them"

DATASETS: Final = "allowed: a hub id such as openai/gsm8k, or a folder without .."


def is_s3_address(text: str) -> bool:
    """Whether it is s3://bucket/place, and does not climb out of the place that it names: nothing else is opened."""
    return re.search(S3_ADDRESS, text) is not None and re.search(CLIMBS, text) is None


def model_address(spec: RunSpec) -> Iterator[Problem]:
    """An address in `model.source` is s3://bucket/folder without `..`: no other scheme is opened."""
    if wrong := wrong_model_address(spec.given_model.source if spec.given_model is not None else ""):
        yield spec_problem("model.source", wrong)


def wrong_model_address(source: str) -> str | None:
    """What is wrong with a model's address, as a sentence; None: nothing, or it is none."""
    return f"found {source!r}, {MODELS}" if "://" in source and not is_s3_address(source) else None


def task_address(spec: RunSpec) -> Iterator[Problem]:
    """An address in `task.file` is s3://bucket/file without `..`: no other scheme is opened."""
    file = (spec.given_task.file or "") if spec.given_task is not None else ""
    if "://" in file and not is_s3_address(file):
        yield spec_problem("task.file", f"found {file!r}, {FILES}")


def dataset_name(spec: RunSpec) -> Iterator[Problem]:
    """`task.dataset.name` is a hub id or a folder without `..`: no address is opened."""
    dataset = spec.given_task.dataset if spec.given_task is not None else None
    if dataset is not None and ("://" in dataset.name or re.search(CLIMBS, dataset.name)):
        yield spec_problem("task.dataset.name", f"found {dataset.name!r}, {DATASETS}")


def storage_folder(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `checkpoint.storage.path` is in the run folder, or where folders of data are."""
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    path = storage.path if storage is not None else None
    if path is None or "://" in path:
        return
    below = not path.startswith("/") or path.startswith(tuple(f"{root}/" for root in FOLDER_ROOTS))
    if not below or path.startswith("~") or re.search(CLIMBS, path):
        yield spec_problem("checkpoint.storage.path", f"found {path!r}, {ON_A_CLUSTER}")


def model_on_a_cluster(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `model.source` is tiny, a hub id, s3://bucket/folder or an absolute folder of the image."""
    source = spec.given_model.source if spec.given_model is not None else "tiny"
    if not _on_a_cluster(source):
        yield spec_problem("model.source", f"found {source!r}, {MODELS_ON_A_CLUSTER}")


def wrong_model_on_a_cluster(source: str) -> str | None:
    """What is wrong with a model's place for a pod, as a sentence; None: nothing."""
    if wrong := wrong_model_address(source):
        return wrong
    return None if _on_a_cluster(source) else f"found {source!r}, {MODELS_ON_A_CLUSTER}"


def _on_a_cluster(source: str) -> bool:
    """Whether a model's place is no file of the machine where the file was written."""
    absolute = source.startswith("/") and not re.search(CLIMBS, source)
    return "://" in source or re.search(HUB_ID, source) is not None or absolute


def free_port(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `server.port` is none of those that Ray uses."""
    port, (first, last) = spec.server.port, WORKER_PORTS
    if port in TAKEN_PORTS.values() or first <= port <= last:
        yield spec_problem("server.port", f"found {port}, allowed: {FREE_PORTS}")
