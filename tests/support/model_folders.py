"""Models of the trainer's own written as folders, without a learner."""

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from rl_trainer.checkpoint.state import SavedFiles
from rl_trainer.model.export import WEIGHTS, appearing, describe_weights
from rl_trainer.model.folder import write_weights
from rl_trainer.weights.source import LazyTensor, source_of


def save_model(model: nn.Module, source: Path, target: Path) -> None:
    """As a run exports its policy: configuration and tokenizer of `source`."""
    tensors: Mapping[str, LazyTensor] = model.hf_tensors()  # type: ignore[operator]
    with appearing(target) as folder:
        digests = write_weights(source_of(tensors), folder)
        describe_weights(source, folder, SavedFiles(digests, dict.fromkeys(tensors, WEIGHTS), 0))
