"""What a run needs before any actor: model folder, tokenizer, task. No Ray here, so that it is found while Ray starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_api import RunSpec
from rl_api.errors import ModelError
from rl_api.sizes.shape import ModelShape, model_shape
from rl_api.task import TaskSpec
from rl_trainer.model.chat import Chat
from rl_trainer.model.config import read_json
from rl_trainer.model.resolve import resolve_model
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.vllm_needs import VllmOptions, check_model
from rl_trainer.run.lineage import lineage_of
from rl_trainer.run.screen import Screen, Screened, context_of, screened
from rl_trainer.tasks import Prompt, Task, load_task
from rl_trainer.tasks.functions import load_function
from rl_trainer.tasks.rows import PromptData
from rl_trainer.tasks.sources import read_data
from rl_trainer.tasks.split import heldout_count


@dataclass(frozen=True)
class Inputs:
    """The run's inputs as the driver uses them.

    Attributes:
        model: a local Hugging Face folder.
        chat: how dialogues are written for the model.
        heldout: prompts that are never trained on.
        lineage: see `lineage_of`.
        screen: which prompts fit into the model's context; all, where `task.onLongPrompt` is fail.
        data: what the task's file or data set holds, for the samplers, which need no access to where it is.
        left_out: a sentence on the prompts that do not fit; empty: all do.
        shape: of the model; None: of a family that is not known.
        reward_model: a local folder with what `task.rewardModel` names.
    """

    model: Path
    chat: Chat
    task: Task
    heldout: list[Prompt]
    lineage: dict[str, Any]
    screen: Screen
    data: PromptData | None = None
    left_out: str = ""
    shape: ModelShape | None = None
    reward_model: Path | None = None


def load_inputs(
    spec: RunSpec,
    cache: Path,
    search: Path | None,
    model: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Inputs:
    """Finds and checks everything; imports the task's library, which takes seconds.

    Args:
        spec: the run.
        cache: folder for presets and copies of remote models.
        search: folder in which reward modules and data files are looked for first.
        model: folder to use instead of `model.source`, of a checkpoint.
        tell: hears now and then how far a long download has come.

    Raises:
        InvalidConfig: vLLM cannot divide the model as the samplers are to.
        ModelError: the model folder cannot be used.
        TaskError: the task cannot be used.
    """
    data = read_data(spec.task, search)
    task = load_task(spec.task, spec.seed, search=search, heldout=heldout_count(spec), data=data)
    if data is not None:
        data = replace(data, split=task.split_rows)  # which the samplers need not find again
    heldout = task.heldout()
    if spec.algorithm.own_objective is not None:  # the learners load it again; here before anything starts
        load_function(spec.algorithm.own_objective, search, "algorithm.name")
    source = spec.model
    if model is None:
        model = resolve_model(source.source, cache, source.tiny, spec.seed, source.revision, tell)
    if spec.sampler.engine == "vllm":  # the samplers look as well; here before they start
        check_model(read_json(model / "config.json"), VllmOptions.of(spec))
    tokenizer = load_tokenizer(model)
    if not tokenizer.stop_ids:
        raise ModelError(
            f"model folder {model}: no end-of-text token is configured, so no answer could ever end"
        )
    chat = Chat.of(tokenizer, spec.task)
    drop = spec.task.on_long_prompt == "drop"
    rooms = [room for room in (context_of(model), spec.sampler.max_model_len) if room is not None]
    screen = Screen(chat, min(rooms, default=None) if drop else None)
    found = screened(task, screen) if drop else Screened(heldout)
    lineage = lineage_of(spec, search, data)
    judge = _reward_model(spec.task, cache, spec.seed, tell)
    held = found.heldout
    return Inputs(model, chat, task, held, lineage, screen, data, found.sentence, _shape(model), judge)


def _shape(model: Path) -> ModelShape | None:
    try:
        return model_shape(read_json(model / "config.json"))
    except ModelError:  # the library opens more families than are known by their configuration
        return None


def _reward_model(task: TaskSpec, cache: Path, seed: int, tell: Callable[[str], None]) -> Path | None:
    model = task.reward_model
    if model is None:
        return None
    return resolve_model(model.source, cache, None, seed, model.revision, tell, "task.rewardModel: ")
