"""What is trained on: the task's prompts, rewards, environment and held-out evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from rl_api.base import (
    MOST,
    MOST_ITEMS,
    NO_NUL,
    Address,
    Allowed,
    Duration,
    Model,
    ObjectName,
    PositiveDuration,
    Quantity,
    Text,
    Word,
)

SOCKET_VARIABLE: Final = "RLTRAIN_CODE_SOCKET"
"""Environment variable with the socket at which the container for code of the user's listens, where there is one."""

DIALOGUES: Final = ("tool-use", "gymnasium")
"""Values of `task.environment` with turns."""

FunctionName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=253),
    Allowed("module:function, such as my_rewards:length_penalty"),
]
"""A Python function a worker can import."""

Pattern = Annotated[
    str,
    Field(min_length=1, max_length=2048, pattern=NO_NUL),
    Allowed("a regular expression of at most 2048 characters without NUL"),
]
"""A regular expression. Only the trainer compiles it: there are some that take minutes for that."""


class RewardRule(Model):
    """One part of the reward: a completion's reward is the sum over all parts of `weight` times the value."""

    rule: Literal["exactMatch", "number", "regex", "task", "function", "fraction", "model"] = "exactMatch"
    """How the value is found: exactMatch (the completion is the answer), number (the last numbers are equal), regex
    (the pattern is found), task (the task's own scorer), function (your code), fraction (the share of characters that
    are right), model (the value that task.rewardModel gives)."""
    function: FunctionName | None = None
    """Your function, as module:function; required for rule function. The module is looked for beside the run's file
    first. Called with (prompt, completion, answer); returns a number, or a dict of numbers by name."""
    pattern: Pattern | None = None
    """Regular expression of Python's regex package; required for rule regex. The last match counts; its first group,
    if it has one, is compared with the answer."""
    weight: float = Field(default=1.0, ge=-MOST, le=MOST)
    """Factor of this part in the sum."""
    right: float = Field(default=1.0, ge=-MOST, le=MOST)
    """Value of a right completion, for instance 5. Grades lie between wrong and right."""
    wrong: float = Field(default=0.0, ge=-MOST, le=MOST)
    """Value of a wrong completion, for instance -5."""
    timeout: PositiveDuration = Duration(10)
    """Deadline of one call of the function or the task's scorer."""


class ToolLatencySpec(Model):
    """Random waiting time of every tool call, to study back-pressure."""

    mean: PositiveDuration
    """Mean of the exponential distribution the waiting time is drawn from."""


WorkerPools = Annotated[tuple[ObjectName, ...], Field(max_length=MOST_ITEMS, strict=False)]
"""Names of node pools of a profile."""


class SimulatorsSpec(Model):
    """Workers for environments, beside the samplers: no decode step waits for a call of an environment."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """How many. The dialogues of a group are spread over them."""
    cpu: float = Field(default=1.0, gt=0.001, le=1024.0)
    """CPU cores of each. On a cluster each has a pod of its own."""
    memory: Quantity = "1Gi"
    """Memory of each, besides what Ray takes in its pod; on one machine it is not looked at."""
    pools: WorkerPools = ()
    """Node pools of their pods, the most wanted first; none: the head's. Only on a cluster."""
    ephemeral_storage: Quantity | None = None
    """Most that each keeps on its node's disk; null: what its pool says, otherwise at most 5Gi. Only on a
    cluster."""
    timeout: PositiveDuration = Duration(60)
    """Deadline of one call of an environment: one that hangs is replaced, and the others go on where they were."""

    @property
    def accelerators(self) -> int:
        """Of each: environments are stepped on CPU cores."""
        return 0


class RewardModelSpec(Model):
    """A model that scores completions, in workers of its own beside samplers and learners; a reward of rule model."""

    source: Address
    """A local folder, a Hugging Face hub id, or s3://bucket/folder."""
    revision: Word | None = None
    """Branch, tag or commit of a hub id; null: its default branch."""
    kind: Literal["classifier", "judge"] = "classifier"
    """classifier (a head with one output, as of sequence classification) or judge (a language model that is asked about
    the completion)."""
    value: Literal["logit", "probability"] = "logit"
    """logit: a classifier's output, or a judge's log p(first answer) - log p(second answer); probability: its logistic
    function, from 0 to 1."""
    template: Text | None = None
    """What the model reads: Python's str.format with prompt, completion and answer. null: a classifier reads prompt and
    completion, as a chat where it has a chat template; a judge is asked whether the answer is right."""
    answers: tuple[Word, ...] = Field(default=(), max_length=2, strict=False)
    """The judge's two answers, each one token: for and against the completion; none: "Yes" and "No". Only with kind
    judge."""
    replicas: int = Field(default=1, ge=1, le=1024)
    """How many workers. Each takes completions as it comes to them."""
    accelerators: int = Field(default=0, ge=0, le=1)
    """Accelerators (GPUs) of each: 1 (the model is on it) or 0 (on CPU cores)."""
    cpu: float = Field(default=1.0, gt=0.001, le=1024.0)
    """CPU cores of each. On a cluster each has a pod of its own."""
    memory: Quantity = "2Gi"
    """Memory of each, besides what Ray takes in its pod; on one machine it is not looked at."""
    pools: WorkerPools = ()
    """Node pools of their pods, the most wanted first; none: the head's, with accelerators 1 the profile's first pool that
    has some. Only on a cluster."""
    ephemeral_storage: Quantity | None = None
    """Most that each keeps on its node's disk; null: what its pool says, otherwise at most 20Gi, with accelerators 1 as
    much as a learner. Only on a cluster."""
    batch_size: int = Field(default=16, ge=1, le=4096)
    """Most completions of one forward pass."""
    timeout: PositiveDuration = Duration(60)
    """Deadline of one forward pass: a worker that hangs is replaced, and what it was to score is scored again."""


class EvaluationSpec(Model):
    """Greedy evaluation by exact match on prompts that are never trained on."""

    every_steps: int = Field(default=20, ge=1, le=MOST)
    """Training steps between two evaluations."""
    samples: int = Field(default=64, ge=1, le=1_000_000)
    """Number of held-out prompts."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest answer in tokens; null: the sampler's maxNewTokens."""


class CodeResourcesSpec(Model):
    """What the container for your code has in each pod, with isolation strict."""

    cpu: float = Field(default=1.0, gt=0.001, le=1024.0)
    """CPU cores that are kept for it; it may use one in any case."""
    memory: Quantity = "1Gi"
    """Memory."""
    ephemeral_storage: Quantity = "1Gi"
    """Most that it keeps on its node's disk."""


class DatasetSpec(Model):
    """A data set that Hugging Face's library datasets loads: its rows are memory-mapped."""

    name: Word
    """Hub id such as openai/gsm8k, or a folder; a relative one is looked for beside the run's file first."""
    config: Word | None = None
    """Its configuration, such as main; null: its only one."""
    split: Word = "train"
    """Its split, also a part of one, such as train[:1000]."""
    revision: Word | None = None
    """Branch, tag or commit on the hub; null: the newest."""


WorkersSpec: TypeAlias = SimulatorsSpec | RewardModelSpec
"""Workers with a number and a place of their own."""

WORKERS: Final = {"simulator": "simulators", "reward model": "rewardModel"}
"""Field of `task` with the workers of each kind, by what one of them is called."""


def role_of(kind: str) -> str:
    """The role on a cluster of such workers: name of their worker group, and of Ray's mark of their nodes."""
    return kind.replace(" ", "-")


class TaskSpec(Model):
    """Where prompts come from and how answers are rewarded."""

    environment: Literal["reasoning-gym", "prompts", "tool-use", "gymnasium"]
    """Kind of task: reasoning-gym (puzzles), prompts (a file or data set), tool-use (turns), gymnasium (games)."""
    name: Word | None = None
    """Generator of reasoning-gym (such as chain_sum), environment of tool-use (such as calculator, or your own
    module:Class) or of Gymnasium (such as FrozenLake-v1); required for all three."""
    args: dict[str, Any] = Field(default_factory=dict, max_length=MOST_ITEMS)
    """Arguments of the generator or environment, passed on as they are."""
    file: Address | None = None
    """JSONL file (also .gz or .zst), parquet file, or a folder of either, on a disk or at s3://bucket/file: one prompt
    per line or row. Environment prompts needs it, or dataset. A relative path is looked for beside the run's file
    first."""
    dataset: DatasetSpec | None = None
    """Data set to take instead of file; null: none."""
    prompt_field: Word = "prompt"
    """Field of a line, or column, that holds the question."""
    answer_field: Word = "answer"
    """Field of a line, or column, that holds the answer."""
    on_long_prompt: Literal["drop", "fail"] = "drop"
    """When a prompt leaves no room for a token in the model's context: drop (it is left out and counted) or fail."""
    prompt_template: Text | None = None
    """Template of the prompt: Python's str.format with question, answer and metadata, such as {metadata[numbers]:join
    , }; null: the question."""
    answer_template: Text | None = None
    """Template of the answer the model should give, for warm start and exact match, with the same keys; null: the
    answer."""
    system_prompt: Text | None = None
    """System message before the prompt; null: none."""
    tools: tuple[dict[str, Any], ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Tools that the model's chat template shows to the model, each as a JSON schema {type: function, function:
    {name, description, parameters}}."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, max_length=MOST_ITEMS)
    """More arguments of the model's chat template, passed on as they are, such as enable_thinking: false."""
    observation_role: Literal["user", "tool"] = "user"
    """Role of what an environment says in the model's chat template (tool-use and gymnasium only)."""
    rewards: tuple[RewardRule, ...] = Field(
        default=(RewardRule(),), min_length=1, max_length=MOST_ITEMS, strict=False
    )
    """Parts of the reward, summed. Default: one part, exactMatch."""
    on_reward_error: Literal["stop", "drop"] = "stop"
    """When a reward raises, hangs or gives no number: stop, or drop the group and count it."""
    isolation: Literal["shared", "strict"] = "shared"
    """Where your reward functions and environments run on a cluster: shared (a process in the same container, of the same
    user), strict (a container of their own in head and samplers, of another user, without the run's tokens and
    credentials)."""
    resources: CodeResourcesSpec | None = None
    """What that container has; only with isolation strict. null: the defaults."""
    secrets: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Secrets of the run's namespace for your reward functions and environments: their keys become environment variables
    where those run, such as the key of a judge; but for RAY_*, RLTRAIN_*, *_VISIBLE_DEVICES, AWS_* and the tokens of the
    Hugging Face hub. On one machine they are not looked at: set the variables there."""
    max_turns: int = Field(default=8, ge=1, le=10_000)
    """Most turns of the model in one trajectory (tool-use and gymnasium only)."""
    tool_latency: ToolLatencySpec | None = None
    """Random extra time of every tool call; null: none."""
    simulators: SimulatorsSpec | None = None
    """Workers in which environments are stepped (tool-use and gymnasium only); null: each sampler steps its own."""
    reward_model: RewardModelSpec | None = None
    """Model that scores completions; required for a reward of rule model. null: none."""
    evaluation: EvaluationSpec | None = None
    """Held-out evaluation; null: none."""

    @property
    def dialogues(self) -> bool:
        """Whether a completion is a dialogue with an environment, whose state stays in the process that began it."""
        return self.environment in DIALOGUES

    @property
    def workers(self) -> Mapping[str, WorkersSpec]:
        """What has workers of its own beside samplers and learners, by what one of them is called."""
        found = dict(zip(WORKERS, (self.simulators, self.reward_model), strict=True))
        return {kind: workers for kind, workers in found.items() if workers is not None}
