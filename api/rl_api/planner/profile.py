"""What was measured of a run, from which placements are planned: the file `placement-profile.json` of a run folder.

All times are seconds of wall clock, all sizes bytes, all lengths tokens. A *device* is what one learner rank computes on:
the cores of one process, or an accelerator. What was not measured is 0 or null, and what follows from it is left out of
predictions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from rl_api.base import MOST, Model
from rl_api.errors import InvalidConfig
from rl_api.validation import parse

PROFILE_FILE: Final = "placement-profile.json"
"""In a run folder."""

MOST_LENGTHS: Final = 4096
"""Answers whose lengths a profile keeps: of more, that many are drawn."""

Seconds = Annotated[float, Field(ge=0, le=1e9)]
Tokens = Annotated[int, Field(ge=0, le=MOST)]
Size = Annotated[float, Field(ge=0, le=1e18)]
"""Bytes, or bytes per token."""


class DevicesProfile(Model):
    """What the numbers were measured on."""

    learner: int = Field(default=1, ge=1, le=1_000_000)
    """Learner ranks, each on a device."""
    sampler: int = Field(default=1, ge=1, le=1_000_000)
    """Samplers."""
    per_sampler: int = Field(default=1, ge=1, le=1024)
    """Devices of one sampler."""
    memory: Size | None = None
    """Of one accelerator, the smallest; null: not known, or CPUs, which share their node's: nothing is held against it."""
    learner_company: float = Field(default=0.0, ge=0, le=1_000_000)
    """Other learners and samplers that computed while a learner did, their mean; held against `contention` alone."""
    sampler_company: float = Field(default=0.0, ge=0, le=1_000_000)
    """Other learners and samplers that computed while a sampler did, their mean."""
    reward_models: int = Field(default=0, ge=0, le=1_000_000)
    """Workers with a model that scores."""
    simulators: int = Field(default=0, ge=0, le=1_000_000)
    """Workers that step environments."""

    @model_validator(mode="before")
    @classmethod
    def _read_older_ones(cls, value: Any) -> Any:
        # Profiles of version 0.1 say of how many devices a node has, which nothing asks for.
        return (
            {key: of for key, of in value.items() if key != "perNode"} if isinstance(value, dict) else value
        )


class DecodeProfile(Model):
    """A decode step of one sampler takes base + perActive x active sequences + perCachedToken x tokens in its cache."""

    base: Seconds
    """Seconds, whatever is decoded: reading the weights."""
    per_active: Seconds = 0.0
    """Seconds per sequence that gets a token."""
    per_cached_token: Seconds = 0.0
    """Seconds per token of keys and values that is read."""
    slots: int = Field(ge=1, le=1_000_000)
    """Sequences decoded at once."""
    contention: float | None = Field(default=None, ge=0, le=1)
    """Share by which a step takes longer for each other process that computes at once, as processors of a node have their
    memory in common; null: not measured, and others cost nothing."""


class LearnerProfile(Model):
    """A part of t tokens takes alpha + perPass + beta x t / ranks; a step optimizer, and allReduce with those measured."""

    alpha: Seconds = 0.0
    """Seconds of a part, however small: collating, launching, communication that does not grow with tokens."""
    per_pass: Seconds | None = None
    """Seconds of a part's passes that do not grow with its tokens: weights are read and gradients written, however few there
    are; null: not tried, and half the tokens take half as long."""
    beta: Seconds
    """Seconds per token of a rank, prompt and answer, forward and backward."""
    all_reduce: Seconds = 0.0
    """Seconds of a step for gradients of all ranks together."""
    optimizer: Seconds = 0.0
    """Seconds of a step for the optimizer, however many ranks there are."""
    log_prob: Seconds = 0.0
    """Seconds per token of a rank, of the passes that give log-probabilities of the policy and of the reference; 0: none."""
    value: Seconds = 0.0
    """Seconds per token of a rank, of the critic's passes; 0: none."""
    contention: float | None = Field(default=None, ge=0, le=1)
    """As of decoding: the share by which passes take longer for each other process that computes at once."""

    @property
    def per_token(self) -> float:
        """Seconds per token of a rank, of all its passes."""
        return self.beta + self.log_prob + self.value

    @property
    def fixed_tokens(self) -> float | None:
        """Tokens of a rank that take as long as `per_pass`; None: not known."""
        return self.per_pass / self.per_token if self.per_pass is not None and self.per_token else None


class SwitchProfile(Model):
    """What it costs a role to take devices over from another one, and to leave them."""

    onload: Seconds = 0.0
    """Seconds until its tensors are on the device."""
    offload: Seconds = 0.0
    """Seconds until they are off it."""
    wake: Seconds = 0.0
    """Seconds from the devices' being free to the first work, without tensors that move."""

    @property
    def turn(self) -> float:
        """Seconds of a whole turn: in, awake, and out again."""
        return self.onload + self.wake + self.offload


class RoleMemory(Model):
    """Memory of a role on one of its devices."""

    weights: Size = 0.0
    """Bytes of parameters."""
    moments: Size = 0.0
    """Bytes of gradients and of the optimizer's moments; of a sampler 0."""
    activations_per_token: Size = 0.0
    """Bytes per token of a pass; of a sampler 0."""
    pass_tokens: Tokens = 0
    """Tokens of a learner's pass at most; 0: those of one sequence. As planned runs have it, not measured."""
    cache_bytes_per_token: Size = 0.0
    """Bytes of keys and values per token; of a learner 0."""
    kept: Size = 0.0
    """Bytes beside tensors, which stay on the device while another role has it: contexts and graphs of libraries."""
    least: Size = 0.0
    """Bytes that it takes of the device, however little it holds: vLLM fills its share; 0: what it holds."""
    divided: bool = False
    """Whether the role's devices hold weights and moments once between them: the more of them, the less on each."""


class Switches(Model):
    """By role."""

    learner: SwitchProfile = SwitchProfile()
    sampler: SwitchProfile = SwitchProfile()


class Memories(Model):
    """By role."""

    learner: RoleMemory = RoleMemory()
    sampler: RoleMemory = RoleMemory()


class RunProfile(Model):
    """What was measured of a run, on devices of one kind."""

    devices: DevicesProfile = DevicesProfile()
    """What the numbers were measured on."""
    steps: int = Field(default=0, ge=0, le=MOST)
    """Training steps measured; 0: the numbers are a prior, nothing was measured."""
    group_size: int = Field(ge=1, le=65_536)
    """Answers of a prompt."""
    prompts_per_step: int = Field(ge=1, le=1_000_000)
    """Groups of a step."""
    max_staleness: int = Field(default=0, ge=0, le=1_000_000)
    """Weight versions that a token may be behind the learner's."""
    decode: DecodeProfile
    """Seconds of a decode step."""
    prefill_tokens_per_second: float | None = Field(default=None, gt=0, le=1e12)
    """Prompt tokens that one sampler reads in a second, those of each answer, also where a group's are computed once; null:
    takes no time."""
    prompt_tokens: float = Field(default=0.0, ge=0, le=MOST)
    """Mean tokens of a prompt."""
    reads_again: bool = False
    """Whether a sampler whose tensors left the device reads the tokens of all that it has begun again when it is back; else
    their keys and values move with the tensors, which is within `switch`."""
    lengths: tuple[Tokens, ...] = Field(min_length=1, max_length=MOST_LENGTHS, strict=False)
    """Tokens of answers, drawn from those of the steps measured; the longest of them at `limit` are not longer because they
    may not be."""
    limit: int | None = Field(default=None, ge=1, le=MOST)
    """Longest answer allowed, at which lengths are cut; null: none is known."""
    score_seconds: Seconds = 0.0
    """Seconds to score a group, in which its sampler does nothing else."""
    judge_seconds: Seconds = 0.0
    """Seconds that a reward model in a worker of its own works to score a group: samplers decode meanwhile."""
    tool_seconds: Seconds = 0.0
    """Seconds that an answer waits for tools and environments, on average, while its sequence is not decoded."""
    simulator_seconds: Seconds = 0.0
    """Seconds of these in which a simulator works for the answer itself."""
    queued_seconds: Seconds = 0.0
    """Seconds of these in which all simulators that could work for it are at other answers' turns."""
    learner: LearnerProfile
    """Seconds of learning."""
    publish_seconds: Seconds = 0.0
    """Seconds from new weights to their being with all samplers."""
    load_seconds: Seconds = 0.0
    """Those of publishing in which a sampler takes weights over, and decodes nothing meanwhile."""
    overhead_seconds: Seconds = 0.0
    """Seconds of a step in which nobody of the above works: calls between actors, dealing out batches, records."""
    switch: Switches = Switches()
    """What it costs to change who has a device."""
    memory: Memories = Memories()
    """What is on devices."""

    @model_validator(mode="after")
    def _ends_at_the_limit(self) -> Self:
        if self.limit is not None and max(self.lengths) > self.limit:
            raise ValueError("an answer is longer than the limit")
        return self

    @property
    def answers(self) -> int:
        """Of a step."""
        return self.group_size * self.prompts_per_step

    @property
    def between_seconds(self) -> float:
        """From the end of a step's learning to when samplers go on, as far as no device is needed for it."""
        return self.publish_seconds + self.overhead_seconds

    @property
    def mean_length(self) -> float:
        """Mean tokens of an answer."""
        return sum(self.lengths) / len(self.lengths)

    @property
    def tokens(self) -> float:
        """Prompt and answer tokens that a step trains on."""
        return self.answers * (self.mean_length + self.prompt_tokens)


def load_profile(path: Path, option: str | None = None) -> RunProfile:
    """The profile in the file `path`, or in the run folder `path`; `option`: of the command line that names it.

    Raises InvalidConfig, one sentence: the file is not there, is no JSON, or the first field that is wrong.
    """
    named = "" if option is None else f"{option}: "
    file = path / PROFILE_FILE if path.is_dir() else path
    label = f"{named}{file}"
    if not file.is_file():
        raise InvalidConfig(
            f"{named}found {path}, {f'a folder without {PROFILE_FILE}' if path.is_dir() else 'which is not there'}; "
            f"allowed: {PROFILE_FILE} of a run, or a run folder with one"
        )
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfig(
            f"{label}: not valid JSON (byte {error.start} is not UTF-8 text), allowed: a profile of a run"
        ) from None
    except OSError as error:
        raise InvalidConfig(f"{label}: cannot be read: {error.strerror or error}") from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"{label}: not valid JSON ({error}), allowed: a profile of a run") from None
    if not isinstance(document, dict):
        raise InvalidConfig(f"{label}: found no object, allowed: a profile of a run, with decode and learner")
    lengths, limit = document.get("lengths"), document.get("limit")
    if isinstance(lengths, list) and isinstance(limit, int) and not isinstance(limit, bool):
        longest = max((one for one in lengths if isinstance(one, int)), default=0)
        if longest > limit:
            raise InvalidConfig(
                f"{label}: lengths: found {longest}, allowed: at most limit, which is {limit}"
            )
    try:
        return parse(RunProfile, document, "profile")
    except InvalidConfig as error:
        raise InvalidConfig(f"{label}: {error}") from None


def save_profile(profile: RunProfile, path: Path) -> None:
    """Write `profile` into the file `path`, whole or not at all, with camelCase names.

    Raises OSError: the file cannot be written.
    """
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(profile.to_document(), indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
