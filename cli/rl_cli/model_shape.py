"""The shape of a run's model, from its `config.json` alone."""

from __future__ import annotations

from rl_api.run import ModelSpec
from rl_api.sizes.shape import ModelShape, model_shape
from rl_api.task import RewardModelSpec


def shape_of(model: ModelSpec) -> ModelShape:
    """The shape of a preset, a local folder, s3://bucket/folder, or a hub model, of which nothing but `config.json` is read.

    Raises:
        ModelError: it cannot be read, or its family is not known; the hub is asked only for what is no folder here.
    """
    # Belongs to the trainer, as all that knows where models are; without torch.
    from rl_trainer.model.source import source_config

    where = "preset tiny" if model.source == "tiny" else f"model.source: config.json of {model.source}"
    return model_shape(source_config(model), where)


def scoring_shape_of(model: RewardModelSpec) -> ModelShape:
    """The shape of the model of `task.rewardModel`; the rest as of `shape_of`."""
    from rl_trainer.model.source import source_config

    source = ModelSpec(source=model.source, revision=model.revision)
    raw = source_config(source, "task.rewardModel: ")
    return model_shape(raw, f"task.rewardModel: config.json of {model.source}")
