"""Models of the trainer's own written as folders."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from rl_trainer.checkpoint.tensor_file import TensorStream
from rl_trainer.model.export import write_folder
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.stream import byte_chunks, file_shapes


def save_model(model: nn.Module, source: Path, target: Path) -> None:
    """As a run exports its policy: configuration and tokenizer of `source`."""
    tensors = model.hf_tensors()  # type: ignore[operator]
    write_folder(stream_of(tensors), source, target)


def stream_of(tensors: Mapping[str, LazyTensor]) -> TensorStream:
    """What learners send of them, without Ray."""
    source = source_of(tensors)

    def chunks() -> Iterator[Any]:
        return byte_chunks(source)

    return TensorStream(file_shapes(source), chunks)
