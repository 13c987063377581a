"""Models of the trainer's own written as folders."""

from pathlib import Path

from torch import nn

from rl_trainer.model.export import write_folder


def save_model(model: nn.Module, source: Path, target: Path) -> None:
    """As a run exports its policy: configuration and tokenizer of `source`."""
    tensors = model.hf_state_dict()  # type: ignore[operator]
    write_folder({name: value.detach().numpy() for name, value in tensors.items()}, source, target)
