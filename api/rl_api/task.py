"""What is trained on: the task's prompts, rewards, environment and held-out evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rl_api.base import Allowed, Duration, Model, PositiveDuration, Text

FunctionName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"),
    Allowed("module:function, such as my_rewards:length_penalty"),
]
"""A Python function a worker can import."""


class RewardRule(Model):
    """One part of the reward: a completion's reward is the sum over all parts of `weight` times the value."""

    rule: Literal["exactMatch", "number", "regex", "task", "function", "fraction"] = Field(
        default="exactMatch",
        description="How the value is found: exactMatch (the completion is the answer), number (the last "
        "numbers are equal), regex (the pattern is found), task (the task's own scorer), function (your code), "
        "fraction (the share of characters that are right).",
    )
    function: FunctionName | None = Field(
        default=None,
        description="Your function, as module:function; required for rule function. The module is looked for "
        "beside the run's file first. Called with (prompt, completion, answer); returns a number, or a "
        "dict of numbers by name.",
    )
    pattern: Text | None = Field(
        default=None,
        description="Regular expression of Python's regex package; required for rule regex. The last match "
        "counts; its first group, if it has one, is compared with the answer.",
    )
    weight: float = Field(default=1.0, description="Factor of this part in the sum.")
    right: float = Field(
        default=1.0,
        description="Value of a right completion, for instance 5. Grades lie between wrong and right.",
    )
    wrong: float = Field(default=0.0, description="Value of a wrong completion, for instance -5.")
    timeout: PositiveDuration = Field(
        default=Duration(10), description="Deadline of one call of the function or the task's scorer."
    )


class ToolLatencySpec(Model):
    """Random waiting time of every tool call, to study back-pressure."""

    mean: PositiveDuration = Field(
        description="Mean of the exponential distribution the waiting time is drawn from."
    )


class EvaluationSpec(Model):
    """Greedy evaluation by exact match on prompts that are never trained on."""

    every_steps: int = Field(default=20, ge=1, description="Training steps between two evaluations.")
    samples: int = Field(default=64, ge=1, description="Number of held-out prompts.")
    max_new_tokens: int | None = Field(
        default=None, ge=1, description="Longest answer in tokens; null: the sampler's maxNewTokens."
    )


class TaskSpec(Model):
    """Where prompts come from and how answers are rewarded."""

    environment: Literal["reasoning-gym", "prompts", "tool-use"] = Field(
        description="Kind of task: reasoning-gym (puzzles), prompts (a JSONL file), tool-use (turns)."
    )
    name: Text | None = Field(
        default=None,
        description="Generator of reasoning-gym (such as chain_sum) or environment of tool-use (such as "
        "calculator, or your own module:Class); required for both.",
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the generator or environment, passed on as they are."
    )
    file: Text | None = Field(
        default=None,
        description="JSONL file or URI, one prompt per line; required for environment prompts. A relative "
        "path is looked for beside the run's file first.",
    )
    prompt_field: Text = Field(default="prompt", description="Field of a JSONL line that holds the question.")
    answer_field: Text = Field(default="answer", description="Field of a JSONL line that holds the answer.")
    prompt_template: Text | None = Field(
        default=None,
        description="Template of the prompt: Python's str.format with question, answer and metadata, such as "
        "{metadata[numbers]:join , }; null: the question.",
    )
    answer_template: Text | None = Field(
        default=None,
        description="Template of the answer the model should give, for warm start and exact match, with the "
        "same keys; null: the answer.",
    )
    system_prompt: Text | None = Field(
        default=None, description="System message before the prompt; null: none."
    )
    tools: tuple[dict[str, Any], ...] = Field(
        default=(),
        strict=False,
        description="Tools that the model's chat template shows to the model, each as a JSON schema {type: "
        "function, function: {name, description, parameters}}.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="More arguments of the model's chat template, passed on as they are, such as "
        "enable_thinking: false.",
    )
    observation_role: Literal["user", "tool"] = Field(
        default="user",
        description="Role of what an environment says in the model's chat template (tool-use only).",
    )
    rewards: tuple[RewardRule, ...] = Field(
        default=(RewardRule(),),
        min_length=1,
        strict=False,
        description="Parts of the reward, summed. Default: one part, exactMatch.",
    )
    on_reward_error: Literal["stop", "drop"] = Field(
        default="stop",
        description="When a reward raises, hangs or gives no number: stop, or drop the group and count it.",
    )
    max_turns: int = Field(
        default=8, ge=1, description="Most turns of the model in one trajectory (tool-use only)."
    )
    tool_latency: ToolLatencySpec | None = Field(
        default=None, description="Random extra time of every tool call; null: none."
    )
    evaluation: EvaluationSpec | None = Field(default=None, description="Held-out evaluation; null: none.")
