"""The held-out prompts of a run, from its folder: exactly those that its training never saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rl_api import RunSpec
from rl_api.errors import InvalidConfig
from rl_api.task import TaskSpec
from rl_api.validation import load_run
from rl_trainer.run.fixed import fixed_of
from rl_trainer.run.lineage import data_of
from rl_trainer.run.run_folder import RUN_FILE
from rl_trainer.storage.remote_folder import RemoteFolder
from rl_trainer.tasks import Prompt, Task, load_task
from rl_trainer.tasks.rows import PromptData
from rl_trainer.tasks.sources import read_data
from rl_trainer.tasks.split import heldout_count

# A run has 64 KiB on a cluster.
_LARGEST: Final = 2**20
_STALLED_SECONDS: Final = 60.0


@dataclass(frozen=True)
class HeldOut:
    """A run's task as far as held-out answers need it, and the prompts; `spec` is the whole run's."""

    spec: RunSpec
    task: Task
    prompts: tuple[Prompt, ...]


def load_heldout(
    run: Path, samples: int, made_from: Mapping[str, Mapping[str, Any]], code: Path | None = None
) -> HeldOut:
    """The first `samples` held-out prompts of the run in folder `run` (all, where it has fewer).

    `run.yaml` there says seed and task, from which the same split comes as in training. So that it is the same, each
    policy's manifest must say the same of seed, task and data.

    An answer counts as right as in the run's own evaluation: it is exactly the right one, or, where the task has no single
    right answer, the task's own scorer gives it full marks. Rules and functions of `task.rewards` are not even loaded.

    Args:
        run: the run folder.
        samples: at most that many prompts.
        made_from: metadata of each policy's manifest, by who it is (candidate, serving policy); plain models have none.
        code: folder of the run's file, where relative data files and environments are looked for first.

    Raises:
        InvalidConfig: it is not known which prompts were held out.
        TaskError: the task cannot be loaded.
    """
    file = run / RUN_FILE
    if not file.is_file():
        raise InvalidConfig(
            f"held-out prompts: there is no {file}, so nobody knows which prompts training never saw; give the run folder, "
            "or compare by a probe"
        )
    spec = load_run(file).spec
    if spec.trainer.kind != "rltrain":
        raise InvalidConfig(
            f"held-out prompts: {file} has trainer.kind {spec.trainer.kind}, whose prompts only its own program knows; "
            "compare by a probe"
        )
    count = heldout_count(spec)
    if not count:
        raise InvalidConfig(
            f"held-out prompts: {file} has no task.evaluation, so it has trained on all its prompts; compare by a probe"
        )
    data = read_data(spec.task, code)
    _check_split(spec, data, made_from)
    task = load_task(_without_rewards(spec.task), spec.seed, search=code, heldout=count, data=data)
    return HeldOut(spec, task, tuple(task.heldout(min(samples, count))))


def bring_run(uri: str, target: Path) -> Path:
    """What `load_heldout` needs of a run whose checkpoints are in the s3:// folder `uri`, in the folder `target`.

    Raises:
        InvalidConfig: it is not there.
        CheckpointError: it cannot be read.
    """
    remote = RemoteFolder(uri, stalled=_STALLED_SECONDS)

    def bring() -> None:
        try:
            size = remote.size(RUN_FILE)
        except FileNotFoundError:
            raise InvalidConfig(
                f"held-out prompts: there is no {remote.uri}/{RUN_FILE}, which training puts there with its checkpoints, so "
                "nobody knows which prompts it never saw; compare by a probe"
            ) from None
        if size > _LARGEST:
            raise InvalidConfig(
                f"held-out prompts: {remote.uri}/{RUN_FILE} has {size:,} bytes, allowed: {_LARGEST:,}"
            )
        remote.download(RUN_FILE, target / RUN_FILE)

    remote.within(f"held-out prompts: {remote.uri}/{RUN_FILE} cannot be read", bring)
    return target


def _without_rewards(task: TaskSpec) -> TaskSpec:
    """The task with its own scorer alone: what training rewarded has no say in the gate, and code for it is not run here."""
    rules = tuple(rule for rule in task.rewards if rule.rule == "task")
    changes: dict[str, Any] = {"rewards": rules}
    if task.isolation == "strict" and ":" not in (task.name or ""):
        changes["isolation"] = "shared"  # nothing of the user's is left to run
    return task.model_copy(update=changes)


def _check_split(spec: RunSpec, data: PromptData | None, made_from: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises InvalidConfig unless each policy was trained with this very split."""
    now = fixed_of(spec)
    read = data_of(spec.task, data)
    for who, metadata in made_from.items():
        fixed, lineage = metadata.get("fixed"), metadata.get("lineage")
        if not isinstance(fixed, Mapping) or not isinstance(lineage, Mapping):
            raise InvalidConfig(
                f"held-out prompts: the manifest of the {who} does not say what it was trained on; compare by a probe"
            )
        for name in sorted(fixed.keys() | now.keys()):
            if (name == "seed" or name.startswith("task.")) and fixed.get(name) != now.get(name):
                raise InvalidConfig(
                    f"held-out prompts: {RUN_FILE} has {name} {now.get(name)!r:.80}, the {who} was trained with "
                    f"{fixed.get(name)!r:.80}, so it may have seen them; give its own run's folder, or compare by a probe"
                )
        if lineage.get("data") != read:
            raise InvalidConfig(
                f"held-out prompts: the {who} was trained on the data {lineage.get('data')}, here are {read}, so it "
                "may have seen them; bring the same data, or compare by a probe"
            )
