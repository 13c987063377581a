"""Puts a task together from its parts: a source of prompts, a split, templates, rewards, an environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_api.errors import RewardError, TaskError
from rl_api.task import SOCKET_VARIABLE, TaskSpec
from rl_trainer.tasks.environments.episode import EnvironmentMaker, Episode, Setting
from rl_trainer.tasks.environments.simulated import Lane, SimulatedEpisode
from rl_trainer.tasks.environments.targets import environment_target
from rl_trainer.tasks.killable import KillableProcess, Target
from rl_trainer.tasks.prompt_set import PromptSet
from rl_trainer.tasks.prompts import read_prompt
from rl_trainer.tasks.reasoning_gym import ReasoningGym
from rl_trainer.tasks.rewards import NEEDS_ANSWER, Rewards, full
from rl_trainer.tasks.rows import PromptData, Row, SplitRows
from rl_trainer.tasks.rules import exact_match
from rl_trainer.tasks.scoring import Completion, ScoreQueue, Scorer, then
from rl_trainer.tasks.sources import read_data
from rl_trainer.tasks.split import EndlessSplit, FiniteSplit, Split, derive_seed
from rl_trainer.tasks.templates import Template
from rl_trainer.tasks.types import HELDOUT_INDEX, Message, Prompt, Score, Scored, Segment
from rl_trainer.tasks.user_code import as_number

MOST_DIALOGUES = 2**40
"""Of one process that asks simulators: the numbers of its dialogues begin at a multiple of it."""


class PromptMaker:
    """Applies the templates of `spec`: (question, answer, metadata, item) -> prompt without an index."""

    def __init__(self, spec: TaskSpec) -> None:
        self._prompt = spec.prompt_template and Template(spec.prompt_template, "task.promptTemplate")
        self._answer = spec.answer_template and Template(spec.answer_template, "task.answerTemplate")

    def make(
        self, question: str | Sequence[Message], answer: str | None, metadata: Any, item: Mapping[str, Any]
    ) -> Prompt:
        """The prompt of one item; of a chat, `question` in a template is the last message's content.

        Raises TaskError when the item does not have what a template asks for.
        """
        messages = None if isinstance(question, str) else [dict(message) for message in question]
        last = question if isinstance(question, str) else question[-1]["content"]
        target = self._answer.render(last, answer, metadata) if self._answer else answer
        if self._prompt:
            last = self._prompt.render(last, answer, metadata)
        text = last
        if messages is not None:
            messages[-1]["content"] = last
            text = "\n".join(message["content"] for message in messages)
        if not text.strip():
            raise TaskError(f"task: the prompt of {item!r:.80} is empty")
        chat = None if messages is None else tuple(messages)
        return Prompt(-1, text, target or "", item, chat, target is not None)


class Task:
    """Prompts, scores and environments of one run.

    Args:
        spec: `spec.task`.
        seed: the run's seed.
        split: what is trained on and what is held out.
        heldout: number of held-out prompts.
        rewards: the parts of the reward.
        maker: the environment's class, None for single turns.
        lanes: to the workers in which dialogues are stepped; none: where `maker` is.
        scorers: to the workers that score, for rule model; None: nothing is scored by it here.
    """

    def __init__(
        self,
        spec: TaskSpec,
        seed: int,
        split: Split,
        heldout: int,
        rewards: Rewards,
        maker: EnvironmentMaker | None = None,
        lanes: Sequence[Lane] = (),
        scorers: ScoreQueue | None = None,
    ) -> None:
        self._lanes = lanes
        self._scorers = scorers
        self._spec, self._seed, self._split, self._count = spec, seed, split, heldout
        self._rewards, self._maker = rewards, maker
        self._name = spec.name or spec.file or (spec.dataset.name if spec.dataset else spec.environment)
        self._latency = spec.tool_latency.mean.seconds if spec.tool_latency else 0.0
        self._check_answers(split.training(0))

    def prompt(self, index: int) -> Prompt:
        """Training prompt `index` (>= 0); its text is never a held-out one. TaskError when it cannot be made."""
        if index < 0:
            raise ValueError(f"prompt index {index} is negative")
        return replace(self._split.training(index), index=index)

    @property
    def split_rows(self) -> SplitRows | None:
        """What is held out and trained on of a file or data set; None: prompts are made without end."""
        return self._split.rows if isinstance(self._split, FiniteSplit) else None

    def all_training(self) -> Iterator[Prompt] | None:
        """All prompts that are trained on, without an index; None: they are made without end."""
        return self._split.all_training() if isinstance(self._split, FiniteSplit) else None

    def heldout(self, count: int | None = None) -> list[Prompt]:
        """The first `count` held-out prompts, all of different text; None: all.

        Raises TaskError when fewer are held out, or the task has too few distinct prompts.
        """
        if count is not None and count > self._count:
            raise TaskError(
                f"task.evaluation.samples: {count} held-out prompts are wanted, but {self._count} were "
                "kept out of training"
            )
        held = self._split.heldout()[:count]
        return [replace(prompt, index=HELDOUT_INDEX + number) for number, prompt in enumerate(held)]

    def score(self, prompt: Prompt, completion: str) -> Scored:
        """What a completion of a single turn is worth; a future with rule model. RewardError: a reward raised, hung or gave
        no number."""
        return self._scored(prompt, completion, (), None)

    def solution(self, prompt: Prompt) -> list[Segment]:
        """For the warm start: the answer, or the dialogue of a perfect model with what the environment says in between.

        Raises TaskError when the task knows no solution.
        """
        if self._maker is not None:
            return self._dialogue(self._maker, prompt)
        if not prompt.solved:
            raise TaskError(
                f"warmStart: task {self._name} has no single right answer to learn from; set "
                "task.answerTemplate (the metadata may hold an example) or leave warmStart out"
            )
        return [Segment(prompt.answer)]

    def environment(self, prompt: Prompt, member: int = 0) -> Episode | None:
        """A new dialogue about `prompt`, None where one turn is all. Members of a group differ in their tool latency."""
        if self._maker is None:
            return None
        seed = derive_seed(self._seed, "latency", prompt.index, member)
        noise = None
        if self._spec.environment == "gymnasium":
            noise = derive_seed(self._seed, "noise", prompt.index, member)
        setting = Setting(prompt, self._spec.max_turns, self._scored, self._latency, seed, noise)
        if self._lanes:
            return SimulatedEpisode(self._lanes[(prompt.index + member) % len(self._lanes)], setting)
        return Episode(self._maker, setting)

    def _dialogue(self, maker: EnvironmentMaker, prompt: Prompt) -> list[Segment]:
        where = f"prompt {prompt.index}"
        if not maker.call("offers", where, TaskError, "solution"):
            raise TaskError(
                f"warmStart: environment {maker.name} has no solution(item, args) to learn from; write one "
                "or leave warmStart out"
            )
        turns = maker.solution(prompt.item, where)
        environment = Episode(maker, Setting(prompt, len(turns), lambda *_: Score(0.0, False)))
        segments: list[Segment] = []
        for number, turn in enumerate(turns):
            segments.append(Segment(turn))
            result = environment.take(turn)
            if result.done != (number == len(turns) - 1):
                raise TaskError(
                    f"environment {maker.name}: its own solution ends after turn {number + 1} of {len(turns)}"
                )
            if not result.done:
                segments.append(Segment(result.observation, trained=False))
        return segments

    def _scored(self, prompt: Prompt, completion: str, turns: Sequence[str], own: float | None) -> Scored:
        if own is None and not prompt.solved:
            own = self._rewards.own_score(prompt, completion)
        parts = self._rewards.evaluate(prompt, completion, turns, own)
        exact = exact_match(completion, prompt.answer) if prompt.solved else full(own or 0.0)
        if not self._rewards.asks_model:
            return Score(sum(parts.values()), exact, parts)

        def whole(value: float) -> Score:
            shares = {**parts, **self._rewards.of_model(value)}
            return Score(sum(shares.values()), exact, shares)

        if self._scorers is None:
            raise RewardError("task.rewardModel: there are no workers here that could score by it")
        return then(self._scorers.submit(Completion.of(prompt, completion)), whole)

    def _check_answers(self, first: Prompt) -> None:
        wrong = [rule.rule for rule in self._spec.rewards if rule.rule in NEEDS_ANSWER]
        if not first.solved and wrong:
            own = "task, " if self._rewards.has_own_score else ""
            raise TaskError(
                f"task.rewards: rule {wrong[0]} compares with the answer, but task {self._name} has no "
                f"single right answer; use rule {own}function or regex, or set task.answerTemplate"
            )


def load_task(
    spec: TaskSpec,
    seed: int,
    *,
    search: Path | None = None,
    heldout: int | None = None,
    data: PromptData | None = None,
    simulators: Sequence[Target] = (),
    scorers: Sequence[Scorer] = (),
    caller: int = 0,
) -> Task:
    """The task that `spec` describes.

    Args:
        spec: `spec.task` of a run.
        seed: the run's seed. Another seed gives other prompts, in another order, with others held out.
        search: folder of the run file; relative data files and reward modules are looked for there first.
        heldout: number of prompts kept out of training; None: `evaluation.samples`, or none without
            evaluation. Every process of a run must give the same.
        data: what the task's file or data set holds, where it has been read: one process of a run reads it for all.
        simulators: workers in which dialogues are stepped, each as `environment_target` makes one; none: here.
        scorers: workers that score, for rule model; none: nothing can be scored by it here.
        caller: who of those that ask the simulators this is.

    Raises:
        TaskError: the task, its file, its arguments or a reward cannot be used.
    """
    if heldout is None:
        heldout = spec.evaluation.samples if spec.evaluation else 0
    process = KillableProcess()
    if spec.isolation == "strict" and not process.elsewhere:
        raise TaskError(
            f"task.isolation: found 'strict', allowed where another container listens ({SOCKET_VARIABLE}), as on a cluster; "
            "on one machine your code runs as you: use shared there (--set task.isolation=shared --set task.resources=null)"
        )
    if data is None:
        data = read_data(spec, search)
    score_queue = _score_queue(spec, scorers)
    match spec.environment:
        case "reasoning-gym":
            return _load_generator(spec, seed, search, heldout, process, score_queue)
        case "prompts":
            assert data is not None, "environment prompts has a file or a data set"
            return _load_file(spec, seed, search, heldout, process, data, score_queue)
        case "tool-use" | "gymnasium":
            maker = _maker(spec, environment_target(spec, search, process))
            lanes = [Lane(_maker(spec, one, caller * MOST_DIALOGUES)) for one in simulators]
            return _load_environment(spec, seed, search, heldout, process, data, maker, lanes, score_queue)


def _score_queue(spec: TaskSpec, scorers: Sequence[Scorer]) -> ScoreQueue | None:
    model = spec.reward_model
    return None if model is None or not scorers else ScoreQueue(model.source, scorers, model.batch_size)


def _load_generator(
    spec: TaskSpec,
    seed: int,
    search: Path | None,
    heldout: int,
    process: KillableProcess,
    score_queue: ScoreQueue | None,
) -> Task:
    source, prompts = ReasoningGym(spec.name or "", spec.args), PromptMaker(spec)
    scorer = process.target(ReasoningGym, spec.name or "", spec.args)

    def score(item: Mapping[str, Any], completion: str, seconds: float) -> float:
        return as_number(scorer.call(seconds, "score", item, completion))

    rewards = Rewards(spec.rewards, search, score, process)

    def draw(stream: int, position: int) -> Prompt:
        entry = source.draw(stream, position)
        return prompts.make(
            str(entry["question"]), _text_or_none(entry, "answer"), entry.get("metadata"), entry
        )

    split = EndlessSplit(draw, seed, heldout, f"task: generator {spec.name} with these arguments")
    return Task(spec, seed, split, heldout, rewards, scorers=score_queue)


def _load_file(
    spec: TaskSpec,
    seed: int,
    search: Path | None,
    heldout: int,
    process: KillableProcess,
    data: PromptData,
    score_queue: ScoreQueue | None,
) -> Task:
    prompts = PromptMaker(spec)
    rewards = Rewards(spec.rewards, search, None, process)
    compared = heldout > 0 or any(rule.rule in NEEDS_ANSWER for rule in spec.rewards)
    needed = compared and spec.answer_template is None

    def make(row: Row) -> Prompt:
        item = read_prompt(
            row, spec.prompt_field, spec.answer_field, needs_answer=needed, unit=data.rows.unit
        )
        return prompts.make(item.question, item.answer, item.fields, item.fields)

    split = FiniteSplit(PromptSet(data.rows, make), seed, heldout, _source(spec), data.split)
    return Task(spec, seed, split, heldout, rewards, scorers=score_queue)


def _source(spec: TaskSpec) -> str:
    """Where the prompts come from, in words."""
    return f"task.file: {spec.file}" if spec.dataset is None else f"task.dataset: {spec.dataset.name}"


def _load_environment(
    spec: TaskSpec,
    seed: int,
    search: Path | None,
    heldout: int,
    process: KillableProcess,
    data: PromptData | None,
    maker: EnvironmentMaker,
    lanes: Sequence[Lane],
    score_queue: ScoreQueue | None,
) -> Task:
    name = spec.name or ""
    prompts = PromptMaker(spec)
    rewards = Rewards(spec.rewards, search, _no_score, process)

    def make(item: Mapping[str, Any], where: str) -> Prompt:
        question = maker.opening(item, where)
        return prompts.make(question, _text_or_none(item, "answer"), item, item)

    if data is not None:
        made = PromptSet(data.rows, lambda row: make(row.fields, f"item at {row.where}"))
        split = FiniteSplit(made, seed, heldout, _source(spec), data.split)
        return Task(spec, seed, split, heldout, rewards, maker, lanes, score_queue)

    if not maker.call("offers", "its start", TaskError, "generate"):
        raise TaskError(
            f"task.name: environment {name} has no generate(rng, args), so task.file or task.dataset must hold its items"
        )

    def draw(stream: int, position: int) -> Prompt:
        where = f"item {position}"
        return make(maker.generate(derive_seed(stream, position), where), where)

    endless = EndlessSplit(draw, seed, heldout, f"task: environment {name} with these arguments")
    return Task(spec, seed, endless, heldout, rewards, maker, lanes, score_queue)


def _maker(spec: TaskSpec, target: Target, first: int = 0) -> EnvironmentMaker:
    seconds = None if spec.simulators is None else spec.simulators.timeout.seconds
    return EnvironmentMaker(spec.name or "", target, dict(spec.args), seconds, first)


def _text_or_none(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    return None if value is None else str(value)


def _no_score(item: Mapping[str, Any], completion: str, seconds: float) -> float:
    """Stands for the environment's own reward where a single completion is scored: it gave none."""
    return 0.0
