"""The values of a task: prompts, scores and what an environment says.

Everything a task says is a pure function of (task spec, seed, prompt index): every process that loads the
same task gets the same prompts, whatever it asked for before, so a prompt travels as its index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rl_api.errors import TaskError

Message: TypeAlias = dict[str, str]
"""One message of a chat: {"role": ..., "content": ...}."""


@dataclass(frozen=True)
class Prompt:
    """One thing the model is asked.

    Attributes:
        index: position in the training stream; held-out prompts count from `HELDOUT_INDEX`.
        text: what the model reads (of a chat: the messages' contents, one per line). Training and held-out
            prompts never share a text.
        answer: the answer the model should give; empty where it has none (`solved`).
        item: what the prompt was made from: the generator's entry, the line of the file or the environment's
            item.
        messages: the chat, where the prompt is one.
        solved: whether the task has a single right answer.
    """

    index: int
    text: str
    answer: str
    item: Mapping[str, Any]
    messages: tuple[Message, ...] | None = None
    solved: bool = True

    @property
    def content(self) -> str | Sequence[Message]:
        """The messages of a chat, else the text."""
        return self.messages if self.messages is not None else self.text

    @property
    def priority(self) -> float:
        """The item's field `priority`, for `buffer.order: priority`; 0 where it has none. TaskError: no finite number."""
        found = self.item.get("priority", 0.0)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise TaskError(
                f"buffer.order is priority: found {found!r:.60} as priority of prompt {self.index}, allowed: a finite number"
            )
        return float(found)


HELDOUT_INDEX = 1_000_000_000_000
"""`Prompt.index` of the first held-out prompt: beyond every index that training reaches."""


@dataclass(frozen=True)
class Score:
    """What a completion is worth.

    Attributes:
        reward: the sum over `parts`.
        exact: whether the answer is exactly right; what held-out evaluation counts.
        parts: every part's share of the reward (weight already applied), by name.
    """

    reward: float
    exact: bool
    parts: dict[str, float] = field(default_factory=dict)


Scored: TypeAlias = Score | Future[Score]
"""A score, or one that a model elsewhere has still to give: RewardError, where it fails."""


@dataclass(frozen=True)
class StepResult:
    """What an environment answers to one turn of the model.

    Attributes:
        observation: text the model reads next; not used when `done`.
        reward: the environment's own reward for this turn. It counts through a reward of rule `task`.
        done: the dialogue is over.
        delay_seconds: how long the answer takes to arrive (simulated tool latency). The environment does not
            sleep: whoever drives it goes on with other dialogues and delivers the observation when the time has passed.
        score: what the whole dialogue is worth; set by the task when `done`, never by an environment.
    """

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    delay_seconds: float = 0.0
    score: Scored | None = None


@dataclass(frozen=True)
class Answer:
    """One held-out prompt answered. `error`: why it has no score, where such prompts are dropped."""

    index: int
    prompt: str
    expected: str
    text: str
    reward: float
    exact: bool
    error: str | None = None


@dataclass(frozen=True)
class Segment:
    """A piece of a solved dialogue; `trained` is False for text that the environment writes."""

    text: str
    trained: bool = True
