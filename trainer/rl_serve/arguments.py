"""What the builders of `rl_serve.application` are told, and what a replica's `user_config` says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rl_api.base import Address, Allowed, Model, Word
from rl_api.errors import InvalidConfig
from rl_api.place_rules import is_s3_address
from rl_api.validation import parse

Count = Annotated[int, Field(ge=1, le=10**9)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), Allowed("a SHA-256, 64 characters 0-9 and a-f")]
Parts = Annotated[int, Field(ge=1, le=64)]
PerSecond = Annotated[float, Field(gt=0, le=10**6)]


class Resources(Model):
    """What one replica has."""

    cpus: Annotated[float, Field(ge=0, le=10**4)] = 1
    """CPU cores; its threads are as many whole ones, at least one."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs."""


class Source(Model):
    """Where policies come from: `run` with its `folder`, or `checkpoint`."""

    run: Word | None = None
    """The followed run's name."""
    folder: Address | None = None
    """Its folder, which has checkpoints/, readable on the head; or s3://bucket/folder, which holds them itself."""
    checkpoint: Address | None = None
    """One fixed policy: whatever `rltrain serve` takes."""


class RequestLimits(Model):
    """What clients may ask for."""

    context: Count = 4096
    """Most tokens of a prompt with its answer."""
    new_tokens: Count = 1024
    """Most tokens of an answer."""
    queue: Annotated[int, Field(ge=0, le=10**6)] = 64
    """Answers that may wait, for each replica."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 300.0
    """Seconds that a request may take."""
    requests_per_second: PerSecond | None = None
    """Of all clients together; null: any number."""
    requests_per_second_per_key: PerSecond | None = None
    """Of each key; null: any number."""


class Prefill(Model):
    """Copies that compute prompts for those that write the answers."""

    resources: Resources = Field(default_factory=Resources)
    """Of one of them."""
    min_prompt_tokens: Count = 256
    """Tokens of a prompt from which on one of them computes it."""


class Probe(Model):
    """Prompts with known answers."""

    file: Address
    """Readable on the head."""
    scorer: Literal["exact", "contains", "number"] = "exact"
    """How an answer is held against the known one."""


class Arguments(Model):
    """All of them; see `docs/serving.md`."""

    service: Word
    """Name of the service."""
    model: Word
    """The model's name for clients."""
    engine: Literal["torch", "vllm"] = "torch"
    """What generates."""
    tensor_parallel_size: Parts = 1
    """Devices that each layer is divided over, with engine vllm."""
    pipeline_parallel_size: Parts = 1
    """Stages of as many devices each that the layers are divided into, with engine vllm."""
    resources: Resources = Field(default_factory=Resources)
    """Of one replica."""
    prefill: Prefill | None = None
    """Null: who writes an answer computes its prompt."""
    source: Source
    """Where policies come from."""
    limits: RequestLimits = Field(default_factory=RequestLimits)
    """What clients may ask for."""
    answers: Literal["finish", "stamp"] = "finish"
    """What becomes of answers under way when the policy changes: they finish on the one that they began with, or go on with
    the new one and say so."""
    keys_folder: Address | None = None
    """Each file in it holds keys, one on each line; null: everyone may ask."""
    control_token_file: Address
    """The token of the control routes."""
    probe: Probe | None = None
    """Null: there is none."""


class PolicyRef(Model):
    """One policy, as a `user_config` names it."""

    source: Address
    """Where it is: whatever `rltrain serve` takes, on the head."""
    digest: Digest | None = None
    """SHA-256 of its manifest, or of its weights; null: it was verified already, on this machine."""
    version: Word
    """Its name for clients."""


class Evaluate(Model):
    """Body of POST evaluate."""

    candidate: PolicyRef
    """Which policy wants to be served."""
    serving: PolicyRef | None = None
    """The one that is served; null: none."""
    gate: dict[str, Any]
    """See `rl_serve.gate.criteria`."""


class AskProbe(Model):
    """Body of POST probe."""

    version: Word
    """Of the policy that shall answer."""


class _UserConfig(Model):
    policy: PolicyRef | None


_SOURCES: Final = "allowed: run with folder, or checkpoint"


def parse_arguments(args: Mapping[str, Any]) -> Arguments:
    """The arguments of a builder.

    Raises:
        InvalidConfig: one sentence about the first field that is wrong.
    """
    found = parse(Arguments, dict(args), "args")
    source = found.source
    both = source.run is not None and source.folder is not None
    if both == (source.checkpoint is not None) or (source.run is None) != (source.folder is None):
        names = [name for name in ("run", "folder", "checkpoint") if getattr(source, name) is not None]
        raise InvalidConfig(f"args.source: found {' and '.join(names) or 'nothing'}, {_SOURCES}")
    if source.folder is not None and "://" in source.folder and not is_s3_address(source.folder):
        raise InvalidConfig(
            f"args.source.folder: found {source.folder}, allowed: a folder, or s3://bucket/folder without .."
        )
    devices = found.tensor_parallel_size * found.pipeline_parallel_size
    if found.engine == "torch" and devices > 1:
        raise InvalidConfig(
            f"args.tensorParallelSize, args.pipelineParallelSize: found {found.tensor_parallel_size} and "
            f"{found.pipeline_parallel_size}, allowed: 1 and 1 with engine torch"
        )
    parts = [("args.resources.gpus", found.resources.gpus)]
    if found.prefill is not None:
        _check_prefill(found)
        parts.append(("args.prefill.resources.gpus", found.prefill.resources.gpus))
    for path, gpus in parts if found.engine == "vllm" else ():
        if gpus not in (0, devices):
            raise InvalidConfig(
                f"{path}: found {gpus}, allowed: 0, or tensorParallelSize * pipelineParallelSize, which is {devices}"
            )
    if found.limits.new_tokens >= found.limits.context:
        raise InvalidConfig(
            f"args.limits.newTokens: found {found.limits.new_tokens}, allowed: less than context, which is "
            f"{found.limits.context}"
        )
    return found


def _check_prefill(found: Arguments) -> None:
    if found.engine != "vllm":
        raise InvalidConfig(f"args.prefill: found an object, allowed: null with engine {found.engine}")
    if found.pipeline_parallel_size > 1:
        raise InvalidConfig(
            f"args.pipelineParallelSize: found {found.pipeline_parallel_size}, allowed: 1 with prefill"
        )


def parse_user_config(found: object) -> PolicyRef | None:
    """The policy that a `user_config` names; None: there is none yet.

    Raises:
        InvalidConfig: one sentence about the first field that is wrong.
    """
    if not isinstance(found, Mapping):
        raise InvalidConfig(f"user_config: found {found!r:.80}, allowed: an object with policy")
    return parse(_UserConfig, dict(found), "user_config").policy
