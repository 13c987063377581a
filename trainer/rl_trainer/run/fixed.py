"""What stays the same for all checkpoints of a run: each manifest holds it, under `fixed`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_api import RunSpec
from rl_trainer.tasks.split import heldout_count

# What must be the same for a checkpoint to fit: changing these makes another model, another prompt stream, another batch
# or other weight versions.
_FIXED = (
    "seed",
    "model",
    *(f"task.{name}" for name in ("environment", "name", "args", "file", "promptField", "answerField")),
    *(f"task.{name}" for name in ("promptTemplate", "answerTemplate", "systemPrompt")),
    "learner.lora",
    "algorithm.groupSize",
    "algorithm.promptsPerStep",
    "weightSync.everySteps",
)
# Of the task, too; kept only where they are not the default, as earlier checkpoints know nothing of them.
_FIXED_WHERE_SET = {"tools", "chat_template_kwargs", "observation_role", "dataset"}


def fixed_of(spec: RunSpec) -> dict[str, Any]:
    """Path in spec -> value, for all that is fixed."""
    document = spec.model_dump(mode="json", by_alias=True)
    found: dict[str, Any] = {}
    for name in _FIXED:
        value: Any = document
        for part in name.split("."):
            value = value[part]
        found.update(_leaves(name, value))
    chat = spec.task.model_dump(mode="json", by_alias=True, include=_FIXED_WHERE_SET, exclude_defaults=True)
    found.update(_leaves("task", chat) if chat else ())
    # They are taken out of the prompts that are trained on.
    return found | {"task.evaluation.samples": heldout_count(spec)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}", part)
    else:
        yield path, value
