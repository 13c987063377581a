"""`rl_api.trainer_rules` in CEL. See `rl_api.crd_rules`."""

from __future__ import annotations

from typing import Final

from rl_api.crd_places import cel_rule, or_value, size_of
from rl_api.crd_schema import Rule
from rl_api.trainer import OWN_VARIABLES
from rl_api.trainer_rules import MODEL_NEEDED, TASK_NEEDED

# Where an object has a default, its rules look at that first, before its fields have theirs.
_KIND_OF_TRAINER: Final = or_value("kind", "'rltrain'")


def _only_command(field: str, given: str, found: str, none: str) -> Rule:
    """`field` of `spec.trainer` is set with kind command only."""
    return cel_rule(
        f"{_KIND_OF_TRAINER} == 'command' || !({given})",
        f".{field}",
        f"found {found}, allowed: {none} with trainer.kind {{{_KIND_OF_TRAINER}}}, as only command uses it",
    )


TRAINER_SPEC_RULES: Final[list[Rule]] = [
    *(
        cel_rule(
            f"has(self.{name}) || self.trainer.kind == 'command'",
            f".{name}",
            f"missing, required with trainer.kind {{self.trainer.kind}}: {needed}",
        )
        for name, needed in (("model", MODEL_NEEDED), ("task", TASK_NEEDED))
    ),
    cel_rule(
        "!has(self.warmStart) || self.trainer.kind == 'rltrain'",
        ".warmStart",
        "found an object, allowed: null with trainer.kind {self.trainer.kind}, as only rltrain has a warm start",
    ),
    cel_rule(
        "self.trainer.kind == 'rltrain' || self.?task.?secrets.orValue([]).size() == 0",
        ".task.secrets",
        "found a list, allowed: an empty list with trainer.kind {self.trainer.kind}, whose program has spec.secrets "
        "in all pods",
    ),
    cel_rule(
        "self.trainer.kind == 'rltrain' || self.?task.?isolation.orValue('shared') == 'shared'",
        ".task.isolation",
        "found 'strict', allowed: 'shared' with trainer.kind {self.trainer.kind}, whose program runs the task's code "
        "itself, beside the tokens of the run",
    ),
    cel_rule(
        "self.?task.?isolation.orValue('shared') == 'shared' || !self.algorithm.name.contains(':')",
        ".algorithm.name",
        "found '{self.algorithm.name}', allowed with task.isolation strict: a named algorithm, as an objective of your own "
        "runs in the learners, beside the tokens of the run",
    ),
]
"""Rules of a run's spec."""

TRAINER_CEL_RULES: Final[dict[str, list[Rule]]] = {
    "spec.trainer": [
        cel_rule(
            f"{_KIND_OF_TRAINER} != 'command' || {size_of('command')} > 0",
            ".command",
            "missing, required with trainer.kind command: a program and its arguments, such as [python, train.py]",
        ),
        cel_rule(
            f"{_KIND_OF_TRAINER} == 'command' || {size_of('command')} == 0",
            ".command",
            f"found a list, allowed: an empty list with trainer.kind {{{_KIND_OF_TRAINER}}}, which has its own program",
        ),
        cel_rule(
            f"{_KIND_OF_TRAINER} != 'rltrain' || {size_of('env')} == 0",
            ".env",
            "found a list, allowed: an empty list with trainer.kind rltrain, as only command and verl use it",
        ),
        _only_command("config", "has(self.config)", "an object", "null"),
        _only_command("workers", f"{size_of('workers')} > 0", "a list", "an empty list"),
        _only_command("pools", f"{size_of('pools')} > 0", "a list", "an empty list"),
        _only_command("resources", "has(self.resources)", "an object", "null"),
        cel_rule(
            "!has(self.workers) || self.workers.all(one, self.workers.exists_one(other, other == one))",
            ".workers",
            "found a role twice, allowed: each at most once",
        ),
    ],
    "spec.trainer.env[]": [
        cel_rule(
            " && ".join(f"!self.name.startsWith('{prefix}')" for prefix in OWN_VARIABLES),
            ".name",
            f"found '{{self.name}}', allowed: a name that does not begin with {' or '.join(OWN_VARIABLES)}, as rltrain "
            "sets those",
        ),
    ],
}
"""Rules of `spec.trainer` by the path of the object they look at."""
