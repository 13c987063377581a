"""The rules across fields of a run, each one function; its docstring is the rule as a sentence.

Rules of one field (type, range, choices) stand with the field. Cluster rules hold only where a run's pods
come and go: the same file may break them and still run on one machine.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from typing import Final, Literal

from rl_api.algorithm import GROUP_ESTIMATORS
from rl_api.learner_rules import (
    adapter_of_lora,
    even_shares,
    sealed_weights,
    shared_sequences,
    whole_copies,
)
from rl_api.place_rules import (
    FOLDER_OF_A_BUCKET,
    FOLDER_OR_ADDRESS,
    dataset_name,
    free_port,
    is_s3_address,
    model_address,
    model_on_a_cluster,
    storage_folder,
    task_address,
)
from rl_api.placement_rules import one_topology
from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec, TinyModelSpec
from rl_api.sampler_rules import SAMPLER_RULES, endpoint_on_a_cluster, sealed_stages
from rl_api.sharing_rules import SHARING_RULES
from rl_api.task import WORKERS
from rl_api.task_rules import TASK_RULES, scoring_model_on_a_cluster
from rl_api.trainer_rules import TRAINER_RULES
from rl_api.verl import without_counterpart

Target = Literal["local", "cluster", "profile"]
"""Where a run is checked for: this machine, a Kubernetes cluster, or one whose profile is still to add its defaults."""

TEMPLATE_KEYS: Final = ("question", "answer", "metadata")
"""What `task.promptTemplate` and `task.answerTemplate` may refer to."""


TEMPLATE_ARGUMENTS: Final = (
    *("conversation", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
)
"""What `task.chatTemplateKwargs` may not set: arguments of `apply_chat_template` that are the trainer's."""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def group_of_two(spec: RunSpec) -> Iterator[Problem]:
    """`algorithm.groupSize` is >= 2 where `algorithm.advantage.estimator` compares the answers of a group."""
    algorithm = spec.algorithm
    estimator = algorithm.advantage.estimator
    if estimator in GROUP_ESTIMATORS and algorithm.group_size < 2:
        yield spec_problem(
            "algorithm.groupSize",
            f"found {algorithm.group_size}, allowed: a whole number >= 2, as advantage.estimator {estimator} "
            "compares the answers of a group",
            "algorithm.advantage.estimator",
            "algorithm.name",
        )


def room_for_a_step(spec: RunSpec) -> Iterator[Problem]:
    """`buffer.capacity` is >= `algorithm.promptsPerStep`: the buffer holds the groups of one step."""
    capacity, prompts = spec.buffer.capacity, spec.algorithm.prompts_per_step
    if capacity < prompts:
        yield spec_problem(
            "buffer.capacity",
            f"found {capacity}, allowed: a whole number >= algorithm.promptsPerStep = {prompts}, "
            "as the buffer must hold one step's groups",
            "algorithm.promptsPerStep",
        )


def fewer_samplers_to_start(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.minReplicas` is <= `sampler.replicas`."""
    sampler = spec.sampler
    if sampler.min_replicas > sampler.replicas:
        yield spec_problem(
            "sampler.minReplicas",
            f"found {sampler.min_replicas}, allowed: a whole number >= 1 and <= sampler.replicas = "
            f"{sampler.replicas}",
            "sampler.replicas",
        )


def pools_once(spec: RunSpec) -> Iterator[Problem]:
    """`pools` of `sampler`, `learner`, `trainer` and of the task's workers name each pool at most once."""
    named = {role: getattr(spec, role).pools for role in ("sampler", "learner", "trainer")}
    if spec.given_task is not None:
        for kind, workers in spec.given_task.workers.items():
            named[f"task.{WORKERS[kind]}"] = workers.pools
    for role, pools in named.items():
        if len(set(pools)) < len(pools):
            yield spec_problem(f"{role}.pools", "found a pool twice, allowed: each at most once")


def tiny_only_with_tiny(spec: RunSpec) -> Iterator[Problem]:
    """`model.tiny` is set only with `model.source` tiny."""
    model = spec.given_model
    if model is not None and model.tiny is not None and model.source != "tiny":
        yield spec_problem(
            "model.tiny",
            f"found an object, allowed: null, as model.source is {model.source!r}, not the preset tiny",
            "model.source",
        )


def tiny_shape(spec: RunSpec) -> Iterator[Problem]:
    """`model.tiny.hiddenSize` is a multiple of 2 * `heads` (rotary pairs), and `heads` of `kvHeads`."""
    tiny = spec.given_model.tiny if spec.given_model is not None else None
    if tiny is None:
        return
    if tiny.hidden_size % (2 * tiny.heads):
        yield spec_problem(
            "model.tiny.hiddenSize",
            f"found {tiny.hidden_size}, allowed: a multiple of 2 * model.tiny.heads = {2 * tiny.heads}",
            "model.tiny.heads",
        )
    if tiny.heads % tiny.kv_heads:
        yield spec_problem(
            "model.tiny.kvHeads",
            f"found {tiny.kv_heads}, allowed: a divisor of model.tiny.heads = {tiny.heads}",
            "model.tiny.heads",
        )


def answers_fit(spec: RunSpec) -> Iterator[Problem]:
    """With preset tiny, `maxNewTokens` of `sampler` and `task.evaluation` is < `model.tiny.maxPositions`."""
    if spec.model.source != "tiny":
        return
    positions = (spec.model.tiny or TinyModelSpec()).max_positions
    lengths = {"sampler.maxNewTokens": spec.sampler.max_new_tokens}
    if spec.task.evaluation is not None and spec.task.evaluation.max_new_tokens is not None:
        lengths["task.evaluation.maxNewTokens"] = spec.task.evaluation.max_new_tokens
    for path, length in lengths.items():
        if length >= positions:
            yield spec_problem(
                path,
                f"found {length}, allowed: a whole number < model.tiny.maxPositions = {positions}, "
                "which must hold prompt and answer",
                "model.tiny.maxPositions",
                "model.source",
            )


def templates(spec: RunSpec) -> Iterator[Problem]:
    """`task.promptTemplate` and `task.answerTemplate` refer to question, answer and metadata only."""
    keys = ", ".join(f"{{{key}}}" for key in TEMPLATE_KEYS)
    task = spec.given_task
    if task is None:
        return
    for path, template in (
        ("task.promptTemplate", task.prompt_template),
        ("task.answerTemplate", task.answer_template),
    ):
        if template is None:
            continue
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        except ValueError as error:
            yield spec_problem(
                path,
                f"found a broken template ({_line(error)}), allowed: {keys}; write {{{{ for a brace",
            )
            continue
        for name in names:
            if re.split(r"[.\[]", name)[0] not in TEMPLATE_KEYS:
                yield spec_problem(path, f"found {f'{{{name}}}'!r}, allowed: {keys}; write {{{{ for a brace")


def template_arguments(spec: RunSpec) -> Iterator[Problem]:
    """`task.chatTemplateKwargs` holds none of the arguments that a chat template gets from the trainer."""
    given = spec.given_task.chat_template_kwargs if spec.given_task is not None else {}
    for name in TEMPLATE_ARGUMENTS:
        if name in given:
            yield spec_problem(
                f"task.chatTemplateKwargs.{name}",
                "allowed: arguments that the model's chat template knows, such as enable_thinking; this one comes "
                "from the trainer (tools stand in task.tools)",
            )


def critic_of_gae(spec: RunSpec) -> Iterator[Problem]:
    """`algorithm.critic` is set with `algorithm.advantage.estimator` gae only."""
    algorithm = spec.algorithm
    estimator = algorithm.advantage.estimator
    if algorithm.critic is not None and estimator != "gae":
        yield spec_problem(
            "algorithm.critic",
            f"found an object, allowed: null with advantage.estimator {estimator}, as only gae has a critic",
            "algorithm.advantage.estimator",
            "algorithm.name",
        )


def constant_length(spec: RunSpec) -> Iterator[Problem]:
    """`algorithm.loss.constantLength` is set with aggregation constant only."""
    loss = spec.algorithm.loss
    if loss.aggregation != "constant" and loss.constant_length is not None:
        yield spec_problem(
            "algorithm.loss.constantLength",
            f"found {loss.constant_length}, allowed: null with aggregation {loss.aggregation}, as only "
            "constant uses it",
            "algorithm.loss.aggregation",
            "algorithm.name",
        )


def dual_clip(spec: RunSpec) -> Iterator[Problem]:
    """`algorithm.loss.dualClip` is set with kind ppoClip only."""
    loss = spec.algorithm.loss
    if loss.kind != "ppoClip" and loss.dual_clip is not None:
        yield spec_problem(
            "algorithm.loss.dualClip",
            f"found {loss.dual_clip:g}, allowed: null with kind {loss.kind}, as only ppoClip uses it",
            "algorithm.loss.kind",
            "algorithm.name",
        )


def one_storage(spec: RunSpec) -> Iterator[Problem]:
    """`checkpoint.storage` has exactly one of persistentVolumeClaim, s3 and path; s3 is an address, path is none."""
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    if storage is None:
        return
    chosen = storage.model_dump(by_alias=True, exclude_none=True)
    if len(chosen) != 1:
        yield spec_problem(
            "checkpoint.storage",
            f"found {' and '.join(chosen) or 'an empty object'}, allowed: exactly one of "
            "persistentVolumeClaim, s3 and path",
        )
    if storage.s3 is not None and not is_s3_address(storage.s3):
        yield spec_problem("checkpoint.storage.s3", f"found {storage.s3!r}, {FOLDER_OF_A_BUCKET}")
    if storage.path is not None and "://" in storage.path:
        yield spec_problem("checkpoint.storage.path", f"found {storage.path!r}, {FOLDER_OR_ADDRESS}")


def storage_on_a_cluster(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `checkpoint` has `storage`, as pods lose their disks; or `checkpoint` is null."""
    if spec.checkpoint is not None and spec.checkpoint.storage is None:
        yield spec_problem(
            "checkpoint.storage",
            "missing, required on a cluster, whose pods lose their disks: persistentVolumeClaim, s3 or path "
            "(or checkpoint: null)",
        )


Rule = Callable[[RunSpec], Iterator[Problem]]

LOOP_RULES: Final[tuple[Rule, ...]] = (
    group_of_two,
    even_shares,
    whole_copies,
    shared_sequences,
    adapter_of_lora,
    room_for_a_step,
    answers_fit,
    critic_of_gae,
    constant_length,
    dual_clip,
    without_counterpart,
)
"""Rules of a training loop that we know: they hold but with `trainer.kind` command."""

RULES: Final[tuple[Rule, ...]] = (
    *TRAINER_RULES,
    fewer_samplers_to_start,
    *SAMPLER_RULES,
    *SHARING_RULES,
    pools_once,
    one_topology,
    tiny_only_with_tiny,
    tiny_shape,
    model_address,
    task_address,
    dataset_name,
    *TASK_RULES,
    templates,
    template_arguments,
    one_storage,
)
"""Rules that hold everywhere."""

CLUSTER_RULES: Final[tuple[Rule, ...]] = (
    storage_on_a_cluster,
    storage_folder,
    model_on_a_cluster,
    scoring_model_on_a_cluster,
    free_port,
    endpoint_on_a_cluster,
    sealed_weights,
    sealed_stages,
)
"""Rules that hold only on a cluster."""


FOR_A_PROFILE: Final[tuple[Rule, ...]] = (
    *SAMPLER_RULES,
    *SHARING_RULES,
    *(whole_copies, shared_sequences, adapter_of_lora, without_counterpart),
)
"""Rules that a run may break which keeps them with the defaults of its profile: who merges the two looks then."""


def check_rules(spec: RunSpec, target: Target = "local") -> list[Problem]:
    """All rules across fields that `spec` breaks, for `target`; an empty list when it keeps them."""
    rules = RULES + (CLUSTER_RULES if target == "cluster" else ())
    if spec.trainer.kind != "command" and spec.given_model is not None and spec.given_task is not None:
        rules += LOOP_RULES
    if target == "profile":
        rules = tuple(rule for rule in rules if rule not in FOR_A_PROFILE)
    return [problem for rule in rules for problem in rule(spec)]
