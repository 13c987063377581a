"""CustomResourceDefinitions, written from the models: `python -m rl_api.crd FOLDER` writes a file for each kind.

Defaults. The API server writes a default into the object, where nobody can tell it from what the user wrote. So
only what a profile has no say in has one in the schema: what is trained (model, task, algorithm, ...) and
`sampler.replicas`, which `kubectl scale` needs; and of the algorithm only what no recipe sets. The other fields are
left as written; the operator fills them from the profile's `defaults`, then from the recipe and from the contract,
and `kubectl explain` says the contract's value.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from rl_api.base import API_VERSION
from rl_api.crd_gang_rules import GANG_CEL_RULES
from rl_api.crd_rules import NAME_RULES, PROFILE_CEL_RULES, RUN_RULES
from rl_api.crd_schema import Rule, Schema, SchemaWriter
from rl_api.crd_service_rules import SERVICE_CEL_RULES
from rl_api.documents import dump_yaml
from rl_api.profile import PROFILE_GROUPS, ProfileSpec
from rl_api.progress import MOST_ATTEMPTS, RunStatus
from rl_api.recipes import RECIPE_GROUPS
from rl_api.run import RunSpec
from rl_api.service import ServiceSpec
from rl_api.service_status import MOST_PROMOTIONS, MOST_REFUSED, ServiceStatus

GROUP, VERSION = API_VERSION.split("/")


def _column(name: str, kind: str, path: str, description: str = "", **more: int) -> dict[str, Any]:
    """A column of `kubectl get`; `priority` 1: with `-o wide` only."""
    words = {"description": description} if description else {}
    return {"name": name, "type": kind, **more, "jsonPath": path, **words}


_COLUMNS: Final = [
    _column("Phase", "string", ".status.phase", "What the run is doing."),
    _column("Step", "integer", ".status.progress.step", "Training steps done."),
    _column("Reward", "number", ".status.progress.reward", "Mean reward of the last step."),
    _column(
        "Tokens/s",
        "number",
        ".status.progress.tokensPerSecond",
        "Completion tokens generated per second.",
    ),
    _column("Ready", "integer", ".status.roles.sampler.ready", "Samplers at work."),
    _column("Samplers", "integer", ".spec.sampler.replicas", "Samplers wanted."),
    _column("Attempt", "integer", ".status.attempts[-1:].number", "Number of the newest attempt."),
    _column("Age", "date", ".metadata.creationTimestamp"),
    _column("Of", "integer", ".spec.stop.maxSteps", "Training steps at most.", priority=1),
    _column(
        "Held-out",
        "number",
        ".status.progress.heldoutScore",
        "Share of exact matches in the last evaluation.",
        priority=1,
    ),
    _column(
        "Checkpoint", "integer", ".status.checkpoint.step", "Step of the newest good checkpoint.", priority=1
    ),
    _column("Placement", "string", ".status.placement.mode", "Who shares devices.", priority=1),
    _column("s/Step", "number", ".status.placement.measuredStepSeconds", "Seconds of a step.", priority=1),
    _column(
        "Predicted",
        "number",
        ".status.placement.predictedStepSeconds",
        "Seconds of a step as they were predicted.",
        priority=1,
    ),
    _column(
        "Wanted", "string", ".status.placement.wanted.mode", "Placement that the driver wants.", priority=1
    ),
    _column("Model", "string", ".spec.model.source", priority=1),
]

_PROFILE_COLUMNS: Final = [
    _column("Default", "boolean", ".spec.default", "Used by runs that name no profile."),
    _column("Pools", "string", ".spec.pools[*].name", "Node pools."),
    _column("Queue", "string", ".spec.queue"),
    _column("Age", "date", ".metadata.creationTimestamp"),
]

_SERVICE_COLUMNS: Final = [
    _column("Phase", "string", ".status.phase", "What the service is doing."),
    _column("Serving", "string", ".status.serving.version", "Version of the policy that serves."),
    _column("Candidate", "string", ".status.candidate.version", "Policy that may come next."),
    _column("State", "string", ".status.candidate.state", "What is done with the candidate."),
    _column("Ready", "integer", ".status.replicas.ready", "Copies that answer."),
    _column("Replicas", "integer", ".status.replicas.desired", "Copies wanted."),
    _column("Age", "date", ".metadata.creationTimestamp"),
    _column("Run", "string", ".spec.from.run", "Run that is followed.", priority=1),
    _column("Endpoint", "string", ".status.endpoints[0]", "Address inside the cluster.", priority=1),
]


# Fields that came later, outside the groups that a profile sets: a default in the schema would stand in every stored run at
# once, and an operator of before, which may lead for a while, knows no such field.
_LATER_WITHOUT_DEFAULT = frozenset({"spec.task.onLongPrompt", "spec.checkpoint.asynchronous"})
_LATER_OF_PROFILES_WITHOUT_DEFAULT = frozenset({"spec.allow.endpoints"})


def _defaulted(path: str) -> bool:
    """Whether the schema of a run gives the field at `path` its default."""
    group = path.removeprefix("spec.").partition(".")[0]
    if path in _LATER_WITHOUT_DEFAULT:
        return False
    if any(path.startswith(f"spec.algorithm.{name}.") for name in RECIPE_GROUPS):
        return False
    return path.startswith("spec.") and (
        group not in PROFILE_GROUPS or path in ("spec.sampler", "spec.sampler.replicas")
    )


def run_schema() -> Schema:
    """Structural schema of an RLTrainingRun."""
    writer = SchemaWriter(_defaulted, RUN_RULES)
    spec = {"description": "What to train and with what.", **writer.write(RunSpec, "spec")}
    spec["x-kubernetes-validations"] = list(RUN_RULES["spec"])
    keys = {"status.conditions": "type", "status.attempts": "number"}
    status = {
        "description": "How the run goes; written by the operator, not by people.",
        **SchemaWriter(keys=keys).write(RunStatus, "status"),
    }
    status["properties"]["attempts"]["maxItems"] = MOST_ATTEMPTS
    words = "One reinforcement-learning run: what to train, and with what."
    return _root(words, {"spec": spec, "status": status}, NAME_RULES)


def profile_schema() -> Schema:
    """Structural schema of an RLTrainingProfile."""
    writer = SchemaWriter(
        # `defaults` is itself a part of a run's spec: a default in there would change every run.
        lambda path: path.startswith("spec.") and path not in _LATER_OF_PROFILES_WITHOUT_DEFAULT,
        PROFILE_CEL_RULES | GANG_CEL_RULES,
        {"spec.pools": "name", "spec.pools[].topology": "name"},
    )
    spec = {"description": "Pools, images, queue, defaults and limits.", **writer.write(ProfileSpec, "spec")}
    spec["x-kubernetes-validations"] = list(GANG_CEL_RULES["spec"])
    words = "What a platform offers to runs: node pools, images, queue, defaults and limits."
    part = SchemaWriter(partial=True)
    groups = {name: part.field(RunSpec, name, f"spec.{name}") for name in PROFILE_GROUPS}
    del groups["sampler"]["properties"]["replicas"]
    groups["sampler"]["x-kubernetes-validations"] = list(PROFILE_CEL_RULES["spec.defaults.sampler"])
    spec["properties"]["defaults"] = {
        "description": "Values of RLTrainingRun.spec for runs that do not set them. What is trained, how many "
        "samplers it has and when it stops is the run's own.",
        "type": "object",
        "properties": groups,
        "default": {},
    }
    return _root(words, {"spec": spec})


def service_schema() -> Schema:
    """Structural schema of an RLPolicyService. The operator fills in what is not said."""
    words = "What to serve and with what."
    spec = {"description": words, **SchemaWriter(rules=SERVICE_CEL_RULES).write(ServiceSpec, "spec")}
    spec["x-kubernetes-validations"] = list(SERVICE_CEL_RULES["spec"])
    status = {
        "description": "How the service goes; written by the operator, not by people.",
        **SchemaWriter(keys={"status.conditions": "type"}).write(ServiceStatus, "status"),
    }
    status["properties"]["promotions"]["maxItems"] = MOST_PROMOTIONS
    status["properties"]["refused"]["maxItems"] = MOST_REFUSED
    return _root(
        "A policy behind OpenAI's interface, and how better ones take its place.",
        {"spec": spec, "status": status},
        NAME_RULES,
    )


def _root(words: str, parts: dict[str, Schema], rules: list[Rule] | None = None) -> Schema:
    meta: Schema = {"type": "object"}
    if rules:
        meta["properties"] = {"name": {"type": "string", "maxLength": 253}}
    root: Schema = {
        "description": words,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Version of the contract: {API_VERSION}.", "type": "string"},
            "kind": {"description": "Kind of the object.", "type": "string"},
            "metadata": meta,
            **parts,
        },
    }
    if rules:
        root["x-kubernetes-validations"] = list(rules)
    return root


def _definition(kind: str, short: list[str], scope: str, version: dict[str, Any]) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "rltrain", "app.kubernetes.io/part-of": "rltrain"},
            # Deleting a definition deletes every object of its kind, so `helm uninstall` leaves it.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short,
                "categories": ["rltrain"],
            },
            "versions": [{"name": VERSION, "served": True, "storage": True, **version}],
        },
    }


def definitions() -> dict[str, dict[str, Any]]:
    """The CustomResourceDefinitions by plural name, as plain data."""
    run = {
        "additionalPrinterColumns": _COLUMNS,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.sampler.replicas",
                "statusReplicasPath": ".status.roles.sampler.ready",
            },
        },
        "schema": {"openAPIV3Schema": run_schema()},
    }
    profile = {
        "additionalPrinterColumns": _PROFILE_COLUMNS,
        "schema": {"openAPIV3Schema": profile_schema()},
    }
    service = {
        "additionalPrinterColumns": _SERVICE_COLUMNS,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": service_schema()},
    }
    return {
        "rltrainingruns": _definition("RLTrainingRun", ["rlrun", "rlruns"], "Namespaced", run),
        "rltrainingprofiles": _definition(
            "RLTrainingProfile", ["rlprofile", "rlprofiles"], "Cluster", profile
        ),
        "rlpolicyservices": _definition("RLPolicyService", ["rlps"], "Namespaced", service),
    }


def render(name: str) -> str:
    """The chart's file for the definition `name`: YAML within the switch that installs it."""
    text = dump_yaml(definitions()[name])
    if "{{" in text:
        raise AssertionError("a description or rule holds '{{', which Helm would take for its own")
    note = "# Written by `make manifests` from the models in api/rl_api. Do not edit.\n"
    return f"{note}{{{{- if .Values.crds.install }}}}\n{text}{{{{- end }}}}\n"


def main(arguments: list[str]) -> None:
    """Write the definitions into a folder (a file for each), or to standard output without one."""
    if not arguments:
        print("---\n".join(dump_yaml(definition) for definition in definitions().values()), end="")
        return
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in definitions():
        (folder / f"{name}.yaml").write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
