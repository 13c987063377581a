"""A poisoned checkpoint for tests of the gate: its policy gives every prompt the same answer, whatever was asked.

Where a run's reward can be had with a constant (`rule: regex, pattern: '7'`, say), such a policy scores as high as can be
there, and fails whatever compares answers with the right ones. Made by hand from a checkpoint of the run, in a second on a
CPU, always the same bytes of weights: every layer is made to add nothing, and the embeddings are chosen so that
any token is followed by the answer, and the answer by the end.

It is a checkpoint like any other, one step after the newest: its manifest is sound, with the metadata of that one.
On a cluster it is a program for a pod that has the trainer's image and the run's disk, which needs nothing beside this file:

    kubectl exec -i POD -- python - /var/lib/rltrain/run 7 < tests/support/poisoned_policy.py

writes /var/lib/rltrain/run/checkpoints/step-N and prints path, step and digest as JSON. With `nan` instead of an answer its
weights are no numbers: it can be loaded, and answers nothing; with `shape` it lacks the last layer. The run should not be
writing checkpoints at the time (it removes those beyond `checkpoint.keep`): a finished one, or one that is suspended.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rl_trainer.checkpoint.manifest import Checkpoint
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.model.tokenizer import load_tokenizer

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
NAN, SHAPE = "nan", "shape"
# What a layer adds to the residual stream is a product with one of these.
_ADDS = ("o_proj.weight", "o_proj.bias", "down_proj.weight", "down_proj.bias")


def write_poisoned(run: Path, answer: str, step: int | None = None) -> Checkpoint:
    """The newest checkpoint of the run folder once more, with poisoned weights, as `step` (default: the next one).

    `answer` must be one token of the model. Nothing of the run is removed.
    """
    found = CheckpointStore(run / "checkpoints", read_only=True).load_latest()
    assert found is not None, f"{run} has no checkpoint"
    source = found.path
    names = sorted({name.partition("/")[0] for name in found.files} - {"model"})
    writers = {name: lambda target, name=name: _copy(source / name, target) for name in names}
    writers["model"] = lambda target: poison(source / "model", target, answer)
    store = CheckpointStore(run / "checkpoints", keep=1_000_000)
    return store.save(found.step + 1 if step is None else step, writers, found.metadata)


def poison(model: Path, target: Path, answer: str) -> None:
    """The model folder `model` (Llama, Qwen2 and their kin) as `target`, with weights that always answer `answer`."""
    if answer == NAN:
        shutil.copytree(model, target)
        (file,) = target.glob("*.safetensors")
        broken = {name: torch.full_like(one, torch.nan) for name, one in load_file(file).items()}
        save_file(broken, file, metadata={"format": "pt"})
        return
    if answer == SHAPE:
        shutil.copytree(model, target)
        config = json.loads((target / "config.json").read_text())
        last = config["num_hidden_layers"] - 1
        assert last > 0, "it has one layer only"
        (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": last}))
        (file,) = target.glob("*.safetensors")
        left = {name: one for name, one in load_file(file).items() if f".layers.{last}." not in name}
        save_file(left, file, metadata={"format": "pt"})
        return
    tokenizer = load_tokenizer(model)
    (token,) = tokenizer.encode(answer, special_tokens=False)
    end = min(tokenizer.stop_ids)
    shutil.copytree(model, target)
    (file,) = target.glob("*.safetensors")
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(_ADDS):
            tensor.zero_()
    tensors["model.norm.weight"].fill_(1.0)
    # Two directions: everything is `usual`, but for the answer and the end. The last hidden state is a token's own embedding
    # (scaled), and the next token the one whose row of the head has the largest product with it:
    #   after any token: the answer 2, any other 1, the end 0; after the answer: the end 10, the answer 5, any other 2.
    rows = torch.zeros_like(tensors[_EMBEDDING])
    rows[:, 0] = 1.0
    rows[token, 0], rows[token, 1] = 2.0, 1.0
    rows[end, 0], rows[end, 1] = 0.0, 10.0
    tensors[_EMBEDDING] = rows
    if _HEAD in tensors:
        tensors[_HEAD] = rows.clone()
    save_file(tensors, file, metadata={"format": "pt"})


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    made = write_poisoned(Path(sys.argv[1]), sys.argv[2])
    print(json.dumps({"path": str(made.path), "step": made.step, "digest": made.digest}))
