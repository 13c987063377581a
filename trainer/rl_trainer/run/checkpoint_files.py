"""What a checkpoint of a run holds, as files, and what is made of them again.

model/                   Hugging Face folder (fp32), opened by `AutoModelForCausalLM.from_pretrained`
optimizer.safetensors    AdamW moments by parameter; of several ranks optimizer-00001-of-00004.safetensors ...
adapter/                 with LoRA: the adapters, opened by `peft.PeftModel.from_pretrained`
critic.safetensors       weights, AdamW moments and steps of the critic, where there is one; as of the optimizer
groups.npz               payloads of the groups that were ready
rng/rank-N.json          random generators of every learner (samplers draw by counter, from seed and prompt index)
initial/, metrics.jsonl, examples.json
                         only where checkpoints are kept outside the run folder, whose disk may be lost with a node
manifest, metadata       counters, buffer state, position in metrics.jsonl, what must stay the same, and the lineage
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.manifest import Checkpoint
from rl_trainer.checkpoint.shards import SUFFIX, shards_of
from rl_trainer.checkpoint.state import (
    ADAPTER,
    CRITIC,
    OPTIMIZER,
    WEIGHTS,
    LearnerState,
    RunState,
    SavedLearners,
    pack_payloads,
    unpack_payloads,
)
from rl_trainer.checkpoint.store import Writer
from rl_trainer.error_text import reason
from rl_trainer.model.export import ADAPTER_WEIGHTS
from rl_trainer.observe.examples import EXAMPLES_FILE
from rl_trainer.observe.metrics import METRICS_FILE
from rl_trainer.run.copies import copy, link
from rl_trainer.run.remote_run import INITIAL
from rl_trainer.run.run_folder import RunFolder

MODEL, ADAPTER_FOLDER = "model", "adapter"
LEARNED: Mapping[str, str] = {
    WEIGHTS: f"{MODEL}/{MODEL}",
    OPTIMIZER: "optimizer",
    ADAPTER: f"{ADAPTER_FOLDER}/{ADAPTER_WEIGHTS.removesuffix(SUFFIX)}",
    CRITIC: "critic",
}
"""Path and beginning of the names of the files that learners write."""
_GROUPS = "groups.npz"


def is_large(name: str) -> bool:
    """Whether a file of a checkpoint is for those who compute."""
    return name.endswith(SUFFIX) or name.startswith(f"{INITIAL}/")


def _generator(rank: int) -> str:
    return f"rng/rank-{rank}.json"


def own_files(state: RunState[LearnerState]) -> dict[str, Writer]:
    """What the driver writes of the actors' state, besides the metadata."""
    drawn = enumerate(state.random_states)
    generators = {_generator(rank): data for rank, data in drawn if data is not None}
    return {_GROUPS: pack_payloads(state.payloads), **generators}


def state_of(checkpoint: Checkpoint, ranks: int) -> RunState[SavedLearners]:
    """The actors' state, of `ranks` learners; of those, where it lies."""
    state, files = checkpoint.metadata, checkpoint.files
    learned = SavedLearners(
        folder=checkpoint.path,
        optimizer=shards_of(LEARNED[OPTIMIZER], files),
        optimizer_steps=state["optimizer_steps"],
        adapter=shards_of(LEARNED[ADAPTER], files),
        critic=shards_of(LEARNED[CRITIC], files),
        uri=checkpoint.uri,
        digests=files if checkpoint.uri else {},
    )
    names = [_generator(rank) for rank in range(ranks)]
    generators = [checkpoint.read(name) if name in files else None for name in names]
    payloads = unpack_payloads(checkpoint.read(_GROUPS))
    return RunState(learned, generators, state["buffer"], payloads)


def unpack(checkpoint: Checkpoint, folder: RunFolder) -> Path:
    """Puts into the run folder what a resumed run needs there; returns a model folder that outlives the checkpoint.

    Raises:
        CheckpointError: the run folder cannot be written.
    """
    model = folder.path / "model" / "resumed"
    try:
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(checkpoint.file(MODEL), model, copy_function=link)
        for name in (INITIAL, EXAMPLES_FILE):
            if not (folder.path / name).exists() and (checkpoint.path / name).exists():
                copy(checkpoint.path / name, folder.path / name)
        metrics, kept = folder.path / METRICS_FILE, checkpoint.path / METRICS_FILE
        if kept.exists() and (not metrics.exists() or metrics.stat().st_size < kept.stat().st_size):
            shutil.copyfile(kept, metrics)
    except (OSError, shutil.Error) as error:
        raise CheckpointError(
            f"the checkpoint of step {checkpoint.step} cannot be unpacked: {reason(error)}"
        ) from error
    return model
