"""What a checkpoint of a run holds, and how it is written and read; `Actors.state` gathers it.

One checkpoint is one moment: the driver takes it between two steps, the buffer answers with one snapshot.
Killed at any time, a resumed run goes on from the newest one: weights, optimizer and counters as they were,
every prompt that was ready, running or waiting comes again under its own index, and metrics written after it
are cut off.

    model/                   Hugging Face folder (fp32), opened by `AutoModelForCausalLM.from_pretrained`
    optimizer.safetensors    AdamW moments by parameter
    adapter/                 with LoRA: the adapters, opened by `peft.PeftModel.from_pretrained`
    critic.safetensors       weights, AdamW moments and steps of the critic, where there is one
    groups.npz               payloads of the groups that were ready
    rng/rank-N.json          random generators of every learner (samplers draw by counter, from seed and prompt index)
    initial/, metrics.jsonl, examples.json
                             only where checkpoints are kept outside the run folder, whose disk may be lost with a node
    manifest, metadata       counters, buffer state, position in metrics.jsonl, what must stay the same, and the lineage
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_api import CheckpointStatus, RunSpec
from rl_api.errors import ActorDied, CheckpointError, DeadlineExceeded, InvalidConfig
from rl_trainer.checkpoint.manifest import Checkpoint
from rl_trainer.checkpoint.remote import fetch, mirror
from rl_trainer.checkpoint.state import (
    LearnerState,
    RunState,
    SavedLearners,
    pack_payloads,
    unpack_payloads,
)
from rl_trainer.checkpoint.store import CheckpointStore, Writer
from rl_trainer.checkpoint.tensor_file import TensorStream, write_tensors
from rl_trainer.error_text import RESUME_HINT, reason
from rl_trainer.model.export import ADAPTER_WEIGHTS, write_adapter, write_folder
from rl_trainer.observe.examples import EXAMPLES_FILE
from rl_trainer.observe.metrics import METRICS_FILE, MetricsWriter
from rl_trainer.run.counters import Counters
from rl_trainer.run.fixed import fixed_of
from rl_trainer.run.lineage import parent_of
from rl_trainer.run.remote_run import RemoteRun
from rl_trainer.run.run_folder import RUN_FILE, RunFolder

OPTIMIZER, CRITIC, ADAPTER = "optimizer.safetensors", "critic.safetensors", "adapter"


class Checkpoints:
    """The checkpoints of one run folder; `lineage`: what their manifests say of where they come from (`lineage_of`).

    `warn` is told what is wrong with pins of services.
    """

    def __init__(
        self, spec: RunSpec, folder: RunFolder, remote: RemoteRun | None, warn: Callable[[str], None]
    ):
        self.spec, self.folder, self.remote = spec, folder, remote
        storage = spec.checkpoint.storage if spec.checkpoint else None
        place = folder.path / storage.path if storage and storage.path else folder.checkpoints
        self.outside = self.remote is not None or not place.resolve().is_relative_to(folder.path)
        self.lineage: Mapping[str, Any] = {}
        self._parent: Checkpoint | None = None
        self.store = CheckpointStore(place, keep=spec.checkpoint.keep if spec.checkpoint else 1, tell=warn)

    def latest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest good checkpoint; damaged ones are passed over, with a warning each.

        Raises:
            CheckpointError: none can be used.
            InvalidConfig: it belongs to another run.
        """
        copy = fetch(self.store, self.remote.remote) if self.remote is not None else None
        for sentence in copy.skipped if copy is not None else ():
            warn(sentence)
        found = self.store.load_latest()
        if found is None:
            return None
        for sentence in found.skipped:
            warn(sentence)
        saved, now = found.metadata["fixed"], fixed_of(self.spec)
        for name in sorted(saved.keys() | now.keys()):
            if saved.get(name) != now.get(name):
                raise InvalidConfig(
                    f"spec.{name}: found {now.get(name)}, but the checkpoint of step {found.step} was made with "
                    f"{saved.get(name)}; resume with the value the run had, or start anew with --overwrite"
                )
        self._parent = found
        return found

    def save(
        self,
        counters: Counters,
        state: RunState[LearnerState],
        metrics: MetricsWriter,
        model_folder: Path,
    ) -> CheckpointStatus:
        """Writes the checkpoint of `counters.step`, in which the actors were as `state` says.

        Raises:
            CheckpointError: it cannot be written; the one before is untouched.
            ActorDied, DeadlineExceeded: a learner did not send what it holds; the one before is untouched.
            RunFolderBusy: a later attempt has taken the run folder over, or the one in the object store.
        """
        self.folder.check_owner()
        learned = state.learners
        generators = {
            f"rng/rank-{rank}.json": data for rank, data in enumerate(state.random_states) if data is not None
        }
        metadata = {
            "counters": counters.dump(),
            "buffer": state.buffer,
            "optimizer_steps": learned.optimizer_steps,
            "metrics_position": metrics.position(),
            "fixed": fixed_of(self.spec),
            "lineage": {**self.lineage, "parent": parent_of(self._parent)},
        }
        info = self.store.save(
            counters.step,
            {
                "model": lambda target: write_folder(learned.weights, model_folder, target),
                OPTIMIZER: lambda target: write_tensors(learned.optimizer, target),
                **self._optional(learned),
                "groups.npz": pack_payloads(state.payloads),
                **generators,
                **self._lost_with_a_disk(metrics),
            },
            metadata,
        )
        self._parent = info
        place = str(info.path)
        if self.remote is not None:
            # First: who finds the checkpoint finds which prompts were held out. Where the store is away, the copy of the
            # checkpoint says so, and where that is safe.
            with contextlib.suppress(CheckpointError):
                self.remote.put(RUN_FILE)
            place = mirror(self.store, self.remote.remote, self.remote.check_owner)
        return CheckpointStatus(step=info.step, uri=place, time=datetime.now(UTC))

    def unpack(self, checkpoint: Checkpoint) -> Path:
        """Puts into the run folder what a resumed run needs there; returns a model folder that outlives the checkpoint.

        Raises:
            CheckpointError: the run folder cannot be written, or the policy that the run began with is nowhere.
        """
        folder, model = self.folder, self.folder.path / "model" / "resumed"
        try:
            shutil.rmtree(model, ignore_errors=True)
            shutil.copytree(checkpoint.file("model"), model, copy_function=_link)
            for name in ("initial", EXAMPLES_FILE):
                if not (folder.path / name).exists() and (checkpoint.path / name).exists():
                    _copy(checkpoint.path / name, folder.path / name)
            metrics, kept = folder.path / METRICS_FILE, checkpoint.path / METRICS_FILE
            if kept.exists() and (not metrics.exists() or metrics.stat().st_size < kept.stat().st_size):
                shutil.copyfile(kept, metrics)
        except (OSError, shutil.Error) as error:
            raise CheckpointError(
                f"the checkpoint of step {checkpoint.step} cannot be unpacked: {reason(error)}"
            ) from error
        if self.initial is not None and not self.initial.exists():
            use = (
                "that LoRA's adapters belong to, and it is missing; bring it back"
                if self.spec.learner.lora is not None
                else "that the KL penalty refers to, and it is missing; bring it back, or set algorithm.kl.coefficient to 0"
            )
            raise CheckpointError(f"{folder.initial}: this folder holds the policy {use}")
        return model

    def read(self, checkpoint: Checkpoint) -> RunState[SavedLearners]:
        """What `save` was given of the actors; of the learners, where it lies."""
        state, files = checkpoint.metadata, checkpoint.files
        adapter = f"{ADAPTER}/{ADAPTER_WEIGHTS}"
        learned = SavedLearners(
            folder=checkpoint.path,
            optimizer=OPTIMIZER,
            optimizer_steps=state["optimizer_steps"],
            adapter=adapter if adapter in files else None,
            critic=CRITIC if CRITIC in files else None,
        )
        ranks = range(self.spec.learner.ranks)
        names = [f"rng/rank-{rank}.json" for rank in ranks]
        generators = [checkpoint.read(name) if name in files else None for name in names]
        payloads = unpack_payloads(checkpoint.read("groups.npz"))
        return RunState(learned, generators, state["buffer"], payloads)

    @property
    def initial(self) -> Path | None:
        """The policy that the run began with, where training needs it: as KL reference, or as the base of LoRA."""
        needed = self.spec.algorithm.kl.coefficient > 0 or self.spec.learner.lora is not None
        return self.folder.initial if needed else None

    def export(self, weights: TensorStream, model_folder: Path, target: Path) -> None:
        """Writes these weights as a Hugging Face folder.

        Raises:
            CheckpointError: it cannot be written.
            ActorDied, DeadlineExceeded: a learner did not send them.
        """
        try:
            write_folder(weights, model_folder, target)
        except (ActorDied, DeadlineExceeded):
            raise
        except Exception as error:
            raise CheckpointError(
                f"the policy cannot be written to {target}: {reason(error)}; mend that, then {RESUME_HINT}"
            ) from error

    def _lost_with_a_disk(self, metrics: MetricsWriter) -> dict[str, Writer]:
        if not self.outside:
            return {}
        files: dict[str, Writer] = {METRICS_FILE: lambda target: _copy(metrics.path, target)}
        examples = self.folder.path / EXAMPLES_FILE
        if examples.exists():
            files[EXAMPLES_FILE] = lambda target: _copy(examples, target)
        if self.initial is not None:
            files["initial"] = lambda target: _copy(self.folder.initial, target)
        return files

    def _optional(self, learned: LearnerState) -> dict[str, Writer]:
        """The files that not every run has."""
        files: dict[str, Writer] = {}
        lora, adapter, critic = self.spec.learner.lora, learned.adapter, learned.critic
        if lora is not None and adapter is not None:
            files[ADAPTER] = lambda target: write_adapter(adapter, lora, str(self.folder.initial), target)
        if critic is not None:
            files[CRITIC] = lambda target: write_tensors(critic, target)
        return files


def _link(source: str, target: str) -> None:
    """A second name for the same bytes, which nobody ever writes to; a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
