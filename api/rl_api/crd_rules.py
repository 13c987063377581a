"""The rules across fields in CEL, so that the API server refuses what `rltrain validate` refuses.

`rl_api.rules` is the whole; CEL does not know Python's templates, how deep or large an object is, nor other objects, so
`templates`, nesting, the size of a spec, and what depends on the run's profile are left to the operator. The sentences
are the same, and a test holds the two against each other.
"""

from __future__ import annotations

from typing import Final

from rl_api.algorithm import GROUP_ESTIMATORS, AlgorithmSpec
from rl_api.base import RunName
from rl_api.crd_learner_rules import LEARNER_RULES
from rl_api.crd_placement import POOL_RULES, TOPOLOGY_RULES
from rl_api.crd_places import (
    DATASET_RULE,
    FILE_RULE,
    PORT_RULE,
    SOURCE_RULES,
    STORAGE_RULES,
    cel_rule,
    loop_rule,
    or_value,
    size_of,
)
from rl_api.crd_sampler import ENDPOINT_RULES, SAMPLER_CEL_RULES, SAMPLER_DEFAULT_RULES
from rl_api.crd_schema import Rule, cel_text
from rl_api.crd_sharing_rules import SHARING_CEL_RULES
from rl_api.crd_trainer_rules import TRAINER_CEL_RULES, TRAINER_SPEC_RULES
from rl_api.describe import Type, fields_of
from rl_api.place_rules import ONE_SOURCE
from rl_api.recipes import RECIPES, recipe
from rl_api.roles import SamplerSpec
from rl_api.run import RunSpec, SchedulingSpec, TinyModelSpec
from rl_api.task_rules import MODEL_MISSING, MODEL_UNUSED, NAMED, NO_REWARD_OF_THE_GAME, ONE_ANSWER

MUTABLE: Final = (
    *("suspend", "sampler.replicas", "stop", "cleanup"),
    *("scheduling.priorityClass", "scheduling.workloadPriorityClass"),
)
"""What may be changed on a run that exists; everything else belongs to a new run."""

_POSITIONS: Final = TinyModelSpec().max_positions


_SAMPLERS: Final = "self.sampler.replicas"
_SOURCE: Final = or_value("model.source", "''")
_TINY_POSITIONS: Final = or_value("model.tiny.maxPositions", str(_POSITIONS))
_ROOM: Final = (
    f"found {{LENGTH}}, allowed: a whole number < model.tiny.maxPositions = {{{_TINY_POSITIONS}}}, "
    "which must hold prompt and answer"
)


def _chosen(group: str, name: str) -> str:
    """Value of the text field `algorithm.GROUP.NAME`: the run's, else the recipe's, else the contract's."""
    default = AlgorithmSpec(name="x:x").to_document()[group][name]
    value = cel_text(default)
    for algorithm in RECIPES:
        choice = recipe(algorithm).get(group, {}).get(name, default)
        if choice != default:
            value = f"self.algorithm.name == '{algorithm}' ? {cel_text(choice)} : {value}"
    return f"self.algorithm.{group}.?{name}.orValue({value})"


_ESTIMATOR: Final = _chosen("advantage", "estimator")
_AGGREGATION: Final = _chosen("loss", "aggregation")
_KIND: Final = _chosen("loss", "kind")
_BY_GROUP: Final = ", ".join(f"'{name}'" for name in GROUP_ESTIMATORS)

SPEC_RULES: Final[list[Rule]] = [
    loop_rule(
        f"!({_ESTIMATOR} in [{_BY_GROUP}]) || self.algorithm.groupSize >= 2",
        ".algorithm.groupSize",
        "found {self.algorithm.groupSize}, allowed: a whole number >= 2, as advantage.estimator "
        f"{{{_ESTIMATOR}}} compares the answers of a group",
    ),
    *LEARNER_RULES,
    loop_rule(
        "self.buffer.capacity >= self.algorithm.promptsPerStep",
        ".buffer.capacity",
        "found {self.buffer.capacity}, allowed: a whole number >= algorithm.promptsPerStep = "
        "{self.algorithm.promptsPerStep}, as the buffer must hold one step's groups",
    ),
    cel_rule(
        f"{or_value('sampler.minReplicas', '1')} <= {_SAMPLERS}",
        ".sampler.minReplicas",
        f"found {{{or_value('sampler.minReplicas', '1')}}}, allowed: a whole number >= 1 and <= "
        f"sampler.replicas = {{{_SAMPLERS}}}",
    ),
    *(
        cel_rule(
            f"!self.?{role}.?pools.hasValue() || "
            f"self.{role}.pools.all(one, self.{role}.pools.exists_one(other, other == one))",
            f".{role}.pools",
            "found a pool twice, allowed: each at most once",
        )
        for role in ("sampler", "learner", "trainer")
    ),
    *TOPOLOGY_RULES,
    *SAMPLER_CEL_RULES,
    *SHARING_CEL_RULES,
    loop_rule(
        f"{_SOURCE} != 'tiny' || !has(self.sampler.maxNewTokens) || "
        f"self.sampler.maxNewTokens < {_TINY_POSITIONS}",
        ".sampler.maxNewTokens",
        _ROOM.replace("LENGTH", "self.sampler.maxNewTokens"),
    ),
    loop_rule(
        f"{_SOURCE} != 'tiny' || !self.?task.?evaluation.?maxNewTokens.hasValue() || "
        f"self.task.evaluation.maxNewTokens < {_TINY_POSITIONS}",
        ".task.evaluation.maxNewTokens",
        _ROOM.replace("LENGTH", "self.task.evaluation.maxNewTokens"),
    ),
    loop_rule(
        f"!has(self.algorithm.critic) || {_ESTIMATOR} == 'gae'",
        ".algorithm.critic",
        f"found an object, allowed: null with advantage.estimator {{{_ESTIMATOR}}}, as only gae has a critic",
    ),
    loop_rule(
        f"!has(self.algorithm.loss.constantLength) || {_AGGREGATION} == 'constant'",
        ".algorithm.loss.constantLength",
        f"found {{self.algorithm.loss.constantLength}}, allowed: null with aggregation {{{_AGGREGATION}}}, as only "
        "constant uses it",
    ),
    loop_rule(
        f"!has(self.algorithm.loss.dualClip) || {_KIND} == 'ppoClip'",
        ".algorithm.loss.dualClip",
        f"found {{self.algorithm.loss.dualClip}}, allowed: null with kind {{{_KIND}}}, as only ppoClip uses it",
    ),
    cel_rule(
        "!self.?checkpoint.?storage.hasValue() || [has(self.checkpoint.storage.persistentVolumeClaim), "
        "has(self.checkpoint.storage.s3), has(self.checkpoint.storage.path)].filter(set, set).size() == 1",
        ".checkpoint.storage",
        "allowed: exactly one of persistentVolumeClaim, s3 and path",
    ),
    PORT_RULE,
    *TRAINER_SPEC_RULES,
    cel_rule(
        "self.workload != 'Service'",
        ".workload",
        "found 'Service', allowed: Job or Cluster; to serve a policy, apply an RLPolicyService",
    ),
]
"""Rules of a run's spec."""


def _belongs_to(field: str, rule: str, what: str) -> list[Rule]:
    """`field` of a reward is set with `rule` and with no other."""
    name = f"__{field}__" if field == "function" else field  # a word of CEL's own
    return [
        cel_rule(
            f"self.rule != '{rule}' || has(self.{name})",
            f".{field}",
            f"missing, required with rule {rule}: {what}",
        ),
        cel_rule(
            f"self.rule == '{rule}' || !has(self.{name})",
            f".{field}",
            f"found '{{self.{name}}}', allowed: null with rule {{self.rule}}, as only rule {rule} uses it",
        ),
    ]


_NAME: Final = Type(RunName)

NAME_RULES: Final[list[Rule]] = [
    cel_rule(
        f"size(self.metadata.name) <= {_NAME.bound('max_length')} && "
        f"self.metadata.name.matches({cel_text(_NAME.bound('pattern'))})",
        ".metadata.name",
        f"found '{{self.metadata.name}}', allowed: {_NAME.words}",
    ),
]
"""Rules of a run's name."""


def _frozen(path: str) -> Rule:
    """A transition rule: the field at `path` stays as it is."""
    return cel_rule(
        _same(path),
        f".{path}",
        f"{path} cannot be changed on a run that exists: only {', '.join(MUTABLE[:-1])} and {MUTABLE[-1]} can; "
        "make a new run, with another name, for everything else",
    )


def _same(path: str) -> str:
    """Whether the field at `path`, which may be absent, is what it was."""
    new, old = f"self.{path}", f"oldSelf.{path}"
    if "." not in path:
        return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"
    group = path.partition(".")[0]
    there, was = f"has(self.{group}) && has({new})", f"has(oldSelf.{group}) && has({old})"
    return f"({there}) == ({was}) && (!({there}) || {new} == {old})"


def frozen_rules() -> list[Rule]:
    """Transition rules: one for each field group of a run's spec that may not change, with its sentence."""
    parts = {"sampler": SamplerSpec, "scheduling": SchedulingSpec}
    rules = []
    for group in fields_of(RunSpec):
        if group not in MUTABLE:
            names = [f"{group}.{name}" for name in fields_of(parts[group])] if group in parts else [group]
            rules += [_frozen(path) for path in names if path not in MUTABLE]
    return rules


_WORKER_POOLS: Final = cel_rule(
    "!has(self.pools) || self.pools.all(one, self.pools.exists_one(other, other == one))",
    ".pools",
    "found a pool twice, allowed: each at most once",
)
"""Of workers of the task."""

RUN_RULES: Final[dict[str, list[Rule]]] = {
    "spec": [*SPEC_RULES, *frozen_rules()],
    "spec.model": [
        *SOURCE_RULES,
        cel_rule(
            "!has(self.tiny) || self.source == 'tiny'",
            ".tiny",
            "found an object, allowed: null, as model.source is '{self.source}', not the preset tiny",
        ),
        cel_rule(
            "!has(self.tiny) || self.tiny.hiddenSize % (2 * self.tiny.heads) == 0",
            ".tiny.hiddenSize",
            "found {self.tiny.hiddenSize}, allowed: a multiple of 2 * model.tiny.heads = {2 * self.tiny.heads}",
        ),
        cel_rule(
            "!has(self.tiny) || self.tiny.heads % self.tiny.kvHeads == 0",
            ".tiny.kvHeads",
            "found {self.tiny.kvHeads}, allowed: a divisor of model.tiny.heads = {self.tiny.heads}",
        ),
    ],
    "spec.checkpoint.storage": STORAGE_RULES,
    "spec.task": [
        FILE_RULE,
        cel_rule(
            "!has(self.resources) || self.isolation == 'strict'",
            ".resources",
            "found an object, allowed: null with isolation {self.isolation}, as only strict has a container of its own",
        ),
        cel_rule(
            "!has(self.file) || !has(self.dataset)",
            ".dataset",
            f"found an object, {ONE_SOURCE}",
        ),
        cel_rule(
            "self.environment != 'prompts' || has(self.file) || has(self.dataset)",
            ".file",
            "missing, required with task.environment prompts: a file of prompts, or task.dataset",
        ),
        *(
            cel_rule(
                f"!(self.environment in ['reasoning-gym', 'gymnasium']) || !has(self.{name})",
                f".{name}",
                f"found {found}, allowed: null with task.environment {{self.environment}}, which makes prompts",
            )
            for name, found in (("file", "'{self.file}'"), ("dataset", "an object"))
        ),
        *(
            cel_rule(
                f"self.environment != '{environment}' || has(self.name)",
                ".name",
                f"missing, required with task.environment {environment}: {example}",
            )
            for environment, example in NAMED.items()
        ),
        cel_rule(
            "!has(self.simulators) || self.environment in ['tool-use', 'gymnasium']",
            ".simulators",
            "found an object, allowed: null with task.environment {self.environment}, which has nothing to simulate",
        ),
        cel_rule(
            "self.environment != 'prompts' || self.rewards.all(reward, reward.rule != 'task')",
            ".rewards",
            "found 'task', allowed: exactMatch, number, regex, function, fraction or model, as environment prompts has no "
            "scorer of its own",
        ),
        cel_rule(
            "self.environment != 'gymnasium' || self.rewards.exists(reward, reward.rule == 'task')",
            ".rewards",
            NO_REWARD_OF_THE_GAME,
        ),
        cel_rule(
            "has(self.rewardModel) || !self.rewards.exists(reward, reward.rule == 'model')",
            ".rewardModel",
            MODEL_MISSING,
        ),
        cel_rule(
            "!has(self.rewardModel) || self.rewards.exists(reward, reward.rule == 'model')",
            ".rewardModel",
            MODEL_UNUSED,
        ),
    ],
    "spec.task.dataset": [DATASET_RULE],
    "spec.task.simulators": [_WORKER_POOLS],
    "spec.task.rewardModel": [
        *SOURCE_RULES,
        _WORKER_POOLS,
        cel_rule(
            f"self.kind == 'judge' || {size_of('answers')} == 0",
            ".answers",
            f"found {{{size_of('answers')}}}, allowed: none with kind {{self.kind}}, as only a judge answers",
        ),
        cel_rule(f"self.kind != 'judge' || {size_of('answers')} != 1", ".answers", ONE_ANSWER),
    ],
    "spec.task.rewards[]": [
        *_belongs_to("pattern", "regex", "a regular expression"),
        *_belongs_to("function", "function", "module:function"),
    ],
    **TRAINER_CEL_RULES,
}
"""Rules of an RLTrainingRun by the path of the object they look at."""

SELECTOR_RULES: Final[list[Rule]] = [
    cel_rule(
        f"!(self.operator in ['In', 'NotIn']) || {size_of('values')} > 0",
        ".values",
        "found 0, allowed: one or more with operator {self.operator}",
    ),
    cel_rule(
        f"self.operator in ['In', 'NotIn'] || {size_of('values')} == 0",
        ".values",
        f"found {{{size_of('values')}}}, allowed: none with operator {{self.operator}}",
    ),
]
"""Rules of an expression of a label selector."""

# That addresses are ranges, the operator says: `isCIDR` is younger than the oldest Kubernetes.
EGRESS_RULES: Final[list[Rule]] = [
    cel_rule(
        "has(self.cidr) != (has(self.namespaces) || has(self.pods))",
        ".cidr",
        "allowed: exactly one of cidr, and namespaces or pods",
    ),
    cel_rule(
        "has(self.cidr) || !has(self.except) || size(self.except) == 0",
        ".except",
        "found addresses, allowed: none without cidr",
    ),
]
"""Rules of what pods may reach."""

PROFILE_CEL_RULES: Final[dict[str, list[Rule]]] = {
    "spec.pools[]": POOL_RULES,
    "spec.pools[].tolerations[]": [
        cel_rule(
            "has(self.key) || self.operator == 'Exists'",
            ".key",
            "missing, required with operator Equal: the key of a taint",
        ),
        cel_rule(
            "!has(self.value) || self.operator != 'Exists'",
            ".value",
            "found '{self.value}', allowed: null with operator Exists",
        ),
    ],
    "spec.defaults.sampler": SAMPLER_DEFAULT_RULES,
    "spec.allow.namespaces.matchExpressions[]": SELECTOR_RULES,
    "spec.allow.egress[]": EGRESS_RULES,
    "spec.allow.endpoints[]": ENDPOINT_RULES,
    "spec.allow.endpoints[].egress[]": EGRESS_RULES,
}
"""Rules of an RLTrainingProfile by the path of the object they look at."""
